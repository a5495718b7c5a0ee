"""The tolerance: exact answers always pass, honest roundings do, and roundings to a narrower format do not."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from assay.kernels.arrays import Array
from assay.kernels.numerics.tolerance import (
    MAX_ENVELOPE_SHARE,
    RELATIVE,
    Tolerance,
    compare,
    computed,
    constant_passes,
    rms,
    scale_of,
    tolerance_for,
)

Floats = npt.NDArray[np.float64]
finite = st.floats(-1e30, 1e30, allow_nan=False)
any_float = st.floats(allow_nan=True, allow_infinity=True, width=32)


def ordinary(most: float) -> st.SearchStrategy[float]:
    """Numbers that can be scaled and squared without a loss of digits, which the smallest ones cannot."""
    return st.floats(-most, most).filter(lambda value: value == 0 or abs(value) > 1e-100)


def outputs(elements: st.SearchStrategy[float], least: int = 0) -> st.SearchStrategy[Floats]:
    return arrays(np.float64, array_shapes(min_dims=1, max_side=4, min_side=least), elements=elements)


@settings(deadline=None)
@given(outputs(any_float), outputs(any_float), st.sampled_from(sorted(RELATIVE)))
def test_the_exact_answer_always_passes(exact: Floats, noise: Floats, precision: str) -> None:
    rounded = np.resize(noise, exact.shape) if noise.size else exact
    found = compare(exact, exact, tolerance_for(exact, rounded, precision))
    assert found.ok and found.worst == 0 and found.mismatches == 0 and found.message == ""


@settings(deadline=None)
@given(outputs(any_float, least=1))
def test_what_is_not_finite_must_be_the_same(exact: Floats) -> None:
    tolerance = tolerance_for(exact, exact, "float32")
    for value in (np.nan, np.inf, -np.inf):
        answer = exact.copy()
        answer.ravel()[0] = value
        first = exact.ravel()[0]
        same = bool(np.isnan(first)) if np.isnan(value) else first == value
        assert compare(answer, exact, tolerance).ok == same
    if not np.isfinite(exact.ravel()[0]):
        answer = exact.copy()
        answer.ravel()[0] = 0.0
        assert not compare(answer, exact, tolerance).ok


@settings(deadline=None)
@given(outputs(ordinary(100), least=1), outputs(ordinary(1), least=1), st.integers(-60, 60))
def test_a_scale_changes_no_verdict(exact: Floats, error: Floats, power: int) -> None:
    answer = exact + 2e-4 * np.resize(error, exact.shape)
    scale = 2.0**power
    assume(computed(exact).all() and computed(exact * scale).all())  # large numbers may stand for masked elements
    one = compare(answer, exact, tolerance_for(exact, exact, "float32"))
    other = compare(answer * scale, exact * scale, tolerance_for(exact * scale, exact * scale, "float32"))
    assert one.ok == other.ok
    assert one.worst == pytest.approx(other.worst, rel=1e-6)


@settings(deadline=None)
@given(outputs(finite, least=1), st.floats(1.01, 50), st.booleans())
def test_more_than_is_allowed_fails_and_names_the_place(exact: Floats, factor: float, above: bool) -> None:
    tolerance = tolerance_for(exact, exact, "float32")
    assume(rms(exact) > 1e-30)
    place = np.unravel_index(exact.size // 2, exact.shape)
    answer = exact.copy()
    answer[place] += (1 if above else -1) * factor * tolerance.allowed(exact)[place]
    found = compare(answer, exact, tolerance)
    assert not found.ok and found.mismatches == 1 and found.worst == pytest.approx(factor, rel=1e-6)
    assert f"[{', '.join(str(int(i)) for i in place)}]" in found.message


def product(k: int, seed: int = 0, uniform: bool = False) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    draw = rng.random if uniform else rng.standard_normal
    return draw((24, k)).astype(np.float32), draw((k, 20)).astype(np.float32)


def to_tf32(values: Array) -> Array:
    """Rounded to ten bits of fraction, as a tensor core takes float32."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def verdict(answer: Array, a: Array, b: Array) -> bool:
    exact = a.astype(np.float64) @ b.astype(np.float64)
    return compare(answer, exact, tolerance_for(exact, a @ b, "float32")).ok


