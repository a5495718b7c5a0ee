"""What a kernel could tell the interpreter from a GPU by: each case is refused, or computed as a GPU computes it."""

from __future__ import annotations

import pytest

from assay.kernels.program.verdict import KINDS
from support.kernel_graders import Bench
from support.trials import SNAKE, Trials, snaking

pytest.importorskip("torch")
pytest.importorskip("triton")


@pytest.fixture(scope="module")
def trials(bench: Bench) -> Trials:
    return Trials(bench)


def asking(lines: str, condition: str, arguments: str = "", values: str = "", host: str = "") -> str:
    """A right solution of SNAKE that does its work under a condition, after some lines of its own."""
    body = "\n".join(f"        {line}" for line in lines.strip().splitlines())
    return snaking(
        f"""
    y = torch.empty_like(x)
    {host}
    asking[(triton.cdiv(x.numel(), 512),)](x, self.frequency, y, x.numel(), x.shape[-1], {values}BLOCK=512)
    return y
    """,
        head=f"""
    @triton.jit
    def asking(x_ptr, f_ptr, y_ptr, n, F, {arguments}BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        k = tl.arange(0, BLOCK)
{body}
        if {condition}:
            x = tl.load(x_ptr + i, mask=i < n)
            a = tl.load(f_ptr + i % F, mask=i < n, other=1.0)
            s = tl.sin(a * x)
            tl.store(y_ptr + i, x + s * s / a, mask=i < n)
    """,
    )


