"""Messages to tokens and back. Sampled text is never re-tokenised: a later turn is appended to the tokens that exist,
or is a prompt of its own.

`plain` joins the contents of the messages and ends on the tokenizer's end-of-sequence token; it suits models trained on
a fixed text grammar. `role_colon` (`renderers.role_colon`) names who speaks, for base models. `chat`
(`renderers.chat`) uses the tokenizer's own chat template.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from assay.backends.base import Tokenizer
from assay.errors import ConfigError
from assay.rollouts.renderers.thinking import Reply
from assay.types import Message


class Renderer(Protocol):
    """How one model family writes a conversation. Inherit from it: methods with a body here have defaults."""

    stop: tuple[int, ...]
    """Token ids that end a completion."""
    rewrites: bool = False
    """Whether a later prompt is the whole conversation rewritten (`start`), instead of the earlier tokens followed by
    those of `extend`."""

    def start(self, messages: Sequence[Message]) -> list[int]:
        """Tokens of a prompt: a conversation that the policy answers."""
        ...

    def extend(self, messages: Sequence[Message], *, stopped: bool) -> list[int]:
        """Tokens between a completion and the next one; `stopped` says whether the completion drew its stop token."""
        ...

    def completion(self, text: str) -> list[int]:
        """Tokens of a completion to imitate, stop token included."""
        ...

    def text(self, tokens: Sequence[int]) -> str:
        """Whole text of a sampled completion, without its stop token."""
        ...

    def read(self, text: str) -> Reply:
        """A completion's text as thought and answer. Environments judge the answer."""
        return Reply(text)

    def said(self, text: str) -> Message:
        """The message that represents a completion when the conversation is rewritten."""
        return Message("assistant", text)

    def record(self) -> dict[str, str]:
        """What a checkpoint keeps of the renderer: a run goes on only under one with the same record."""
        return {"name": type(self).__name__}

    def describe(self, max_turns: int) -> str:
        """How conversations of up to this many turns are written, for the plan."""
        return f"{type(self).__name__}."


class PlainRenderer(Renderer):
    """Contents joined as they are, behind the token that the tokenizer begins every text with, where it does so."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._begin = beginning_of_sequence(tokenizer)
        self._eos = end_of_sequence(tokenizer)
        self.stop: tuple[int, ...] = (self._eos,)

    def start(self, messages: Sequence[Message]) -> list[int]:
        """See `Renderer`."""
        tokens = self._encode(messages)
        return tokens if tokens[:1] == self._begin else [*self._begin, *tokens]

    def extend(self, messages: Sequence[Message], *, stopped: bool) -> list[int]:
        """See `Renderer`."""
        return [*([] if stopped else [self._eos]), *self._encode(messages)]

    def completion(self, text: str) -> list[int]:
        """See `Renderer`."""
        return [*self._tokenizer.encode(text, add_special_tokens=False), self._eos]

    def text(self, tokens: Sequence[int]) -> str:
        """See `Renderer`."""
        return without_stop(self._tokenizer, tokens, self.stop)

    def record(self) -> dict[str, str]:
        """See `Renderer`."""
        return {"name": "plain", **({"begin": str(self._begin[0])} if self._begin else {})}

    def describe(self, max_turns: int) -> str:
        """See `Renderer`."""
        begin = f" after {self._tokenizer.decode(self._begin, skip_special_tokens=False)}" if self._begin else ""
        return f"plain (the text of the messages as it is{begin}, without a chat template)."

    def _encode(self, messages: Sequence[Message]) -> list[int]:
        return self._tokenizer.encode("".join(m.content for m in messages), add_special_tokens=False)


def beginning_of_sequence(tokenizer: Tokenizer) -> list[int]:
    """The token that a tokenizer puts before every text (Llama's and Gemma's do), without which their base models saw
    none in training; empty where it puts none."""
    begin = getattr(tokenizer, "bos_token_id", None)
    return [begin] if begin is not None and tokenizer.encode("", add_special_tokens=True)[:1] == [begin] else []


def end_of_sequence(tokenizer: Tokenizer) -> int:
    """The token that ends a text.

    Raises:
        ConfigError: the tokenizer has no such token.
    """
    if tokenizer.eos_token_id is None:
        raise ConfigError("The tokenizer has no end-of-sequence token, so completions could not end.")
    return tokenizer.eos_token_id


def without_stop(tokenizer: Tokenizer, tokens: Sequence[int], stop: tuple[int, ...]) -> str:
    """Text of a completion, special tokens included, without the stop token at its end."""
    body = tokens[:-1] if tokens and tokens[-1] in stop else tokens
    return tokenizer.decode(list(body), skip_special_tokens=False)
