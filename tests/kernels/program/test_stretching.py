"""Sizes at which loops turn as often as at the published one, and submissions that are wrong only there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.kernels import prepared
from assay.kernels.config import GraderConfig
from assay.kernels.language.flow.turns import UNKNOWN
from assay.kernels.problems.other_sizes import largest_of, stretchable, stretched
from assay.kernels.problems.scaling import ScaledProblem, scale, unscaled
from assay.kernels.problems.sources import Problem, make_problem
from assay.kernels.program import grading
from assay.kernels.program.sizes.long import lengths, limit_of, longest
from assay.kernels.program.sizes.powers import MOST_APART, apart, at_once, in_step, of_tiles, powers_for
from assay.kernels.program.sizes.turns import (
    LAUNCHES,
    SPLITS,
    WRAPS,
    Loop,
    goal_of,
    lacking,
    program_turns,
    taken_apart,
    turns_in,
)
from assay.sandbox import JobResult
from support.kernel_graders import Bench
from support.sandboxes import needs_walls

SUMS = """
import torch
import torch.nn as nn

batch_size = 64
classes = {classes}


class Model(nn.Module):
    def forward(self, x):
        return torch.logsumexp(x, 1)


def get_inputs():
    return [torch.randn(batch_size, classes)]


def get_init_inputs():
    return []
"""
KERNEL = """
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def sums(x, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    most, total = float("-inf"), 0.0
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        v = tl.load(x + row * n + i, mask=i < n, other=float("-inf"))
        larger = tl.maximum(most, tl.max(v, 0))
        total = total * tl.exp(most - larger) + tl.sum(tl.exp(v - larger), 0)
        most = larger
    tl.store(y + row, most + tl.log(total))


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0], device=x.device)
        sums[(x.shape[0],)](x, y, x.shape[1], BLOCK=256)
        return y
