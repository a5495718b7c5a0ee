from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from assay.backends.local.models import train_tokenizer
from assay.envs.base import TokenizerCorpus
from assay.errors import ConfigError
from assay.rollouts.renderers.base import PlainRenderer
from assay.rollouts.renderers.chat import ChatRenderer
from assay.rollouts.renderers.named import make_renderer
from assay.types import Message
from support.scripted import CORPUS, tiny_backend

QWEN_TEMPLATE = """\
{%- if messages[0].role != 'system' %}{{- '<|im_start|>system\\nbe brief<|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

THINKING_TEMPLATE = """\
{%- for message in messages %}
{%- set content = message.content %}
{%- if message.role == 'assistant' %}{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}
{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}"""

CHAT = TokenizerCorpus(
    ["be brief system user assistant no try again"] * 3, "[a-z]+", "abcdefghijklmnopqrstuvwxyz \n.-?/_<>|\x00"
)
QUESTION = Message("user", "which one?")
RETRY = Message("user", "no. try again")


def chat_tokenizer(template: str) -> Any:
    """A real tokenizer with the special tokens of Qwen's chat format."""
    tokenizer = train_tokenizer(CHAT, 120)
    tokenizer.add_special_tokens({"eos_token": "<|im_end|>", "additional_special_tokens": ["<|im_start|>"]})
    tokenizer.chat_template = template
    return tokenizer


def test_a_text_begins_as_the_base_model_knows_it_once() -> None:
    tokenizer = train_tokenizer(CHAT, 120)
    without = PlainRenderer(tokenizer)
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    begin = tokenizer.bos_token_id
    unused = PlainRenderer(tokenizer)  # it has such a token, and does not write it
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", begin)])
    assert tokenizer.encode("no")[0] == begin
    with_it = PlainRenderer(tokenizer)
    text = without.start([QUESTION])
    assert unused.start([QUESTION]) == text and with_it.start([QUESTION]) == [begin, *text]
    assert with_it.start([Message("user", f"<s>{QUESTION.content}")]) == [begin, *text]
    assert with_it.extend([RETRY], stopped=True) == without.extend([RETRY], stopped=True)
    assert with_it.completion("no") == without.completion("no")
    assert (without.record(), unused.record()) == ({"name": "plain"},) * 2 != (with_it.record(),) * 2
    assert "as it is after <s>, without" in with_it.describe(1) and "after" not in unused.describe(1)


@pytest.fixture(scope="module")
def plain() -> PlainRenderer:
    return PlainRenderer(train_tokenizer(CORPUS, 40))


TEXTS = st.text("abc123 ", max_size=12)


@settings(max_examples=50, deadline=None)
@given(TEXTS, TEXTS)
def test_plain_text_is_joined_and_comes_back(plain: PlainRenderer, first: str, second: str) -> None:
    messages = [Message("user", first), Message("user", second)]
    assert plain.text(plain.start(messages)) == first + second
    completion = plain.completion(first)
    assert completion[-1] in plain.stop and completion.count(completion[-1]) == 1
    assert plain.text(completion) == first


def test_only_one_stop_token_at_the_end_is_taken_off(plain: PlainRenderer) -> None:
    (eos,) = plain.stop
    a = plain.start([Message("user", "a")])
    assert plain.text([*a, eos]) == "a"
    assert plain.text(a) == "a"
    assert plain.text([]) == ""
    assert plain.text([*a, eos, *a]).startswith("a") and plain.text([*a, eos, *a]) != "aa"


def test_a_completion_that_was_cut_off_is_closed_before_the_next_message(plain: PlainRenderer) -> None:
    (eos,) = plain.stop
    told = [Message("user", "321")]
    assert plain.extend(told, stopped=True) == plain.start(told)
    assert plain.extend(told, stopped=False) == [eos, *plain.start(told)]


