"""Settings of the grader."""

from __future__ import annotations

from typing import Literal, get_args

import chz

from assay.errors import ConfigError
from assay.kernels.base import Backend, Baseline, Precision, shared_limit
from assay.kernels.devices import nvidia_devices
from assay.kernels.timing.config import TimingConfig
from assay.sandbox.modal.config import ModalConfig

CompileCheck = Literal["right", "all", "off"]
Policy = Literal["strict", "partial"]
Device = Literal["cpu", "cuda"]
RunOn = Literal["local", "modal"]
Scale = Literal["fit", "none"]
Walls = Literal["strict", "unsafe"]

_CHOICES = {
    "backend": Backend,
    "precision": Precision,
    "policy": Policy,
    "scale": Scale,
    "compile_check": CompileCheck,
    "sandbox": Walls,
    "device": Device,
    "run_on": RunOn,
    "reference_device": Device,
}


MAX_TRIALS = 64
"""The report of a candidate has room for so many calls."""


@chz.chz
class GraderConfig:
    """How candidates are graded. `verdict_cache` says which settings are part of the key of a kept verdict."""

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
    device: Device = "cpu"
    """Where kernels run: `cpu`, in Triton's interpreter, or `cuda`, on a GPU."""
    run_on: RunOn = "local"
    """Whose device that is: this machine's (`local`), or that of a container at Modal (`modal`; see the node modal)."""
    setup_s: float = 300.0
    """Seconds, of wall clock and of CPU, that a candidate on a GPU may take besides, to start CUDA and to compile."""
    device_memory_mb: int = 16384
    """Memory on the host that a candidate on a GPU may use, in MiB, in place of `memory_mb`."""
    measure_performance: bool = False
    """Time right candidates against the reference; needs device=cuda."""
    baselines: tuple[Baseline, ...] = ("eager",)
    """What they are timed against: the reference as it is (`eager`), under `torch.compile` (`compile`), or both. The
    speedup over the first is the verdict's."""
    timing: TimingConfig = chz.field(default_factory=TimingConfig)
    """How they are timed."""
    modal: ModalConfig = chz.field(default_factory=ModalConfig)
    """GPU, time limit and app of run_on=modal. Only the GPU and the time limit may change a verdict."""
    reference_device: Device = "cpu"
    """Where this machine runs references, in float64: `cuda` for sizes that a processor is too slow for."""
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
        for name in (
            "num_correct_trials",
            "max_programs",
            "memory_mb",
            "device_memory_mb",
            "draws",
            "uses_per_draw",
            "cache_mb",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"grader.{name}={getattr(self, name)} must be at least 1.")
        if self.num_correct_trials > MAX_TRIALS:
            raise ConfigError(f"grader.num_correct_trials={self.num_correct_trials} is above {MAX_TRIALS}.")
        for name in ("wall_s", "cpu_s", "setup_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"grader.{name}={getattr(self, name)} must be a positive number of seconds.")
        if self.workers < 0:
            raise ConfigError(f"grader.workers={self.workers}: give a number of candidates, or 0 for one per core.")
        for name, known in _CHOICES.items():
            if getattr(self, name) not in get_args(known):
                raise ConfigError(f"grader.{name}={getattr(self, name)!r} is none of {', '.join(get_args(known))}.")
        shared_limit(self.arch)

    @chz.validate
    def _at_hand(self) -> None:
        wanted = [name for name in ("device", "reference_device") if getattr(self, name) == "cuda"]
        if self.run_on == "modal":
            wanted = [name for name in wanted if name != "device"]
        if wanted and not nvidia_devices():
            raise ConfigError(
                f"grader.{wanted[0]}=cuda: this machine has no device file /dev/nvidia*, so nothing could run on a GPU "
                "here. Load its driver (nvidia-smi makes the files), grade at Modal (run_on=modal), or on the "
                "processor (device=cpu)."
            )
        if self.run_on == "modal" and self.backend == "cuda" and self.device == "cpu":
            raise ConfigError(
                "grader.backend=cuda with run_on=modal and device=cpu would compile CUDA sources in a container with a "
                "GPU and not run them. Set device=cuda."
            )

    @chz.validate
    def _timed(self) -> None:
        unknown = [name for name in self.baselines if name not in get_args(Baseline)]
        if unknown or not self.baselines or len(set(self.baselines)) < len(self.baselines):
            raise ConfigError(
                f"grader.baselines={self.baselines}: give one or both of {', '.join(get_args(Baseline))}."
            )
        if not self.measure_performance:
            return
        if self.device != self.timing.device:
            raise ConfigError(
                f"grader.measure_performance=true with device={self.device} and timing.device={self.timing.device}: "
                "speed is measured on a GPU (device=cuda). timing.device=cpu beside device=cpu times the interpreter, "
                "which is good for trying out the protocol and nothing else."
            )
        if self.scale == "fit" and self.device == "cuda":
            raise ConfigError(
                "grader.measure_performance=true with scale=fit would time problems at the smallest sizes that tell "
                "right from wrong, where a launch takes longer than the work. Set scale=none."
            )
        if 0 < self.workers < 2:
            raise ConfigError("grader.measure_performance=true runs two jobs in step: give workers=2 or more, or 0.")