@pytest.mark.parametrize("k", [16, 32, 64, 256, 1024, 4096])
@pytest.mark.parametrize("uniform", [False, True])
@pytest.mark.parametrize("round_operand", [lambda x: x.astype(np.float16), to_tf32], ids=["float16", "tf32"])
def test_products_of_rounded_operands_fail(k: int, uniform: bool, round_operand: object) -> None:
    assert callable(round_operand)
    a, b = product(k, uniform=uniform)
    if uniform:
        a, b = a - 0.5, b - 0.5  # of one sign, roundings cancel: the family `signed` is what tells
    near = round_operand(a).astype(np.float64) @ round_operand(b).astype(np.float64)
    assert not verdict(near, a, b)
    assert not verdict((a.astype(np.float64) @ b.astype(np.float64)).astype(np.float16), a, b)


@pytest.mark.parametrize("k", [16, 256, 4096, 65536])
@pytest.mark.parametrize("uniform", [False, True])
def test_sums_in_any_honest_order_pass(k: int, uniform: bool) -> None:
    a, b = product(k, uniform=uniform)
    a, b = a[:6], b[:, :5]
    terms = a[:, :, None] * b[None]
    in_order = np.add.accumulate(terms, axis=1, dtype=np.float32)[:, -1]
    assert verdict(in_order, a, b)
    assert verdict(np.add.accumulate(terms[:, ::-1], axis=1, dtype=np.float32)[:, -1], a, b)
    for tile in (8, 16):
        blocks = terms.reshape(6, k // tile, tile, 5).sum(axis=2, dtype=np.float32)
        assert verdict(np.add.accumulate(blocks, axis=1, dtype=np.float32)[:, -1], a, b)


@pytest.mark.parametrize("precision", ["float16", "bfloat16", "float32", "float64"])
def test_one_rounding_to_the_working_precision_passes(precision: str) -> None:
    exact = np.random.default_rng(1).standard_normal(5000)
    if precision == "bfloat16":
        bits = exact.astype(np.float32).view(np.uint32)
        rounded: Array = ((bits + np.uint32(0x8000)) & np.uint32(0xFFFF0000)).view(np.float32)
    else:
        rounded = exact.astype(precision)
    assert compare(rounded, exact, tolerance_for(exact, rounded, precision)).ok


def test_whole_numbers_and_booleans_must_be_equal() -> None:
    exact = np.array([1, 2, 3])
    tolerance = tolerance_for(exact, exact, "float32")
    assert tolerance == Tolerance(0.0, 0.0)
    assert compare(exact, exact, tolerance).ok
    assert compare(np.array([1, 2, 4]), exact, tolerance).mismatches == 1
    assert not compare(np.array([1.0, np.nan, 3.0]), exact, tolerance).ok
    assert not compare(np.array([True, False]), np.array([True, True]), tolerance).ok


def test_complex_answers_are_compared_part_by_part() -> None:
    exact = np.array([1 + 2j, 3 - 4j])
    tolerance = tolerance_for(exact, exact.astype(np.complex64), "float32")
    assert compare((exact * (1 + 1e-6)).astype(np.complex64), exact, tolerance).ok
    found = compare(exact.conj(), exact, tolerance)
    assert not found.ok and found.mismatches == 2


def test_shapes_must_agree_and_nothing_equals_nothing() -> None:
    exact = np.ones((2, 3))
    found = compare(np.ones((3, 2)), exact, tolerance_for(exact, exact, "float32"))
    assert not found.ok and "shape (3, 2) instead of (2, 3)" in found.message
    empty = np.ones((0, 3))
    assert compare(empty, empty, tolerance_for(empty, empty, "float32")).ok
    with pytest.raises(ValueError, match="differ in shape"):
        tolerance_for(exact, empty, "float32")
    with pytest.raises(ValueError, match="precision 'float8'"):
        tolerance_for(exact, exact, "float8")


def test_the_reference_s_own_error_is_granted_up_to_a_share_of_the_signal() -> None:
    exact = np.random.default_rng(2).standard_normal(1000)
    scale = rms(exact)
    little = tolerance_for(exact, exact + 1e-9, "float32")
    some = tolerance_for(exact, exact + 1e-3, "float32")
    much = tolerance_for(exact, exact + 1.0, "float32")
    assert little.absolute == pytest.approx(RELATIVE["float32"] * scale)
    assert some.absolute == pytest.approx(16e-3, rel=0.01)
    assert much.absolute == pytest.approx(MAX_ENVELOPE_SHARE * scale)


@pytest.mark.parametrize("constant", [0.0, 3.0, -1e6])
def test_a_constant_passes_only_for_what_varies_less_than_the_tolerance(constant: float) -> None:
    rng = np.random.default_rng(3)
    still = constant + 1e-9 * rng.standard_normal(1000)
    lively = constant + (abs(constant) + 1) * rng.standard_normal(1000)
    assert constant_passes(still, Tolerance(1e-4, 1e-4))
    assert not constant_passes(lively, tolerance_for(lively, lively, "float32"))
    mostly = np.where(rng.random(1000) < 0.995, constant, constant + 5.0 + abs(constant))
    assert constant_passes(mostly, tolerance_for(mostly, mostly, "float32"))
    assert constant_passes(np.zeros(0), Tolerance(0.0, 0.0))
    assert not constant_passes(np.array([np.inf, 1.0]), Tolerance(1.0, 1.0))


def test_the_root_mean_square_neither_overflows_nor_counts_what_is_not_finite() -> None:
    assert rms(np.array([3e200, 4e200])) == pytest.approx(np.sqrt(12.5) * 1e200)
    assert rms(np.array([3.0, np.nan, np.inf, 4.0])) == pytest.approx(np.sqrt(12.5))
    assert rms(np.array([np.nan])) == 0 == rms(np.zeros(3))


@pytest.mark.parametrize("mask", [-1e9, -1e10, 65504.0, float(np.finfo(np.float32).min)])
@pytest.mark.parametrize("share", [0.05, 0.7])
def test_what_stands_for_masked_elements_does_not_swallow_the_others(mask: float, share: float) -> None:
    rng = np.random.default_rng(0)
    exact = rng.standard_normal((40, 40))
    masked = rng.random(exact.shape) < share
    exact[masked] += mask
    tolerance = tolerance_for(exact, exact.astype(np.float32), "float32")
    assert tolerance.absolute < 3e-4 and scale_of(exact) < 2
    assert compare(exact.astype(np.float32), exact, tolerance).ok
    wrong = np.where(masked, exact, exact * 1.01)
    assert not compare(wrong, exact, tolerance).ok
    assert not compare(np.where(masked, 0.0, exact), exact, tolerance).ok, "the mask itself is looked at"


@pytest.mark.parametrize(
    "exact",
    [
        np.where(np.arange(1000) % 40 == 0, 1.0, 1e-13),  # a softmax that has decided
        np.clip(np.random.default_rng(0).standard_normal(1000) * 1e5, -6, 6),
        np.exp(np.random.default_rng(0).standard_normal(1000) * 20),  # a few are far larger, and none is another's
        np.where(np.arange(1000) == 0, 1e9, 1.0),
        np.full(1000, -1e9),
    ],
    ids=["saturated", "clamped", "spread", "one", "alike"],
)
def test_large_elements_that_are_computed_count(exact: Floats) -> None:
    assert scale_of(exact) == rms(exact)