"""
NOT_RESCALED = KERNEL.replace("total * tl.exp(most - larger)", "total")
QUICK = GraderConfig(cache=False, scale="fit", compile_check="off", num_correct_trials=1)


def problem(classes: int = 8192) -> Problem:
    return make_problem(1, 1, "Sums", SUMS.format(classes=classes), "test")


@needs_walls
@pytest.mark.parametrize(("code", "kind"), [(KERNEL, "ok"), (NOT_RESCALED, "wrong")], ids=["right", "not rescaled"])
def test_what_a_loop_does_from_its_second_turn_on_is_graded(bench: Bench, code: str, kind: str) -> None:
    verdict = bench.grade(problem(), code, QUICK)
    assert verdict.kind == kind, verdict
    if kind == "ok":
        found = [{name: new for name, _, _, new in each["changes"]} for each in verdict.evidence["stretched"]]
        more = [{"batch_size": 2}, {"classes": 32}]
        assert found == [{"batch_size": 4, "classes": 1024}, *more] and "findings" not in verdict.evidence
    else:
        assert "but not where they do more (batch_size 64 -> 4, classes 8192 -> 1024)" in verdict.message


@needs_walls
def test_turns_that_are_too_much_work_are_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "MAX_STRETCHED", 1 << 9)
    verdict = bench.grade(problem(2048), KERNEL, QUICK)
    assert verdict.ok, verdict
    found = [{name: new for name, _, _, new in each["changes"]} for each in verdict.evidence["stretched"]]
    assert found and all(each.get("classes", 2048) <= 256 for each in found)
    (finding,) = verdict.evidence["findings"]
    assert (finding["rule"], finding["line"], finding["decided"]) == ("turns", 12, False)
    assert finding["message"].startswith("at the published size there are 8 turns of a loop, and at most 1 where")


@needs_walls
def test_turns_that_nothing_tells_are_a_finding(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grading, "turns_in", lambda result, programs: [{}] * programs)
    verdict = bench.grade(problem(2048), KERNEL, QUICK)
    assert verdict.ok and "stretched" not in verdict.evidence, verdict
    (finding,) = verdict.evidence["findings"]
    assert "could not be told" in finding["message"] and not finding["decided"]


SQUARES = SUMS.replace("torch.logsumexp(x, 1)", "x * x")
BLOCKS = """
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def squares(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * {step} + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    tl.store(y + i, v * v, mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y, n = torch.zeros_like(x), x.numel()
        {launches}
        return y
"""
ONE = "squares[(triton.cdiv(n, 1024),)](x, y, n, BLOCK=1024)"
MANY = """for at in range(0, n, 1024):
            squares[(1,)](x.view(-1)[at:], y.view(-1)[{at}:], n - at, BLOCK=1024)"""


@needs_walls
@pytest.mark.parametrize(
    ("step", "launches", "kind"),
    [
        ("BLOCK", ONE, "ok"),
        ("256", ONE, "wrong"),
        ("BLOCK", MANY.format(at="at"), "ok"),
        ("BLOCK", MANY.format(at="at // 2"), "wrong"),
    ],
    ids=["programs", "programs too near", "launches", "launches too near"],
)
def test_what_a_second_program_or_launch_does_is_graded(bench: Bench, step: str, launches: str, kind: str) -> None:
    text = make_problem(1, 1, "Squares", SQUARES.format(classes=512), "test")
    verdict = bench.grade(text, BLOCKS.format(step=step, launches=launches), QUICK)
    assert verdict.kind == kind, verdict
    assert ("stretched" in verdict.evidence) if kind == "ok" else ("but not where they do more" in verdict.message)


FLAT = """
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def squares(x, y, rows, columns, BLOCK: tl.constexpr):
    blocks = tl.cdiv(columns, BLOCK)
    row, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    i = block * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + row * columns + {read}, mask=i < columns)
    tl.store(y + row * columns + i, v * v, mask=i < columns)


class ModelNew(nn.Module):
    def forward(self, x):
        y, (rows, columns) = torch.empty_like(x), x.shape
        squares[(rows * triton.cdiv(columns, 128),)](x, y, rows, columns, BLOCK=128)
        return y
"""


@needs_walls
@pytest.mark.parametrize(("read", "kind"), [("i", "ok"), ("i % BLOCK", "wrong")])
def test_one_axis_may_have_tiles_along_several(bench: Bench, read: str, kind: str) -> None:
    text = make_problem(1, 1, "Squares", SQUARES.format(classes=1024), "test")
    verdict = bench.grade(text, FLAT.format(read=read), QUICK)
    assert verdict.kind == kind, verdict
    assert ("stretched" in verdict.evidence) if kind == "ok" else ("but not where they do more" in verdict.message)


SCRATCH = """
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def squares(x, w, rows, columns, stride, SIDE: tl.constexpr):
    i = tl.program_id(0) * SIDE + tl.arange(0, SIDE)[:, None]
    j = tl.program_id(1) * SIDE + tl.arange(0, SIDE)[None, :]
    v = tl.load(x + i * columns + j, mask=(i < rows) & (j < columns), other=0.0)
    slot = w + (tl.program_id(0) * stride + tl.program_id(1)) * SIDE * SIDE
    tl.store(slot + tl.arange(0, SIDE)[:, None] * SIDE + tl.arange(0, SIDE)[None, :], v * v)


@triton.jit
def placed(w, y, rows, columns, stride, SIDE: tl.constexpr):
    i = tl.program_id(0) * SIDE + tl.arange(0, SIDE)[:, None]
    j = tl.program_id(1) * SIDE + tl.arange(0, SIDE)[None, :]
    slot = w + (tl.program_id(0) * stride + tl.program_id(1)) * SIDE * SIDE
    v = tl.load(slot + tl.arange(0, SIDE)[:, None] * SIDE + tl.arange(0, SIDE)[None, :])
    tl.store(y + i * columns + j, v, mask=(i < rows) & (j < columns))


class ModelNew(nn.Module):
    def forward(self, x):
        y, (rows, columns) = torch.empty_like(x), x.shape
        down, across = triton.cdiv(rows, 64), triton.cdiv(columns, 64)
        w = torch.empty(max(down, across) ** 2 * 64 * 64, device=x.device)
        squares[(down, across)](x, w, rows, columns, {stride}, SIDE=64)
        placed[(down, across)](w, y, rows, columns, {stride}, SIDE=64)
        return y
"""


@needs_walls
@pytest.mark.parametrize(("stride", "kind"), [("across", "ok"), ("down", "wrong")])
def test_a_workspace_is_graded_at_unlike_numbers_of_tiles(bench: Bench, stride: str, kind: str) -> None:
    """Any size at which there are as many tiles along both, or one along one of them, is right."""
    text = SQUARES.format(classes=2048).replace("batch_size", "rows").replace("64", "1024")
    verdict = bench.grade(make_problem(1, 1, "Squares", text, "test"), SCRATCH.format(stride=stride), QUICK)
    assert verdict.kind == kind, verdict
    assert kind == "ok" or "but not where they do more" in verdict.message


LARGEST = """
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def largest(x, y, n, N: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, N)
    v = tl.load(x + row * n + i, mask=i < n, other=float("-inf"))
    bits = v.to(tl.int32, bitcast=True)
    bits = (bits ^ ((bits >> 31) & 0x7FFFFFFF)){wide}
    key = {key}
    tl.store(y + row, (N - 1 - (tl.max(key, 0) & (N - 1))).to(tl.int64))


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0], dtype=torch.int64, device=x.device)
        largest[(x.shape[0],)](x, y, x.shape[1], N=triton.next_power_of_2(x.shape[1]))
        return y
