"""Families of inputs: what each changes, and what makes inputs legal and has to stay."""

from __future__ import annotations

from typing import get_args

import numpy as np
import numpy.typing as npt
import pytest

from assay.kernels.arrays import Array, HostTensor, host_tensor
from assay.kernels.numerics.domains import with_numbers
from assay.kernels.numerics.families import (
    FAMILIES,
    LARGE,
    MIDDLE,
    SPARSITY,
    Family,
    has_flags,
    role_of,
    vary,
)
from assay.kernels.numerics.slices import SPIKE, STEP, rising

RNG = np.random.default_rng(0)
UNIFORM = RNG.random((40, 50)).astype(np.float32)
NORMAL = RNG.normal(3.0, 2.0, (40, 50)).astype(np.float32)
CHANGED: tuple[Family, ...] = ("signed", "large", "sparse", "faint", "permuted")


def varied(array: npt.ArrayLike, family: Family, dtype: str = "float32", seed: int = 1) -> Array:
    inputs = vary((host_tensor(array, dtype),), family, np.random.default_rng(seed))
    assert inputs is not None and isinstance(inputs[0], HostTensor)
    return inputs[0].array()


def test_the_families_are_those_of_the_type() -> None:
    assert get_args(Family) == FAMILIES


@pytest.mark.parametrize("base", [UNIFORM, NORMAL], ids=["uniform", "normal"])
def test_real_inputs_take_the_properties_of_their_family(base: Array) -> None:
    signed, large = varied(base, "signed"), varied(base, "large")
    for values, scale in ((signed, 1.0), (large, LARGE)):
        assert (values < 0).mean() > 0.3 and (values > 0).mean() > 0.3
        assert 0.5 * scale < np.sqrt((values.astype(np.float64) ** 2).mean()) < 3 * scale
    sparse = varied(base, "sparse")
    assert abs((sparse == 0).mean() - SPARSITY) < 0.05
    assert 0.5 * MIDDLE[0] < np.sqrt((sparse[sparse != 0].astype(np.float64) ** 2).mean()) < 3 * MIDDLE[1]
    permuted = varied(base, "permuted")
    np.testing.assert_array_equal(np.sort(permuted.ravel()), np.sort(base.ravel()))
    assert (permuted != base).mean() > 0.9


@pytest.mark.parametrize("seed", range(4))
def test_the_ends_and_a_few_others_are_larger_in_sparse_inputs(seed: int) -> None:
    sparse = np.abs(varied(UNIFORM, "sparse", seed=seed).ravel())
    assert sparse[0] == sparse[-1] == sparse.max() and 3 <= (sparse == sparse.max()).sum() <= 6
    assert (sparse.max() > SPIKE * MIDDLE[0] * 0.99) and np.abs(varied(UNIFORM[:8], "sparse", seed=seed)).max() < 100


@pytest.mark.parametrize("seed", range(4))
def test_some_slices_of_signed_inputs_have_equal_elements(seed: int) -> None:
    steps = (varied(UNIFORM, "signed", seed=seed) / STEP % 1 == 0).all(1)
    assert 0.2 < steps.mean() < 0.8
    inputs = (host_tensor(UNIFORM, "float32"),)
    (plain,) = vary(inputs, "signed", np.random.default_rng(seed), flags=False) or (None,)
    assert isinstance(plain, HostTensor) and (plain.array() / STEP % 1 == 0).mean() < 0.01
    rows = np.sort(UNIFORM, 1)
    assert (np.diff(varied(rows, "signed", seed=seed), axis=1) > 0).all(), "edges that are distinct stay so"


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("axis", [0, 1])
def test_some_slices_lie_on_one_side_of_zero(seed: int, axis: int) -> None:
    assert (varied(NORMAL, "signed", seed=seed) < 0).all(axis).any() and (varied(NORMAL, "large", seed=seed) > 0).all(
        axis
    ).any()
    assert 0.2 < (varied(NORMAL, "large", seed=seed) > 0).mean() < 0.8


def test_all_of_a_row_of_its_own_may_lie_below_zero() -> None:
    below = [(varied(NORMAL[0], "signed", seed=seed) < 0).all() for seed in range(40)]
    assert 10 < sum(below) < 30 and any((varied(NORMAL, "signed", seed=seed) < 0).all() for seed in range(40))


