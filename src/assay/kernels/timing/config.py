"""Settings of the timing of kernels."""

from __future__ import annotations

from typing import Literal

import chz

from assay.errors import ConfigError
from assay.kernels.timing.statistics import Rules, fewest_samples

MAX_SAMPLES = 150
"""A job has at most 1,000 rounds, three for each sample, and there are up to 120 of other kinds."""


@chz.chz
class TimingConfig:
    """How kernels are timed against a baseline."""

    device: Literal["cuda", "cpu"] = "cuda"
    """Where calls run. On `cpu` the protocol is the same, and its figures mean nothing for a GPU."""
    samples: int = 24
    """Timed samples of candidate and baseline each; more make the interval narrower."""
    warm_ups: int = 4
    """Samples that are thrown away first, and up to as many more, drawn in secret."""
    alone: int = 8
    """Samples of the baseline before the candidate is started, to see later whether that slows it."""
    round_ms: float = 5.0
    """Calls in a sample are as many as make it last so long, that the parent's clock may see more than its noise."""
    max_calls: int = 64
    """Calls in a sample at most; each has inputs of its own."""
    confidence: float = 0.95
    """With which the interval holds the speedup."""
    resolution: float = 0.02
    """Share by which two processes that run the same code may differ for good; intervals are so much wider."""
    max_speedup: float = 50.0
    """A speedup whose lower bound is above this is withheld."""
    interference: float = 0.15
    """The speedup is withheld where the baseline is slower by this share once the candidate is there."""
    tf32: bool = False
    """Let float32 products be rounded to TF32, in candidate and baseline alike."""
    buffer_mb: int = 8192
    """MiB of inputs and outputs that one comparison may hold; large inputs mean fewer calls in a sample."""
    wall_s: float = 300.0
    """Seconds in which each of the two may be at work, its start and compilation included."""
    memory_mb: int = 16384
    """MiB of memory of each, on the host."""
    tmp_mb: int = 512
    """MiB of scratch space of each, for compiled kernels."""

    @chz.validate
    def _possible(self) -> None:
        fewest = fewest_samples(self.confidence) if 0.5 <= self.confidence < 1 else 0
        if not fewest:
            raise ConfigError(f"timing.confidence={self.confidence} must be at least 0.5 and below 1.")
        if not fewest <= self.samples <= MAX_SAMPLES:
            raise ConfigError(
                f"timing.samples={self.samples} must be from {fewest}, below which no interval has the confidence "
                f"{self.confidence:g}, to {MAX_SAMPLES}."
            )
        for name in ("warm_ups", "alone"):
            if not 0 <= getattr(self, name) <= 40:
                raise ConfigError(f"timing.{name}={getattr(self, name)} must be from 0 to 40.")
        for name in ("round_ms", "max_calls", "max_speedup", "buffer_mb", "wall_s", "memory_mb", "tmp_mb"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"timing.{name}={getattr(self, name)} must be a positive number.")
        for name in ("resolution", "interference"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"timing.{name}={getattr(self, name)} must be at least 0 and below 1.")

    @property
    def rules(self) -> Rules:
        """What a conclusion depends on."""
        return Rules(self.confidence, self.resolution, self.max_speedup, self.interference)
