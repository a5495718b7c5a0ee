"""How much faster than a baseline is a kernel? Timed jobs, statistics, the roofline."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.kernels.timing.config import TimingConfig
    from assay.kernels.timing.jobs import TimedProblem
    from assay.kernels.timing.statistics import Finding, Timing
    from assay.kernels.timing.stopwatch import Stopwatch
else:
    from assay.exports import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)

__all__ = ["Finding", "Stopwatch", "TimedProblem", "Timing", "TimingConfig"]
