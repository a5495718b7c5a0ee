"""What kernels do in one call of forward is accounted for here, and what is refused is remembered here."""

from __future__ import annotations

import contextlib
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, NoReturn, Protocol

import numpy as np

from assay.kernels.inside.triton.error_bounds.memory import Bounds
from assay.types import Json

MAX_PROGRAMS = 4096
"""Instances of kernels in one call of forward. Each costs about a millisecond, whatever its block size."""
MAX_NOTES = 2


class UnsupportedError(Exception):
    """The interpreter cannot run, or cannot judge, what a kernel does, though a GPU might."""


class OutOfBoundsError(Exception):
    """A kernel touched memory outside the tensors that it was given."""


class WrongValueError(Exception):
    """A kernel computes with what has no one value: memory that nothing wrote, or results that depend on an order."""


class UndecidedError(Exception):
    """Where a program goes hangs on last bits, which each GPU has differently."""


class PausedError(Exception):
    """A program of a launch stops where it is, and the next one runs."""


@dataclass(frozen=True, slots=True)
class Sync:
    """What an atomic operation does for the order of other accesses."""

    hears: bool = True
    """It acquires: what other programs told at its element is over."""
    tells: bool = True
    """It releases: it tells what is over."""


class Access(NamedTuple):
    """What a program is about to do at the addresses where a mask is true. `mask`: None for all."""

    what: Literal["load", "store", "atomic operation"]
    pointers: Any
    mask: Any
    size: int
    """Bytes of an element."""
    values: Any = None
    """What is stored; None for other accesses."""
    sync: Sync | None = None
    """Of an atomic operation."""
    early: bool = False
    """Whether the compiler starts it early where its loop is pipelined."""
    asks: Literal["nothing", "ticket", "value"] = "nothing"
    """What the program uses of the result of an atomic operation: where it adds whole numbers, none of them zero, only
    that no other lane gets the same."""
    apart: bool = False
    """Whether a unit beside the threads of the program makes it, as it does for descriptors."""
    commutes: str = ""
    """The name of an atomic operation (`commutation`)."""

    @property
    def of_no_result(self) -> str | None:
        """The name of an atomic operation whose result nobody uses; None for any other access."""
        return None if self.sync is None or self.asks != "nothing" else self.commutes


class Observer(Protocol):
    """Told what each program of a launch touches."""

    def begin(self, program: int) -> None:
        """Number `program` of the launch under way starts. May raise `PausedError`, as `touched` may."""
        ...

    def barrier(self) -> None:
        """All threads of it wait for each other."""
        ...

    def loop(self, stages: int | None) -> Callable[[], None]:
        """A loop starts that the compiler pipelines where it has more than one stage; None: as many as its launch.
        Gives back what is to be called at its end."""
        ...

    def touched(self, access: Access) -> None:
        """It is about to touch memory."""
        ...

    def result(self, found: Any) -> Any:
        """What an atomic operation gives to the program, from what it found there (a `TensorHandle`)."""
        ...

    def suspend(self) -> Any:
        """Another program is to run; gives back what `resume` takes once this one goes on."""
        ...

    def resume(self, state: Any) -> None:
        """A program goes on."""
        ...


class Turning(Protocol):
    """Lets programs of a launch take turns (`running.turns`)."""

    def run(self, name: str, places: Sequence[tuple[int, Any]], function: Callable[[tuple[int, Any]], None]) -> None:
        """Run all programs of a launch."""
        ...

    def give_way(self) -> None:
        """An atomic operation is about to be made."""
        ...

    def found(self, pointers: Any, data: Any) -> None:
        """It was made."""
        ...

    def goes_on(self) -> None:
        """Another access is made."""
        ...


class Widths(Protocol):
    """Told of each access to a block of pointers (`running.widths`)."""

    def take(self, site: tuple[int, int], pointers: Any, active: Any, size: int, broken: Any) -> None:
        """It is about to be made."""
        ...


