"""The storages of a program as real memory, and for each element whether kernels made it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal
from unicodedata import normalize

import torch

from assay.kernels.inside.replay.state import State
from assay.kernels.inside.triton.error_bounds import memory as error_bounds
from assay.kernels.inside.triton.error_bounds.memory import Bounds
from assay.kernels.program.form import DTYPES, Program, Window, operations_in, windows_in

BYTES = 256
OF_OTHERS = (
    "{0}() makes a {1} between or beyond the elements of an input, in memory that belongs to another tensor of the "
    "caller's ({2} of {3} elements of one access). Mask it, or use the input's own strides"
)
UNWRITTEN = (
    "{0}() reads memory that nothing wrote ({1} of {2} elements of one access): write it first, make it with "
    "torch.zeros, or mask the access"
)


@dataclass(frozen=True, slots=True)
class Copy:
    """What some storages held, and what was known of them."""

    held: dict[int, tuple[torch.Tensor, ...]]
    bounds: error_bounds.Copy | None


class Memory:
    """Real storages. Fresh ones hold `poison` in every byte, so that what no one wrote is never right by chance.

    `marked`: whether it is noted who wrote what; without, `marks`, `is_made` and `mark` must not be called.
    """

    def __init__(self, program: Program, device: str = "cpu", *, marked: bool = True) -> None:
        self.device, self.marked = device, marked
        seen = _windows(program)
        self.granularity = _granularity(program, seen)
        shown = {window.storage for window in seen} | {storage for storage, _ in program.constants}
        # What only later calls of the recording used is not part of the program.
        sizes = [size if place in shown else 0 for place, size in enumerate(program.storages)]
        self.raw = [torch.empty(size, dtype=torch.uint8, device=device).fill_(0xFF) for size in sizes]
        self.made = [
            torch.zeros(-(-size // grain) if marked else 0, dtype=torch.bool)
            for size, grain in zip(sizes, self.granularity, strict=True)
        ]
        """Whether a kernel, or a move of what kernels made, wrote each element last."""
        self.known = [torch.zeros_like(made) for made in self.made]
        """Whether anything wrote each element in this call, or gave it its value before."""
        self.filled: dict[int, torch.Tensor] = {}
        """Of storages that PyTorch filled with one number in this call: whether each element was, and nothing but a
        kernel wrote it since."""
        self.bounds: Bounds | None = None
        """How far what lies there may be from what a GPU has, in calls with error bounds."""
        self.state: State | None = None
        """Where the call under way is to leave what lasts as it found it."""
        self._given = {window.storage for window in program.inputs}
        self.others: dict[int, torch.Tensor] = self._of_others((*program.inputs, *program.init_inputs))
        """Of storages that the caller gives: which elements are no part of what it gives. Those hold something else."""
        for storage, content in program.constants:
            self.raw[storage].copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
            self.known[storage].fill_(True)
        for window in (*program.inputs, *program.init_inputs):
            self.known[window.storage].fill_(True)

    def _of_others(self, given: Sequence[Window]) -> dict[int, torch.Tensor]:
        found = {
            place: torch.ones(-(-len(self.raw[place]) // self.granularity[place]), dtype=torch.bool)
            for place in {window.storage for window in given}
        }
        for window in given:
            for part in self.flags(window, found[window.storage]):
                part.fill_(False)
        return {place: flags for place, flags in found.items() if bool(flags.any())}

    def reaches_others(self, window: Window) -> bool:
        """Whether a window shows elements of a storage of the caller's that are no part of what it gave."""
        flags = self.others.get(window.storage)
        return flags is not None and any(bool(part.any()) for part in self.flags(window, flags))

    def tensor(self, window: Window) -> torch.Tensor:
        """The tensor that a window shows."""
        return self.shown(window, self.raw[window.storage])

    def shown(self, window: Window, content: torch.Tensor) -> torch.Tensor:
        """The tensor that a window would show if its storage held these bytes."""
        dtype: torch.dtype = getattr(torch, window.dtype)
        place = content.untyped_storage(), window.offset, window.size, window.stride
        return torch.empty(0, dtype=dtype, device=self.device).set_(*place)

    def marks(self, window: Window, kind: Literal["made", "known"] = "made") -> list[torch.Tensor]:
        """Views of `made` or `known`, in the shape of a window: one for each part of an element."""
        return self.flags(window, (self.made if kind == "made" else self.known)[window.storage])

    def flags(self, window: Window, flags: torch.Tensor) -> list[torch.Tensor]:
        """The same of any flags of the elements of its storage."""
        parts = DTYPES[window.dtype] // self.granularity[window.storage]
        strides = tuple(stride * parts for stride in window.stride)
        return [
            torch.empty(0, dtype=torch.bool).set_(
                flags.untyped_storage(), window.offset * parts + part, window.size, strides
            )
            for part in range(parts)
        ]

    def is_made(self, window: Window) -> torch.Tensor:
        """For each element of a window whether kernels made all of it."""
        return self._all_parts(window, "made")

    def is_known(self, window: Window) -> torch.Tensor:
        """For each element of a window whether all of it was written."""
        return self._all_parts(window, "known")

    def is_filled(self, window: Window) -> torch.Tensor:
        """For each element of a window whether all of it was filled with one number."""
        filled = self.filled.get(window.storage)
        return torch.zeros(window.size, dtype=torch.bool) if filled is None else _all(self.flags(window, filled))

    def _all_parts(self, window: Window, kind: Literal["made", "known"]) -> torch.Tensor:
        return _all(self.marks(window, kind))

    def fill_in(self, window: Window, filled: torch.Tensor | bool) -> None:
        """Note which elements of a window PyTorch gave one number."""
        if isinstance(filled, bool) and not filled and window.storage not in self.filled:
            return
        flags = self.filled.setdefault(window.storage, torch.zeros_like(self.made[window.storage]))
        for part in self.flags(window, flags):
            part.copy_(filled) if isinstance(filled, torch.Tensor) else part.fill_(filled)

    def mark(self, window: Window, made: torch.Tensor | bool, known: torch.Tensor | bool = True) -> None:
        """Note who wrote the elements of a window, and which of them had values to write."""
        kinds: tuple[tuple[Literal["made", "known"], torch.Tensor | bool], ...] = (("made", made), ("known", known))
        for kind, flags in kinds:
            for part in self.marks(window, kind):
                part.copy_(flags) if isinstance(flags, torch.Tensor) else part.fill_(flags)

    def copy(self, storages: Iterable[int]) -> Copy:
        """All that some storages hold and what is known of them."""
        kinds = self.raw, self.made, self.known
        held = {place: tuple(kind[place].clone() for kind in kinds) for place in storages}
        return Copy(held, None if self.bounds is None else self.bounds.copy())

    def take_back(self, copy: Copy) -> None:
        """Hold and know what it did then."""
        if self.bounds is not None and copy.bounds is not None:
            self.bounds.take_back(copy.bounds)
        for place, then in copy.held.items():
            for kind, held in zip((self.raw, self.made, self.known), then, strict=True):
                kind[place].copy_(held)

    def restore(self, storage: int, content: torch.Tensor) -> None:
        """Give a storage back what it held; no kernel of this call wrote it."""
        self.filled.pop(storage, None)
        self.raw[storage].copy_(content)
        self.made[storage].fill_(False)
        self.known[storage].fill_(True)

    def fill(self, storages: Sequence[int], poison: int) -> None:
        """Fill some storages: with a byte, or with random ones of the seed `poison` where it is none."""
        chance = torch.Generator().manual_seed(poison) if poison >= BYTES else None
        for storage in storages:
            raw = self.raw[storage]
            if chance is None:
                raw.fill_(poison)
            elif raw.is_cpu:
                raw.random_(generator=chance)
            else:
                raw.copy_(torch.randint(0, BYTES, raw.shape, dtype=torch.uint8, generator=chance))
            self.forget(storage)

    def forget(self, storage: int) -> None:
        """No kernel of this call wrote a storage, and only an input has values."""
        self.filled.pop(storage, None)
        self.made[storage].fill_(False)
        self.known[storage].fill_(storage in self._given)


def _all(parts: list[torch.Tensor]) -> torch.Tensor:
    first, *rest = parts
    found = first.clone()
    for part in rest:
        found &= part
    return found


def _windows(program: Program) -> list[Window]:
    """Every window onto the storages of a program, some more than once."""
    seen: list[Window] = [*program.inputs, *program.init_inputs, *program.outputs]
    seen += [window for _, window in (*program.params, *program.buffers)]
    for operation in operations_in(program.steps, tuning=True):
        seen += operation.outs
        seen += [window for value in operation.values for window in windows_in(value)]
    for step in program.steps:
        for variant in getattr(step, "variants", ()):
            seen += [window for _, value in variant.args for window in windows_in(value)]
    return seen


def _granularity(program: Program, seen: Sequence[Window]) -> list[int]:
    """Bytes of the smallest element that each storage is shown with; one where kernels may cast pointers, and so write
    a part of an element."""
    casts = any("pointer_type" in normalize("NFKC", f"{kernel.source}{kernel.names}") for kernel in program.kernels)
    found = [1 if casts else 16] * len(program.storages)
    for window in seen:
        found[window.storage] = min(found[window.storage], DTYPES[window.dtype])
    return found
