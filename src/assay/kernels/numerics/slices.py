"""What families of inputs have in some places alone: a few elements, or slices along each axis."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

SPIKE, SPIKED, MANY = 8.0, 4, 1 << 10
"""What a few elements of that family are multiplied by as well, beside those at the ends, where there are many."""
STEP, ALL_BELOW = 0.5, 0.25
"""Of some slices of the family `signed`; how often all of it lies below zero."""
LOW_END = 0.1
"""What rising lines begin with, before it is squared."""
FAINT = 1e-4
"""What a slice is multiplied by that is close to zero: its variance is far below the usual 1e-5."""


def spiked(x: Floats, scale: float, rng: np.random.Generator) -> Floats:
    """With a few elements that are larger than the others: at both ends, and anywhere."""
    new = x.copy()
    places = [0, x.size - 1, *rng.integers(x.size, size=SPIKED)]
    new.flat[places] = rng.choice(np.array([-1.0, 1.0]), len(places)) * scale * SPIKE
    return new


def in_steps(x: Floats, rng: np.random.Generator) -> Floats:
    """With half of the slices along the first axis that has several, one at least, in steps."""
    axis = next((axis for axis, size in enumerate(x.shape) if size > 1), 0)
    chosen = rng.random(x.shape[axis] if x.ndim else 1) < 0.5
    chosen[rng.integers(chosen.size)] = True
    shape = [-1 if other == axis else 1 for other in range(x.ndim)]
    return np.where(chosen.reshape(shape), np.round(x / STEP) * STEP, x)


def on_one_side(x: Floats, rng: np.random.Generator, side: float, share: float = 0.0) -> Floats:
    """With one slice along each axis on one side of zero, or all elements: in a `share` of draws, and in half of those
    that have no slices."""
    sided = side * (np.abs(x) + STEP)
    wide = [axis for axis, size in enumerate(x.shape) if size > 1]
    if rng.random() < (share if len(wide) > 1 else 0.5):
        return sided
    chosen = np.zeros(x.shape, np.bool_)
    for axis in wide if len(wide) > 1 else ():
        np.moveaxis(chosen, axis, 0)[rng.integers(x.shape[axis])] = True
    return np.where(chosen, sided, x)


def rising(x: Floats, rng: np.random.Generator) -> Floats:
    """With half of the lines along one axis, likelier a long one, small at one end: what is largest in a first block is
    not in all."""
    long = np.log(np.maximum(x.shape, 1))
    if not long.sum():
        return x
    axis = int(rng.choice(x.ndim, p=long / long.sum()))
    lines = np.moveaxis(x, axis, -1)
    ramp = np.linspace(LOW_END, 1.0, lines.shape[-1]) ** 2
    ways = rng.random((*lines.shape[:-1], 1))
    factors = np.where(ways < 0.25, ramp, np.where(ways < 0.5, ramp[::-1], 1.0))
    return np.moveaxis(lines * factors, -1, axis)


def faint_slices(shape: tuple[int, ...], rng: np.random.Generator, symmetric: bool) -> Floats:
    """Factors of an array: along each axis 0 for one place, and `FAINT` for another where there are three others."""
    factors: Floats = np.ones(shape)
    kept: Floats | None = None
    for axis, size in enumerate(shape):
        along = np.ones(size)
        places = rng.permutation(size)
        along[places[: 1 if size > 1 else 0]] = 0.0
        along[places[1 : 2 if size > 3 else 1]] = FAINT
        along = kept if symmetric and kept is not None and axis == len(shape) - 1 else along
        kept = along
        factors = factors * along.reshape([-1 if other == axis else 1 for other in range(len(shape))])
    return factors
