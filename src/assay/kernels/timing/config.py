"""Settings of the timing of kernels."""

from __future__ import annotations

from typing import Annotated, Literal

import chz

from assay.config import Above, AtLeast, AtMost, Below, Settings, refuse
from assay.kernels.timing.statistics import Rules, fewest_samples

MAX_SAMPLES = 150
"""A job has at most 1,000 rounds, three for each sample, and there are up to 120 of other kinds."""


@chz.chz
class TimingConfig(Settings):
    """How kernels are timed against a baseline."""

    device: Literal["cuda", "cpu"] = "cuda"
    """Where calls run. On `cpu` the protocol is the same, and its figures mean nothing for a GPU."""
    samples: Annotated[int, AtMost(MAX_SAMPLES)] = 24
    """Timed samples of candidate and baseline each; more make the interval narrower."""
    warm_ups: Annotated[int, AtLeast(0), AtMost(40)] = 4
    """Samples that are thrown away first, and up to as many more, drawn in secret."""
    alone: Annotated[int, AtLeast(0), AtMost(40)] = 8
    """Samples of the baseline before the candidate is started, to see later whether that slows it."""
    round_ms: Annotated[float, Above(0)] = 5.0
    """Calls in a sample are as many as make it last so long, that the parent's clock may see more than its noise."""
    max_calls: Annotated[int, Above(0)] = 64
    """Calls in a sample at most; each has inputs of its own."""
    confidence: Annotated[float, AtLeast(0.5), Below(1)] = 0.95
    """With which the interval holds the speedup."""
    resolution: Annotated[float, AtLeast(0), Below(1)] = 0.02
    """Share by which two processes that run the same code may differ for good; intervals are so much wider."""
    max_speedup: Annotated[float, Above(0)] = 50.0
    """A speedup whose lower bound is above this is withheld."""
    interference: Annotated[float, AtLeast(0), Below(1)] = 0.15
    """The speedup is withheld where the baseline is slower by this share once the candidate is there."""
    tf32: bool = False
    """Let float32 products be rounded to TF32, in candidate and baseline alike."""
    buffer_mb: Annotated[int, Above(0)] = 8192
    """MiB of inputs and outputs that one comparison may hold; large inputs mean fewer calls in a sample."""
    wall_s: Annotated[float, Above(0)] = 300.0
    """Seconds in which each of the two may be at work, its start and compilation included."""
    memory_mb: Annotated[int, Above(0)] = 16384
    """MiB of memory of each, on the host."""
    tmp_mb: Annotated[int, Above(0)] = 512
    """MiB of scratch space of each, for compiled kernels."""

    @chz.validate
    def _possible(self) -> None:
        fewest = fewest_samples(self.confidence)
        if self.samples < fewest:
            refuse(
                [
                    f"samples={self.samples} must be at least {fewest}, below which no interval has the confidence "
                    f"{self.confidence:g}."
                ]
            )

    @property
    def rules(self) -> Rules:
        """What a conclusion depends on."""
        return Rules(self.confidence, self.resolution, self.max_speedup, self.interference)
