"""What a run says of chat: how a chat template is filled in, and what a chat model is told beside its task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import chz

from assay.config import Settings, refuse

AUTO, NONE = "auto", "none"
BETWEEN_TAGS = "..."
"""What stands between the two tags of a `thinking` setting."""
History = Literal["auto", "append", "template"]


@chz.chz
class ChatConfig(Settings):
    """How a chat template is filled in, and what a reply is taken for (`docs/chat-models.md`)."""

    template_kwargs: Mapping[str, int | float | bool | str] = chz.field(default_factory=dict)
    """Variables given to the chat template, such as `chat.template_kwargs.enable_thinking=false`."""
    thinking: str = AUTO
    """What parts thought from answer in a reply: two tags as `<think>...</think>`; `auto` takes those that the template
    speaks of; `none` takes the whole reply for the answer."""
    history: History = "auto"
    """What the model sees of earlier turns: `append` keeps every token as it was sampled (one training sequence);
    `template` has the template write the conversation anew (each turn is a training sequence of its own); `auto`
    appends, unless the template drops earlier thinking."""

    @chz.validate
    def _possible(self) -> None:
        if self.thinking not in (AUTO, NONE) and not all(tags_of(self.thinking)):
            refuse([f"thinking={self.thinking!r} must be auto, none, or two tags: '<think>{BETWEEN_TAGS}</think>'."])


def tags_of(written: str) -> tuple[str, str]:
    """The two tags of `<think>...</think>`; one is empty where there are not two."""
    opening, _, closing = written.partition(BETWEEN_TAGS)
    return opening.strip(), closing.strip()


def instructions_for(setting: str, own: str, chat: bool) -> str:
    """What a model is told about the form of an answer; empty where it is told nothing.

    Args:
        setting: `auto` (chat models are told `own`), `none`, or the text itself.
        own: the environment's own text.
        chat: whether messages are written by a chat template.
    """
    if setting == NONE:
        return ""
    if setting == AUTO:
        return own if chat else ""
    return setting
