"""How often loops turn, read off a kernel and what a launch gives it."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest

from assay.kernels import language
from assay.kernels.language.flow.turns import UNKNOWN, Place, follow, lines_of_loops

HELPER = """@triton.jit
def helper(n, BLOCK):
    total = 0.0
    for k in range(0, tl.cdiv(n, BLOCK)):
        total += k
    return total
"""


def kernels(body: str, parameters: str = "x, n, m, BLOCK: tl.constexpr") -> language.Kernels:
    names = {"tl": {"module": "triton.language"}, "triton": {"module": "triton"}}
    text = f"@triton.jit\ndef kernel({parameters}):\n{textwrap.indent(body, '    ')}\n"
    table: dict[str, Any] = {
        "0": {"source": text, "line": 5, "names": {**names, "helper": {"function": "1"}}},
        "1": {"source": HELPER, "line": 1, "names": names},
    }
    found = language.parse(table)
    assert isinstance(found, language.Kernels), found
    return found


def turns(body: str, grid: tuple[int, ...] = (4,), **given: Any) -> list[int | None]:
    """Of the kernel's loops in their order; None where it is not known, or nothing comes there."""
    found = kernels(body)
    told = follow(found, "0", {"x": None, "n": 100, "m": 10, "BLOCK": 32} | given, grid).turns
    known = [told.get(Place("", "0", place), UNKNOWN) for place in range(len(lines_of_loops(found.functions["0"])))]
    return [None if each == UNKNOWN else each for each in known]


LOOP = "    tl.store(x, 1.0)"


@pytest.mark.parametrize(
    ("body", "given", "expected"),
    [
        (f"for i in range(0, n, BLOCK):\n{LOOP}", {}, [4]),
        (f"for i in range(0, n, BLOCK):\n{LOOP}", {"n": 33}, [2]),
        (f"for i in range(0, n, BLOCK):\n{LOOP}", {"n": 0}, [0]),
        (f"for i in range(n):\n{LOOP}", {"n": 1}, [1]),
        (f"for i in tl.range(0, n, BLOCK, num_stages=2):\n{LOOP}", {"n": 64}, [2]),
        (f"for i in range(tl.cdiv(n, BLOCK)):\n{LOOP}", {"n": 64}, [2]),
        (f"count = (n + BLOCK - 1) // BLOCK\nfor i in range(count):\n{LOOP}", {"n": 40}, [2]),
        (f"last = min(n, m)\nfor i in range(0, last, 8):\n{LOOP}", {}, [2]),
        (f"for i in range(tl.program_id(0) + 1):\n{LOOP}", {}, [4]),
        (f"for i in range(tl.program_id(0), n, tl.num_programs(0)):\n{LOOP}", {"n": 6}, [2]),
        (f"k = n\nwhile k > 0:\n    k -= BLOCK\n{LOOP}", {"n": 64}, [2]),
        (f"k = 0\nwhile k < n:\n    k += BLOCK\n{LOOP}", {}, [3]),
        (f"for i in range(m):\n    for j in range(0, i):\n    {LOOP}", {}, [10, 9]),
        (f"for i in range(m):\n    k = i * 2\nfor j in range(k):\n{LOOP}", {"m": 2}, [2, 2]),
        (f"for i in range(m):\n    k = i * 2\nfor j in range(k):\n{LOOP}", {"m": 50}, [50, None]),
        (f"if n > 50:\n    for i in range(2):\n    {LOOP}\nelse:\n    for i in range(1):\n    {LOOP}", {}, [2, None]),
        (f"for i in range(BLOCK if n > 5 else 1):\n{LOOP}", {"BLOCK": 2}, [2]),
        (f"k = tl.load(x)\nfor i in range(k):\n{LOOP}", {}, [None]),
        (f"for i in tl.static_range(2):\n{LOOP}", {}, [2]),
        (f"for i in range(0, n, m):\n{LOOP}", {"m": 0}, [None]),
        (f"for i in range((n + 31) >> 5):\n{LOOP}", {}, [4]),
        (f"for i in range(min(n, m, 7)):\n{LOOP}", {}, [7]),
        (f"for i in range(tl.where(n > 0, tl.cdiv(n, BLOCK), 0)):\n{LOOP}", {}, [4]),
        (f"for i in range((n & 6) ^ 1):\n{LOOP}", {}, [5]),
        (f"for i in range(triton.next_power_of_2(m) - 2**3):\n{LOOP}", {}, [8]),
        (f"for i in range(tl.ceil(n / BLOCK).to(tl.int32)):\n{LOOP}", {}, [4]),
        (f"for i in range(((n + BLOCK - 1) * (1.0 / BLOCK)).to(tl.int32)):\n{LOOP}", {}, [4]),
        (f"for i in range(tl.cast(n / 30, tl.int32)):\n{LOOP}", {}, [3]),
        (f"k, l = n, m\nfor i in range(0, k, l + 40):\n{LOOP}", {}, [2]),
    ],
)
def test_turns_of_loops(body: str, given: dict[str, Any], expected: list[int | None]) -> None:
    assert turns(body, **given) == expected


