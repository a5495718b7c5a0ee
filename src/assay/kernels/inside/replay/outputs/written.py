"""Which elements of an output need a kernel, and whether one wrote them.

Two kinds of elements need none. One is a fill with one number around what kernels wrote. The other is an element of an
input that the reference returns unchanged in its place, like the rest of a cache into which it writes some rows: a
submission may return it from the same address with the same bytes, and a copy of it elsewhere needs a kernel. Such an
input has to fill its memory row by row: one that is a part of a larger tensor does not count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from assay.kernels.inside.replay.memory import Memory
from assay.kernels.program.form import DTYPES, Program, Window, dense_strides


@dataclass(frozen=True, slots=True)
class Own:
    """How the reference makes an output in the memory of an input (`assay.kernels.numerics.held_inputs.Own`)."""

    place: int
    offset: int
    stride: tuple[int, ...]
    same: torch.Tensor


@dataclass(frozen=True, slots=True)
class Written:
    """What is known of one output."""

    unwritten: int
    """Elements that need a kernel and that none wrote last; all where no kernel wrote one."""
    partly: bool
    """Whether some elements need none beside those that kernels wrote."""


def written(
    memory: Memory, program: Program, output: int, inputs: Sequence[torch.Tensor], own: Mapping[int, Own]
) -> Written:
    """What is known of an output after a call.

    Args:
        memory: As the call left it.
        program: What was replayed.
        output: Number of the output.
        inputs: The tensors among the inputs, with the values that the call was given.
        own: Number of an output -> how the reference makes it in the memory of an input.
    """
    window = program.outputs[output]
    made = memory.is_made(window)
    # A kernel could write the number of a fill as well, so that it is no one's work.
    needless = memory.is_filled(window) if bool(made.any()) else torch.zeros_like(made)
    if output in own:
        needless = needless | _as_given(memory, program, window, own[output], inputs)
    return Written(int((~(made | needless)).sum()), bool((needless & ~made).any()))


def _as_given(
    memory: Memory, program: Program, window: Window, own: Own, inputs: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Booleans in the output's shape: which elements hold what an input was given, where the reference returns them
    from the same places and leaves them as given, too. None where the output lies elsewhere or the input does not fill
    its memory."""
    held = program.inputs[own.place]
    strides = zip(window.size, window.stride, own.stride, strict=False)
    alike = (
        is_whole(held, program)
        and (window.storage, window.dtype, window.offset) == (held.storage, held.dtype, own.offset)
        and tuple(window.size) == tuple(own.same.shape)
        and all(size == 1 or mine == its for size, mine, its in strides)
    )
    if not alike:
        return torch.zeros(window.size, dtype=torch.bool)
    given = inputs[own.place].contiguous().as_strided(window.size, window.stride, window.offset)
    return own.same & (_bytes(memory.tensor(window).cpu()) == _bytes(given)).all(dim=-1)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of each element, along a new last axis."""
    dense = tensor.contiguous().unsqueeze(-1)
    return dense.view(torch.uint8)


def is_whole(window: Window, program: Program) -> bool:
    """Whether a window shows every byte of its storage, each once and in order."""
    size = math.prod(window.size) * DTYPES[window.dtype]
    dense = tuple(window.stride) == dense_strides(window.size)
    return dense and not window.offset and size == program.storages[window.storage]
