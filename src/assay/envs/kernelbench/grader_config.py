"""Settings of the grader."""

from __future__ import annotations

from typing import Literal, get_args

import chz

from assay.envs.kernelbench.compile import shared_limit
from assay.envs.kernelbench.reference import Precision
from assay.envs.kernelbench.static.checks import Backend
from assay.errors import ConfigError

CompileCheck = Literal["right", "all", "off"]
Policy = Literal["strict", "partial"]
Scale = Literal["fit", "none"]
Walls = Literal["strict", "unsafe"]

_CHOICES = {
    "backend": Backend,
    "precision": Precision,
    "policy": Policy,
    "scale": Scale,
    "compile_check": CompileCheck,
    "sandbox": Walls,
}


@chz.chz
class GraderConfig:
    """How candidates are graded. What stands above `sandbox` may change a verdict, and is part of its cache key."""

    backend: Backend = "triton"
    """Language of the kernels: `triton`, or `cuda` for sources given to `load_inline`."""
    precision: Precision = "float32"
    """Working precision of inputs, weights and outputs: float32, float16 or bfloat16."""
    num_correct_trials: int = 5
    """Calls of forward that must be right, over inputs of all families, besides the calls that look for cheats."""
    scale: Scale = "fit"
    """Sizes of a problem: `fit` takes the smallest at which it is worth solving, `none` those it was published with."""
    policy: Policy = "strict"
    """`strict` refuses any heavy PyTorch operator that the reference uses; `partial` lets it stand beside kernels."""
    compile_check: CompileCheck = "right"
    """Which candidates are also compiled for a GPU: the numerically `right`, `all` (first), or none (`off`)."""
    arch: str = "sm_90"
    """The GPU architecture to compile for."""
    max_programs: int = 4096
    """Program instances that the interpreter runs in one call of forward; a millisecond or two each."""
    wall_s: float = 60.0
    """Wall-clock limit of one candidate, over all calls."""
    cpu_s: float = 30.0
    """CPU limit of one candidate."""
    memory_mb: int = 2048
    """Memory limit of one candidate, in MiB."""
    sandbox: Walls = "strict"
    """`unsafe` runs candidates without walls, where a machine cannot give any; never for rewards that train a model."""
    workers: int = 0
    """Candidates that run at a time; 0 for one per core."""
    draws: int = 4
    """Sets of secret inputs kept for each problem."""
    uses_per_draw: int = 32
    """Candidates that meet a set before a new one takes its place."""
    cache: bool = True
    """Keep verdicts, by problem, code and every setting above `sandbox`; failures of the grader are never kept."""
    cache_path: str | None = None
    """The file of verdicts; null for `kernels.sqlite` in the user's cache folder."""
    cache_mb: int = 256
    """Bound of that file, in MB; the oldest verdicts are dropped first."""

    @chz.validate
    def _sensible(self) -> None:
        for name in ("num_correct_trials", "max_programs", "memory_mb", "draws", "uses_per_draw", "cache_mb"):
            if getattr(self, name) < 1:
                raise ConfigError(f"grader.{name}={getattr(self, name)} must be at least 1.")
        for name in ("wall_s", "cpu_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"grader.{name}={getattr(self, name)} must be a positive number of seconds.")
        if self.workers < 0:
            raise ConfigError(f"grader.workers={self.workers}: give a number of candidates, or 0 for one per core.")
        for name, known in _CHOICES.items():
            if getattr(self, name) not in get_args(known):
                raise ConfigError(f"grader.{name}={getattr(self, name)!r} is none of {', '.join(get_args(known))}.")
        shared_limit(self.arch)
