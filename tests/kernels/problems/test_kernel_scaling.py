"""Scaling: which integers change, by which rule, and that the record says so."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import DataError
from assay.kernels.problems.other_sizes import MOST_ALONE, MOST_GROWTH, any_smaller, apart, grown, other_sizes
from assay.kernels.problems.scaling import (
    AS_PUBLISHED,
    Rule,
    ScaledProblem,
    halved,
    ladder,
    scale,
    task_key,
    unscaled,
)
from assay.kernels.problems.sources import (
    MAX_CODE_CHARACTERS,
    MAX_INTEGERS,
    SHIPPED,
    Problem,
    find_problem,
    load_problems,
    make_problem,
)
from support.kernelbench_data import PUBLISHED, TINY, needs_published

SIZES = '''
import torch
import torch.nn as nn

LIMIT = 4096


class Model(nn.Module):
    def __init__(self, sizes=1024):
        super().__init__()

    def forward(self, x):
        return x + 5000


# a comment with 9999 and "ü" before a size: ü
height = width = 512
M, N = 16384 * 2, 2**11
batch, shape = 96, (batch_channels := 3, 4095)
flag = True
ratio = 1000.0


def get_inputs():
    """4096 in a docstring stays."""
    n_batch = 100
    return [torch.rand(100, M, size=640), torch.rand(n_batch, -2048)]


def get_init_inputs():
    return [[1024, 7], {"groups": 200}]
'''


def problem(code: str = SIZES) -> Problem:
    return make_problem(1, 1, "1_Sizes", code, "test")


def test_sizes_are_halved_to_the_cap_and_recorded() -> None:
    scaled = scale(problem(TINY), 32)
    assert {c.name: (c.old, c.new) for c in scaled.scaling.changes} == {"batch_size": (64, 2), "features": (4096, 32)}
    assert "features = 32\n" in scaled.code and "batch_size = 2\n" in scaled.code
    assert scaled.hash != scaled.problem.hash
    assert "features 4096 -> 32" in str(scaled.scaling)
    assert scaled.scaling.to_json()["changes"] == [["batch_size", 15, 64, 2], ["features", 16, 4096, 32]]


def test_only_sizes_outside_the_model_change() -> None:
    code = scale(problem(), 32).code
    for kept in ("sizes=1024", "x + 5000", "9999", "4096 in a docstring", "flag = True", "ratio = 1000.0", '"ü"'):
        assert kept in code
    for changed in ("LIMIT = 32", "height = width = 32", "M, N = 32, 32", "torch.rand(25, M, size=20)", "[[32, 7],"):
        assert changed in code
    compile(code, "scaled", "exec")


def test_integers_of_a_batch_have_a_cap_of_their_own() -> None:
    changes = {c.name: c.new for c in scale(problem(), 32, batch_cap=4).scaling.changes if "batch" in c.name}
    assert changes == {"batch": 3, "n_batch": 4}


def test_a_batch_never_becomes_one_sample() -> None:
    assert halved(24, 2, round_up=True) == 2
    assert halved(24, 2) == 1
    assert halved(7, 8) == 7


def test_uniform_gives_all_names_one_cap() -> None:
    scaled = scale(problem(TINY), 32, rule="uniform")
    assert {c.new for c in scaled.scaling.changes} == {32}
    assert scaled.scaling.batch_cap == 32


def test_proportional_keeps_ratios() -> None:
    code = TINY.replace("features = 4096", "features = 8192\ngroups = 512\nwindow = 3")
    changes = {c.name: c.new for c in scale(problem(code), 128, rule="proportional").scaling.changes}
    assert changes == {"batch_size": 2, "features": 128, "groups": 8}


def test_small_problems_are_left_as_published() -> None:
    small = problem(TINY.replace("64", "2").replace("4096", "30"))
    assert scale(small, 32) == unscaled(small)
    assert scale(small, 32).scaling == AS_PUBLISHED
    assert next(ladder(small)) == unscaled(small)


def test_the_ladder_starts_small_and_repeats_nothing() -> None:
    rungs = list(ladder(problem(TINY)))
    assert rungs[0].scaling.cap == 32 and rungs[0].scaling.rule == "capped"
    assert len({r.code for r in rungs}) == len(rungs)
    assert {r.scaling.rule for r in rungs} >= {"capped", "uniform"}


RANGES = """
import torch


