"""The driver that Triton asks while it tunes, where there is no GPU."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import triton

from assay.kernels.inside.pretend_cuda import DEVICE, driver_properties

MOST_MS = 1e4
"""Milliseconds that a measurement may take: it makes as many launches, and two events for each, as fit in."""


def measure_nothing(
    *_: Any, quantiles: Any = None, warmup: float | None = None, rep: float | None = None, **__: Any
) -> Any:
    """A benchmark that runs nothing: everything is equally fast.

    Args:
        quantiles: One time is given back for each; None for a single one.
        warmup: Milliseconds that a GPU would be kept busy before it measures.
        rep: Milliseconds that it would measure.

    Raises:
        ValueError: Triton cannot make a number of launches of `warmup` or `rep`.
    """
    for milliseconds in (warmup, rep):
        if milliseconds is not None and (type(milliseconds) not in (int, float) or not abs(milliseconds) <= MOST_MS):
            raise ValueError(f"warmup and rep are milliseconds, a number each, not {milliseconds!r:.40}")
    return 0.0 if quantiles is None else [0.0 for _ in quantiles]


class StubDriver:
    """What an autotuner asks a driver for: the first configuration is the fastest, and nothing need be run."""

    utils = SimpleNamespace(get_device_properties=driver_properties)

    def __init__(self, benchmarker: Callable[..., Any] = measure_nothing) -> None:
        self._benchmarker = benchmarker

    def get_benchmarker(self) -> Callable[..., Any]:
        """What an autotuner times configurations with."""
        return self._benchmarker

    def get_current_device(self) -> int:
        """The only device."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """The only stream."""
        return 0

    def get_current_target(self) -> Any:
        """The GPU that candidates may take this machine for."""
        return triton.backends.compiler.GPUTarget("cuda", 90, 32)

    def get_device_interface(self) -> Any:
        """PyTorch's module for the device."""
        return torch.cuda

    def get_active_torch_device(self) -> torch.device:
        """Where tensors are pretended to be."""
        return DEVICE
