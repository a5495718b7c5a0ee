"""Whether calls of forward did the same, storages told apart by what they are for."""

from __future__ import annotations

from collections.abc import Sequence

from assay.types import Json

Call = tuple[Sequence[Json], Sequence[Json], Sequence[Json]]
"""Windows of the inputs, steps, windows of the outputs."""


def difference(calls: Sequence[Call], fixed: set[int], kernels: Sequence[str]) -> str:
    """What a later call did otherwise than the first; empty where all launched the same kernels in the same way.

    Args:
        calls: At least one.
        fixed: Storages that all share and that count as themselves: weights.
        kernels: Names of the kernels.
    """
    first, *others = calls
    said = (_difference(first, other, place, fixed, kernels) for place, other in enumerate(others, 2))
    return next((text for text in said if text), "")


def _difference(first: Call, second: Call, number: int, fixed: set[int], kernels: Sequence[str]) -> str:
    one, two = (_launches(call, fixed) for call in (first, second))
    if len(one) != len(two):
        return f"the first call of forward makes {len(one)} launches, call {number} makes {len(two)}"
    for place, ((left, line), (right, _)) in enumerate(zip(one, two, strict=True)):
        if left != right:
            name = kernels[left[0]]
            return (
                f"launch {place + 1} ({name}, line {line}) differs between the first call of forward and call {number}"
            )
    if _Places(first[0], fixed).named(first[2]) != _Places(second[0], fixed).named(second[2]):
        return f"the first call of forward and call {number} return different tensors of theirs"
    return ""


class _Places:
    """Storages by role: an input by its number, a weight by itself, anything else alike."""

    def __init__(self, inputs: Sequence[Json], fixed: set[int]) -> None:
        self._roles = {window[0]: f"input {place}" for place, window in enumerate(inputs)}
        self._fixed = fixed

    def named(self, value: Json) -> Json:
        """A value with the numbers of storages replaced by roles."""
        if isinstance(value, dict):
            return {
                key: self._window(part) if key == "window" else self.named(part) if key != "line" else 0
                for key, part in value.items()
            }
        if isinstance(value, list):
            is_window = len(value) == 5 and isinstance(value[1], str) and isinstance(value[2], list)
            return self._window(value) if is_window else [self.named(part) for part in value]
        return value

    def _window(self, window: Json) -> Json:
        storage, *rest = window
        role = self._roles.get(storage) or (f"weight {storage}" if storage in self._fixed else "own")
        return [role, *rest]


def _launches(call: Call, fixed: set[int]) -> list[tuple[list[Json], int]]:
    places = _Places(call[0], fixed)
    return [([step["launch"], places.named(step["variants"])], step["line"]) for step in call[1] if "launch" in step]
