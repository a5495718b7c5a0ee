"""Programs on the processor: kernels of the kernel language in Triton's interpreter, with every access followed."""

from __future__ import annotations

import contextlib
import math
import os
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal

import triton.language
from triton.backends.nvidia.compiler import CUDAOptions

from assay.kernels.inside import submission
from assay.kernels.inside.replay.accesses import Accesses
from assay.kernels.inside.replay.kernels import kernels_of
from assay.kernels.inside.replay.memory import Memory
from assay.kernels.inside.replay.player import NO_KERNEL, Manner
from assay.kernels.inside.replay.reruns import Rerun, rerun
from assay.kernels.inside.triton import ledger as ledgers
from assay.kernels.inside.triton.error_bounds.memory import Bounds
from assay.kernels.inside.triton.rebuilt import Rebuilt, rebuild
from assay.kernels.inside.triton.running.turns import Turns
from assay.kernels.inside.triton.running.widths import Widths
from assay.kernels.language.flow.lowering import Touched
from assay.kernels.language.flow.steering import STEERED_LOADS, STEERED_WRITES
from assay.kernels.program.form import Descriptor, Launch, Program, Step, Variant, storages_of, windows_in
from assay.types import Json

_FRONT_END = os.path.dirname(triton.language.__file__)
_REFUSALS = (AssertionError, TypeError, ValueError)
"""What Triton's front end raises for a kernel that is none."""

MOST_LINES = 1 << 20
CROWDED = 0.3
"""The chance that the programs of a launch begin in a crowd."""


def _option(variant: Variant, name: str) -> int:
    """What a launch says to the compiler, or what the compiler takes where it says nothing."""
    said = dict(variant.options).get(name)
    return CUDAOptions.__dataclass_fields__[name].default if said is None else int(said)


class Interpreted:
    """Triton's interpreter, on CPU tensors. `follows` costs time and memory, which calls that are timed do without."""

    device = "cpu"

    def __init__(self, max_programs: int, *, follows: bool = True) -> None:
        """`max_programs`: instances of kernels in one call."""
        self.follows = follows
        self.max_programs = max_programs
        self.kernels: list[Rebuilt] = []
        self._varies = self._two_ways = False
        self.widths = Widths()
        """What the accesses allow of all calls that must be right."""
        self.waiters = set[str]()
        """Kernels whose programs have waited for each other."""
        self.places: dict[int, int] = {}
        """Numbers of the steps that are launches, by `id`."""

    def build(self, program: Program) -> Sequence[Rebuilt]:
        """The kernels as callables of the interpreter.

        Raises:
            NotInLanguageError: one of them is not in the kernel language.
        """
        built = rebuild(kernels_of(program))
        self.kernels = [built[str(number)] for number in range(len(program.kernels))]
        self.places = {id(step): place for place, step in enumerate(program.steps) if isinstance(step, Launch)}
        launches = _launches(program.forward)
        self._varies = any(_varies(self.kernels[step.kernel], one) for step in launches for one in step.variants)
        self._two_ways = _has_descriptors(program)
        return self.kernels

    @contextlib.contextmanager
    def running(self, memory: Memory, manner: Manner) -> Iterator[_InterpretedRun]:
        """Account for the launches of some steps. Raises a refusal of the interpreter that was met on the way."""
        # Where what lanes and programs do to each other may depend on values, one call does not show it.
        follow = manner.follow or (manner.skip == NO_KERNEL and self._varies)
        accesses = Accesses(memory, self._two_ways) if follow and self.follows else None
        order = None if manner.in_order else random.Random(manner.seed)
        memory.bounds = _bounds(memory) if self.follows and manner.bounded else None
        ledger = ledgers.Ledger(
            self.max_programs,
            order=order,
            observer=accesses,
            bounds=memory.bounds,
            secret=manner.seed,
        )
        ledger.widths = self.widths if manner.bounded else None
        with ledgers.recording(ledger):
            yield _InterpretedRun(self, memory, manner, ledger, accesses)
        self._varies |= accesses is not None and accesses.excused
        if ledger.refusal is not None:
            raise ledger.refusal

    def kind_of(self, error: Exception) -> Literal["error", "unsupported", "compile"]:
        """Whether the interpreter lacks what the kernel needs, or Triton's own front end refuses it, as it does where
        it compiles."""
        if isinstance(error, ledgers.UnsupportedError):
            return "unsupported"
        cause = submission.cause_of(error)
        refused = isinstance(cause, _REFUSALS) and submission.raised_in(_FRONT_END, cause)
        return "compile" if refused else "error"


def _launches(steps: Sequence[Step]) -> Iterator[Launch]:
    return (step for step in steps if isinstance(step, Launch))


def _has_descriptors(program: Program) -> bool:
    """Whether kernels may make descriptors, or are given some."""
    return any("descriptor" in f"{kernel.source}{kernel.names}" for kernel in program.kernels) or any(
        isinstance(value, Descriptor)
        for step in _launches(program.steps)
        for variant in step.variants
        for _, value in variant.args
    )


