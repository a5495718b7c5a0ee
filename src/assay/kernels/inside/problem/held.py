"""What a call of a reference leaves in its inputs, and which of its outputs lie in their memory.

Bytes decide, not PyTorch's count of changes: writes through `.data`, through views and past PyTorch count as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from assay.kernels.arrays import Value
from assay.kernels.inside.problem.values import from_arguments, tensors_in, tensors_of_output, to_value

Place = tuple[int, int, int, tuple[int, ...]]
"""Numbers of an output and of the input in whose memory it lies, and its offset and strides there, in elements."""


@dataclass(frozen=True, slots=True)
class Left:
    """What one call left."""

    after: Mapping[int, Value] = field(default_factory=dict)
    """Number of each input that holds other bytes than before -> what it holds."""
    returned: frozenset[int] = frozenset()
    """Those of them whose every element the outputs show, and that share no memory with another input."""
    same: Mapping[Place, torch.Tensor] = field(default_factory=dict)
    """For each output in the memory of an input that fills its memory row by row: booleans in the output's shape, true
    where an element holds what the input was given."""

    def value(self, place: int, inputs: Sequence[Value], dtype: torch.dtype) -> Value:
        """What an input holds, changed or not; `inputs`: the tensors as they were given, `dtype`: of the call."""
        return self.after[place] if place in self.after else to_value(from_arguments([inputs[place]], dtype, "cpu")[0])


class Held:
    """The tensors among the arguments of a call that is about to be made."""

    def __init__(self, arguments: Any) -> None:
        self._given = tensors_in(arguments)
        self._before = [tensor.clone() for tensor in self._given]
        self._starts = [tensor.data_ptr() for tensor in self._given]

    def left(self, output: Any) -> Left:
        """What the call left that returned `output`.

        Raises:
            ValueError: an input has another shape or dtype than before, in which no kernel can leave it.
        """
        changed = [place for place in range(len(self._given)) if self._is_changed(place)]
        storages = {tensor.untyped_storage().data_ptr() for tensor in self._given if tensor.numel()}
        outputs = list(enumerate(tensors_of_output(output)))
        within = [(number, made) for number, made in outputs if made.untyped_storage().data_ptr() in storages]
        after = {place: to_value(self._given[place]) for place in changed}
        if not within:
            return Left(after)
        memory = [tensor.untyped_storage().data_ptr() for tensor in self._given]
        alone = [place for place in changed if memory.count(memory[place]) == 1]
        shown = frozenset(place for place in alone if _is_shown(self._given[place], [made for _, made in within]))
        return Left(after, shown, dict(self._same(within)))

    def _is_changed(self, place: int) -> bool:
        now, before = self._given[place], self._before[place]
        if now.shape != before.shape or now.dtype != before.dtype:
            raise ValueError(
                f"forward gives input {place} another shape or dtype, in which no kernel can leave it: do not reshape "
                "or cast inputs in place"
            )
        return not torch.equal(_bytes(now), _bytes(before))

    def _same(self, within: Sequence[tuple[int, torch.Tensor]]) -> list[tuple[Place, torch.Tensor]]:
        found: list[tuple[Place, torch.Tensor]] = []
        for number, made in within:
            for place, given in enumerate(self._given):
                moved = given.data_ptr() != self._starts[place] or not _is_whole(given)
                inside = made.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()
                if moved or not inside or made.dtype != given.dtype or made.is_neg() or made.is_conj():
                    continue
                alike = (_bytes(given) == _bytes(self._before[place])).all(dim=1)
                offset, stride = int(made.storage_offset()), tuple(made.stride())
                found.append(((number, place, offset, stride), alike.as_strided(made.size(), stride, offset)))
        return found


def same_in_both(one: Left, other: Left) -> dict[Place, torch.Tensor]:
    """Which elements two calls on the same inputs have left as they were given: `Left.same` of both."""
    return {place: same & other.same[place] for place, same in one.same.items() if place in other.same}


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of each element, as rows."""
    dense = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return dense.view(torch.uint8).reshape(dense.numel(), dense.element_size())


def _is_whole(tensor: torch.Tensor) -> bool:
    """Whether a tensor shows every element of its storage, each once and in order."""
    dense = tensor.is_contiguous() and not tensor.storage_offset()
    return dense and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def _is_shown(given: torch.Tensor, outputs: Sequence[torch.Tensor]) -> bool:
    """Whether some outputs together show every byte of an input."""
    storage = given.untyped_storage()
    seen = torch.zeros(storage.nbytes(), dtype=torch.bool)
    for made in outputs:
        if made.untyped_storage().data_ptr() == storage.data_ptr():
            _flags(seen, made).fill_(True)
    return bool(_flags(seen, given).all())


def _flags(seen: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """The flags of the bytes that a tensor shows."""
    size = [1 if not stride else each for each, stride in zip(tensor.size(), tensor.stride(), strict=True)]
    width = tensor.element_size()
    strides = [stride * width for stride in tensor.stride()]
    if not tensor.numel():
        return seen[:0]
    return seen.as_strided((*size, width), (*strides, 1), tensor.storage_offset() * width)
