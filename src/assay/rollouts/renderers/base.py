"""Messages to tokens and back. Sampled text is never re-tokenised: a later turn is appended to the tokens that exist.

`plain` joins the contents of the messages and ends on the tokenizer's end-of-sequence token; it suits models trained on
a fixed text grammar. `chat` uses the tokenizer's own chat template.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from assay.backends.base import Tokenizer
from assay.envs.base import RENDERER
from assay.errors import ConfigError
from assay.plugins import calling, find
from assay.types import Message


class Renderer(Protocol):
    """How one model family writes a conversation."""

    stop: tuple[int, ...]
    """Token ids that end a completion."""

    def start(self, messages: Sequence[Message]) -> list[int]:
        """Tokens of the first prompt."""
        ...

    def extend(self, messages: Sequence[Message], *, stopped: bool) -> list[int]:
        """Tokens between a completion and the next one; `stopped` says whether the completion drew its stop token."""
        ...

    def completion(self, text: str) -> list[int]:
        """Tokens of a completion to imitate, stop token included."""
        ...

    def text(self, tokens: Sequence[int]) -> str:
        """Text of a sampled completion, without its stop token."""
        ...


class PlainRenderer:
    """Contents joined as they are."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._eos = _eos(tokenizer)
        self.stop: tuple[int, ...] = (self._eos,)

    def start(self, messages: Sequence[Message]) -> list[int]:
        """See `Renderer`."""
        return self._tokenizer.encode("".join(m.content for m in messages), add_special_tokens=False)

    def extend(self, messages: Sequence[Message], *, stopped: bool) -> list[int]:
        """See `Renderer`."""
        return [*([] if stopped else [self._eos]), *self.start(messages)]

    def completion(self, text: str) -> list[int]:
        """See `Renderer`."""
        return [*self._tokenizer.encode(text, add_special_tokens=False), self._eos]

    def text(self, tokens: Sequence[int]) -> str:
        """See `Renderer`."""
        return _without_stop(self._tokenizer, tokens, self.stop)


class ChatRenderer:
    """The tokenizer's chat template; a reply ends on the special token that the template closes it with."""

    def __init__(self, tokenizer: Any) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError("renderer_name=chat needs a tokenizer with a chat template; use renderer_name=plain.")
        self._tokenizer = tokenizer
        closing = self._encode(self._after_reply([Message("user", "-")]).lstrip())[:1]
        # Some chat models (Gemma, say) close turns with another token than the tokenizer's end of sequence.
        self._end = closing[0] if closing and closing[0] in tokenizer.all_special_ids else _eos(tokenizer)
        self.stop: tuple[int, ...] = (self._end,)

    def start(self, messages: Sequence[Message]) -> list[int]:
        """See `Renderer`."""
        return self._encode(self._template(messages))

    def extend(self, messages: Sequence[Message], *, stopped: bool) -> list[int]:
        """See `Renderer`."""
        tail = self._after_reply(messages)
        end = self._tokenizer.convert_ids_to_tokens(self._end)
        if stopped and tail.lstrip().startswith(end):
            tail = tail.lstrip().removeprefix(end)
        return self._encode(tail)

    def completion(self, text: str) -> list[int]:
        """See `Renderer`."""
        return [*self._encode(text), self._end]

    def text(self, tokens: Sequence[int]) -> str:
        """See `Renderer`."""
        return _without_stop(self._tokenizer, tokens, self.stop)

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)  # type: ignore[no-any-return]

    def _after_reply(self, messages: Sequence[Message]) -> str:
        """What the template writes between a reply and the next one, read off a stand-in conversation."""
        reply = "\x00reply\x00"
        stand_in = [Message("user", "-"), Message("assistant", reply), *messages]
        return self._template(stand_in).rpartition(reply)[2]

    def _template(self, messages: Sequence[Message]) -> str:
        plain = [{"role": m.role, "content": m.content} for m in messages]
        return self._tokenizer.apply_chat_template(  # type: ignore[no-any-return]
            plain, add_generation_prompt=True, tokenize=False
        )


def make_renderer(name: str, tokenizer: Tokenizer) -> Renderer:
    """The renderer that `renderer_name` names, over a tokenizer.

    Raises:
        ConfigError: there is no such renderer, it is none, or the tokenizer cannot serve it.
    """
    make = find(name, RENDERER, "renderer_name")
    with calling(f"renderer_name={name}"):
        made: Renderer = make(tokenizer)
    lacking = [part for part in ("stop", "start", "extend", "completion", "text") if not hasattr(made, part)]
    if lacking:
        raise ConfigError(
            f"renderer_name={name} made a {type(made).__name__}, which is not a Renderer: it lacks "
            f"{', '.join(lacking)}. See assay.rollouts.Renderer."
        )
    return made


def _eos(tokenizer: Tokenizer) -> int:
    if tokenizer.eos_token_id is None:
        raise ConfigError("The tokenizer has no end-of-sequence token, so completions could not end.")
    return tokenizer.eos_token_id


def _without_stop(tokenizer: Tokenizer, tokens: Sequence[int], stop: tuple[int, ...]) -> str:
    body = tokens[:-1] if tokens and tokens[-1] in stop else tokens
    return tokenizer.decode(list(body), skip_special_tokens=False)
