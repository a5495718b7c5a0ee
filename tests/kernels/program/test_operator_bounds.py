"""What each of PyTorch's operators between launches makes of error bounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch

from assay.kernels.inside.replay import operators
from assay.kernels.inside.replay.memory import Memory
from assay.kernels.inside.replay.operator_bounds import Call, after, cast
from assay.kernels.inside.replay.outputs import inexact
from assay.kernels.inside.triton.error_bounds.memory import Bounds
from support.programs import N, launch, made, operation, window


def left(
    name: str,
    *args: Any,
    first: float = 1.0,
    limit: float = 0.0,
    other: float = 2.0,
    outs: Any = None,
    of: str = "float32",
    **kwargs: Any,
) -> Any:
    """The bounds of what an operator leaves of storage 0, whose numbers are all `first` and off by `limit`, and of
    storage 2, of exact numbers that are all `other`."""
    outs = outs or (window(1),)
    step = operation(name, *args, outs=outs, **kwargs)
    program = made(forward=[step, launch()], outputs=[outs[0]], storages=[8 * N] * 4)
    memory = Memory(program)
    memory.bounds = Bounds([raw.data_ptr() for raw in memory.raw], [len(raw) for raw in memory.raw])
    for given, value in ((program.inputs[0], first), (program.params[0][1], other)):
        memory.tensor(replace(given, dtype=of)).fill_(value)
    if limit:
        inexact.note(memory, program.inputs[0], np.full(N, limit))
    operators.run(memory, program.forward[0])  # type: ignore[arg-type]
    found = inexact.bounds_of(memory, program.forward[0].outs[-1])  # type: ignore[union-attr]
    return np.zeros(1) if found is None else found


UNKNOWN: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "a hyperbolic cosine beyond a processor's range": (("cosh.default", window(0)), {"first": 1000.0}),
    "a quotient by a number without an inverse": (("div.Tensor", window(0), 1e-39), {"first": 0.0}),
    "a quotient by a number with a coarse inverse": (("div.Tensor", window(0), 3e38), {}),
    "a product of three in one": (("addcmul.default", window(0), window(0), window(2)), {"value": 1e20}),
    "a root of less than nothing": (("pow.Tensor_Scalar", window(0), 0.5), {"first": -float("inf")}),
    "a root of a zero": (("pow.Tensor_Scalar", window(0), 0.5), {"first": -0.0}),
    "an inverse of a square that is too large": (("pow.Tensor_Scalar", window(0), -2), {"first": 1e20}),
    "a rounding to decimals": (("round.decimals", window(0)), {"decimals": 3}),
    "a remainder over a period": (("remainder.Scalar", window(0), 0.5), {"limit": 0.25}),
    "a remainder by what is inexact": (("remainder.Tensor", window(2), window(0)), {"limit": 1e-6}),
    "a tangent of a large bound": (("tan.default", window(0)), {"limit": 0.2}),
    "a tangent across its pole": (("tan.default", window(0)), {"first": 1.57, "limit": 0.01}),
    "a quotient by next to nothing": (("div.Tensor", window(2), window(0)), {"first": 0.1, "limit": 0.2}),
    "an inverse of next to nothing": (("reciprocal.default", window(0)), {"first": 0.1, "limit": 0.2}),
    "a negative power of next to nothing": (("pow.Tensor_Scalar", window(0), -2.0), {"first": 0.1, "limit": 0.2}),
    "an inexact power of next to nothing": (("pow.Tensor_Tensor", window(0), window(0)), {"first": 0.1, "limit": 0.2}),
    "a logarithm of next to nothing": (("log.default", window(0)), {"first": 0.1, "limit": 0.2}),
    "an inverse matrix": (
        ("linalg_inv_ex.default", window(0, (2, 2))),
        {"limit": 1e-6, "outs": (window(1, (2, 2)), window(3, (), "int32"))},
    ),
    "what is anything, clamped": (("clamp.default", window(0), 0.0, 1.0), {"limit": np.inf}),
    "places of inexact numbers": (
        ("sort.default", window(0)),
        {"limit": 1e-6, "outs": (window(1), window(3, dtype="int64"))},
    ),
    "places of equals": (("topk.default", window(0), 2), {"outs": (window(1, (2,)), window(3, (2,), "int64"))}),
    "the place of the largest": (("argmax.default", window(0)), {"limit": 1e-6, "outs": (window(1, (), "int64"),)}),
    "a step of whole numbers that is cut": (
        ("linspace.default", 0, 10, N),
        {"outs": (window(1, dtype="int32"),), "dtype": {"dtype": "int32"}},
    ),
    "a product of complex numbers": (
        ("mul.Tensor", window(0, (N // 2,), "complex64"), window(2, (N // 2,), "complex64")),
        {"outs": (window(1, (N // 2,), "complex64"),)},
    ),
    "a half compared with a number": (
        ("eq.Scalar", window(0, dtype="float16"), 0.1),
        {"first": 0.0999755859375, "of": "float16", "outs": (window(1, dtype="bool"),)},
    ),
    "a mean of a sum too large in another order": (
        ("mean.default", window(0)),
        {"first": 3e38, "outs": (window(1, ()),)},
    ),
    "a sum of what its type does not hold": (
        ("sum.default", window(0)),
        {"first": 1e5, "outs": (window(1, (), "float16"),), "dtype": {"dtype": "float16"}},
    ),
    "a sum of what its whole type does not hold": (
        ("sum.default", window(0)),
        {"first": 4e4, "outs": (window(1, (), "int8"),), "dtype": {"dtype": "int8"}},
    ),
    "a product as unsigned numbers": (
        ("prod.default", window(0)),
        {"first": -3.0, "outs": (window(1, (), "uint8"),), "dtype": {"dtype": "uint8"}},
    ),
    "a product too large in another order": (("prod.default", window(0)), {"first": 1e30, "outs": (window(1, ()),)}),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_lies_between_the_ends_may_be_anything(name: str) -> None:
    args, said = UNKNOWN[name]
    assert np.isinf(left(*args, **said)).all()


NEAR: dict[str, tuple[tuple[Any, ...], dict[str, Any], float]] = {
    "a sine": (("sin.default", window(0)), {"limit": 1e-3}, 1e-3),
    "a sine over a turn": (("sin.default", window(0)), {"limit": 2 * np.pi}, 2.0),
    "a square around 0": (("square.default", window(0)), {"first": 0.0, "limit": 0.1}, 0.02),
    "a size around 0": (("abs.default", window(0)), {"first": 0.1, "limit": 0.2}, 0.4),
    "an even power around 0": (("pow.Tensor_Scalar", window(0), 2.0), {"first": 0.1, "limit": 0.1}, 0.06),
    "a hyperbolic cosine": (("cosh.default", window(0)), {"first": 0.1, "limit": 0.1}, 0.0301),
    "a remainder": (("remainder.Scalar", window(0), 0.7), {"limit": 1e-3}, 2e-3),
    "a sum": (("sum.default", window(0)), {"limit": 1e-3, "outs": (window(1, ()),)}, 1e-3 * N),
    "a mean": (("mean.default", window(0)), {"limit": 1e-3, "outs": (window(1, ()),)}, 1e-3),
    "a product of matrices": (
        ("dot.default", window(0), window(2)),
        {"limit": 1e-3, "other": -2.0, "outs": (window(1, ()),)},
        2e-3 * N,
    ),
    "an infinite number": (("add.Tensor", window(0), window(2)), {"limit": 1e-3, "other": -np.inf}, 0.0),
}


@pytest.mark.parametrize("name", NEAR)
def test_a_rule_has_the_size_of_what_may_change(name: str) -> None:
    args, said, size = NEAR[name]
    found = left(*args, **said)
    assert (found >= 0.99 * size).all() and (found <= 1.1 * size + 1e-6).all(), found


def test_whole_numbers_are_divided_as_fractions() -> None:
    step = ("div.Tensor_mode", window(0, dtype="int32"), 41.0)
    assert (left(*step, rounding_mode="trunc", first=41.0, of="int32") >= 1.0).all()
    assert (left(*step, rounding_mode="trunc", first=43.0, of="int32") < 1e-5).all()


def test_what_is_equal_to_a_number_may_lie_between_the_ends() -> None:
    out = (window(1, dtype="bool"),)
    assert (left("eq.Scalar", window(0), 1.0001, limit=1e-3, outs=out) > 0).all()
    assert not left("eq.Scalar", window(0), 1.01, limit=1e-3, outs=out).any()
    assert not left("ne.Scalar", window(0), 1.0, outs=out).any()


@pytest.mark.parametrize(("name", "many"), [("sum", N), ("mean", 1)])
def test_a_gpu_casts_numbers_to_the_type_of_their_sum_before_it_adds_them_up(name: str, many: int) -> None:
    said = {"outs": (window(1, (), "float16"),), "dtype": {"dtype": "float16"}}
    cast = left(f"{name}.default", window(0), first=1.0 + 2.0**-11, **said)
    assert cast - left(f"{name}.default", window(0), first=1.0, **said) >= 0.99 * many * 2.0**-11


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_a_sum_in_another_type_is_exact_where_each_cast_is(dtype: str) -> None:
    out = (window(1, (), dtype),)
    assert not left("sum.default", window(0), first=3.0, outs=out, dtype={"dtype": dtype}).any()


SIGNS: dict[str, tuple[tuple[Any, ...], dict[str, Any], float]] = {
    "no number": (("sub.Tensor", window(0), window(2)), {"first": np.inf, "other": np.inf}, 2**-149),
    "the larger of two zeros": (("maximum.default", window(0), window(2)), {"first": -0.0, "other": 0.0}, 2**-149),
    "a zero clamped": (("clamp_min.default", window(0), 0.0), {"first": -0.0}, 2**-149),
    "a sum of zeros": (("sum.default", window(0)), {"first": -0.0, "outs": (window(1, ()),)}, 2**-149),
    "the larger of one zero": (("maximum.default", window(0), window(2)), {"first": 0.0, "other": 0.0}, 0.0),
    "a zero less a zero": (("neg.default", window(0)), {"first": -0.0}, 0.0),
}


@pytest.mark.parametrize("name", SIGNS)
def test_a_sign_that_nothing_settles_may_be_the_other_one(name: str) -> None:
    args, said, least = SIGNS[name]
    assert (left(*args, **said) == least).all()


HALF_BY_NUMBER = {
    "a product": ("mul.Tensor", 0.1, 2.0**-11),
    "a product by what a half holds": ("mul.Tensor", 0.5, 0.0),
    "a remainder": ("remainder.Scalar", 0.1, 2.0**-4),
    "what is clamped by a half": ("clamp_min.default", 8.0, 0.0),
}


@pytest.mark.parametrize("name", HALF_BY_NUMBER)
def test_a_gpu_does_not_round_a_number_to_the_half_beside_it(name: str) -> None:
    operator, number, least = HALF_BY_NUMBER[name]
    out = (window(1, dtype="float16"),)
    found = left(operator, window(0, dtype="float16"), number, first=7.0, of="float16", outs=out)
    assert (found >= least).all() and found.any() == (least > 0)


@pytest.mark.parametrize("many", [2, N])
def test_a_long_sum_has_as_many_roundings_as_any_order_may(many: int) -> None:
    found = left("sum.default", window(0, (many,)), first=0.1, outs=(window(1, ()),))
    sums = min(many - 1, 16 * np.sqrt(many))
    assert float(found.max()) == pytest.approx(sums * 2**-23 * 0.1 * many, rel=0.3)


CASTS: dict[str, tuple[float, float, str, float]] = {
    "to a half": (1.0, 1e-6, "float16", 0.0),
    "to either of two halves": (1.0 + 2**-11, 1e-6, "float16", 2**-10),
    "to a half that may be infinite": (65519.996, 0.1, "float16", np.inf),
    "to either of two denormal halves": (1.5 * 2**-24, 1e-12, "float16", 2**-24),
    "to more bits": (1.0, 1e-6, "float64", 1e-6),
    "to a whole number": (1.0, 1e-6, "int32", np.inf),
    "of what is too large": (3e9, 0.0, "int32", np.inf),
    "of what is too small": (-1.0, 0.0, "uint8", np.inf),
    "of what a wider one holds": (3e9, 0.0, "int64", 0.0),
    "of what even the widest does not hold": (2.0**63, 0.0, "int64", np.inf),
    "of NaN": (np.nan, 0.0, "int32", np.inf),
    "of NaN to a truth": (np.nan, 0.0, "bool", 0.0),
}


@pytest.mark.parametrize("name", CASTS)
def test_a_cast_rounds_both_ends(name: str) -> None:
    value, limit, to, size = CASTS[name]
    out = (window(1, dtype=to),)
    for found in (
        left("_to_copy.default", window(0), first=value, limit=limit, outs=out, dtype={"dtype": to}),
        left("copy_.default", out[0], window(0), first=value, limit=limit, outs=out),
    ):
        assert found == pytest.approx(size), found


def test_a_choice_that_is_undecided_is_off_by_what_both_sides_differ() -> None:
    condition, sides = torch.tensor([True, False, True]), (torch.full((3,), 5.0), torch.full((3,), 2.0))

    def chosen(operands: Any, *, sizes: bool = False) -> list[torch.Tensor]:
        return [torch.where(*operands)]

    limits = [np.array([0.0, np.inf, np.inf]), None, None]
    (found,) = after(Call("where", [condition, *sides], limits, chosen, lambda _: (0.0, 0.0), 0.0, 7))
    assert found[0] == 0 and (found[1:] >= 3.0).all() and np.isfinite(found).all()


@pytest.mark.parametrize(("start", "end", "step"), [(0.1, 0.85, 0.1), (-0.35, 0.35, 0.1)])
def test_a_range_of_fractions_is_off_by_roundings_of_steps_and_sums(start: float, end: float, step: float) -> None:
    many = len(torch.arange(start, end, step))
    found = left("arange.start_step", start, end, step, outs=(window(1, (many,)),))
    assert (found >= 2**-23 * max(abs(start), end)).all()


SETTLED: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "a square": (("pow.Tensor_Scalar", window(0), 2), {"first": 1e30}),
    "a root": (("pow.Tensor_Scalar", window(0), 0.5), {"first": 3.0}),
    "a logarithm of 0": (("log.default", window(0)), {"first": 0.0}),
    "what was endless": (("exp.default", window(0)), {"first": float("inf")}),
    "a quotient by a number": (("div.Tensor", window(0), 3.0), {}),
    "products that are added": (("addcmul.default", window(0), window(0), window(2)), {}),
    "a whole rounding": (("round.default", window(0)), {}),
}


@pytest.mark.parametrize("name", SETTLED)
def test_what_every_machine_makes_in_the_same_way_is_known(name: str) -> None:
    args, options = SETTLED[name]
    assert np.isfinite(left(*args, **options)).all()


def test_the_real_part_of_a_complex_number_is_cast_as_a_fraction() -> None:
    given = torch.tensor([3e9 + 0j, 2.5 + 1j, complex(float("nan"), 0.0)], dtype=torch.complex64)
    assert cast(None, given, torch.int32).tolist() == [np.inf, 0.0, np.inf]


def test_what_becomes_complex_is_anything_where_it_is_inexact() -> None:
    assert cast(np.array([0.0, 1e-6]), torch.ones(2), torch.complex64).tolist() == [0.0, np.inf]


def test_a_factor_leaves_the_roundings_of_a_product_as_many() -> None:
    given = window(0, (1, 1)), window(0, (1, N)), window(2, (N, 1))
    found = left("addmm.default", *given, beta=1e-6, alpha=1e-3, outs=(window(1, (1, 1)),), first=0.3, other=0.7)
    assert found.max() >= (N - 1) * 2.0**-23 * N * 0.3 * 0.7 * 1e-3