"""
NEVER = """if tl.max(v, 0) > 1e38:
        for _ in range(600):
            tl.store(y + row, tl.load(y + row) + 1)
    tl.store(y + row, (N - 1"""
PACKED = LARGEST.format(wide="", key="(bits & (0 - N)) | (N - 1 - i)")
HIDDEN = PACKED.replace("tl.store(y + row, (N - 1", NEVER)
WHOLE = LARGEST.format(wide=".to(tl.int64)", key="bits * N + (N - 1 - i)")
KEPT = """        if self.shifts is None:
            self.shifts = torch.zeros(x.shape[1], device=x.device)
        y = torch.empty(x.shape[0]"""
LASTING = (
    WHOLE.replace("        y = torch.empty(x.shape[0]", KEPT)
    .replace("(nn.Module):\n", "(nn.Module):\n    shifts = None\n\n")
    .replace("(x, y, ", "(x, self.shifts, y, ")
    .replace("def largest(x, self.shifts, y", "def largest(x, s, y")
    .replace('other=float("-inf"))', 'other=float("-inf")) + tl.load(s + i, mask=i < n, other=0.0)')
)


@needs_walls
@pytest.mark.parametrize(
    ("code", "kind"),
    [(WHOLE, "ok"), (LASTING, "ok"), (PACKED, "wrong"), (HIDDEN, "wrong")],
    ids=["whole", "beside what lasts", "packed", "beside a loop that is never run"],
)
def test_a_row_is_as_long_as_published(bench: Bench, code: str, kind: str) -> None:
    """A key of 32 bits leaves a value the fewer bits the more places there are: no loop, and no program more."""
    text = SUMS.format(classes=8192).replace("torch.logsumexp(x, 1)", "torch.argmax(x, 1)").replace("randn", "rand")
    text = text.replace("batch_size", "rows")  # of which 32 are graded, and a part is wrong in each draw
    coarse = "classes).mul(262144.0).floor().div(262144.0)]"  # of which keys of short rows lose nothing
    text = text.replace("classes)]", coarse)
    verdict = bench.grade(make_problem(1, 1, "Largest", text, "test"), code, QUICK)
    assert verdict.kind == kind, verdict
    if kind == "wrong":
        assert "but not where the size 8192 is as published (rows 64 -> 32)" in verdict.message


Programs = Callable[[int], int]
AXIS, LOOPS = Loop("text", -1, 0, 1), [Loop("text", place, 0, 1) for place in range(2)]


def found_at(programs: Programs, often: int, limit: int, most_fits: int = 1 << 17, runs: int = 1 << 17) -> list[int]:
    """The sizes that are asked for their turns, to find the longest, and last the one that was found, or 0."""
    first, asked = scale(problem(1 << 17), 32), []

    async def turns_at(scaled: ScaledProblem) -> Mapping[Loop, int]:
        asked.append(size := classes_of(scaled))
        return {AXIS: programs(size), **dict.fromkeys(LOOPS, often)} if size <= runs else {}

    async def fits(scaled: ScaledProblem) -> bool:
        return classes_of(scaled) <= most_fits

    (value, most), _ = lengths(first)
    found = asyncio.run(longest(first, value, most, 32, limit, turns_at, fits))
    return [*asked, classes_of(found[0]) if found is not None else 0]


@pytest.mark.parametrize(
    ("programs", "often", "limit", "sizes"),
    [
        (lambda size: 1, 1, 512, [1 << 17, 1 << 17]),
        (lambda size: size, 1, 512, [1 << 17, 512, 512]),
        (lambda size: size, 4, 512, [1 << 17, 128, 128]),
        (lambda size: 1, 999, 512, [*(1 << power for power in range(17, 5, -1)), 0]),
        (lambda size: 1, 999, 999, [1 << 17, 1 << 17]),
        (lambda size: 1 << 40, 1 << 40, 512, [1 << 17, 0]),
    ],
)
def test_a_size_is_as_large_as_a_replay_has_time_for(
    programs: Programs, often: int, limit: int, sizes: list[int]
) -> None:
    assert found_at(programs, often, limit) == sizes


def test_a_size_is_no_more_work_than_a_replay_has_time_for() -> None:
    assert found_at(lambda size: 1, 1, 512, most_fits=1 << 10) == [1 << 10, 1 << 10]
    assert found_at(lambda size: 1, 1, 512, most_fits=32) == [0]


def test_a_submission_that_does_not_run_is_left_at_that() -> None:
    assert found_at(lambda size: 1, 1, 512, runs=32) == [1 << 17, 1 << 16, 0]


def test_a_loop_that_is_in_every_size_takes_no_size_away() -> None:
    turns = {AXIS: 2, LOOPS[0]: 600}
    assert limit_of(turns) == 4800 and limit_of({AXIS: 2}) == 512


@pytest.mark.parametrize("classes", [64, 96])
def test_how_large_a_size_is_elsewhere(classes: int) -> None:
    """A batch that is published with the same size is no matter."""
    first = scale(problem(classes), 32)
    powers = dict(stretchable(first))
    assert largest_of(classes, first, first) == classes // (2 if classes == 64 else 4)
    assert [largest_of(value, first, stretched(first, {value: most})) for value, most in powers.items()] == [*powers]


def test_loops_that_turn_alike_follow_each_other() -> None:
    loops = {Loop("text", place, 0, 1): often for place, often in ((0, 8), (1, 8), (2, 3))}
    axes = {Loop("text", -1, 0, 1): 5, Loop("text", -2, 0, 1): 2, Loop("text", LAUNCHES, 0, 1): 7}
    assert program_turns({**axes, **loops}) == 5 * 2 * 8 * 3
    assert program_turns({**axes, Loop("text", -1, 1, 1): 4}) == 10 + 4, "launches add up"


GROWING = """
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def growing(x, y, n, BLOCK: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * n + i, mask=i < n, other=0.0)
    tl.store(y + row, tl.exp(0.2 * tl.sum(tl.abs(v), 0)))


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0], device=x.device)
        growing[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
"""


@needs_walls
def test_what_the_reference_itself_loses_over_a_long_row_is_told(bench: Bench) -> None:
    """An exponential of the sum of thousands is infinite, and there is nothing to compare."""
    text = (
        SUMS.format(classes=8192)
        .replace("torch.logsumexp(x, 1)", "torch.exp(0.2 * x.abs().sum(1))")
        .replace("randn", "rand")
    )
    verdict = bench.grade(make_problem(1, 1, "Growing", text, "test"), GROWING, QUICK)
    assert verdict.ok, verdict
    (finding,) = [each for each in verdict.evidence["findings"] if "the size 8192 was" in each["message"]]
    assert finding["rule"] == "turns" and not finding["decided"]


def test_an_axis_and_launches_want_two_and_loops_three() -> None:
    loop, axis, launches = (Loop("text", place, 0, 1) for place in (0, -1, LAUNCHES))
    wanted = {loop: 9, axis: 9, launches: 9}
    assert lacking(wanted, [{loop: 3, axis: 2, launches: 2}]) == {}
    assert lacking(wanted, [{loop: 2, axis: 1, launches: 1}]) == {loop: 2, axis: 1, launches: 1}
    assert lacking(wanted, [{loop: 2}, {axis: 1, loop: 1}]) == {loop: 2}, "what is not there at first is not asked for"
    assert lacking({loop: 1, axis: 1, launches: -1}, [{loop: 1, axis: 1}]) == {}


@given(st.integers(1, 1 << 17), st.sampled_from([1, 2, 3, 1 << 40]))
def test_the_size_found_is_the_smallest_with_as_many_turns(block: int, most: int) -> None:
    first, loop = scale(problem(1 << 17), 32), Loop("text", 0, 0, 1)

    async def turns_at(scaled: ScaledProblem) -> Mapping[Loop, int]:
        return {loop: min(-(-classes_of(scaled) // block), most)}

    wanted = {loop: min(-(-(1 << 17) // block), most)}
    here = {loop: min(-(-32 // block), most)}
    goal = goal_of(wanted, here)
    powers, found = asyncio.run(powers_for(first, goal, here, turns_at))
    if here[loop] >= goal[loop]:
        assert not powers
        return
    size = classes_of(stretched(first, powers))
    assert -(-size // block) >= goal[loop] and found[loop] >= goal[loop]
    ((value, power),) = powers.items()
    half = classes_of(stretched(first, {value: power - 1}))
    assert power == 1 or -(-half // block) < goal[loop], "half as large would not do"


def test_tiles_along_each_size_of_an_axis_are_several_at_once() -> None:
    """A quotient by a range of numbers may seem to have as many values as it has with tiles along both sizes."""
    first = scale(problem(4096), 32)
    axis, group = Loop("a" * 32, -1, 0, 1), Loop("a" * 32 + "/0", SPLITS, 0, 1)
    unlike = Loop("b" * 32, -1, 0, 1)

    async def turns_at(scaled: ScaledProblem) -> Mapping[Loop, int]:
        new = {change.name: change.new for change in scaled.scaling.changes}
        rows, columns = -(-new.get("batch_size", 64) // 16), -(-new.get("classes", 4096) // 64)
        return {axis: rows * columns, group: 4 if rows * columns > 1 else 1, unlike: columns}

    here = asyncio.run(turns_at(first))
    wanted = {axis: 256, group: 4, unlike: 64}
    goal = goal_of(wanted, here, 3)
    assert taken_apart(goal, here) == {axis: 3} and taken_apart(goal_of({**wanted, group: 1}, here, 3), here) == {}
    assert taken_apart(goal, goal) == {}, "all is often enough"
    powers = asyncio.run(of_tiles(first, goal, here, turns_at))
    found = {change.name: change.new for change in stretched(first, powers).scaling.changes}
    rows, columns = -(-found.get("batch_size", 64) // 16), -(-found["classes"] // 64)
    assert min(rows, columns) >= 3 and max(rows, columns) < 6, "tiles along both, and no more than it takes"


@pytest.mark.parametrize("axes", [1, 2])
@pytest.mark.parametrize("rows_of_a_block", [1, 2, 4])
@pytest.mark.parametrize("columns_of_a_block", [16, 32, 33, 64, 128, 256, 1024])
def test_there_are_more_tiles_along_the_size_that_has_more_as_published(
    rows_of_a_block: int, columns_of_a_block: int, axes: int
) -> None:
    """Each size is as large as it has to be, and then there may be as many along both."""
    first = scale(problem(4096), 32)

    def tiles_at(scaled: ScaledProblem) -> tuple[int, int]:
        new = {change.name: change.new for change in scaled.scaling.changes}
        return -(-new.get("batch_size", 64) // rows_of_a_block), -(-new.get("classes", 4096) // columns_of_a_block)

    async def turns_at(scaled: ScaledProblem) -> Mapping[Loop, int]:
        rows, columns = tiles_at(scaled)
        grid = (rows, columns) if axes == 2 else (rows * columns,)
        return {Loop("a" * 32, -1 - axis, 0, 1): count for axis, count in enumerate(grid)}

    powers = {
        64: next(power for power in range(9) if tiles_at(stretched(first, {64: power}))[0] >= 3),
        4096: next(power for power in range(9) if tiles_at(stretched(first, {4096: power}))[1] >= 3),
    }
    here = asyncio.run(turns_at(first))
    found = asyncio.run(apart(first, powers, here, turns_at))
    (few, rows), (many, columns) = zip(
        tiles_at(unscaled(first.problem)), tiles_at(stretched(first, found)), strict=True
    )
    if axes == 2 or sum(here.values()) == 1:
        assert (rows > columns) - (rows < columns) == (few > many) - (few < many) or few == many
    else:  # tiles along one size alone are not known
        assert rows != columns or found == powers
    assert all(powers[value] <= found[value] <= powers[value] + MOST_APART for value in powers)


def test_a_size_along_which_only_a_loop_runs_stays_as_it_is() -> None:
    first = scale(problem(4096), 32)

    async def turns_at(scaled: ScaledProblem) -> Mapping[Loop, int]:
        new = {change.name: change.new for change in scaled.scaling.changes}
        loop = {Loop("a" * 32, 0, 0, 1): -(-new.get("classes", 4096) // 16)}
        return {**loop, Loop("a" * 32, -1, 0, 1): new.get("batch_size", 64)}

    async def runs_only_first(scaled: ScaledProblem) -> Mapping[Loop, int]:
        return await turns_at(scaled) if scaled.code == first.code else {}

    here = asyncio.run(turns_at(first))
    for asked in (turns_at, runs_only_first):
        assert asyncio.run(apart(first, {64: 1, 4096: 1}, here, asked)) == {64: 1, 4096: 1}


def test_a_loop_over_all_tiles_turns_twice_where_sizes_are_doubled_together() -> None:
    """Few programs share the tiles: as many as they are in one row are too few for a second turn."""
    first = scale(problem(4096), 32)
    loop = Loop("a" * 32, 0, 0, 1)

    async def turns_at(scaled: ScaledProblem) -> Mapping[Loop, int]:
        new = {change.name: change.new for change in scaled.scaling.changes}
        tiles = -(-new.get("batch_size", 64) // 2) * -(-new.get("classes", 4096) // 32)
        return {loop: -(-tiles // 130)}

    async def fits(scaled: ScaledProblem) -> bool:
        new = {change.name: change.new for change in scaled.scaling.changes}
        return new.get("batch_size", 64) * new.get("classes", 4096) <= 32768

    here = asyncio.run(turns_at(first))
    goal = goal_of({loop: 32}, here, 2, 2)
    assert asyncio.run(at_once(first, goal, here, turns_at)) == {}, "no size alone is enough"
    there = stretched(first, asyncio.run(in_step(first, goal, here, turns_at, fits)))
    assert asyncio.run(turns_at(there)) == {loop: 2} and asyncio.run(fits(there))


def test_a_loop_that_is_not_followed_at_first_may_not_turn_at_all() -> None:
    first, loop = scale(problem(4096), 32), Loop("text", 0, 0, 1)

    async def turns_at(scaled: ScaledProblem) -> Mapping[Loop, int]:
        return {loop: 0 if classes_of(scaled) >= 4096 else UNKNOWN}

    here = {loop: UNKNOWN}
    powers, found = asyncio.run(powers_for(first, goal_of({loop: 0}, here), here, turns_at))
    assert powers == {4096: 7} and found == {loop: 0}


def classes_of(scaled: ScaledProblem) -> int:
    return next((change.new for change in scaled.scaling.changes if change.name == "classes"), 1 << 17)


def test_only_what_was_made_smaller_is_stretched() -> None:
    first = scale(problem(4096), 32)
    assert stretchable(first) == [(4096, 7), (64, 5)], "those of a batch last"
    found = stretched(first, {4096: 3})
    assert {change.name: change.new for change in found.scaling.changes} == {"batch_size": 2, "classes": 256}
    assert found.scaling.rule == "stretched" and str(found.scaling) == "batch_size 64 -> 2, classes 4096 -> 256"


def test_many_parts_of_ids_hide_no_loop_and_many_loops_no_wrong_number() -> None:
    parts = [["a", SPLITS - number, 0, 1, 2] for number in range(1 << 13)]
    loops = [["a", place, 0, 1, 3] for place in range(1 << 13)]
    wrong = ["z", WRAPS, 0, 1, 1]
    for told in ([*parts, loops[0]], [*parts, *loops, wrong]):
        (found,) = turns_in(JobResult("ok", "", report={"turns": [told]}), 1)
        assert found[Loop("a", 0, 0, 1)] == 3 and len(found) <= (1 << 12) + 1
    assert found[Loop("z", WRAPS, 0, 1)] == 1
    assert list(found.values()).count(UNKNOWN) == 1, "a loop that is left out is told"


@pytest.mark.parametrize(
    "told",
    [
        None,
        "x",
        [],
        [None],
        [[["a"]]],
        [[["a", 0, 0, 0, "3"]]],
        [[[1, 0, 0, 0, 3]]],
        [[["a", 0, 0, 10**400, 10**400]] * 3],
    ],
)
def test_whatever_a_job_tells_is_bounded(told: Any) -> None:
    result = JobResult("ok", "", report={"turns": told})
    found = turns_in(result, 2)
    assert len(found) == 2 and all(-1 <= turns <= 1 << 40 for each in found for turns in each.values())
    assert all(loop.line <= 1 << 20 for each in found for loop in each)
