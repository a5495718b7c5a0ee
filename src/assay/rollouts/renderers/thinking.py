"""A reply's thought and its answer, told apart by the tags that a thinking model writes. Pure."""

from __future__ import annotations

from dataclasses import dataclass

KNOWN_TAGS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))
"""Tags that `thinking=auto` looks for in a chat template: those of Qwen3 and DeepSeek-R1, and Mistral's."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model said."""

    answer: str
    """What an environment judges; empty where the thought did not end."""
    thought: str | None = None
    """What was thought before the answer; None where nothing was."""
    complete: bool = True
    """Whether the thought came to its end."""

    @property
    def whole(self) -> str:
        """Thought and answer as one text: whatever tags the model writes, and whether or not its prompt had opened the
        thought, it stands between `<think>` and `</think>`, of which the second is missing where it did not end."""
        if self.thought is None:
            return self.answer
        opening, closing = KNOWN_TAGS[0]
        begun = f"{opening}\n{self.thought}\n"
        return f"{begun}{closing}\n{self.answer}" if self.complete else begun


@dataclass(frozen=True, slots=True)
class Thinking:
    """How thoughts are marked. With `opened`, the prompt has opened the thought already, so replies begin inside it."""

    opening: str
    closing: str
    opened: bool = False

    def read(self, text: str) -> Reply:
        """Split a reply: a thought can only be at its beginning, and ends at the first closing tag.

        A reply whose thought is not closed has no answer.
        """
        inside, begins = text, text.lstrip().startswith(self.opening)
        if begins:
            inside = text.lstrip().removeprefix(self.opening)
        elif not self.opened:
            return Reply(text)
        thought, closed, answer = inside.partition(self.closing)
        return Reply(answer.lstrip("\n") if closed else "", thought.strip("\n"), bool(closed))


def is_open(prompt: str, opening: str, closing: str) -> bool:
    """Whether a prompt ends inside a thought that it has opened."""
    return prompt.rstrip().endswith(opening) and prompt.rfind(opening) > prompt.rfind(closing)