class Ledger:
    """What kernels did in one call of forward. `order`: programs of a launch run in random order, and so do the lanes
    of an atomic operation; `schedule`: the programs in the order in which they are to run instead; `observer` is told
    of each access, and may pause a program; `bounds`: of what lies in memory, where values have error bounds;
    `secret`: of what else is left to chance."""

    def __init__(
        self,
        max_programs: int = MAX_PROGRAMS,
        order: random.Random | None = None,
        observer: Observer | None = None,
        schedule: Sequence[int] = (),
        bounds: Bounds | None = None,
        secret: int = 0,
    ) -> None:
        self.launches: Counter[str] = Counter()
        self.programs = 0
        self.arithmetic = 0
        """Operations that kernels did (`values.counting`)."""
        self.combined: dict[object, tuple[int, float]] = {}
        """By a function that combines elements: how often it did so in other orders too, and arithmetic for two."""
        self.max_programs = max_programs
        self.order, self.observer, self.schedule = order, observer, schedule
        self.bounds, self.secret = bounds, secret
        self.fuses = True
        """Whether a GPU may fuse products with sums in the launch under way."""
        self.beyond_half = False
        """Whether the launch under way computes with numbers of bfloat16 that float16 has not."""
        self.any_order = False
        """Whether sums and products under way might be made of other ones, in another order: they lose what rounding
        costs, also of exact numbers."""
        self.turns: Turning | None = None
        """How programs of the launch under way take turns; None: one after another."""
        self.early = self.apart = self.unused = False
        """Of the access under way; `Access` says what the first two mean. `unused`: its result, if it is atomic."""
        self.warps = 4
        """Of a program of the launch under way."""
        self.flat = 0
        """Flattened loops that are under way."""
        self.site = (0, 0)
        """Number of the call under way that comes to memory, and of the helper's call around it; 0 for none."""
        self.widths: Widths | None = None
        """What is told how many bytes each access may move at once."""
        self.in_doubt: Callable[[], None] | None = None
        """Of a load under way whose value only one thread has for certain (`values.doubts`)."""
        self.refusal: Exception | None = None
        """The first refusal, kept because a candidate may catch it and go on."""
        self.notes: list[str] = []
        """What explains a wrong result, where there is one."""
        self._draws = 0

    def chance(self) -> np.random.Generator:
        """Secret numbers, other ones each time that it is asked."""
        self._draws += 1
        return np.random.default_rng((self.secret, self._draws))

    def count(self, name: str, grid: tuple[int, ...]) -> None:
        """Take a launch into the account.

        Raises:
            ValueError: no GPU has such a grid.
            UnsupportedError: the budget is spent. A launch counts as one program at least.
        """
        if not 1 <= len(grid) <= 3 or min(grid) < 0:
            raise ValueError(f"a grid has 1 to 3 sizes, none of them negative; this one is {grid}")
        self.launches[name] += 1
        self.beyond_half = False
        self.programs += max(1, math.prod(grid))
        if self.programs > self.max_programs:
            self.refuse(
                UnsupportedError(
                    f"the kernels launch {self.programs} program instances in one call of forward; the interpreter "
                    f"runs at most {self.max_programs}. Use larger blocks, or grade at smaller sizes."
                )
            )

    def refuse(self, error: Exception) -> NoReturn:
        """Raise a refusal and remember it."""
        self.refusal = self.refusal or error
        raise error

    def note(self, text: str) -> None:
        """Keep what explains a wrong result."""
        if text not in self.notes and len(self.notes) < MAX_NOTES:
            self.notes.append(text)

    def to_json(self) -> dict[str, Json]:
        """Plain data for a report."""
        return {
            "launches": dict(self.launches),
            "programs": self.programs,
            "arithmetic": self.arithmetic,
            "notes": self.notes,
        }


_ledger = Ledger()


def current() -> Ledger:
    """The ledger of the call under way."""
    return _ledger


def refuse(error: Exception) -> NoReturn:
    """Raise a refusal, and remember it."""
    _ledger.refuse(error)


@contextlib.contextmanager
def recording(ledger: Ledger) -> Iterator[None]:
    """Let `ledger` account for the launches of this block."""
    global _ledger
    before, _ledger = _ledger, ledger
    try:
        yield
    finally:
        _ledger = before
