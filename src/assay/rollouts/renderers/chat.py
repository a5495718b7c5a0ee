"""Chat templates: what a tokenizer's own template writes, learned from sample conversations when a run starts.

Nothing here knows a model by name: where a reply ends, whether there is a system role, how thoughts are marked, and
whether earlier turns are rewritten is found by rendering the template.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Sequence
from typing import Any

from assay.envs.chat import AUTO, NONE, ChatConfig, tags_of
from assay.errors import ConfigError
from assay.rollouts.renderers.base import Renderer, end_of_sequence, without_stop
from assay.rollouts.renderers.thinking import KNOWN_TAGS, Reply, Thinking, is_open
from assay.types import Message

_QUESTION, _SYSTEM = Message("user", "-"), Message("system", "\x00system\x00")
_REPLY, _THOUGHT = "\x00reply\x00", "\x00thought\x00"
"""Stand-ins that no template holds."""


def template_of(tokenizer: Any) -> str:
    """The text of the tokenizer's chat template, empty where it has none."""
    template = getattr(tokenizer, "chat_template", None)
    if not template:
        return ""
    return template if isinstance(template, str) else str(tokenizer.get_chat_template())


class ChatRenderer(Renderer):
    """The tokenizer's chat template; a reply ends on the special token that the template closes it with.

    Raises:
        ConfigError: there is no template, it cannot be rendered, or it does not read a setting of `chat`.
    """

    def __init__(self, tokenizer: Any, chat: ChatConfig | None = None) -> None:
        chat = chat or ChatConfig()
        self.template = template_of(tokenizer)
        if not self.template:
            raise ConfigError(
                "renderer_name=chat (or qwen3) needs a tokenizer with a chat template; use renderer_name=auto, which "
                "writes plain text where there is none."
            )
        self._tokenizer, self._kwargs = tokenizer, dict(chat.template_kwargs)
        _check_variables(tokenizer, self.template, chat)
        self.takes_system = True
        self.takes_system = self._writes_system()
        opened = self._write([_QUESTION])
        closing = self._encode(self._after_reply([_QUESTION]).lstrip())[:1]
        # Some chat models (Gemma, say) close turns with another token than the tokenizer's end of sequence.
        special = closing and closing[0] in tokenizer.all_special_ids
        self._end = closing[0] if special else end_of_sequence(tokenizer)
        self.stop: tuple[int, ...] = (self._end,)
        self.thinking = _thinking(chat.thinking, self.template, opened)
        self._lead = self._before_reply(opened)
        self.drops_thinking = self._drops_thinking(opened)
        self.alters = "drop earlier thinking" if self.drops_thinking else self._alters()
        """What the template does to earlier turns, in words; empty where it keeps them as they were sampled."""
        self.rewrites = chat.history == "template" or (chat.history == AUTO and self.drops_thinking)

    def start(self, messages: Sequence[Message]) -> list[int]:
        """See `Renderer`."""
        return self._encode(self._write(messages))

    def extend(self, messages: Sequence[Message], *, stopped: bool) -> list[int]:
        """See `Renderer`."""
        tail = self._after_reply(messages)
        end = self._tokenizer.convert_ids_to_tokens(self._end)
        if stopped and tail.lstrip().startswith(end):
            tail = tail.lstrip().removeprefix(end)
        return self._encode(tail)

    def completion(self, text: str) -> list[int]:
        """See `Renderer`. A thought that the prompt has opened is closed, empty, before the text."""
        return [*self._encode(self._lead + text), self._end]

    def text(self, tokens: Sequence[int]) -> str:
        """See `Renderer`."""
        return without_stop(self._tokenizer, tokens, self.stop)

    def read(self, text: str) -> Reply:
        """See `Renderer`."""
        return Reply(text) if self.thinking is None else self.thinking.read(text)

    def said(self, text: str) -> Message:
        """See `Renderer`. A thought that was cut off is left out: without a closing tag it would be an answer."""
        reply, rule = self.read(text), self.thinking
        if rule is None or reply.thought is None:
            return Message("assistant", reply.answer)
        if not reply.complete:
            return Message("assistant", "")
        return Message("assistant", f"{rule.opening}\n{reply.thought}\n{rule.closing}\n\n{reply.answer}")

    def record(self) -> dict[str, str]:
        """See `Renderer`."""
        return {"name": "chat", "template": hashlib.sha256(self.template.encode()).hexdigest()[:16]}

    def describe(self, max_turns: int) -> str:
        """See `Renderer`."""
        end = self._tokenizer.convert_ids_to_tokens(self._end)
        words = [f"chat, by the tokenizer's template (sha256 {self.record()['template']}); a reply ends on {end}"]
        if not self.takes_system:
            words.append(
                "the template has no system role, so system messages are put at the start of the first user message"
            )
        if (rule := self.thinking) is not None:
            begins = "the prompt opens the thought" if rule.opened else f"a thought begins with {rule.opening}"
            words.append(
                f"{begins} and ends with {rule.closing}: what follows is the answer; a thought cut off at max_tokens "
                "has no answer"
            )
        if max_turns > 1:
            words.append(self._history_in_words())
        if "strftime_now" in self.template and "date_string" not in self._kwargs:
            fix = "set chat.template_kwargs.date_string" if "date_string" in self.template else "mind that"
            words.append(f"the template writes the date, so prompts change from day to day ({fix})")
        return "; ".join(words) + "."

    def _history_in_words(self) -> str:
        if self.rewrites:
            why = " (to drop earlier thinking)" if self.drops_thinking else ""
            return (
                f"from turn 2 on the template rewrites the conversation{why}, so each turn is its own training "
                "sequence and costs its whole prompt; chat.history=append keeps one sequence"
            )
        if self.alters:
            return (
                "from turn 2 on the model sees its turns as they were sampled, where its template would "
                f"{self.alters}; chat.history=template follows the template, with a training sequence for each turn"
            )
        return "later turns are appended, as the template has them"

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)  # type: ignore[no-any-return]

    def _write(self, messages: Sequence[Message], *, prompt: bool = True) -> str:
        """The text of a conversation, up to where the model answers with `prompt`.

        Raises:
            ConfigError: the template refuses it.
        """
        from jinja2 import TemplateError

        folded = messages if self.takes_system else fold_system(messages)
        plain = [{"role": m.role, "content": m.content} for m in folded]
        try:
            written: str = self._tokenizer.apply_chat_template(
                plain, add_generation_prompt=prompt, tokenize=False, **self._kwargs
            )
        except (TemplateError, TypeError, ValueError) as error:
            roles = ", ".join(m.role for m in folded)
            raise ConfigError(
                f"The tokenizer's chat template cannot write a conversation of {roles}: {error}. Use "
                "renderer_name=plain, or a renderer of your own."
            ) from error
        return written

    def _writes_system(self) -> bool:
        """Whether the template has a system role; a template without one raises, or leaves system messages out."""
        try:
            return _SYSTEM.content in self._write([_SYSTEM, _QUESTION])
        except ConfigError:
            return False

    def _after_reply(self, messages: Sequence[Message]) -> str:
        """What the template writes between a reply and the next one, read off a stand-in conversation."""
        stand_in = [_QUESTION, Message("assistant", _REPLY), *messages]
        return self._write(stand_in).rpartition(_REPLY)[2]

    def _before_reply(self, first: str) -> str:
        """What the template writes between a prompt and a reply without thought: a space, or an empty thought."""
        written = self._write([_QUESTION, Message("assistant", _REPLY)], prompt=False)
        before, found, _ = written.rpartition(_REPLY)
        if found and before.startswith(first):
            return before.removeprefix(first)
        return f"\n{self.thinking.closing}\n\n" if self.thinking is not None and self.thinking.opened else ""

    def _drops_thinking(self, first: str) -> bool:
        """Whether the template leaves out what was thought in an earlier turn. A prompt that closes the thought has
        replies without one, so that there is nothing to drop."""
        rule = self.thinking
        if rule is None or first.rstrip().endswith(rule.closing):
            return False
        thought = Message("assistant", f"{rule.opening}\n{_THOUGHT}\n{rule.closing}\n\n{_REPLY}")
        return _THOUGHT not in self._write([_QUESTION, thought, _QUESTION])

    def _alters(self) -> str:
        """What the template does to earlier turns other than dropping thoughts; empty for nothing."""
        head = [_SYSTEM, _QUESTION] if self.takes_system else [_QUESTION]
        first, rule = self._write(head), self.thinking
        opened = rule is not None and rule.opened

        def kept(reply: str) -> bool:
            sampled = first + reply if opened else first + self._lead + reply
            told = f"{rule.opening}{reply}" if rule is not None and opened else reply
            return self._write([*head, Message("assistant", told), _QUESTION]).startswith(sampled)

        inside = f"\n{_THOUGHT}\n{rule.closing}\n\n" if rule is not None and opened else ""
        if not kept(inside.lstrip() + _REPLY) and not kept(inside + _REPLY):
            return "write earlier turns differently"
        return "" if opened or kept(f" {_REPLY}\n") else "trim the space around replies"


