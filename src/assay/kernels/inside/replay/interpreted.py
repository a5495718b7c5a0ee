"""Programs on the processor: kernels of the kernel language in Triton's interpreter, with every access followed."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from assay.kernels.inside.replay.accesses import Accesses
from assay.kernels.inside.replay.kernels import kernels_of
from assay.kernels.inside.replay.memory import Memory
from assay.kernels.inside.replay.player import Manner
from assay.kernels.inside.triton import ledger as ledgers
from assay.kernels.inside.triton.rebuilt import Rebuilt, rebuild
from assay.kernels.program.form import Launch, Program, Variant
from assay.types import Json


class Interpreted:
    """Triton's interpreter, on CPU tensors. `follows` costs time and memory, which calls that are timed do without."""

    device = "cpu"

    def __init__(self, max_programs: int, *, follows: bool = True) -> None:
        """`max_programs`: instances of kernels in one call."""
        self.follows = follows
        self._max_programs = max_programs
        self._kernels: list[Rebuilt] = []
        self._names: list[str] = []

    def build(self, program: Program) -> Sequence[Rebuilt]:
        """The kernels as callables of the interpreter.

        Raises:
            NotInLanguageError: one of them is not in the kernel language.
        """
        built = rebuild(kernels_of(program))
        self._kernels = [built[str(number)] for number in range(len(program.kernels))]
        self._names = [kernel.name for kernel in program.kernels]
        return self._kernels

    @contextlib.contextmanager
    def running(self, memory: Memory, manner: Manner) -> Iterator[_InterpretedRun]:
        """Account for the launches of some steps. Raises a refusal of the interpreter that was met on the way."""
        accesses = Accesses(memory) if manner.follow and self.follows else None
        order = None if manner.in_order else random.Random(manner.seed)
        ledger = ledgers.Ledger(
            self._max_programs,
            order=order,
            observer=accesses,
            rounding=_rounding(manner),
            products=manner.products,
        )
        with ledgers.recording(ledger):
            yield _InterpretedRun(self._kernels, self._names, ledger, accesses)
        if ledger.refusal is not None:
            raise ledger.refusal

    def kind_of(self, error: Exception) -> Literal["error", "unsupported", "wrong_output"]:
        """Whether the interpreter lacks what the kernel needs, or it computes with what has no one value."""
        if isinstance(error, ledgers.WrongValueError):
            return "wrong_output"
        return "unsupported" if isinstance(error, ledgers.UnsupportedError) else "error"


def _rounding(manner: Manner) -> int:
    """The secret that decides how a call rounds; 0 for rounding to nearest. Calls that are compared bit by bit have the
    same seed. Some calls round to nearest: a kernel must be right either way, so that it cannot ask which one it is."""
    return manner.seed if manner.in_order or (not manner.follow and manner.seed % 2) else 0


class _InterpretedRun:
    def __init__(
        self, kernels: Sequence[Rebuilt], names: Sequence[str], ledger: ledgers.Ledger, accesses: Accesses | None
    ) -> None:
        self._kernels, self._names = kernels, names
        self._ledger, self._accesses = ledger, accesses

    def launch(self, launch: Launch, variant: Variant, arguments: dict[str, Any]) -> None:
        if self._accesses is not None:
            self._accesses.launch(self._names[launch.kernel], launch.line, math.prod(variant.grid))
        self._kernels[launch.kernel][variant.grid](**arguments, **dict(variant.options))

    def told(self) -> dict[str, Json]:
        races = self._accesses.told() if self._accesses is not None else []
        return {**self._ledger.to_json(), "races": races}
