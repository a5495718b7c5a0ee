"""Families of inputs: the problem's own draw, and legal variations that its distribution would never show.

    given       what get_inputs returns under a fresh seed
    signed      standardised, both signs (uniform draws in [0, 1) hide what relu, clamp and abs do), some slices in
                steps of a half (equal ones beside each other), some below zero
    large       fifty times that, some slices above zero (hides nothing that saturates or overflows), some lines small
                at one end (a maximum so far is not yet that of all)
    sparse      6 to 24 times signed, four fifths exact zeros (sums are between those of signed and large); of many
                elements the first, the last and a few others larger (each one shows in a sum of squares)
    faint       given, one slice along each axis all zeros and one close to zero (shows what keeps a norm finite)
    permuted    the given elements in another order

What an input may be is read off the given draw. Whole numbers stay within the range that was drawn (in `sparse` most
are one number, in `faint` those of a slice), distinct ones stay distinct, in each row where rows have the same, sorted
ones are left alone (offsets, positions). Floats that are sorted along an axis stay so (edges, knots, CDFs), and
distinct where they were, in random steps: a search in others is undefined. Boolean masks only change places of whole
rows, so a row that was legal stays so, or of the elements of a row where all rows are alike; masks that are the same
everywhere, and whole numbers that are (kinds, flags, lengths), are not in some families. Complex numbers are varied in
both parts; those of absolute value 1 stay so. Elements equal in two draws stay equal. Rows that sum to 1 stay
probabilities; floats that are a few whole numbers stay labels from among them. Triangles keep their zeros and symmetric
matrices their symmetry. A domain that cannot be seen (a square root that wants positive inputs) shows in the reference:
in a family in which it is not finite, inputs are brought into domains that it takes (`domains`), or are not varied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from assay.kernels.arrays import Array, HostTensor, Value, host_tensor, same_value, settled
from assay.kernels.numerics.slices import ALL_BELOW, MANY, Floats, faint_slices, in_steps, on_one_side, rising, spiked

Family = Literal["given", "signed", "large", "sparse", "faint", "permuted"]
FAMILIES: tuple[Family, ...] = ("given", "signed", "large", "sparse", "faint", "permuted")

LARGE = 50.0
"""Standard deviation of the family `large`: one element in 25 is beyond what exp can take in float32."""
LARGEST = 200.0
"""The largest element of that family at least: twice what exp can take, also of uniform draws."""
SPARSITY = 0.8
"""Share of zeros of the family `sparse`."""
MIDDLE = (6.0, 24.0)
"""What the others of that family are multiplied by: between `signed` and `large` an approximation may be neither close
nor saturated."""
MASKED: tuple[Family, ...] = ("signed", "sparse")
"""Families in which a mask that is the same everywhere is not, nor are whole numbers."""
MASKED_SHARE = 0.25
"""Share of its elements that are then turned."""
_MAX_LABELS = 8
_LARGEST = 1 << 62

Role = Literal["real", "probability", "labels", "index", "distinct", "orders", "sorted", "mask", "alike", "complex"]
Complexes = npt.NDArray[np.complex128]


def vary(
    values: Sequence[Value],
    family: Family,
    rng: np.random.Generator,
    other: Sequence[Value] | None = None,
    *,
    flags: bool = True,
) -> tuple[Value, ...] | None:
    """The inputs of a family, made from a given draw; None where the family would change nothing.

    `other`: a second draw. Elements that are equal in both, and inputs that are, stay equal: it is how they are made.
    `flags`: whether masks and whole numbers that are the same everywhere may be otherwise, and fractions may be equal.
    """
    if family == "given":
        return tuple(values)
    others = list(other) if other is not None and len(other) == len(values) else [None] * len(values)
    changed = [_vary_value(value, family, rng, twin, flags) for value, twin in zip(values, others, strict=True)]
    for place, (value, twin) in enumerate(zip(values, others, strict=True)):
        first = next(at for at in range(place + 1) if same_value(values[at], value) and same_value(others[at], twin))
        if isinstance(value, HostTensor) and value != twin and twin is not None:
            changed[place] = changed[first]
    made = settled(changed)
    return None if same_value(made, tuple(values)) else made


def has_flags(values: Sequence[Value], family: Family) -> bool:
    """Whether a family has masks or whole numbers that are otherwise the same everywhere, or equal fractions: guesses,
    which a problem may refuse."""
    return family in MASKED and any(_has_flags(value, family) for value in values)


def _has_flags(value: Value, family: Family) -> bool:
    if isinstance(value, tuple):
        return any(_has_flags(part, family) for part in value)
    if not isinstance(value, HostTensor) or not value.data:
        return False
    role = role_of(array := value.array())
    return (family == "signed" and role == "real") or role == "alike" or (role == "mask" and _is_one_value(array))


def _vary_value(value: Value, family: Family, rng: np.random.Generator, other: Value, flags: bool) -> Value:
    if isinstance(value, tuple):
        others = other if isinstance(other, tuple) and len(other) == len(value) else (None,) * len(value)
        varied = (_vary_value(part, family, rng, twin, flags) for part, twin in zip(value, others, strict=True))
        return type(value)(varied)
    if not isinstance(value, HostTensor) or not value.data:
        return value
    array = value.array()
    twin = other.array() if isinstance(other, HostTensor) and other.shape == value.shape else None
    new: Array
    match role_of(array):
        case "real":
            new = _vary_real(array.astype(np.float64), family, rng, steps=flags)
            if twin is not None:
                new = _as_repeated(new, array.astype(np.float64), twin.astype(np.float64))
        case "complex":
            z = _vary_complex(array.astype(np.complex128), family, rng)
            if twin is not None:
                parts = ((z.real, array.real, twin.real), (z.imag, array.imag, twin.imag))
                real, imag = (_as_repeated(*(part.astype(np.float64) for part in each)) for each in parts)
                z = real + 1j * imag
            new = z
        case "probability":
            new = _vary_probability(array.astype(np.float64), family, rng)
        case "labels":
            new = _relabelled(array, family, rng)
        case "index":
            new = _redrawn(array, family, rng)
        case "distinct":
            new = _shuffled(array, rng)
        case "orders":
            new = rng.permuted(array, axis=_axis_of_orders(array))
        case "mask" | "alike" if _is_one_value(array):
            new = _turned(array, rng) if flags and family in MASKED else array
        case "mask":
            new = _moved_rows(array, rng) if family == "permuted" else array
        case _:
            new = array
    if np.issubdtype(new.dtype, np.floating):
        new = as_sorted(new, array.astype(np.float64), (array if twin is None else twin).astype(np.float64), rng)
    if flags and family == "signed" and np.array_equal(new, array):  # steps of what has to be distinct
        return _vary_value(value, family, rng, other, False)
    made = host_tensor(new, value.dtype)
    return made if value.layout is None else replace(made, layout=value.layout)


def role_of(array: Array) -> Role:
    """What an input tensor seems to be, from its elements."""
    if array.dtype == np.bool_:
        return "mask"
    if np.issubdtype(array.dtype, np.complexfloating):
        return "complex"
    flat = array.ravel()
    if np.issubdtype(array.dtype, np.integer):
        if _is_one_value(array):
            return "alike"
        if flat.size > 2 and bool(np.all(np.diff(flat.astype(np.int64)) >= 0)):
            return "sorted"
        if flat.size > 2 and np.unique(flat).size == flat.size:
            return "distinct"
        return "index" if _axis_of_orders(array) is None else "orders"
    if _probability_axis(array) is not None:
        return "probability"
    if flat.size > _MAX_LABELS and np.isfinite(flat.astype(np.float64)).all():
        unique = np.unique(flat.astype(np.float64))
        if 1 < unique.size <= _MAX_LABELS and bool(np.all(unique == np.round(unique))) and triangle(array) is None:
            return "labels"
    return "real"


def _is_one_value(array: Array) -> bool:
    return array.size > 0 and bool((array == array.flat[0]).all())


def _axis_of_orders(array: Array) -> int | None:
    """The axis along which whole numbers are the same distinct ones in some order, if there is one: rows of an
    argsort."""
    for axis in range(array.ndim - 1, -1, -1):
        rows = np.sort(np.moveaxis(array, axis, -1).reshape(-1, array.shape[axis]), axis=1)
        if rows.shape[1] > 2 and bool((rows == rows[0]).all()) and bool((np.diff(rows[0].astype(np.int64)) > 0).all()):
            return axis
    return None


def _probability_axis(array: Array) -> int | None:
    """The axis along which non-negative elements sum to 1, if there is one."""
    if not array.ndim or array.size < 4 or float(array.min()) < 0:
        return None
    for axis in range(array.ndim - 1, -1, -1):
        sums = array.astype(np.float64).sum(axis=axis)
        if array.shape[axis] > 1 and np.allclose(sums, 1.0, atol=1e-2 if array.dtype == np.float16 else 1e-4):
            return axis
    return None


def _vary_real(x: Floats, family: Family, rng: np.random.Generator, *, steps: bool = False) -> Floats:
    zeros = triangle(x)
    symmetric = _is_symmetric(x)
    if family == "faint":
        return x * faint_slices(x.shape, rng, symmetric)
    if family == "permuted":
        if symmetric:
            order = rng.permutation(x.shape[-1])
            return x[..., order, :][..., :, order]
        return _shuffled_within(x, np.ones_like(x, dtype=np.bool_) if zeros is None else ~zeros, rng)
    spread = float(x.std())
    if spread > 0 and float(x.min()) >= 0:
        new = (x - x.mean()) / spread
    else:
        sign = rng.choice(np.array([-1.0, 1.0]), x.shape)
        new = x * sign / spread if spread > 0 else rng.standard_normal(x.shape)
    if family == "large":
        most = float(np.abs(new).max(initial=0.0)) or 1.0
        new = on_one_side(rising(new * max(LARGE, LARGEST / most), rng), rng, 1.0)
    elif family == "sparse":
        scale = np.exp(rng.uniform(*np.log(MIDDLE)))
        new = np.where(rng.random(x.shape) < SPARSITY, 0.0, new * scale)
        new = spiked(new, scale, rng) if x.size > MANY else new
    elif steps:
        new = on_one_side(in_steps(new, rng), rng, -1.0, ALL_BELOW)
    if symmetric:
        upper = np.triu(new)
        new = upper + np.swapaxes(np.triu(new, 1), -1, -2)
    return np.where(zeros, 0.0, new) if zeros is not None else new


def _vary_complex(z: Complexes, family: Family, rng: np.random.Generator) -> Complexes:
    if family == "permuted":
        return np.asarray(_shuffled(z, rng), np.complex128)
    if np.allclose(np.abs(z), 1.0, atol=1e-4):  # rotations
        return np.asarray(np.exp(2j * np.pi * rng.random(z.shape)), np.complex128)
    if family == "faint":
        return np.asarray(z * faint_slices(z.shape, rng, symmetric=False))
    return _vary_real(z.real.copy(), family, rng) + 1j * _vary_real(z.imag.copy(), family, rng)


def _as_repeated(new: Floats, one: Floats, other: Floats) -> Floats:
    """New elements, equal where two draws both have equal ones: halves that repeat each other, pairs, expanded rows.

    Of inputs that are drawn, elements that are the same in each draw (padding) are none of those, nor are inputs of a
    few numbers alone.
    """
    drawn = (one != other).ravel()
    drawn = drawn if drawn.any() else np.ones_like(drawn)
    pairs = np.empty(int(drawn.sum()), np.complex128)
    pairs.real, pairs.imag = one.ravel()[drawn], other.ravel()[drawn]
    _, first, repeated = np.unique(pairs, return_index=True, return_inverse=True)
    if not _MAX_LABELS < first.size < pairs.size:
        return new
    made = new.ravel().copy()
    made[drawn] = made[drawn][first][repeated.ravel()]
    return made.reshape(new.shape)


def as_sorted(new: Array, one: Floats, other: Floats, rng: np.random.Generator | None = None) -> Array:
    """New elements, sorted along each axis along which two draws both are; the given ones in other steps (`rng`), where
    elements that differ along it would not. Triangles and symmetric matrices have a form of their own, and
    probabilities their sums."""
    if triangle(one) is not None or _is_symmetric(one):
        return new
    summed = _probability_axis(one)
    for axis in range(one.ndim) if summed is None else (summed,):
        for step in (1, -1):  # ascending, descending
            draws = [np.moveaxis(draw, axis, -1)[..., ::step] for draw in (one, other)]
            if not all(_is_sorted(draw) for draw in draws):
                continue
            new = np.flip(np.sort(new, axis), axis) if step < 0 else np.sort(new, axis)
            found = np.moveaxis(new, axis, -1)[..., ::step].astype(np.float64)
            if any(_is_strict(draw) for draw in draws) and not _is_strict(found):
                return one if rng is None or summed is not None else _in_other_steps(one, axis, rng)
    return new


def _in_other_steps(x: Floats, axis: int, rng: np.random.Generator) -> Floats:
    """Elements that are sorted along an axis, with the same ends and steps that are each as many times as large as a
    random factor along the axis says: equal steps are equal no more."""
    rows = np.moveaxis(x, axis, -1)
    steps = np.diff(rows, axis=-1) * np.exp(rng.standard_normal(rows.shape[-1] - 1))
    whole, total = rows[..., -1:] - rows[..., :1], steps.sum(-1, keepdims=True)
    steps = np.where(total != 0, steps * whole / np.where(total != 0, total, 1.0), steps)
    new = np.concatenate([rows[..., :1], rows[..., :1] + np.cumsum(steps, -1)], -1)
    return np.moveaxis(new, -1, axis) if _is_sorted_alike(new, rows) else x


def _is_sorted_alike(new: Floats, rows: Floats) -> bool:
    """Whether rows ascend, or descend, where others do."""
    return np.array_equal(np.sign(np.diff(new, axis=-1)), np.sign(np.diff(rows, axis=-1)))


def _is_sorted(rows: Floats) -> bool:
    """Whether all rows ascend, and not by being of one value or of too few elements to tell."""
    low, high = rows[..., :-1], rows[..., 1:]
    return low.size > 1 and bool((low <= high).all()) and bool((low < high).any())


def _is_strict(rows: Floats) -> bool:
    return bool((rows[..., :-1] < rows[..., 1:]).all())


def _turned(array: Array, rng: np.random.Generator) -> Array:
    """A mask, or whole numbers, with other elements than those that are the same everywhere: masks that let less pass,
    but something of every row; another kind, a flag, or numbers of the same sign that are closer to zero."""
    value = int(array.flat[0])
    if abs(value) > _LARGEST:
        return array
    if value < 0:
        other = rng.integers(value + 1, 0, array.shape, endpoint=True)
    else:
        other = rng.integers(1, value, array.shape, endpoint=True) if value > 1 else np.full(array.shape, 1 - value)
    if array.size == 1:  # a flag of its own
        return other.astype(array.dtype)
    new = np.where(rng.random(array.shape) < MASKED_SHARE, other.astype(array.dtype), array)
    axis = max(axis for axis, size in enumerate(array.shape) if size > 1)
    rows, given = np.moveaxis(new, axis, -1), np.moveaxis(array, axis, -1)
    rows[..., 0] = given[..., 0]
    if np.array_equal(new, array):  # few elements, and chance turned none
        place = (*(rng.integers(size) for size in rows.shape[:-1]), rng.integers(1, rows.shape[-1]))
        rows[place] = value + 1 if value < 0 else value - 1 if value > 1 else 1 - value
    return new


def _moved_rows(mask: Array, rng: np.random.Generator) -> Array:
    """A mask whose rows are in other places along each of the leading axes; where that changes nothing, whose rows all
    have their elements in another order."""
    new = mask
    for axis in range(mask.ndim - 1):
        new = np.take(new, rng.permutation(mask.shape[axis]), axis=axis)
    return np.take(mask, rng.permutation(mask.shape[-1]), axis=-1) if np.array_equal(new, mask) else new


def triangle(x: Array) -> npt.NDArray[np.bool_] | None:
    """Which elements are zero by being outside a triangle; None where the input is none."""
    if x.ndim < 2 or min(x.shape[-2:]) < 3:
        return None
    below = np.tril(np.ones(x.shape[-2:], dtype=np.bool_), -1)
    for outside in (below, below.T if x.shape[-1] == x.shape[-2] else np.triu(np.ones_like(below), 1)):
        if not np.any(x[..., outside]) and np.count_nonzero(x[..., ~outside]) > outside.sum() // 2:
            return np.broadcast_to(outside, x.shape)
    return None


def _is_symmetric(x: Array) -> bool:
    square = x.ndim >= 2 and x.shape[-1] == x.shape[-2] and x.shape[-1] > 2
    return square and np.array_equal(x, np.swapaxes(x, -1, -2)) and float(x.std()) > 0


def _vary_probability(x: Floats, family: Family, rng: np.random.Generator) -> Floats:
    axis = _probability_axis(x)
    assert axis is not None, "the caller has seen that the rows sum to 1"
    if family == "permuted":
        return np.take(x, rng.permutation(x.shape[axis]), axis=axis)
    sharpness = {"signed": 1.0, "large": 6.0, "sparse": 1.0, "faint": 3.0}[family]
    weights = np.exp(sharpness * rng.standard_normal(x.shape))
    if family == "sparse":
        largest = weights == weights.max(axis=axis, keepdims=True)
        weights = np.where((rng.random(x.shape) < SPARSITY) & ~largest, 0.0, weights)
    return np.asarray(weights / weights.sum(axis=axis, keepdims=True))


def _relabelled(array: Array, family: Family, rng: np.random.Generator) -> Array:
    """Labels from among those that were drawn; in the family `faint` slices that have the least of them alone, as masks
    that let nothing pass."""
    if family == "permuted":
        return _shuffled(array, rng)
    labels = np.unique(array)
    least = np.where(faint_slices(array.shape, rng, symmetric=False) == 0, labels[0], array)
    return least if family == "faint" and not np.array_equal(least, array) else rng.choice(labels, array.shape)


def _redrawn(array: Array, family: Family, rng: np.random.Generator) -> Array:
    if family == "permuted":
        return _shuffled(array, rng)
    low, high = int(array.min()), int(array.max())
    new = rng.integers(low, high, array.shape, endpoint=True).astype(array.dtype)
    if family == "faint":
        return np.where(faint_slices(array.shape, rng, symmetric=False) == 0, rng.choice(array.ravel()), new)
    if family == "sparse":
        return np.where(rng.random(array.shape) < SPARSITY, rng.choice(np.array([low, high, new.flat[0]])), new)
    return new


def _shuffled(array: npt.NDArray[np.generic], rng: np.random.Generator) -> npt.NDArray[np.generic]:
    return array.ravel()[rng.permutation(array.size)].reshape(array.shape)


def _shuffled_within(x: Floats, inside: npt.NDArray[np.bool_], rng: np.random.Generator) -> Floats:
    new = x.copy()
    new[inside] = rng.permutation(x[inside])
    return new