@pytest.mark.parametrize(("n", "expected"), [(20, 1), (64, 2), (4096, 128)])
def test_loops_of_helpers_turn_by_what_they_are_given(n: int, expected: int) -> None:
    found = kernels("v = helper(n, BLOCK)\ntl.store(x, v)")
    assert follow(found, "0", {"x": None, "n": n, "m": 1, "BLOCK": 32}, (1,)).turns == {Place(".0", "1", 0): expected}
    assert lines_of_loops(found.functions["1"]) == [4]


def test_what_a_loop_changes_is_not_known_after_it_but_for_few_turns() -> None:
    body = f"k = 1\nfor i in range(n):\n    k = k + 1\nfor j in range(k):\n{LOOP}"
    assert turns(body, n=1) == [1, 2] and turns(body, n=2) == [2, 3] and turns(body, n=9) == [9, None]


def test_many_loops_in_each_other_end() -> None:
    depth = 10
    body = (
        "".join("    " * level + f"for i{level} in range(n):\n" for level in range(depth))
        + "    " * depth
        + "tl.store(x, 1.0)"
    )
    assert turns(body)[0] in (100, None)


def test_programs_at_all_corners_and_in_the_middle_count() -> None:
    across = f"first, second = tl.program_id(0), tl.program_id(1)\nfor i in range(second, first + 1):\n{LOOP}"
    assert turns(across, grid=(4, 4)) == [4], "of a triangle the last of the first ones has most"
    middle = f"k = tl.program_id(0)\nfor i in range(min(k, 8 - k)):\n{LOOP}"
    assert turns(middle, grid=(9,)) == [4]


@pytest.mark.parametrize(
    "number",
    ["n / 0", "int(1e300)", "tl.ceil(1e300)", "(1e300 * 1e300).to(tl.int32)", "n << 62", "n ** 99", "n % 0", "-n"],
)
def test_no_number_raises(number: str) -> None:
    assert turns(f"for i in range({number}):\n{LOOP}") in ([None], [0])


def test_calls_of_a_helper_are_told_apart() -> None:
    found = kernels("v = helper(n, 10) + helper(n, BLOCK)\ntl.store(x, v)")
    told = follow(found, "0", {"x": None, "n": 40, "m": 1, "BLOCK": 32}, (1,)).turns
    assert sorted(told.values()) == [2, 4] and {place.path for place in told} == {".0", ".1"}


LAST = (1 << 31) - 1


@pytest.mark.parametrize(
    ("line", "given", "wraps"),
    [
        ("k = n * m", {"n": 65536, "m": 32768}, True),
        ("k = n * m", {"n": 65536, "m": 32767}, False),
        ("k = n.to(tl.int64) * m", {"n": 65536, "m": 65536}, False),
        ("k = n * m.to(tl.int64)", {"n": 65536, "m": 65536}, False),
        ("k = (n * m).to(tl.int64)", {"n": 65536, "m": 65536}, True),
        ("k = n + m", {"n": LAST, "m": 1}, True),
        ("k = n + m", {"n": LAST + 1, "m": 1}, False),
        ("k = -n - m", {"n": LAST, "m": 2}, True),
        ("k = n << 20", {"n": 2048}, True),
        ("k = BLOCK * BLOCK", {"BLOCK": 1 << 20}, False),
        ("k = BLOCK * n", {"BLOCK": 1 << 20, "n": 2048}, True),
        ("k = n * 4294967296", {"n": 4}, False),
        ("k = tl.program_id(0) * n", {"n": 1 << 30}, True),
        ("k = tl.program_id(0).to(tl.int64) * n", {"n": 1 << 30}, False),
        ("k = tl.program_id(1) * n", {"n": 1 << 30}, False),
        ("k = (tl.program_id(0) * BLOCK + tl.arange(0, 32))[:, None] * n", {"n": 1 << 28}, True),
        ("k = (tl.program_id(0) * BLOCK + tl.arange(0, 32))[:, None] * n", {"n": 1 << 20}, False),
        ("k = (n.to(tl.int64) * m).to(tl.int32)", {"n": 65536, "m": 65536}, True),
        ("k = tl.cdiv(n, 4) * 2", {"n": LAST - 4}, False),
        ("k = min(n, m) * 2", {"n": LAST, "m": 5}, False),
        ("k = tl.load(x) * n", {"n": LAST}, False),
        ("if tl.load(x) > 0:\n    k = n * n", {"n": 1 << 20}, False),
        ("if m > 5:\n    k = n * n", {"n": 1 << 20}, True),
        ("if m > 5:\n    k = n\nelse:\n    k = n * n", {"n": 1 << 20}, False),
        ("if m > 5:\n    return\nk = n * n", {"n": 1 << 20}, False),
        ("for i in range(0, n, 128):\n    k = i * m", {"n": 1 << 16, "m": 1 << 16}, True),
        ("for i in range(0, n, 128):\n    k = i * m", {"n": 1 << 10, "m": 1 << 16}, False),
        ("for i in tl.static_range(9):\n    k = i * BLOCK", {"BLOCK": 1 << 30}, False),
        ("k = n if m > 5 else n * n", {"n": 1 << 20}, False),
        ("k = tl.full((2,), 65536, tl.int32) * n", {"n": 65536}, True),
        ("k = tl.arange(0, 32).expand_dims(1).reshape(1, 32) * n + n * m", {"n": 65536, "m": 65536}, True),
        ("k = tl.minimum(n, m, propagate_nan=tl.PropagateNan.ALL) * m", {"n": 65536, "m": 65536}, True),
        ("k = tl.full((2,), 65536, tl.int64) * n", {"n": 65536}, False),
    ],
)
def test_numbers_that_32_bits_do_not_hold(line: str, given: dict[str, Any], wraps: bool) -> None:
    arguments = {"x": None, "n": 100, "m": 10, "BLOCK": 32} | given
    found = follow(kernels(f"k = 0\n{line}\ntl.store(x, 1.0)"), "0", arguments, (4,)).wraps
    assert bool(found) is wraps and found <= {8, 9, 10, 11}