def fold_system(messages: Sequence[Message]) -> list[Message]:
    """The conversation without system messages: those at its start are put before the first user's text, later ones
    become user messages."""
    head = 0
    while head < len(messages) and messages[head].role == "system":
        head += 1
    told = "\n\n".join(m.content for m in messages[:head])
    rest = [Message("user", m.content) if m.role == "system" else m for m in messages[head:]]
    if not told:
        return rest
    if rest and rest[0].role == "user":
        return [Message("user", f"{told}\n\n{rest[0].content}"), *rest[1:]]
    return [Message("user", told), *rest]


def _thinking(setting: str, template: str, first: str) -> Thinking | None:
    """The rule that separates thought from answer; None if replies are taken whole."""
    if setting == NONE:
        return None
    known = [tags for tags in KNOWN_TAGS if tags[1] in template] if setting == AUTO else [tags_of(setting)]
    if not known:
        return None
    return Thinking(*known[0], opened=is_open(first, *known[0]))


def _check_variables(tokenizer: Any, template: str, chat: ChatConfig) -> None:
    """Refuse variables that the template would not see or does not read."""
    taken = inspect.signature(tokenizer.apply_chat_template).parameters
    for name in chat.template_kwargs:
        if name in taken and taken[name].kind is not inspect.Parameter.VAR_KEYWORD:
            raise ConfigError(
                f"chat.template_kwargs.{name} is not for templates: it is an argument of the call that renders them."
            )
        if not re.search(rf"\b{re.escape(name)}\b", template):
            raise ConfigError(
                f"chat.template_kwargs.{name} is set, and the tokenizer's chat template does not read {name}, so it "
                "would have no effect. Remove it, or check its spelling in the model's tokenizer files."
            )