BESIDE = "beside = tl.load(tl.where(k < 2, x_ptr + k, x_ptr - 2), mask={}, other=0.0)"
ZEROS = "work = torch.zeros(512, dtype=torch.{}, device=x.device)"
REFUSED = {
    "whole numbers as a mask": (asking(BESIDE.format("k * 0 + 1"), "n > 0"), "crash", "truth values"),
    "shifted truth as a mask": (asking(BESIDE.format("(k >= 0) << (k < 0)"), "n > 0"), "crash", "shift of truth"),
    "an exchange of other types": (
        asking(
            "tl.atomic_cas(w + k, tl.zeros((BLOCK,), tl.int64), (k + 7).to(tl.int8))",
            "n > 0",
            "w, ",
            "work, ",
            ZEROS.format("int64"),
        ),
        "crash",
        "pointer to int64",
    ),
    "a branch that promises": (
        asking("c = i % F\nseen = tl.load(f_ptr + c)\nif n < 0:\n    tl.max_contiguous(c, BLOCK)", "n > 0"),
        "crash",
        "of run time",
    ),
    "a whole number that is no multiple": (
        asking("wide = tl.multiple_of(F + z, 512)\nseen = tl.load(x_ptr + i % wide)", "n > 0", "z, ", "0, "),
        "wrong",
        "line 39 is false of 200",
    ),
    "a store where a promise is false": (
        asking("c = tl.max_contiguous(i % 198, BLOCK)\ntl.store(y_ptr + c, 0.0)", "n > 0"),
        "wrong",
        "a store through",
    ),
    "a test for zero that the compiler drops": (
        asking("found = tl.where(z != 0, n // z, 7)", "found == 7", "z, ", "0, "),
        "wrong",
        "divided by zero",
    ),
    "an address as a number": (asking("place = x_ptr.to(tl.int64)", "place != 0"), "unsupported", "an address"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_another_meaning_is_refused(trials: Trials, name: str) -> None:
    code, end, said = REFUSED[name]
    outcome = trials.run(SNAKE, code)
    assert outcome.end == end and said in outcome.message, outcome


def test_one_value_is_exchanged_at_all_addresses(trials: Trials) -> None:
    lines = "tl.atomic_cas(w + k, 0, 7)\ntl.debug_barrier()\nseen = tl.load(w + k)"
    code = asking(lines, "tl.min(seen, 0) == 7", "w, ", "work, ", ZEROS.format("int32"))
    assert trials.run(SNAKE, code).end == "ok"


QUOTIENTS = "a = (k * 7 + 3).to(tl.float32) + F * 0.0\nb = (k * 5 + 11).to(tl.float32)\nq = a / b\n"
TOLD = {
    "right quotients or uneven ones": "((-a) / b != -q)",
    "right quotients or unscaled ones": "((a * 2.0) / b != q * 2.0)",
    "right quotients or uneven sines": "(tl.sin(-a) != -tl.sin(a))",
    "right quotients or casts that go round": "((a * 1e20).to(tl.int32) != 2147483647)",
}


@pytest.mark.parametrize("name", TOLD)
def test_no_mixture_of_calls_tells_an_interpreter(trials: Trials, name: str) -> None:
    exact = "(tl.sum((q != tl.div_rn(a, b)).to(tl.int32), 0) == 0)"
    code = asking(QUOTIENTS, f"{exact} | (tl.sum({TOLD[name]}.to(tl.int32), 0) > 0)")
    assert trials.run(SNAKE, code).end == "undecided"


EMPTY = "work = torch.empty(512, dtype=torch.int32, device=x.device)"
UNWRITTEN = {
    "read": ("seen = tl.load(w + k)", EMPTY, "wrong"),
    "added to": ("seen = tl.atomic_add(w + k, 1)", EMPTY, "wrong"),
    "moved and read": ("seen = tl.load(w + k)", f"{EMPTY}.flip(0)", "wrong"),
    "written and read": ("tl.store(w + k, 0)\ntl.debug_barrier()\nseen = tl.load(w + k)", EMPTY, "ok"),
    "masked": ("seen = tl.load(w + k, mask=k < 0, other=0)", EMPTY, "ok"),
    "zeros moved": (
        "seen = tl.load(w + k)",
        "work = torch.zeros(512, dtype=torch.int32, device=x.device).flip(0)",
        "ok",
    ),
}


@pytest.mark.parametrize("name", UNWRITTEN)
def test_memory_that_nothing_wrote_has_no_value(trials: Trials, name: str) -> None:
    lines, host, end = UNWRITTEN[name]
    outcome = trials.run(SNAKE, asking(lines, "tl.max(seen, 0) == tl.min(seen, 0)", "w, ", "work, ", host))
    assert outcome.end == end and (end == "ok" or "nothing wrote" in outcome.message), outcome


ZERO_SUMS = {
    "relaxed": ("tl.atomic_add(w, 0.0, sem='relaxed')", True),
    "acquire": ("tl.atomic_add(w, 0.0, sem='acquire')", True),
    "release": ("tl.atomic_add(w, 0.0, sem='release')", False),
    "both": ("tl.atomic_add(w, 0.0)", False),
    "of a block of one": ("tl.sum(tl.atomic_add(w + tl.arange(0, 1), 0.0, sem='relaxed'), 0)", False),
    "of a zero that is given": ("tl.atomic_add(w, n * 0.0, sem='relaxed')", False),
}


@pytest.mark.parametrize("name", ZERO_SUMS)
def test_a_sum_with_a_constant_zero_that_does_not_release_is_a_load(trials: Trials, name: str) -> None:
    summed, stays = ZERO_SUMS[name]
    lines = f"first = {summed}\nbits = tl.atomic_or(tl.cast(w, tl.pointer_type(tl.int32), bitcast=True), 0)"
    host = "work = torch.full((1,), -0.0, device=x.device)"
    outcome = trials.run(SNAKE, asking(lines, "(first == 0.0) & (bits < 0)", "w, ", "work, ", host))
    assert outcome.end == ("ok" if stays else "wrong"), outcome


Z = ("z, ", "0.0, ")
AS_A_GPU = {
    "sign of NaN": asking("none = z / z", "none.to(tl.int32, bitcast=True) < 0", *Z),
    "division by zero": asking("found = n // z", "found == 0", "z, ", "0, "),
    "a cast beyond the range": asking("found = z.to(tl.int32)", "found < 0", "z, ", "4e9, "),
    "a sum of truths": asking("found = (n > z) + (F > z)", "found", "z, ", "0, "),
    "NaN in a maximum": asking("found = tl.maximum(z, z / z)", "found != found", *Z),
    "NaN in a clamp": asking("found = tl.clamp(z / z, 0.0, 1.0)", "found != found", *Z),
    "a small power": asking("found = tl.exp2(z)", "found > 0.0", "z, ", "-130.0, "),
    "a fused product": asking("rest = c * c - square", "rest == 0.0", "c, square, ", "1.3, 1.6899998188018799, "),
    "eight bits saturate": asking("found = z.to(tl.float8e4nv).to(tl.float32)", "found != 448.0", "z, ", "1e6, "),
    "lanes of an atomic operation": asking(
        "seen = tl.atomic_add(w + tl.program_id(0) + k * 0, 1)", "tl.sum((seen != k).to(tl.int32), 0) == 0",
        "w, ", "work, ", ZEROS.format("int32"),
    ),
    "several values at one address": asking(
        "tl.store(w + k * 0, k)\ntl.debug_barrier()", "tl.load(w) == BLOCK - 1", "w, ", "work, ", ZEROS.format("int32")
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", AS_A_GPU)
def test_a_kernel_that_works_in_numpy_only_is_wrong(trials: Trials, name: str) -> None:
    assert KINDS[trials.run(SNAKE, AS_A_GPU[name]).end] == "wrong"
