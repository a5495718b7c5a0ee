"""Values that the compiler makes once for several elements: what is known of blocks, and what compiled kernels show."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from assay.kernels.compile.stage import CompileReport, compile_program
from assay.kernels.compile.toolkit import triton_executables
from assay.kernels.inside.triton.compiled import lane_facts
from assay.kernels.inside.triton.compiled.block_steps import steps
from assay.kernels.inside.triton.compiled.lane_facts import RULES, Fact
from assay.sandbox import Limits
from assay.sandbox.local import LocalConfig, LocalSandbox
from support.kernel_graders import Bench
from support.recorded_programs import BODY_LINE, module, recorded_text
from support.sandboxes import FEATURES, needs_walls

LIMITS = Limits(wall_s=60, cpu_s=20, memory_mb=4096)
SHAPE = (8, 16)
PREDICATES: dict[str, Callable[[Any, Any], Any]] = {
    **{"slt": np.less, "sge": np.greater_equal, "sgt": np.greater, "sle": np.less_equal},
    **{"eq": np.equal, "ne": np.not_equal},
}
NUMPY: dict[str, Callable[[Any, Any], Any]] = {
    **{"arith.addi": np.add, "arith.subi": np.subtract, "arith.muli": np.multiply, "arith.divsi": np.floor_divide},
    **{"arith.remsi": np.remainder, "arith.shrsi": np.right_shift, "arith.shli": np.left_shift},
    **{"arith.andi": np.bitwise_and, "arith.ori": np.bitwise_or, "arith.xori": np.bitwise_xor},
    **{"arith.minsi": np.minimum, "arith.maxsi": np.maximum},
}


@dataclass(frozen=True)
class Known:
    """A block, and what is known of it."""

    values: Any
    fact: Fact


def groups(values: Any, axis: int, length: int) -> Any:
    """Aligned groups of a length, one in each row."""
    return np.moveaxis(values, axis, -1).reshape(-1, length)


def assert_true(known: Known) -> None:
    """All that a fact says is so."""
    values, fact = known.values, known.fact
    assert (values % fact.every == 0).all()
    assert fact.value is None or (values == fact.value).all()
    for axis in range(values.ndim):
        alike = groups(values, axis, fact.constancy[axis])
        assert (alike == alike[:, :1]).all(), (axis, fact)
        rows = groups(values, axis, fact.contiguity[axis])
        assert (rows == rows[:, :1] + np.arange(rows.shape[1])).all(), (axis, fact)
        assert (rows[:, 0] % fact.firsts[axis] == 0).all(), (axis, fact)


def drawn(random: np.random.Generator) -> Known:
    """A block that a kernel begins with."""
    axis = int(random.integers(2))
    start = int(random.choice([0, 1, 2, 4, 8, 16, 24]))
    if random.random() < 0.3:
        return Known(np.full(SHAPE, start), lane_facts.same(SHAPE, lane_facts.power(start), start))
    row = Known(np.arange(SHAPE[axis]) + start, lane_facts.counting(SHAPE[axis], start))
    before = (SHAPE[0], 1) if axis == 0 else (1, SHAPE[1])
    values = np.broadcast_to(np.expand_dims(row.values, 1 - axis), SHAPE)
    return Known(values, lane_facts.broadcast(lane_facts.expanded(row.fact, 1 - axis), before, SHAPE))


def stepped(random: np.random.Generator, one: Known, other: Known, third: Known) -> Known:
    """What an operation makes of two blocks; of three, where it chooses or loads."""
    name = str(random.choice([*NUMPY, "select", "join", "load"]))
    if name == "load":
        table = random.integers(0, 64, 1 << 12)
        mask = Known(third.values < 16, lane_facts.compared("slt", third.fact, lane_facts.same(SHAPE, 16, 16)))
        values = np.where(mask.values, table[one.values % table.size], other.values)
        return Known(values, lane_facts.loaded(one.fact, mask.fact, other.fact))
    if name == "join":
        return Known((one if random.random() < 0.5 else other).values, lane_facts.joined(one.fact, other.fact))
    if name == "select":
        predicate = str(random.choice(list(PREDICATES)))
        condition = lane_facts.compared(predicate, third.fact, other.fact)
        values = np.where(PREDICATES[predicate](third.values, other.values), one.values, other.values)
        return Known(values, lane_facts.chosen(condition, one.fact, other.fact))
    if name in ("arith.divsi", "arith.remsi"):
        divisor = int(random.choice([1, 2, 3, 4, 8, 16, 24]))
        other = Known(np.full(SHAPE, divisor), lane_facts.same(SHAPE, lane_facts.power(divisor), divisor))
    if name in ("arith.shrsi", "arith.shli"):
        shift = int(random.integers(4))
        other = Known(np.full(SHAPE, shift), lane_facts.same(SHAPE, lane_facts.power(shift), shift))
    return Known(NUMPY[name](one.values, other.values), RULES[name](one.fact, other.fact))


@pytest.mark.parametrize("seed", range(150))
def test_all_that_is_known_of_a_block_is_so(seed: int) -> None:
    random = np.random.default_rng(seed)
    blocks = [drawn(random) for _ in range(4)]
    for _ in range(40):
        made = stepped(random, *(blocks[place] for place in random.integers(len(blocks), size=3)))
        if not (made.values.min() >= 0 and made.values.max() < 1 << 24):
            continue  # of negative quotients and remainders nothing is said
        assert_true(made)
        for predicate, compare in PREDICATES.items():
            other = blocks[int(random.integers(len(blocks)))]
            truth = Known(compare(made.values, other.values) * 1, lane_facts.compared(predicate, made.fact, other.fact))
            assert_true(truth)
        blocks.append(made)


def test_rules_say_as_much_as_is_so_of_masks_and_addresses() -> None:
    row = lane_facts.counting(64, 0)
    limit = lane_facts.same((64,), 16)
    assert lane_facts.compared("slt", row, limit).constancy == (16,)
    assert lane_facts.compared("sgt", limit, row).constancy == (16,)
    assert lane_facts.compared("sle", row, limit).constancy == (1,)
    assert RULES["arith.divsi"](row, lane_facts.same((64,), 8, 8)).constancy == (8,)
    assert RULES["arith.remsi"](row, lane_facts.same((64,), 8, 8)).contiguity == (8,)
    moved = RULES["arith.addi"](lane_facts.same((64,), 32), row)
    assert (moved.contiguity, moved.firsts) == ((64,), (32,))
    chosen = lane_facts.chosen(lane_facts.same((64,), 1), row, RULES["arith.addi"](row, lane_facts.same((64,), 4, 4)))
    assert (chosen.contiguity, chosen.firsts) == ((64,), (4,))


LOOP = """module {
  tt.func public @k(%n: i32 {tt.divisibility = 16 : i32} loc("n"(#loc)), %m: i32 loc("m"(#loc))) {
    %c0 = arith.constant 0 : i32 loc(#loc1)
    %c16 = arith.constant 16 : i32 loc(#loc1)
    %i = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32, #b> loc(#loc1)
    %s = tt.splat %STEP : i32 -> tensor<64xi32, #b> loc(#loc1)
    %l = tt.splat %n : i32 -> tensor<64xi32, #b> loc(#loc1)
    %r:2 = scf.for %k = %c0 to %n step %c16 iter_args(%a = %i, %b = %c0) -> (tensor<64xi32, #b>, i32)  : i32 {
      %in = arith.cmpi slt, %a, %l : tensor<64xi32, #b> loc(#loc2)
      %next = arith.addi %a, %s : tensor<64xi32, #b> loc(#loc3)
      %more = arith.addi %b, %c16 : i32 loc(#loc3)
      scf.yield %next, %more : tensor<64xi32, #b>, i32 loc(#loc3)
    } loc(#loc4)
    %out = arith.cmpi slt, %r#0, %l : tensor<64xi32, #b> loc(#loc5)
    tt.return loc(#loc)
  } loc(#loc)
} loc(#loc)
"""


@pytest.mark.parametrize(("step", "alike"), [("c16", 16), ("n", 16), ("m", 1)])
def test_what_a_loop_carries_is_so_after_each_turn(step: str, alike: int) -> None:
    found = {one.place: one.fact for one in steps(LOOP.replace("%STEP", f"%{step}")) if one.name == "arith.cmpi"}
    assert found["#loc2"].constancy == found["#loc5"].constancy == (alike,)
    assert found["#loc5"].doubtful


Compile = Callable[[str], CompileReport]


@pytest.fixture(scope="module")
def compiled(bench: Bench) -> Iterator[Compile]:
    sandbox = LocalSandbox(LocalConfig(workers=1, executables=triton_executables()), FEATURES)
    yield lambda code: bench.wait(compile_program(sandbox, recorded_text(bench, code), limits=LIMITS))
    bench.wait(sandbox.close())


def using(rows: str, found: str = "at < 32") -> str:
    """A kernel in whose fourth line something is made of a block of rows and columns."""
    body = f"r = tl.arange(0, 64)\n{rows}\nat = r[:, None] + tl.arange(0, 16)[None, :]\nm = {found}\n"
    where = "tl.arange(0, 64)[:, None] * 16 + tl.arange(0, 16)[None, :]"
    return module(f"{body}tl.store(out + {where}, m.to(tl.float32))")


USE_LINE = BODY_LINE + 3
TAKEN_FOR_EQUAL = {
    "chosen rows": using("r = tl.where(r % 2 == 0, r, r + 16)"),
    "chosen rows, divided": using("r = tl.where(r % 2 == 0, r, r + 16)", "at // 16"),
    "rows shifted by several": using("r = r << (r % 3)"),
    "masked values": module(
        "j = tl.arange(0, 1024)\np = (x + 0 * j).to(tl.pointer_type(tl.int32))\n"
        "w = tl.load(p, mask=(0 * j + n) < 9, other=j)\nm = w < 32\ntl.store(out + j, m.to(tl.float32))"
    ),
}


@needs_walls
@pytest.mark.parametrize("name", TAKEN_FOR_EQUAL)
def test_values_made_once_for_elements_that_nothing_shows_to_be_equal(
    bench: Bench, compiled: Compile, name: str
) -> None:
    report = compiled(TAKEN_FOR_EQUAL[name])
    assert report.outcome == "unsupported", report
    assert "one value for several elements" in report.message and f": line {USE_LINE}: " in report.message


EQUAL = {
    "counting rows": using("pass"),
    "rows of a multiple": using("r = r * 16"),
    "quotients": using("r = r // 4 * 16", "at // 4"),
    "chosen by whole groups": using("r = tl.where(r < 32, r * 16, 16)"),
    "shifted back": using("r = (r * 64) >> 2"),
    "loaded rows": using("r = tl.load(x + r // 16).to(tl.int32) * 16"),
    "clamped": using("r = tl.minimum(r, 32) * 16"),
}


@needs_walls
@pytest.mark.parametrize("name", EQUAL)
def test_values_made_once_for_elements_that_are_equal(bench: Bench, compiled: Compile, name: str) -> None:
    report = compiled(EQUAL[name])
    assert (report.outcome, report.message) == ("ok", "")