@pytest.mark.parametrize("template", [QWEN_TEMPLATE, THINKING_TEMPLATE])
@pytest.mark.parametrize("stopped", [True, False])
def test_chat_turns_are_appended_as_the_template_writes_them(template: str, stopped: bool) -> None:
    tokenizer = chat_tokenizer(template)
    renderer = ChatRenderer(tokenizer)
    prompt = renderer.start([QUESTION])
    answer = tokenizer.encode("the first", add_special_tokens=False)
    drawn = [*answer, tokenizer.eos_token_id] if stopped else answer
    tokens = [*prompt, *drawn, *renderer.extend([RETRY], stopped=stopped)]
    conversation = [QUESTION, Message("assistant", "the first"), RETRY]
    plain = [{"role": m.role, "content": m.content} for m in conversation]
    whole = tokenizer.apply_chat_template(plain, add_generation_prompt=True, tokenize=False)
    # The opened thought of the first turn stays where the policy saw it; a template leaves it out of history.
    expected = whole.replace("assistant\nthe first", "assistant\n<think>\nthe first") if "think" in template else whole
    assert tokenizer.decode(tokens, skip_special_tokens=False) == expected
    assert tokens.count(tokenizer.eos_token_id) == expected.count("<|im_end|>")


def test_thinking_that_a_template_strips_from_history_stays_in_the_tokens() -> None:
    tokenizer = chat_tokenizer(THINKING_TEMPLATE)
    renderer = ChatRenderer(tokenizer)
    prompt = renderer.start([QUESTION])
    thought = tokenizer.encode("or this?</think>\nthat", add_special_tokens=False)
    following = [*prompt, *thought, tokenizer.eos_token_id, *renderer.extend([RETRY], stopped=True)]
    assert following[: len(prompt) + len(thought)] == [*prompt, *thought]
    text = tokenizer.decode(following, skip_special_tokens=False)
    assert "<think>\nor this?</think>\nthat<|im_end|>\n<|im_start|>user\nno. try again<|im_end|>" in text
    assert text.endswith("<|im_start|>assistant\n<think>\n")
    stripped = tokenizer.apply_chat_template(
        [{"role": "user", "content": "x"}, {"role": "assistant", "content": "or this?</think>\nthat"}], tokenize=False
    )
    assert "or this" not in stripped, "the template of this test must strip"


def test_chat_completions_end_on_the_stop_token_and_are_read_without_it() -> None:
    tokenizer = chat_tokenizer(QWEN_TEMPLATE)
    renderer = ChatRenderer(tokenizer)
    assert renderer.stop == (tokenizer.convert_tokens_to_ids("<|im_end|>"),)
    completion = renderer.completion("try this")
    assert tokenizer.decode(completion) == "try this<|im_end|>"
    assert renderer.text(completion) == "try this"


def test_a_template_that_closes_turns_with_another_token_than_the_tokenizers_decides_where_replies_end() -> None:
    tokenizer = chat_tokenizer(QWEN_TEMPLATE.replace("<|im_end|>", "<|end_of_turn|>"))
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|end_of_turn|>"]})
    renderer = ChatRenderer(tokenizer)
    assert tokenizer.convert_ids_to_tokens(list(renderer.stop)) == ["<|end_of_turn|>"]
    reply = renderer.completion("ok")
    following = tokenizer.decode([*reply, *renderer.extend([RETRY], stopped=True)], skip_special_tokens=False)
    assert following.startswith("ok<|end_of_turn|>\n<|im_start|>user\nno. try again<|end_of_turn|>\n")


def test_renderers_are_made_by_name_and_refuse_what_they_cannot_serve() -> None:
    tokenizer = tiny_backend().tokenizer
    assert isinstance(make_renderer("plain", tokenizer), PlainRenderer)
    assert isinstance(make_renderer("chat", chat_tokenizer(QWEN_TEMPLATE)), ChatRenderer)
    with pytest.raises(ConfigError, match="needs a tokenizer with a chat template; use renderer_name=auto"):
        make_renderer("chat", tokenizer)
    with pytest.raises(ConfigError, match="renderer_name=qwen: looked for a renderer of this name among auto, plain"):
        make_renderer("qwen", tokenizer)
    endless = PreTrainedTokenizerFast(tokenizer_object=tokenizer._tokenizer)
    with pytest.raises(ConfigError, match="no end-of-sequence token"):
        make_renderer("plain", endless)
