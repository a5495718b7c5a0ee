"""Settings of chat models: how a chat template is filled in, and what a chat model is told besides its task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import chz

from assay.config import Settings, UsedWhen, refuse
from assay.types import Message

AUTO, NONE = "auto", "none"
BETWEEN_TAGS = "..."
"""What stands between the two tags of a `thinking` setting."""
History = Literal["auto", "append", "template"]


@chz.chz
class ChatConfig(Settings):
    """How a chat template is filled in, and how a reply is read (`docs/chat-models.md`)."""

    template_kwargs: Mapping[str, int | float | bool | str] = chz.field(default_factory=dict)
    """Variables given to the chat template, such as `chat.template_kwargs.enable_thinking=false`."""
    thinking: str = AUTO
    """What separates thought from answer in a reply: two tags as `<think>...</think>`; `auto` takes the tags that the
    template mentions; `none` takes the whole reply as the answer."""
    history: Annotated[History, UsedWhen("plays_turns")] = "auto"
    """What the model sees of earlier turns: `append` keeps every token as it was sampled (one training sequence);
    `template` lets the template rewrite the conversation (each turn is its own training sequence); `auto`
    appends, unless the template drops earlier thinking."""

    @chz.validate
    def _possible(self) -> None:
        if self.thinking not in (AUTO, NONE) and not all(tags_of(self.thinking)):
            refuse([f"thinking={self.thinking!r} must be auto, none, or two tags: '<think>{BETWEEN_TAGS}</think>'."])


def tags_of(written: str) -> tuple[str, str]:
    """The two tags of `<think>...</think>`; one is empty where there are not two."""
    opening, _, closing = written.partition(BETWEEN_TAGS)
    return opening.strip(), closing.strip()


@dataclass(frozen=True, slots=True)
class Instructions:
    """Whether and how a model is told what to do."""

    setting: str = AUTO
    """`auto` (chat models are told the environment's own text), `none`, or the text itself."""
    chat: bool = False
    """Whether messages are written by a chat template."""

    def messages(self, own: str) -> tuple[Message, ...]:
        """What stands before the task: a system message, or nothing. `own` is the environment's text."""
        if self.setting == NONE or (self.setting == AUTO and not self.chat):
            return ()
        told = own if self.setting == AUTO else self.setting
        return (Message("system", told if self.chat else f"{told}\n\n"),)