def _varies(kernel: Rebuilt, variant: Variant) -> bool:
    """Whether what lanes and programs of a launch do to each other may depend on values: it may load what it wrote
    itself, or values steer where it writes, or where it loads of what it writes as well."""
    if STEERED_WRITES in kernel.steered:
        return True
    touched = kernel.touches() if STEERED_LOADS in kernel.steered else kernel.touched
    return touched is not None and _overlaps(touched, variant)


def _overlaps(touched: Touched, variant: Variant) -> bool:
    """Whether a launch is given something to write that it may also read."""
    read, written = (
        {window.storage for name, value in variant.args if name in names for window in windows_in(value)}
        for names in (touched.read, touched.written)
    )
    return bool(read & written)


def _bounds(memory: Memory) -> Bounds:
    """Error bounds of storages that are exact so far."""
    return Bounds([raw.data_ptr() for raw in memory.raw], [len(raw) for raw in memory.raw])


class _InterpretedRun:
    def __init__(
        self, machine: Interpreted, memory: Memory, manner: Manner, ledger: ledgers.Ledger, accesses: Accesses | None
    ) -> None:
        self._machine, self._memory, self._manner = machine, memory, manner
        self._ledger, self._accesses = ledger, accesses

    def launch(self, launch: Launch, variant: Variant, arguments: dict[str, Any]) -> None:
        kernel, accesses = self._machine.kernels[launch.kernel], self._accesses
        # Triton takes a keyword that is a parameter's name and an option's for both: the argument is the option then.
        run = partial(kernel[variant.grid], **{**dict(variant.options), **arguments})
        manner, alone = self._manner, self._manner.in_order or self._manner.follow
        self._ledger.turns = self._turns(launch, alone) if kernel.asks else None
        self._ledger.warps = _option(variant, "num_warps")
        if manner.bounded:
            number = next(number for number, each in enumerate(launch.variants) if each is variant)
            self._machine.widths.launch(self._machine.places[id(launch)], number)
        if accesses is None:
            run()
            return
        before = self._memory.copy(storages_of(launch)) if kernel.atomic and manner.follow else None
        _begin(accesses, kernel, launch, variant)
        run()
        if before is None:
            return
        chance = random.Random(manner.seed)
        rerun(self._memory, before, accesses, partial(self._again, kernel, launch, variant, run), chance)
        if kernel.asks and not manner.in_order:
            self._memory.take_back(before)
            self._at_once(kernel, launch, variant, run)

    def try_out(self, launch: Launch, variant: Variant, arguments: dict[str, Any]) -> None:
        """The same without following accesses. A kernel that finds nothing of what it writes would change nothing."""
        kernel, manner = self._machine.kernels[launch.kernel], self._manner
        if not _overlaps(kernel.touches(), variant):
            return
        ledger = self._like(None if manner.in_order else random.Random(manner.seed), None, (), self._ledger.bounds)
        ledger.turns = self._turns(launch, alone=True) if kernel.asks else None
        ledger.warps = _option(variant, "num_warps")
        with ledgers.recording(ledger):
            kernel[variant.grid](**arguments, **dict(variant.options))

    def _turns(self, launch: Launch, alone: bool, crowd: bool = False) -> Turns:
        chance = random.Random(self._manner.seed * MOST_LINES + launch.line)
        crowd = crowd or (not alone and chance.random() < CROWDED)
        return Turns(chance, alone, crowd, self._machine.waiters)

    def _at_once(self, kernel: Rebuilt, launch: Launch, variant: Variant, run: Callable[[], None]) -> None:
        """The same launch, on the same account, its programs at once."""
        assert self._accesses is not None
        _begin(self._accesses, kernel, launch, variant)
        ledger = self._like(random.Random(self._manner.seed), self._accesses, (), self._ledger.bounds)
        ledger.turns = self._turns(launch, alone=False, crowd=True)
        with ledgers.recording(ledger):
            run()

    def _again(self, kernel: Rebuilt, launch: Launch, variant: Variant, run: Callable[[], None], other: Rerun) -> None:
        """The same launch, its programs in the same order; it is on no account but the other observer's."""
        assert self._accesses is not None
        _begin(other, kernel, launch, variant)
        chance, order = random.Random(self._manner.seed), self._accesses.ran
        with ledgers.recording(self._like(chance, other, order)):
            run()

    def _like(
        self, chance: random.Random | None, other: Accesses | None, order: Sequence[int], bounds: Bounds | None = None
    ) -> ledgers.Ledger:
        """A ledger under which programs compute the same, in a given order or in a random one."""
        mine = self._ledger
        most = self._machine.max_programs
        found = ledgers.Ledger(most, chance, other, order, bounds, mine.secret)
        found.warps = mine.warps
        return found

    def told(self) -> dict[str, Json]:
        races = self._accesses.told() if self._accesses is not None else []
        lanes = self._accesses.same_lanes() if self._accesses is not None else []
        return {**self._ledger.to_json(), "races": races, "same_lanes": lanes}


def _begin(accesses: Accesses, kernel: Rebuilt, launch: Launch, variant: Variant) -> None:
    accesses.launch(
        kernel.name,
        launch.line,
        math.prod(variant.grid),
        _option(variant, "num_stages"),
        _option(variant, "num_warps"),
    )
