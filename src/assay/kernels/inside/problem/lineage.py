"""Which storages of a constructor hold numbers that were drawn one for each element, and from which draws.

A list of what may be done, not of what may not: a storage is `own` after a continuous draw, and stays so while its
elements are moved, chosen from two draws, or changed one by one by smooth functions of themselves and of fixed numbers.
After anything else (other draws, comparisons, roundings, sums, copies over a part of it) it is not, nor is one that
nothing traced filled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from assay.kernels.program.form import DTYPES, Operation, Window, windows_in
from assay.kernels.program.operations import base_name, role_of

CONTINUOUS = frozenset(
    {
        *("uniform", "normal", "normal_functional", "exponential", "log_normal", "cauchy"),
        *("rand", "randn", "rand_like", "randn_like"),
    }
)
"""Draws of fractions, each element of its own."""
WIDE = frozenset({"float32", "float64", "complex64", "complex128"})
"""Dtypes in which two elements are hardly ever equal by chance."""
SMOOTH = frozenset(
    {
        *("add", "sub", "rsub", "mul", "div", "true_divide", "neg", "reciprocal", "abs", "sqrt", "rsqrt", "square"),
        *("pow", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "atan", "sinh", "cosh"),
        *("tanh", "asinh", "atanh", "sigmoid", "logit", "softplus", "erf", "erfinv", "clamp", "clamp_min", "clamp_max"),
    }
)
"""Functions of an element that keep different ones different, but where they saturate: values tell that."""
TAKEN = frozenset(
    {
        *("clone", "_to_copy", "copy", "cat", "stack", "flip", "roll", "_unsafe_view", "contiguous"),
        *("lift_fresh_copy", "view_copy", "permute_copy", "transpose_copy"),
    }
)
"""Moves that show each element once."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a storage holds."""

    draws: frozenset[int] = frozenset()
    """Calls of random operators, by number, on which its elements depend."""
    own: bool = False
    """Whether each element is made of one drawn number, of which no other element is made."""
    drawn: tuple[tuple[int, int], ...] = ()
    """Blocks of bytes that were drawn so far, while some are left; in order."""


NOTHING = Held()