def test_numbers_wrap_around_and_go_on() -> None:
    loop = f"k = n * m\nfor i in range(0, k + 2):\n{LOOP}"
    assert turns(loop, n=65536, m=65536) == [2]
    parameters = "x, n: tl.int64, BLOCK: tl.constexpr"
    given = {"x": None, "n": 65536, "BLOCK": 32}
    assert not follow(kernels("k = n * n\ntl.store(x, 1.0)", parameters), "0", given, (1,)).wraps


@pytest.mark.parametrize(
    ("line", "broken"),
    [
        ("tl.assume(n <= 100)", False),
        ("tl.assume(n < 100)", True),
        ("tl.assume(tl.program_id(0) < 3)", True),
        ("tl.assume(tl.load(x) < 3)", False),
        ("if tl.load(x) < 3:\n    tl.assume(n < 100)", False),
        ("k = tl.multiple_of(n, 16)", True),
        ("k = tl.multiple_of(n, 4)", False),
        ("k = tl.multiple_of(tl.program_id(0) * m, 10)", False),
    ],
)
def test_promises_that_numbers_break(line: str, broken: bool) -> None:
    found = follow(kernels(f"k = 0\n{line}\ntl.store(x, 1.0)"), "0", {"x": None, "n": 100, "m": 10, "BLOCK": 32}, (4,))
    assert bool(found.broken) is broken


@pytest.mark.parametrize(
    ("line", "grid", "counts"),
    [
        ("k = tl.program_id(0) // n", (500,), [5]),
        ("k = tl.program_id(0) % n", (500,), [100]),
        ("k = tl.program_id(0) % n", (7,), [7]),
        ("k = tl.program_id(1) // n", (500, 1), [1]),
        ("k = (tl.program_id(0) % n) // m", (500,), [100, 10]),
        ("k = (tl.program_id(0) * BLOCK + tl.arange(0, 32)) // n", (8,), [3]),
        ("k = (tl.program_id(0) + 50) // n", (60,), [2]),
        ("k = min(tl.program_id(0), 250) // n", (500,), [3]),
        ("for i in range(tl.program_id(0), 300, 4):\n    k = i // n", (4,), [3]),
        ("for i in range(0, n, 5):\n    k = i % m", (4,), [10]),
        ("for i in range(0, n, 50):\n    k = i // m", (4,), [6]),
        ("k = tl.program_id(0) >> 3", (500,), [63]),
        ("k = tl.program_id(0) & 7", (500,), [8]),
        ("k = tl.program_id(0) & 7", (3,), [3]),
        ("k = (tl.program_id(0) >> 3) & 15", (500,), [16, 63]),
        ("k = tl.program_id(0) & 6", (500,), []),
        ("k = 7 & tl.program_id(0)", (500,), [8]),
        ("k = (n - 93) & tl.program_id(0)", (500,), [8]),
        ("k = tl.program_id(0) >> 63", (500,), []),
        ("k = tl.program_id(0) >> -1", (500,), []),
        ("k = tl.program_id(0) & -1", (500,), []),
        ("k = n // m", (500,), []),
        ("k = tl.load(x) // n", (500,), []),
        ("k = tl.program_id(0) // tl.load(x)", (500,), []),
        ("if tl.load(x) > 0:\n    k = tl.program_id(0) // n", (500,), []),
    ],
)
def test_values_of_quotients_and_remainders(line: str, grid: tuple[int, ...], counts: list[int]) -> None:
    given = {"x": None, "n": 100, "m": 10, "BLOCK": 32}
    found = follow(kernels(f"k = 0\n{line}\ntl.store(x, 1.0)"), "0", given, grid).values
    assert sorted(found.values()) == sorted(counts)
