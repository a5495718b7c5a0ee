"""What a kernel could tell the interpreter from a GPU by: each case is refused, or computed as a GPU computes it."""

from __future__ import annotations

import pytest

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
ZEROS = "work = torch.zeros(512, dtype=torch.{})"
REFUSED = {
    "whole numbers as a mask": (asking(BESIDE.format("k * 0 + 1"), "n > 0"), "crash", "truth values"),
    "shifted truth as a mask": (asking(BESIDE.format("(k >= 0) << (k < 0)"), "n > 0"), "crash", "before the start"),
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
