"""Programs of a launch that take turns: what they ask of each other is answered as on a GPU, and none is lost."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from triton.runtime import interpreter as engine

from assay.kernels.inside.triton.ledger import WrongValueError
from assay.kernels.inside.triton.running.turns import CROWD, MOST_AT_ONCE, PATIENCE, PATIENCE_OF_WAITERS, Turns
from assay.kernels.language import Kernels, parse
from assay.kernels.language.flow.lowering import lowered


class Cells:
    """Memory of whole numbers with atomic operations, shared by programs that take turns."""

    def __init__(self, seed: int, alone: bool = False, crowd: bool = False) -> None:
        self.held = [0] * 4
        self.turns = Turns(random.Random(seed), alone, crowd)

    def change(self, place: int, to: Callable[[int], int]) -> int:
        """Replace what a cell holds; gives back what it held."""
        self.turns.give_way()
        found = self.held[place]
        self.held[place] = to(found)
        self.turns.found(np.array([place]), np.array([found]))
        return found

    def run(self, programs: int, program: Callable[[int], None]) -> None:
        """Run all programs of a launch."""
        engine.interpreter_builder.set_grid_dim(programs, 1, 1)
        places = [(number, (number, 0, 0)) for number in range(programs)]
        self.turns.run("kernel", places, lambda place: program(place[0]))


@pytest.mark.parametrize("alone", [False, True])
def test_a_lock_keeps_others_out(alone: bool) -> None:
    for seed in range(6):
        cells, log = Cells(seed, alone), list[tuple[str, int]]()

        def program(number: int, cells: Cells = cells, log: list[Any] = log) -> None:
            while cells.change(0, lambda held: held or 1) == 1:
                pass
            log.append(("in", number))
            cells.change(1, lambda held: held + 1)
            log.append(("out", number))
            cells.change(0, lambda _: 0)

        cells.run(40, program)
        assert cells.held[:2] == [0, 40]
        assert [number for kind, number in log if kind == "in"] == [number for kind, number in log if kind == "out"]
        assert all(log[at][1] == log[at + 1][1] for at in range(0, 80, 2))


def test_programs_find_others_at_work_unless_they_run_alone() -> None:
    def busiest(alone: bool, seed: int) -> int:
        cells, seen = Cells(seed, alone), [0]

        def program(_: int) -> None:
            seen[0] = max(seen[0], 1 + cells.change(0, lambda held: held + 1))
            cells.change(0, lambda held: held - 1)

        cells.run(60, program)
        return seen[0]

    assert [busiest(True, seed) for seed in range(4)] == [1] * 4
    found = [busiest(False, seed) for seed in range(12)]
    assert all(1 < most <= MOST_AT_ONCE for most in found)


def test_programs_in_a_crowd_find_all_others_that_fit() -> None:
    for programs in (60, CROWD + 20):
        cells, seen = Cells(programs, crowd=True), [0]

        def program(_: int, cells: Cells = cells, seen: list[int] = seen) -> None:
            others = cells.change(0, lambda held: held + 1)
            seen[0] = max(seen[0], 1 + others)
            cells.change(0, lambda held: held - 1)

        cells.run(programs, program)
        assert seen[0] == min(programs, CROWD)
        assert cells.held[0] == 0


def test_programs_may_have_to_wait_long_unless_they_run_alone() -> None:
    def longest(alone: bool, seed: int) -> int:
        cells, asked = Cells(seed, alone), [0] * 8

        def program(number: int) -> None:
            if number == 7:
                cells.change(0, lambda _: 1)
            while cells.change(0, lambda held: held) == 0:
                asked[number] += 1

        cells.run(8, program)
        return max(asked)

    assert max(longest(True, seed) for seed in range(8)) < PATIENCE[0]
    found = [longest(False, seed) for seed in range(30)]
    assert sum(most >= PATIENCE[0] for most in found) > 6 and max(found) > 200
    assert any(most < PATIENCE[0] for most in found)


def test_a_kernel_that_was_seen_to_wait_is_made_to_wait_long() -> None:
    def longest(waiters: set[str], seed: int) -> int:
        cells, asked = Cells(seed), [0] * 8
        cells.turns = Turns(random.Random(seed), alone=False, waiters=waiters)

        def program(number: int) -> None:
            if number == 7:
                cells.change(0, lambda _: 1)
            while cells.change(0, lambda held: held) == 0:
                asked[number] += 1

        cells.run(8, program)
        return max(asked)

    found = [longest(set(), seed) for seed in range(40)]
    known = [longest({"kernel"}, seed) for seed in range(40)]
    assert sum(most >= PATIENCE_OF_WAITERS[0] // 8 for most in known) > 32
    assert sum(most >= PATIENCE_OF_WAITERS[0] // 8 for most in found) < 28
    waiters = set[str]()
    assert any(longest(waiters, seed) and "kernel" in waiters for seed in range(8))


def test_programs_that_wait_for_ever_are_refused() -> None:
    def all_begun(cells: Cells, programs: int) -> None:
        def program(_: int) -> None:
            cells.change(0, lambda held: held + 1)
            while cells.change(0, lambda held: held) < programs:
                pass

        cells.run(programs, program)

    before = threading.active_count()
    all_begun(Cells(1), MOST_AT_ONCE)
    with pytest.raises(WrongValueError, match=r"waits for ever.* 1 of 17 have not begun"):
        all_begun(Cells(1), MOST_AT_ONCE + 1)
    with pytest.raises(ZeroDivisionError):
        Cells(1).run(30, lambda number: [][number // 0])
    assert threading.active_count() <= before + 1


def test_results_that_nobody_uses_ask_nothing() -> None:
    def asks(line: str) -> bool:
        names = {"tl": {"module": "triton.language"}}
        source = f"@triton.jit\ndef k(p, B: tl.constexpr):\n    i = tl.arange(0, B)\n    {line}\n"
        found = parse({"k": {"source": source, "names": names}})
        assert isinstance(found, Kernels), found
        return bool(lowered(found.functions).asks)

    assert not asks("tl.atomic_add(p + i, 1.0)")
    assert asks("tl.atomic_add(p + tl.atomic_add(p, 1), 1)")
    assert asks("tl.store(p + 1, tl.atomic_add(p, 1))")
    assert asks("x = tl.atomic_cas(p, 0, 1) == 0")
