"""What error bounds do to a verdict, and what PyTorch's operators between launches do to bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch

from assay.kernels.inside.replay import operators
from assay.kernels.inside.replay.memory import Memory
from assay.kernels.inside.replay.outputs import inexact
from assay.kernels.inside.triton.error_bounds.memory import Bounds
from assay.kernels.program.jobs import Replay
from assay.kernels.program.judging.answers import Answers
from assay.kernels.program.judging.inexact import allowed
from support.kernel_graders import Bench
from support.programs import N, launch, made, operation, window
from support.trials import SNAKE, Trials, snaking

E = 1e-3
"""By how much operands are off."""


def after(*steps: dict[str, Any], limit: float = E, outs: Any = None, first: float | None = None) -> Any:
    """The bounds of the output after some operations, of storages 0 and 2 that hold numbers from 1 to 2, all off."""
    out = outs or window(1)
    program = made(forward=[*steps, launch()], outputs=[out], storages=[8 * N] * 3)
    memory = Memory(program)
    memory.bounds = Bounds([raw.data_ptr() for raw in memory.raw], [len(raw) for raw in memory.raw])
    for storage in (0, 2):
        given = program.inputs[0] if storage == 0 else program.params[0][1]
        memory.tensor(given).copy_(torch.linspace(1.0, 2.0, N))
        if first is not None:
            memory.tensor(given)[0] = first
        if limit:
            inexact.note(memory, given, np.full(N, limit))
    for step in program.forward[:-1]:
        operators.run(memory, step)  # type: ignore[arg-type]
    found = inexact.bounds_of(memory, program.outputs[0])
    return np.zeros(N) if found is None else found


def one(name: str, *args: Any, to: str = "float32", line: int = 7) -> Any:
    """What an operator leaves in the output, of the type `to`."""
    out = window(1, dtype=to)
    kwargs = {"dtype": {"dtype": to}} if name == "_to_copy.default" else {}
    return after(operation(name, *args, outs=(out,), line=line, **kwargs), outs=out)


LEAST: dict[str, tuple[Any, float]] = {
    "a copy": (("clone.default", window(0)), E),
    "another order": (("flip.default", window(0), [0]), E),
    "a sum": (("add.Tensor", window(0), window(2)), 2 * E),
    "a difference": (("sub.Tensor", window(0), window(2)), 2 * E),
    "a product": (("mul.Tensor", window(0), window(2)), 2 * E),
    "a quotient": (("div.Tensor", window(0), window(2)), E),
    "a product with a number": (("mul.Tensor", window(0), 3.0), 3 * E),
    "an exponential": (("exp.default", window(0)), 2.7 * E),
    "the larger of two": (("maximum.default", window(0), window(2)), E),
    "what is left of too large numbers": (("clamp.default", window(0), 1.5), 0.0),
}
"""Operators, and how large each bound must be at least."""


@pytest.mark.parametrize("name", LEAST)
def test_bounds_go_through_an_operator_to_each_element(name: str) -> None:
    given, least = LEAST[name]
    for line in range(12):  # what is left to chance depends on it
        found = one(*given, line=line)
        assert (found >= 0.99 * least).all() and (found <= 8 * max(least, E)).all(), found


def exactly(name: str, *args: Any, first: Any = None, to: str = "float32", **kwargs: Any) -> Any:
    """The bounds of what an operator leaves of exact numbers, from 1 to 2 or `first` at the beginning."""
    out = window(1, dtype=to)
    return after(operation(name, *args, outs=(out,), **kwargs), outs=out, limit=0.0, first=first)


INEXACT: dict[str, tuple[Any, ...]] = {
    "a function": ("exp.default", window(0)),
    "a function whose result is whole": ("log2.default", window(0)),
    "a quotient": ("div.Tensor", window(0), window(2)),
    "a running sum": ("cumsum.default", window(0), 0),
    "a power": ("pow.Tensor_Scalar", window(0), 3.0),
    "a fused sum": ("addcmul.default", window(0), window(0), window(2)),
    "a sum with a factor": ("add.Scalar", window(0), 1.3, 0.3),
    "a range of fractions": ("linspace.default", 0.0, 1.0, N),
}
EXACT: dict[str, tuple[Any, ...]] = {
    "a sum": ("add.Tensor", window(0), window(2)),
    "a product": ("mul.Tensor", window(0), window(2)),
    "the larger of two": ("maximum.default", window(0), window(2)),
    "a copy": ("clone.default", window(0)),
    "a range of whole numbers": ("arange.default", float(N)),
    "steps of whole numbers": ("linspace.default", 0.0, 2.0 * (N - 1), N),
    "every third number": ("arange.start_step", 0.0, 3.0 * N, 3.0),
}


@pytest.mark.parametrize("name", INEXACT)
def test_what_machines_have_with_other_last_bits_is_off(name: str) -> None:
    found = exactly(*INEXACT[name], first=2.0)
    assert found.max() > 1e-7 and found.max() < 2e-4, found


@pytest.mark.parametrize("name", EXACT)
def test_what_every_machine_has_is_exact(name: str) -> None:
    assert not exactly(*EXACT[name]).any()


def test_a_range_is_exact_as_far_as_its_type_has_all_whole_numbers() -> None:
    for end, exact in ((256.0, True), (256.0 + N, False)):
        found = exactly("arange.start", end - N, end, to="bfloat16", dtype={"dtype": "bfloat16"})
        assert bool((found == 0).all()) == exact, found


def test_a_remainder_of_far_numbers_is_anything_and_the_others_stay_as_they_are() -> None:
    found = exactly("fmod.Scalar", window(0), 10.0, first=3e38)
    assert np.isinf(found[0]) and not found[1:].any()
    step = operation("fmod.Scalar", window(0), 10.0, outs=(window(1),))
    found = after(step, first=3e38)
    assert np.isinf(found[0]) and (found[1:] >= 0.99 * E).all()
    whole = window(1, dtype="int32")
    cast = operation("floor.default", window(0), outs=(window(1),))
    assert not after(cast, operation("remainder.Scalar", whole, 7, outs=(whole,)), outs=whole, limit=0.0).any()


def test_a_sum_of_whole_numbers_is_exact() -> None:
    cast = operation("floor.default", window(0), outs=(window(1),))
    added = operation("sum.default", window(1), outs=(window(2, ()),))
    assert not after(cast, added, outs=window(2, ()), limit=0.0).any()


@pytest.mark.parametrize(
    ("number", "shape", "off"), [(1.00390625, (), True), (1.0, (), False), (1.00390625, (1,), False)]
)
def test_a_number_in_memory_may_be_rounded_to_the_half_beside_it(number: float, shape: Any, off: bool) -> None:
    """A tensor with a dimension is none: PyTorch computes in its type then."""
    half, beside = window(0, dtype="bfloat16"), window(2, shape)
    out = window(1, dtype="float32" if shape else "bfloat16")
    steps = (
        operation("fill_.Scalar", half, 3.0, outs=(half,)),
        operation("fill_.Scalar", beside, number, outs=(beside,)),
        operation("mul.Tensor", half, beside, outs=(out,)),
    )
    found = after(*steps, outs=out, limit=0.0)
    assert (found >= 2.0**-7).all() if off else not found.any()


@pytest.mark.parametrize(("dtype", "step"), [("float16", 2.0**-10), ("bfloat16", 2.0**-7)])
def test_a_cast_to_a_narrow_type_may_round_to_either_of_two_numbers(dtype: str, step: float) -> None:
    assert (one("_to_copy.default", window(0), to=dtype) >= step).any()


def test_whole_numbers_of_what_is_inexact_may_be_any() -> None:
    found = one("_to_copy.default", window(0), to="int32")
    assert np.isinf(found).all()


def test_a_comparison_is_undecided_where_numbers_are_as_near_as_they_are_off() -> None:
    found = one("gt.Scalar", window(0), 1.0, to="bool")
    assert found[0] > 0 and not found[1:].any()
    assert (one("gt.Tensor", window(0), window(2), to="bool") > 0).all(), "all of them equal those of the other one"


def test_what_is_filled_is_exact() -> None:
    out = window(1)
    copied = operation("clone.default", window(0), outs=(out,))
    assert not after(copied, operation("fill_.Scalar", out, 2.0, outs=(out,))).any()
    assert not after(copied, operation("zeros.default", [N], outs=(out,))).any()


def test_an_operator_in_place_takes_what_was_there() -> None:
    out = window(1)
    copied = operation("clone.default", window(0), outs=(out,))
    added = operation("add_.Tensor", out, window(2), outs=(out,))
    assert (after(copied, added) >= 1.99 * E).all()


def test_a_number_read_as_one_of_another_type_may_be_any() -> None:
    narrow = operation("_to_copy.default", window(0), outs=(window(1, dtype="float16"),), dtype={"dtype": "float16"})
    assert np.isinf(after(narrow, outs=window(1, dtype="bfloat16"))).any()
    assert np.isinf(after(narrow, outs=window(1, (N // 2,), "float32"))).any()


def test_a_share_is_of_the_size_of_elements() -> None:
    program = made()
    memory = Memory(program)
    memory.bounds = Bounds([raw.data_ptr() for raw in memory.raw], [len(raw) for raw in memory.raw])
    (out,) = program.outputs
    memory.tensor(out).copy_(torch.full((N,), 3.0))
    assert inexact.told(memory, [out]) == {"inexact": [0.0], "mostly_inexact": [0.0], "undecided": []}
    inexact.note(memory, out, np.array([0.0] * (N - 1) + [0.6]))
    assert inexact.told(memory, [out])["inexact"] == [pytest.approx(0.1)]
    inexact.note(memory, out, np.array([np.inf] + [0.0] * (N - 1)))
    assert inexact.told(memory, [out])["inexact"] == [inexact.MOST]
    few = N // inexact.FEW
    inexact.note(memory, out, np.array([0.6] * (N - few) + [np.inf] * few))
    assert inexact.told(memory, [out])["mostly_inexact"] == [pytest.approx(0.1)]
    inexact.note(memory, out, np.array([0.6] * (N - few - 1) + [np.inf] * (few + 1)))
    assert inexact.told(memory, [out])["mostly_inexact"] == [inexact.MOST]
    memory.bounds = None
    assert inexact.told(memory, [out]) == {}


@pytest.fixture(scope="module")
def trials(bench: Bench) -> Trials:
    return Trials(bench)


def with_more(more: str, lines: str = "", between: str = "work.flip(0).flip(0)") -> str:
    """A right solution of SNAKE in two launches, with something added."""
    body = "\n".join(f"        {line}" for line in lines.splitlines())
    return snaking(
        f"""
    y, work, grid = torch.empty_like(x), torch.empty_like(x), (triton.cdiv(x.numel(), 512),)
    first[grid](x, self.frequency, work, x.numel(), x.shape[-1], BLOCK=512)
    second[grid](x, self.frequency, {between}, y, x.numel(), x.shape[-1], BLOCK=512)
    return y
    """,
        head=f"""
    @triton.jit
    def first(x_ptr, f_ptr, w_ptr, n, F, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + i, mask=i < n, other=0.0)
        a = tl.load(f_ptr + i % F, mask=i < n, other=1.0)
        tl.store(w_ptr + i, tl.sin(a * x), mask=i < n)

    @triton.jit
    def second(x_ptr, f_ptr, w_ptr, y_ptr, n, F, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + i, mask=i < n, other=0.0)
        a = tl.load(f_ptr + i % F, mask=i < n, other=1.0)
        s = tl.load(w_ptr + i, mask=i < n, other=0.0)
        w = (tl.abs(x) + 1.0) / 3.0 - tl.div_rn(tl.abs(x) + 1.0, 3.0)
{body}
        tl.store(y_ptr + i, x + s * s / a + {more}, mask=i < n)
    """,
    )


@pytest.mark.parametrize(
    ("precision", "family", "moved", "times"),
    [
        ("float32", "given", False, 128),
        ("float32", "large", False, 128 * 128),
        ("float32", "sparse", True, 128 * 16 * 4),
        ("float32", "given", True, 128 * 4),
        ("float16", "large", True, 16 * 16),
        ("float16", "sparse", False, 16),
    ],
)
def test_large_inputs_and_other_weights_allow_more(
    trials: Trials, precision: str, family: str, moved: bool, times: float
) -> None:
    """Bounds of attention's scores, which are thousands there, are worst cases far from any error."""
    draw = trials.draw(SNAKE)
    (case,) = [case for case in draw.cases if case.family == family]
    call = Replay(case, weights=draw.updated_weights if moved else {})
    (share,) = [one.share_of(exact) for one, exact in zip(case.tolerances(precision), case.exact, strict=True)]
    assert allowed(call, Answers(draw, [call], precision)) == [pytest.approx(times * share)]