@pytest.mark.parametrize("family", CHANGED)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_dtype_and_shape_stay_and_a_seed_is_a_draw(family: Family, dtype: str) -> None:
    inputs = (host_tensor(UNIFORM, dtype), 3, None, "mean", (host_tensor(NORMAL, dtype), 0.5))
    first = vary(inputs, family, np.random.default_rng(5))
    again = vary(inputs, family, np.random.default_rng(5))
    other = vary(inputs, family, np.random.default_rng(6))
    assert first is not None and first == again != other
    assert first[1:4] == inputs[1:4]
    assert isinstance(first[0], HostTensor) and (first[0].dtype, first[0].shape) == (dtype, UNIFORM.shape)
    assert isinstance(first[4], tuple) and first[4][0] != inputs[4][0] and first[4][1] == 0.5  # type: ignore[index]


def test_given_is_given_and_a_family_that_changes_nothing_is_none() -> None:
    inputs = (host_tensor(UNIFORM, "float32"), 2)
    assert vary(inputs, "given", np.random.default_rng(0)) == inputs
    nothing = (2, "x", None, host_tensor([1, 2, 3, 9], "int64"), host_tensor(np.zeros((0, 3)), "float32"))
    assert vary(nothing, "signed", np.random.default_rng(0)) is None or role_of(np.array([1, 2, 3, 9])) != "sorted"
    assert vary((), "large", np.random.default_rng(0)) is None


@pytest.mark.parametrize(
    ("array", "role"),
    [
        (UNIFORM, "real"),
        (np.ones((4, 4), np.float32), "real"),
        (np.array([True, False, True]), "mask"),
        (np.array([0, 3, 3, 8]), "sorted"),
        (np.array([4, 1, 3, 0]), "distinct"),
        (np.array([[0, 2, 1], [1, 0, 2]]), "orders"),
        (np.array([[0, 2], [1, 0], [2, 1]]), "orders"),
        (np.array([[0, 2, 1], [1, 0, 3]]), "index"),
        (np.array([4, 1, 1, 0]), "index"),
        (np.array([7]), "alike"),
        (np.array([7, 7, 7]), "alike"),
        (np.array([1j, 2.0, 0.5]), "complex"),
        (np.where(UNIFORM > 0.5, 1.0, -1.0), "labels"),
        (UNIFORM / UNIFORM.sum(axis=-1, keepdims=True), "probability"),
        (UNIFORM / UNIFORM.sum(axis=0, keepdims=True), "probability"),
        (np.eye(10, dtype=np.float32)[[3, 1, 4, 1, 5, 9]], "probability"),
        (np.triu(np.ones((8, 8))), "real"),
    ],
)
def test_what_an_input_seems_to_be(array: Array, role: str) -> None:
    assert role_of(array) == role


@pytest.mark.parametrize("family", CHANGED)
def test_whole_numbers_stay_legal(family: Family) -> None:
    index = np.array([5, 0, 2, 2, 9, 5])
    assert set(varied(index, family, "int64")) <= set(range(10))
    order = np.array([5, 0, 2, 1, 9, 4])
    assert sorted(varied(order, family, "int64")) == sorted(order)
    offsets = host_tensor([0, 3, 3, 8], "int64")
    assert vary((offsets,), family, np.random.default_rng(0)) is None
    labels = np.where(UNIFORM[0] > 0.5, 1.0, -1.0)
    assert set(varied(labels, family)) <= {-1.0, 1.0}


@pytest.mark.parametrize("seed", range(5))
def test_whole_numbers_are_unequal_in_some_families(seed: int) -> None:
    index = np.random.default_rng(seed).integers(0, 16, (32, 8))
    most = np.bincount(varied(index, "sparse", "int64").ravel()).max()
    assert most > index.size // 2, "most of them are one number"
    faint = varied(index, "faint", "int64")
    assert any(len(set(faint[row])) == 1 for row in range(32)) and len(set(faint.ravel())) > 8


@pytest.mark.parametrize("axis", [0, 1])
def test_equal_steps_of_sorted_floats_differ_in_some_families(axis: int) -> None:
    even = np.linspace(-2.0, 3.0, 24, dtype=np.float32)
    grid = np.ascontiguousarray(np.broadcast_to(even, (3, 24)) if axis else np.broadcast_to(even[:, None], (24, 3)))
    uneven = 0
    for family in FAMILIES[1:]:
        found = np.moveaxis(varied(grid, family, "float32"), axis, -1)
        steps = np.diff(found, axis=-1)
        assert (steps > 0).all()
        uneven += int(steps.max() > 2 * steps.min())
    assert uneven >= 2


@pytest.mark.parametrize("family", CHANGED)
def test_probabilities_stay_probabilities(family: Family) -> None:
    rows = UNIFORM / UNIFORM.sum(axis=-1, keepdims=True)
    new = varied(rows, family)
    assert new.min() >= 0 and not np.array_equal(new, rows)
    np.testing.assert_allclose(new.sum(axis=-1), 1.0, rtol=1e-5)