class Lineage:
    """Follows the operations of a constructor."""

    def __init__(self) -> None:
        self.told: set[int] = set()
        """Draws of which the host read a number, so that it may have computed with it."""
        self._held: dict[int, Held] = {}
        self._draws = 0

    def held(self, storage: int) -> Held:
        """What a storage holds; nothing that was drawn, if no draw was followed to it."""
        return self._held.get(storage, NOTHING)

    def storages(self) -> Iterator[tuple[int, Held]]:
        """All storages that something drawn went to."""
        return iter(self._held.items())

    def follow(self, operation: Operation, written: Sequence[Window], size_of: Callable[[int], int]) -> None:
        """Note what an operation does.

        Args:
            operation: One that was run.
            written: The tensors that it wrote or made.
            size_of: A storage -> its bytes.
        """
        sources = _sources(operation)
        draws = frozenset[int]().union(*(self.held(window.storage).draws for window in sources))
        if not written:
            # Whether a loop goes on that draws again until all is within bounds is no number to compute with.
            self.told |= draws if any(window.dtype != "bool" for window in sources) else frozenset()
        elif role_of(operation) == "random":
            number, self._draws = self._draws, self._draws + 1
            plain = base_name(operation) in CONTINUOUS and not sources and all(_is_one_each(out) for out in written)
            for out in written:
                self._draw(out, number, plain, size_of(out.storage), draws)
        else:
            kept = self._keeps(operation, sources, written)
            for out in written:
                before = self.held(out.storage)
                covers = out.nbytes == size_of(out.storage) and is_apart(out)
                in_place = kept and any(out == window for window in sources)
                if draws or before is not NOTHING:
                    rest = frozenset[int]() if covers else before.draws
                    self._held[out.storage] = before if in_place else Held(rest | draws, kept and covers)

    def _draw(self, out: Window, number: int, plain: bool, size: int, read: frozenset[int]) -> None:
        """Note a draw into a tensor. `plain`: continuous, and of nothing else; `read`: draws on which it depends."""
        before = self.held(out.storage)
        draws = {number} | read
        if out.nbytes == size and is_apart(out):
            self._held[out.storage] = Held(frozenset(draws), plain)
        elif plain and before.own:
            self._held[out.storage] = Held(before.draws | draws, True)
        else:
            blocks = _joined(before.drawn, out) if plain else ()
            self._held[out.storage] = Held(before.draws | draws, blocks == ((0, size),), blocks)

    def _keeps(self, operation: Operation, sources: Sequence[Window], written: Sequence[Window]) -> bool:
        """Whether each element that is written is one of a source's, moved or changed by itself alone."""
        name, outs = base_name(operation), list(written)
        if len(outs) != 1 or outs[0].dtype not in WIDE:
            return False
        if name in TAKEN:
            once = len({window.storage for window in sources}) == len(sources)
            return once and all(self._is_own(window) for window in sources) and _elements(sources) == outs[0].elements
        if name == "where":
            return self._chooses(sources, outs[0])
        if name not in SMOOTH or any(key == "rounding_mode" for key, _ in operation.kwargs):
            return False
        large = [window for window in sources if window.elements != 1 or self.held(window.storage).draws]
        return len(large) == 1 and self._is_own(large[0]) and large[0].elements == outs[0].elements

    def _chooses(self, sources: Sequence[Window], out: Window) -> bool:
        """Whether each element is the one of two draws or the other, as where what is beyond a bound is drawn again."""
        if len(sources) != 3 or sources[0].dtype != "bool":
            return False
        one, other = sources[1:]
        apart = not self.held(one.storage).draws & self.held(other.storage).draws
        return apart and all(self._is_own(each) and each.elements == out.elements for each in (one, other))

    def _is_own(self, window: Window) -> bool:
        return self.held(window.storage).own and _is_one_each(window)


def is_apart(window: Window) -> bool:
    """Whether a window shows no element twice."""
    extent = 1
    for stride, size in sorted(zip(window.stride, window.size, strict=True)):
        if size > 1 and stride < extent:
            return False
        extent += (size - 1) * stride if size > 1 else 0
    return True


def _is_one_each(window: Window) -> bool:
    return window.dtype in WIDE and is_apart(window)


def _elements(windows: Sequence[Window]) -> int:
    return sum(window.elements for window in windows)


def _sources(operation: Operation) -> list[Window]:
    """The tensors whose elements matter: not what is overwritten, or gives no more than a shape."""
    name, random = base_name(operation), role_of(operation) == "random"
    if name == "zero" or name.endswith("_like") or name.startswith(("new_", "empty")):
        return []
    # A draw in place takes the tensor first that it fills, and has no other one.
    own = 1 if name in ("copy", "fill") or (random and "_functional" not in name and _fills(operation)) else 0
    values = (*operation.args[own:], *(value for key, value in operation.kwargs if key != "out"))
    return [window for value in values for window in windows_in(value)]


def _fills(operation: Operation) -> bool:
    """Whether the first argument is what the operation writes."""
    first = operation.args[0] if operation.args else None
    return isinstance(first, Window) and any(out.storage == first.storage for out in operation.outs)


def _joined(blocks: tuple[tuple[int, int], ...], out: Window) -> tuple[tuple[int, int], ...]:
    """Blocks of bytes and a tensor that was drawn, as far as it is a block that meets none of them."""
    width = DTYPES[out.dtype]
    start, end = out.offset * width, out.end
    if end - start != out.nbytes or any(start < stop and begin < end for begin, stop in blocks):
        return blocks
    joined: list[tuple[int, int]] = []
    for begin, stop in sorted((*blocks, (start, end))):
        if joined and joined[-1][1] == begin:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((begin, stop))
    return tuple(joined)