ENDS = {
    "nothing more": (with_more("w"), "ok", ""),
    "a choice that makes no difference": (with_more("tl.where(w > 0.0, w, -w)"), "ok", ""),
    "a choice that does": (with_more("tl.where(w == 0.0, 0.0, 5.0)"), "wrong", "is right in the interpreter and may"),
    "a choice that does, of few large inputs alone": (
        with_more("tl.where((tl.abs(x) > 8.0) & (i < 3) & (w != 0.0), 1e9, 0.0)"),
        "undecided",
        "is right in the interpreter and may",
    ),
    "a choice that does, on large inputs alone": (
        with_more("tl.where((tl.abs(x) > 40.0) & (w != 0.0), 1e6, 0.0)"),
        "wrong",
        "is right in the interpreter and may",
    ),
    "its line": (with_more("tl.where(w == 0.0, 0.0, 5.0)"), "wrong", "compared in line"),
    "a branch": (with_more("0.0", "if tl.max(w, 0) > 0.0:\n    s = s * 2.0"), "undecided", "depends on the last bits"),
    "a large factor": (with_more("w * 1e6"), "wrong", "times as much as is allowed"),
    "a kernel that nothing needs, told first": (
        with_more("w * 1e6").replace(" " * 8 + "return y", " " * 8 + "copied(x)\n" + " " * 8 + "return y"),
        "cheat",
        "copy_kernel",
    ),
    "a small factor": (with_more("w * 0.01"), "ok", ""),
    "a question after a move": (
        with_more("tl.where(s == libdevice.sin(a * x), 0.0, 5.0)").replace(
            "import triton.language as tl\n",
            "import triton.language as tl\nfrom triton.language.extra import libdevice\n",
            1,
        ),
        "wrong",
        "may be off by",
    ),
}


@pytest.mark.parametrize("name", ENDS)
def test_what_makes_much_of_last_bits_is_wrong(trials: Trials, name: str) -> None:
    code, end, said = ENDS[name]
    outcome = trials.run(SNAKE, code)
    assert outcome.end == end and said in outcome.message, outcome