def test_masks_only_change_places_of_rows() -> None:
    mask = np.tril(np.ones((6, 6), dtype=np.bool_))
    permuted = varied(mask, "permuted", "bool")
    assert sorted(map(tuple, permuted)) == sorted(map(tuple, mask))
    assert vary((host_tensor(mask, "bool"),), "signed", np.random.default_rng(0)) is None


@pytest.mark.parametrize("shape", [(1, 1, 6, 6), (3, 1, 6, 6), (5, 6)])
def test_masks_of_any_number_of_axes_change(shape: tuple[int, ...]) -> None:
    mask = np.broadcast_to(np.tril(np.ones((6, 6), dtype=np.bool_))[-shape[-2] :], shape)
    permuted = varied(mask, "permuted", "bool")
    assert not np.array_equal(permuted, mask)
    assert sorted(map(tuple, permuted.reshape(-1, 6))) == sorted(map(tuple, mask.reshape(-1, 6)))


def test_of_masks_with_rows_that_are_alike_elements_change_places() -> None:
    row = np.arange(12) < 7
    for mask in (row, row[None], np.broadcast_to(row, (4, 12))):
        permuted = varied(mask, "permuted", "bool")
        assert not np.array_equal(permuted, mask) and np.array_equal(permuted.sum(-1), mask.sum(-1))


@pytest.mark.parametrize(("value", "legal"), [(0, {0, 1}), (1, {0, 1}), (9, set(range(1, 10))), (-100, {-100})])
def test_whole_numbers_that_are_all_alike_differ_in_some_families(value: int, legal: set[int]) -> None:
    kinds = np.full((20, 30), value)
    given = (host_tensor(kinds, "int64"),)
    new = varied(kinds, "sparse", "int64") if value >= 0 else kinds
    assert set(np.unique(new)) == legal and (new[:, 0] == value).all()
    assert vary(given, "permuted", np.random.default_rng(0)) is None
    assert vary(given, "sparse", np.random.default_rng(0), flags=False) is None
    assert has_flags(given, "sparse") and not has_flags(given, "large")


@pytest.mark.parametrize("shape", [(), (1,), (4,), (2, 2), (4, 1)])
def test_of_few_flags_one_is_turned_at_least(shape: tuple[int, ...]) -> None:
    flags = np.zeros(shape, np.bool_)
    for seed in range(20):
        (turned,) = vary((host_tensor(flags, "bool"),), "sparse", np.random.default_rng(seed)) or (None,)
        assert isinstance(turned, HostTensor) and turned.shape == shape and turned.array().any()


@pytest.mark.parametrize("family", CHANGED)
def test_complex_numbers_vary_in_both_parts(family: Family) -> None:
    z = UNIFORM + 1j * UNIFORM[::-1]
    new = varied(z, family, "complex64")
    assert new.dtype == np.complex64 and (new != z).mean() > (0.05 if family == "faint" else 0.7)
    if family in ("signed", "large"):
        assert min((part < 0).mean() for part in (new.real, new.imag)) > 0.3
    if family == "permuted":
        np.testing.assert_array_equal(np.sort(new.ravel()), np.sort(z.astype(np.complex64).ravel()))
    turned = varied(np.exp(1j * NORMAL), family, "complex64")
    np.testing.assert_allclose(np.abs(turned), 1.0, rtol=1e-5)


@pytest.mark.parametrize("family", CHANGED)
def test_triangles_and_symmetry_stay(family: Family) -> None:
    upper = np.triu(NORMAL[:30, :30])
    new = varied(upper, family)
    assert not np.any(np.tril(new, -1)) and np.any(np.triu(new))
    lower = varied(np.tril(NORMAL[:30, :30]), family)
    assert not np.any(np.triu(lower, 1)) and np.any(np.tril(lower))
    symmetric = varied(NORMAL[:30, :30] + NORMAL[:30, :30].T, family)
    np.testing.assert_array_equal(symmetric, symmetric.T)


@pytest.mark.parametrize("shape", [(6, 5), (2, 5, 7), (3, 4, 5, 6), (9,), (1, 8)])
def test_slices_of_zeros_and_close_to_zero_along_each_axis(shape: tuple[int, ...]) -> None:
    x = RNG.random(shape) + 0.5
    new = varied(x, "faint", "float64") / x
    for axis, size in enumerate(shape):
        along = np.abs(new).max(axis=tuple(other for other in range(len(shape)) if other != axis))
        assert (along == 0).sum() == (size > 1), "one whole slice of zeros"
        assert ((along > 0) & (along < 1e-3)).sum() == (size > 3), "one that is close to zero"
        assert (along == 1).sum() == size - (size > 1) - (size > 3), "the others as they were given"