class Model(torch.nn.Module):
    def forward(self, x, y):
        return x * x + LINE


low, high, padding = 1000, 30000, 0
rows: int = 24
columns = 96


def get_inputs():
    return [torch.randint(1000, 30000, (rows, columns)), torch.randint(low=low, high=high, size=(rows, columns))]


def get_init_inputs():
    return [INIT]
"""


@pytest.mark.parametrize("rule", ["ranges", "capped"])
def test_ranges_of_random_numbers_are_no_sizes(rule: Rule) -> None:
    scaled = scale(problem(RANGES.replace("LINE", "y").replace("INIT", "")), 32, rule=rule)
    kept = rule == "ranges"
    assert ("randint(1000, 30000, (rows, columns))" in scaled.code) == kept
    assert f"padding = {'1000, 30000' if kept else '31, 29'}, 0" in scaled.code  # 0 is no size at any cap
    assert "columns = 24\n" in scaled.code
    assert sizes_of(scaled).keys() == ({"columns"} if kept else {"columns", "low", "high", ""})


def test_the_numbers_of_a_configuration_are_sizes_and_those_of_a_model_are_not() -> None:
    code = RANGES.replace("LINE", "y").replace("INIT", "").replace("columns = 96", "class C:\n    columns: int = 96")
    code = code.replace("columns))", "C.columns))").replace("Module):", "Module):\n    order = 512")
    assert sizes_of(scale(problem(code), 32, rule="ranges")) == {"columns": 24}


@pytest.mark.parametrize(("line", "init"), [("y + high", ""), ("y", "high")])
def test_a_range_that_is_read_elsewhere_may_be_a_size(line: str, init: str) -> None:
    scaled = scale(problem(RANGES.replace("LINE", line).replace("INIT", init)), 32, rule="ranges")
    assert sizes_of(scaled).keys() == {"columns", "high"}


def test_ranges_are_kept_first_and_at_other_sizes_too() -> None:
    rungs = list(ladder(problem(RANGES.replace("LINE", "y").replace("INIT", ""))))
    assert [rung.scaling.rule for rung in rungs[:2]] == ["ranges", "ranges"] and "capped" in {
        r.scaling.rule for r in rungs
    }
    assert all(sizes_of(other).keys() <= {"rows", "columns"} for other in other_sizes(rungs[0], random.Random(3)))


def test_no_size_becomes_one_and_the_published_ones_come_last() -> None:
    rungs = list(ladder(problem(RANGES.replace("LINE", "y").replace("INIT", "rows, 70000"))))
    assert all(1 not in sizes_of(rung).values() for rung in rungs) and rungs[-1].scaling == AS_PUBLISHED


def sizes_of(scaled: ScaledProblem) -> dict[str, int]:
    return {change.name: change.new for change in scaled.scaling.changes}


def test_other_sizes_of_a_problem_that_was_made_smaller() -> None:
    fitted = scale(problem(TINY), 32)
    assert sizes_of(fitted) == {"batch_size": 2, "features": 32}
    others = list(other_sizes(fitted))
    assert [sizes_of(other) for other in others] == [
        {"batch_size": 4, "features": 64},
        {"batch_size": 3, "features": 36},
        {"batch_size": 3, "features": 40},
        {"batch_size": 3, "features": 48},
        {"batch_size": 2, "features": 64},
        {"batch_size": 4, "features": 32},
        {"batch_size": 2, "features": 16},
    ]
    assert len({other.code for other in (fitted, *others)}) == 8
    assert all(other.scaling.rule == "other" for other in others)
    assert str(others[0].scaling) == "batch_size 64 -> 4, features 4096 -> 64"


def test_all_sizes_are_others_where_twice_of_all_is_too_much_work() -> None:
    deep = TINY.replace("features = 4096", "features = 4096\n" + "".join(f"a{n} = 512\n" for n in range(4)))
    fitted = scale(problem(deep), 32)
    grew = set()
    for seed in range(40):
        sizes = next(found for found in map(sizes_of, other_sizes(fitted, random.Random(seed))) if 36 in found.values())
        assert sizes.pop("batch_size") == 3 and set(sizes.values()) <= {24, 28, 36}
        assert {sizes[f"a{n}"] for n in range(4)} <= {24, 36} and sizes["features"] in (28, 36), "apart as published"
        grew |= {name for name, size in sizes.items() if size == 36}
    assert grew == {"features", "a0", "a1", "a2", "a3"}


@pytest.mark.parametrize(
    ("published", "first"),
    [
        ((2048, 8192, 4096), (16, 128, 64)),
        ((512, 128), (64, 16)),
        ((4096, 4096, 64), (64, 64, 16)),
        ((768, 1024, 2048), (12, 64, 128)),
        ((130, 128), (65, 16)),
        ((1000, 1024), (60, 64)),
        ((8205, 2949, 5921), (63, 11, 45)),
    ],
)
def test_sizes_that_differ_as_published_differ_at_one_of_two_sizes(
    published: tuple[int, ...], first: tuple[int, ...]
) -> None:
    names = "MKN"[: len(published)]
    text = TINY.replace("features = 4096", "features = 4\n" + "".join(map("{} = {}\n".format, names, published)))
    fitted = scale(problem(text), 32)
    now, other = sizes_of(fitted), sizes_of(next(other_sizes(fitted)))
    assert tuple(map(other.__getitem__, names)) == first
    for one in names:
        for two in names:
            if published[names.index(one)] < published[names.index(two)]:
                assert now[one] < now[two] or other[one] < other[two]
        assert other[one] != now[one], "a kernel may lean on the first one"


@given(
    st.lists(st.sampled_from([64, 96, 128, 200, 512, 1000, 1024, 4096, 8205, 65536]), min_size=1, max_size=5),
    st.sampled_from([32, 16, 64]),
    st.sampled_from([2, 4]),
)
def test_sizes_that_are_apart_keep_their_order_and_fit_what_fits_as_published(
    published: list[int], cap: int, ratio: int
) -> None:
    now = {value: halved(value, cap) for value in published if value > cap}
    found = apart(now, ratio)
    assert found.keys() == now.keys() and all(found[value] != now[value] for value in now)
    assert all(not size & (size - 1) or value & (value - 1) for value, size in found.items())
    grew = math.prod(found[value] / now[value] for value in now)
    if grew <= MOST_GROWTH:
        assert sorted(found, key=lambda value: (found[value], value)) == sorted(found)


def test_a_size_without_smaller_integers_is_there_for_large_blocks() -> None:
    text = TINY.replace("features = 4096", "features = 4096\nother = 512")
    fitted = scale(problem(text), 32)
    first, larger = next(other_sizes(fitted)), grown(fitted)
    assert larger is not None and any_smaller(first, fitted) and not any_smaller(larger, fitted)
    assert sizes_of(larger) == {"batch_size": 4, "features": 256, "other": 64}
    assert grown(unscaled(problem(TINY))) is None


def test_other_sizes_of_a_problem_as_published_are_smaller() -> None:
    small = unscaled(problem(TINY.replace("64", "7").replace("4096", "30")))
    assert [sizes_of(other) for other in other_sizes(small)] == [{"batch_size": 3, "features": 15}]
    assert list(other_sizes(unscaled(problem(TINY.replace("64", "3").replace("4096", "16"))))) == []


@pytest.mark.parametrize(
    ("published", "now", "other"),
    [(8205, 32, 63), (8200, 32, 56), (65535, 31, 63), (1000, 31, 60), (4096, 32, 64), (96, 24, 48)],
)
def test_sizes_that_fit_no_block_when_published_fit_none_at_another_size(published: int, now: int, other: int) -> None:
    uneven = scale(problem(TINY.replace("4096", str(published))), 32)
    assert sizes_of(uneven)["features"] == now
    first, *rest = other_sizes(uneven)
    assert sizes_of(first)["features"] == other
    if other != 2 * now and other % 2 == 0:
        assert any(sizes_of(each).get("features") == 2 * now for each in rest), (
            "in case uneven ones do not fit together"
        )


def test_random_sizes_are_odd_so_that_no_block_fits_them() -> None:
    small = unscaled(problem(TINY.replace("64", "2").replace("4096", "100")))
    found = {sizes_of(next(other_sizes(small, random.Random(seed))))["features"] for seed in range(60)}
    assert len(found) > 10 and all(50 <= size < 100 and size % 2 for size in found)


def test_equal_literal_shapes_change_alike() -> None:
    drawn = "[torch.rand(2, 24, 48, 48), torch.rand(24, 48), torch.rand(size=(24,))]"
    one = unscaled(problem(TINY.replace("[torch.rand(batch_size, features)]", drawn)))
    for seed in range(20):
        code = next(other_sizes(one, random.Random(seed))).code
        found = re.search(r"rand\(2, (\d+), (\d+), (\d+)\), torch.rand\((\d+), (\d+)\)", code)
        assert found is not None
        first, second, third, *again = found.groups()
        assert again == [first, second], "the third is equal to the second as published, and need not be"
        assert (first, second) != ("24", "48")
        if second != third:
            return
    raise AssertionError("a square never became another rectangle")


def test_few_sizes_are_changed_alone() -> None:
    many = TINY.replace("features = 4096", "features = 4096\n" + "".join(f"a{n} = 512\n" for n in range(200)))
    assert len(list(other_sizes(scale(problem(many), 32)))) <= MOST_ALONE + 7


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("x = " + " + ".join(["1"] * 400), "nested deeper than"),
        ("x = " + "-" * 200 + "1", "nested deeper than"),
        (f"x = [{'64, ' * (MAX_INTEGERS + 1)}]", "integers; at most"),
        (f"x = {'y' * MAX_CODE_CHARACTERS!r}", "characters; at most"),
    ],
)
def test_modules_that_cost_their_reader_too_much(line: str, why: str) -> None:
    with pytest.raises(DataError, match=why):
        problem(TINY + line)


def test_one_text_is_another_task_where_its_sizes_are_kept() -> None:
    copy = problem(TINY)
    shipped = replace(copy, source=SHIPPED)
    assert copy.hash == shipped.hash and task_key(copy, "fit") != task_key(shipped, "fit")
    assert task_key(copy, "none") == task_key(shipped, "none") == task_key(shipped, "fit")
    assert task_key(unscaled(copy), "fit") not in (task_key(copy, "fit"), task_key(copy, "none"))


def test_no_other_size_is_larger_than_published() -> None:
    nearly = scale(problem(TINY.replace("4096", "40")), 32)
    assert max(sizes_of(other).get("features", 40) for other in other_sizes(nearly)) == 40


def test_caps_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        scale(problem(), 0)


@needs_published
def test_every_published_problem_scales_to_valid_python() -> None:
    problems = load_problems("jsonl", (1, 2, 3), PUBLISHED)
    for one in problems:
        compile(scale(one, 32).code, one.name, "exec")
    relu = scale(find_problem(problems, 1, 19), 32)
    assert [(c.name, c.old, c.new) for c in relu.scaling.changes] == [("batch_size", 4096, 2), ("dim", 393216, 24)]
