"""Chat templates in the forms that models have: where replies end, who is told what, thoughts, and earlier turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.envs.base import StepResult
from assay.envs.chat import ChatConfig, Instructions
from assay.errors import ConfigError
from assay.grpo.datum import trajectory_data
from assay.rollouts.play import play
from assay.rollouts.renderers.chat import ChatRenderer, fold_system
from assay.rollouts.renderers.named import chosen, make_renderer
from assay.rollouts.renderers.thinking import Reply, Thinking
from assay.training.metrics.traces import trace_records
from assay.types import Completion, Message, SamplingParams, Score, TrajectoryGroup
from support.chat_templates import TEMPLATES, chat_tokenizer
from support.scripted import scored, task, tiny_backend

ASK, AGAIN = Message("user", "which one?"), Message("user", "no. say more")
RULES = Message("system", "say one word")


def renderer(family: str, **chat: Any) -> ChatRenderer:
    return ChatRenderer(chat_tokenizer(family), ChatConfig(**chat))


def shown(one: ChatRenderer, tokens: Sequence[int]) -> str:
    return str(one._tokenizer.decode(list(tokens), skip_special_tokens=False))


def written(one: ChatRenderer, *messages: Message, prompt: bool = True) -> str:
    """What the template itself writes."""
    plain = [{"role": m.role, "content": m.content} for m in messages]
    return str(one._tokenizer.apply_chat_template(plain, add_generation_prompt=prompt, tokenize=False, **one._kwargs))


@pytest.mark.parametrize(
    ("family", "end", "system"),
    [
        ("qwen2.5", "<|im_end|>", True),
        ("qwen3", "<|im_end|>", True),
        ("opened", "<|im_end|>", True),
        ("llama3", "<|eot_id|>", True),
        ("gemma", "<end_of_turn>", False),
        ("mistral", "</s>", True),
    ],
)
def test_the_end_of_a_reply_and_the_system_role_are_read_off_the_template(family: str, end: str, system: bool) -> None:
    found = renderer(family)
    assert shown(found, found.stop) == end
    assert found.takes_system is system
    assert chosen(found._tokenizer) == "chat" and isinstance(make_renderer("auto", found._tokenizer), ChatRenderer)
    assert ("no system role" in found.describe(1)) is not system


@pytest.mark.parametrize("family", TEMPLATES)
def test_a_first_prompt_is_what_the_template_writes(family: str) -> None:
    found = renderer(family)
    assert shown(found, found.start([ASK])) == written(found, ASK)
    told = [RULES, ASK] if found.takes_system else [Message("user", f"{RULES.content}\n\n{ASK.content}")]
    assert shown(found, found.start([RULES, ASK])) == written(found, *told)


@pytest.mark.parametrize("family", ["qwen2.5", "llama3", "gemma", "mistral"])
def test_appended_turns_are_what_the_template_writes(family: str) -> None:
    found = renderer(family)
    said = f"{found._lead}this one"
    drawn = [*found._encode(said), *found.stop]
    for stopped, tokens in ((True, drawn), (False, drawn[:-1])):
        whole = [*found.start([ASK]), *tokens, *found.extend([AGAIN], stopped=stopped)]
        assert shown(found, whole) == written(found, ASK, Message("assistant", "this one"), AGAIN)


@pytest.mark.parametrize("family", TEMPLATES)
def test_a_completion_to_imitate_is_a_reply_as_the_template_writes_it(family: str) -> None:
    found = renderer(family)
    text = shown(found, [*found.start([ASK]), *found.completion("this")])
    reply = written(found, ASK, Message("assistant", "this"), prompt=False).rstrip("\n")
    # The template of an opened thought writes no thought at all into a conversation that has ended.
    assert text == (reply.replace("\nthis", "\n<think>\n\n</think>\n\nthis") if family == "opened" else reply)
    assert found.read(found.text(found.completion("this"))).answer.strip() == "this"


def test_messages_of_the_system_are_folded_into_the_users() -> None:
    late = Message("system", "now")
    assert fold_system([RULES, late, ASK]) == [Message("user", "say one word\n\nnow\n\nwhich one?")]
    said = Message("assistant", "x")
    assert fold_system([ASK, said, late])[-1] == Message("user", "now")
    assert fold_system([RULES]) == [Message("user", "say one word")]
    assert fold_system([RULES, Message("assistant", "x")]) == [
        Message("user", "say one word"),
        Message("assistant", "x"),
    ]


# Thinking


@pytest.mark.parametrize(
    ("opened", "text", "reply"),
    [
        (False, "a", Reply("a")),
        (False, "a <think>b</think>", Reply("a <think>b</think>")),
        (False, "<think>\nhm\n</think>\n\na", Reply("a", "hm")),
        (False, "\n<think>hm</think>a", Reply("a", "hm")),
        (False, "<think>hm", Reply("", "hm", complete=False)),
        (True, "hm\n</think>\n\na", Reply("a", "hm")),
        (True, "<think>hm</think>a", Reply("a", "hm")),
        (True, "hm, a", Reply("", "hm, a", complete=False)),
        (True, "hm</think>a</think>b", Reply("a</think>b", "hm")),
        (True, "</think>a", Reply("a", "")),
    ],
)
def test_thought_and_answer_are_parted(opened: bool, text: str, reply: Reply) -> None:
    assert Thinking("<think>", "</think>", opened).read(text) == reply


@settings(max_examples=60, deadline=None)
@given(st.text("ab \n<>/", max_size=12), st.text("ab \n", min_size=1, max_size=12), st.booleans())
def test_no_thought_reaches_an_answer(thought: str, answer: str, opened: bool) -> None:
    rule = Thinking("<think>", "</think>", opened)
    found = rule.read(f"{'' if opened else '<think>'}{thought}</think>{answer}")
    assert (found.thought, found.answer) == (thought.strip("\n"), answer.lstrip("\n"))
    cut = rule.read(f"{'' if opened else '<think>'}{thought}")
    assert cut.answer == "" and not cut.complete


def test_the_rule_follows_the_template_and_the_setting() -> None:
    assert renderer("qwen2.5").thinking is None
    assert renderer("qwen3").thinking == Thinking("<think>", "</think>")
    assert renderer("opened").thinking == Thinking("<think>", "</think>", opened=True)
    assert renderer("opened", thinking="none").thinking is None
    own = renderer("llama3", thinking="[a]...[/a]")
    assert own.read("[a]x[/a]y") == Reply("y", "x")
    with pytest.raises(ConfigError, match="thinking='<think>' must be auto, none, or two tags"):
        ChatConfig(thinking="<think>")


def test_a_template_is_given_its_variables_and_only_those_that_it_reads() -> None:
    quiet = renderer("qwen3", template_kwargs={"enable_thinking": False})
    assert shown(quiet, quiet.start([ASK])).endswith("<think>\n\n</think>\n\n")
    assert not quiet.drops_thinking and not quiet.rewrites
    assert "strftime" not in renderer("llama3", template_kwargs={"date_string": "1 Jan"}).describe(1)
    assert "set chat.template_kwargs.date_string" in renderer("llama3").describe(1)
    with pytest.raises(ConfigError, match="does not read enable_thought, so it would have no effect"):
        renderer("qwen3", template_kwargs={"enable_thought": False})
    with pytest.raises(ConfigError, match="add_generation_prompt is not for templates"):
        renderer("qwen3", template_kwargs={"add_generation_prompt": False})


# Earlier turns


@pytest.mark.parametrize(
    ("family", "alters", "rewrites"),
    [
        ("qwen2.5", "", False),
        ("qwen3", "drop earlier thinking", True),
        ("opened", "drop earlier thinking", True),
        ("llama3", "trim the space around replies", False),
        ("gemma", "trim the space around replies", False),
        ("mistral", "write earlier turns differently", False),
    ],
)
def test_a_template_that_rewrites_history_is_found_and_said(family: str, alters: str, rewrites: bool) -> None:
    found = renderer(family)
    assert (found.alters, found.rewrites) == (alters, rewrites)
    words = found.describe(3)
    assert ("each turn is its own training sequence" in words) is rewrites
    assert ("as they were sampled, where its template would" in words) is (bool(alters) and not rewrites)
    assert "turn 2" not in found.describe(1)
    assert renderer(family, history="append").rewrites is False
    assert renderer(family, history="template").rewrites is True


@dataclass
class Says:
    """A policy that says what it is told to, in tokens of the renderer."""

    one: ChatRenderer
    replies: list[str]
    cut: bool = False

    def room(self, prompt: Sequence[int]) -> int:
        return 10_000 - len(prompt)

    async def complete(self, prompt: Sequence[int], params: SamplingParams, seed: int, *, last: bool) -> Completion:
        tokens = (*self.one._encode(self.replies.pop(0)), *(() if self.cut else self.one.stop))
        return Completion(tokens, (-1.0,) * len(tokens), "length" if self.cut else "stop", 0)


@dataclass
class Heard:
    """An env that keeps what it is told and answers by a rule."""

    texts: list[str]
    answer: Callable[[int], StepResult]

    async def reset(self) -> list[Message]:
        return [RULES, ASK]

    async def step(self, text: str) -> StepResult:
        self.texts.append(text)
        return self.answer(len(self.texts))


def rollout(one: ChatRenderer, replies: list[str], answer: Callable[[int], StepResult], cut: bool = False) -> Any:
    env = Heard([], answer)
    turns = len(replies)
    done = asyncio.run(
        play(env, Says(one, replies, cut), one, SamplingParams(50), task=task("x"), max_turns=turns, seed=(1,))
    )
    return env, done


def goes_on(turn: int) -> StepResult:
    return scored(1.0, done=False, say=AGAIN.content)


@pytest.mark.parametrize("family", ["qwen3", "opened"])
def test_an_env_hears_answers_and_each_turn_is_a_prompt_of_the_template(family: str) -> None:
    one = renderer(family)
    opening = "" if family == "opened" else "<think>\n"
    env, done = rollout(one, [f"{opening}hm\n</think>\n\nthis"] * 2, goes_on)
    assert env.texts == ["this", "this"]
    assert [(t.text, t.thought) for t in done.transitions] == [("this", "hm")] * 2
    second = shown(one, done.transitions[1].prompt_tokens)
    assert second == written(one, RULES, ASK, Message("assistant", "this"), AGAIN) and "hm" not in second
    data = trajectory_data(done, [1.0, 2.0])
    assert len(data) == 2, "each turn is a sequence of its own"
    assert [int(d.mask.sum()) for d in data] == [len(t.completion.tokens) for t in done.transitions]
    records = trace_records(
        [TrajectoryGroup(task("x"), (done,))], run_id="r", step=0, phase="rl", index=0, split="train", decode=one.text
    )
    assert [(r["text"], r["thought"]) for r in records] == [("this", "hm")] * 2
    assert records[1]["observation"] == second


def test_appended_history_keeps_thoughts_and_one_sequence() -> None:
    one = renderer("qwen3", history="append")
    env, done = rollout(one, ["<think>\nhm\n</think>\n\nthis", "that"], goes_on)
    assert env.texts == ["this", "that"]
    assert "hm" in shown(one, done.transitions[1].prompt_tokens)
    assert len(trajectory_data(done, [1.0, 1.0])) == 1


@pytest.mark.parametrize("history", ["append", "template"])
def test_a_thought_that_was_cut_off_is_no_answer_and_does_not_come_back_as_one(history: str) -> None:
    one = renderer("opened", history=history)
    env, done = rollout(one, ["hm, this", "hm\n</think>\n\nthat"], goes_on, cut=True)
    assert env.texts == ["", "that"]
    assert done.transitions[0].thought == "hm, this"
    second = shown(one, done.transitions[1].prompt_tokens)
    assert ("hm, this" in second) is (history == "append")
    assert "<|im_start|>assistant\n" + ("<think>\nhm, this" if history == "append" else "") + "<|im_end|>" in second


@pytest.mark.parametrize("family", ["qwen2.5", "qwen3"])
def test_a_conversation_begun_anew_forgets_the_old_one_also_later(family: str) -> None:
    one = renderer(family)
    anew = Message("user", "say it then")

    def answer(turn: int) -> StepResult:
        if turn == 1:
            return StepResult(Score("scored", 1.0), False, (RULES, anew), replace=True)
        return goes_on(turn)

    _, done = rollout(one, ["one", "so", "this"], answer)
    first, second, third = (shown(one, turn.prompt_tokens) for turn in done.transitions)
    assert first == written(one, RULES, ASK)
    assert second == written(one, RULES, anew)
    assert third == written(one, RULES, anew, Message("assistant", "so"), AGAIN)
    assert len(trajectory_data(done, [1.0] * 3)) == 2, "what is written anew as it was sampled joins its sequence"


# What is refused


def test_what_is_no_renderer_or_no_template_is_named() -> None:
    tokenizer = chat_tokenizer("qwen3")
    tokenizer.chat_template = "{{ messages[0].content.nothing.there }}"
    with pytest.raises(ConfigError, match=r"chat template cannot write a conversation of user: .* has no attribute"):
        ChatRenderer(tokenizer)
    assert chosen(tiny_backend().tokenizer) == "plain"
    with pytest.raises(ConfigError, match="made a Message, which is not a Renderer: it lacks stop, rewrites, start"):
        make_renderer(f"{__name__}:not_a_renderer", tokenizer)


def not_a_renderer(tokenizer: object) -> Message:
    return ASK


def test_who_is_told_what_to_do() -> None:
    assert Instructions("auto", chat=True).messages("own") == (Message("system", "own"),)
    assert Instructions("auto", chat=False).messages("own") == Instructions("none", chat=True).messages("own") == ()
    assert Instructions("say x", chat=True).messages("own") == (Message("system", "say x"),)
    assert Instructions("say x", chat=False).messages("own") == (Message("system", "say x\n\n"),)