@pytest.mark.parametrize("family", CHANGED)
def test_floats_that_are_sorted_in_both_draws_stay_so(family: Family) -> None:
    """A search in edges, knots or a CDF in another order is undefined."""

    def draw(seed: int) -> tuple[HostTensor, ...]:
        x = np.random.default_rng(seed).random((4, 16))
        knots = np.linspace(0.0, 1.0, 17)
        return tuple(host_tensor(each, "float32") for each in (np.sort(x), np.cumsum(x, 0), knots[::-1], x))

    made = vary(draw(1), family, np.random.default_rng(3), draw(2))
    assert made is not None and made[3] != draw(1)[3]
    edges, totals, knots, drawn = (value.array() for value in made if isinstance(value, HostTensor))
    assert (np.diff(edges) > 0).all() and (np.diff(totals, axis=0) > 0).all() and (np.diff(knots) < 0).all()
    assert (np.diff(drawn) < 0).any()
    if family == "signed":
        assert not np.array_equal(edges, draw(1)[0].array())


def test_a_number_that_is_not_one_is_the_same_argument_again() -> None:
    given = (host_tensor(NORMAL, "float32"), float("nan"), (2, float("nan")))
    made = vary(given, "signed", np.random.default_rng(0), (host_tensor(UNIFORM, "float32"), float("nan"), (2, 0.5)))
    assert made is not None and made[0] != given[0]
    assert vary((float("nan"), (-float("nan"),)), "signed", np.random.default_rng(0), (0.5, (0.5,))) is None


def test_a_constant_input_does_not_stay_constant() -> None:
    assert varied(np.ones((10, 10)), "signed").std() > 0.5


@pytest.mark.parametrize("family", CHANGED)
def test_what_two_draws_have_equal_stays_equal(family: Family) -> None:
    def draw(seed: int) -> tuple[HostTensor, ...]:
        half = np.random.default_rng(seed).normal(size=(6, 8)).astype(np.float32)
        both = host_tensor(np.concatenate((half, half), 1), "float32")
        return both, host_tensor(np.repeat(half, 2, 1), "float32"), both

    made = vary(draw(1), family, np.random.default_rng(3), draw(2))
    assert made is not None and made[0] != draw(1)[0]
    halves, pairs, again = (value.array() for value in made if isinstance(value, HostTensor))
    np.testing.assert_array_equal(halves[:, :8], halves[:, 8:])
    np.testing.assert_array_equal(pairs[:, ::2], pairs[:, 1::2])
    np.testing.assert_array_equal(halves, again)
    assert np.unique(halves).size > 8


def test_a_mask_that_lets_all_pass_lets_less_pass_in_some_families() -> None:
    full = np.ones((20, 30), np.bool_)
    mask = varied(full, "sparse", "bool")
    assert 0.6 < mask.mean() < 0.9 and mask[:, 0].all()
    assert vary((host_tensor(full, "bool"),), "permuted", np.random.default_rng(0)) is None


def test_numbers_are_those_of_the_draw_that_was_recorded() -> None:
    one, other = ((host_tensor([seed], "float32"), 0.5 + seed, (2 + seed, "a")) for seed in (1, 2))
    assert with_numbers(one, other) == (one[0], *other[1:])


@pytest.mark.parametrize("value", [-2, -1, 1, 11])
@pytest.mark.parametrize("size", [1, 2, 16])
def test_whole_numbers_that_are_all_alike_are_turned_however_few_and_of_either_sign(value: int, size: int) -> None:
    given = host_tensor([value] * size, "int64")
    for family in CHANGED:
        made = vary((given,), family, np.random.default_rng(0))
        assert (made is not None) == (family in ("signed", "sparse"))
        if made is not None:
            (turned,) = made
            assert isinstance(turned, HostTensor)
            low, high = sorted((value, 0))
            assert set(turned.array()) - {value} and low <= turned.array().min() and turned.array().max() <= high


def test_some_lines_of_large_elements_are_small_at_one_end() -> None:
    def larger(seed: int) -> float:
        x = 50.0 * np.random.default_rng(seed).standard_normal((12, 4096))
        found = rising(x, np.random.default_rng(seed))
        assert (np.abs(found) <= np.abs(x)).all() and (np.sign(found) == np.sign(x)).all()
        return float((found.max(1) - found[:, :1365].max(1)).max())

    assert sum(larger(seed) > 88.0 for seed in range(20)) > 8
    one = np.full((1, 1), 3.0)
    assert np.array_equal(rising(one, np.random.default_rng(0)), one)
