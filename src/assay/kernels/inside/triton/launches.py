"""Launches of Triton on a GPU: counted, and left out where a call is to show what they are worth.

`JITFunction.run` (of Triton 3.6 and 3.7) is wrapped, and so is the launch of a kernel compiled beforehand. A launch
that is left out still compiles its kernel, so that a candidate gets what it always gets. What an autotuner runs to
choose a configuration is hidden from the trace of PyTorch's operators: it empties caches with them. Launches recorded
in a CUDA graph are seen when they are recorded, not when it is replayed.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import triton.compiler
from torch.utils._python_dispatch import _disable_current_modes
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction


class Launches:
    """What was launched in one call of forward. `skip`: launches are counted but not run."""

    refusal: Exception | None = None
    """Nothing is refused on a GPU."""

    def __init__(self, skip: bool = False, poison: float = 0.0) -> None:
        self.counts: Counter[str] = Counter()
        self.skip, self.poison = skip, poison

    def to_json(self) -> dict[str, object]:
        """Plain data for a report."""
        return {"launches": dict(self.counts)}


_current = Launches()


def current() -> Launches:
    """The account of the call under way."""
    return _current


@contextlib.contextmanager
def recording(launches: Launches) -> Iterator[Launches]:
    """Let `launches` account for this block."""
    global _current
    before, _current = _current, launches
    try:
        yield launches
    finally:
        _current = before


def counted(run: Callable[..., Any]) -> Callable[..., Any]:
    """`JITFunction.run` that keeps account."""

    def counting(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        if warmup:
            return run(self, *args, grid=grid, warmup=True, **kwargs)
        _current.counts[self.fn.__name__] += 1
        return run(self, *args, grid=grid, warmup=_current.skip, **kwargs)

    return counting


def counted_direct(getitem: Callable[..., Any]) -> Callable[..., Any]:
    """`CompiledKernel.__getitem__` that keeps account."""

    def counting(self: Any, grid: Any) -> Callable[..., Any]:
        launch = getitem(self, grid)

        def launching(*args: Any, **kwargs: Any) -> Any:
            _current.counts[str(self.metadata.name)] += 1
            return None if _current.skip else launch(*args, **kwargs)

        return launching

    return counting


def _unseen(bench: Callable[..., Any]) -> Callable[..., Any]:
    def benchmarking(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return bench(self, *args, **kwargs)

    return benchmarking


def install() -> None:
    """Put the account into Triton, once per process."""
    JITFunction.run = counted(JITFunction.run)
    compiled = triton.compiler.CompiledKernel
    compiled.__getitem__ = counted_direct(compiled.__getitem__)
    Autotuner._bench = _unseen(Autotuner._bench)
