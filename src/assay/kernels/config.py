"""Settings of the grader."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

import chz

from assay.config import MAY_CHANGE, NOT_NULL, Above, AtLeast, AtMost, Settings, UsedWhen, fact, refuse
from assay.config.urls import has_user, is_url, kept_secrets, without_secrets
from assay.kernels.base import Language, Policy, Precision, TimedAgainst, shared_limit
from assay.kernels.devices import nvidia_devices
from assay.kernels.timing.config import TimingConfig
from assay.sandbox.modal.config import ModalConfig, ModalSettings

CompileCheck = Literal["right", "all", "off"]
Device = Literal["cpu", "cuda"]
RunOn = Literal["local", "modal"]
Scale = Literal["fit", "none"]
Walls = Literal["strict", "unsafe"]


@dataclass(frozen=True, slots=True)
class Decides:
    """A field may change a verdict, and so is part of the key under which one is kept."""

    on: Literal["any device", "a GPU"]


@dataclass(frozen=True, slots=True)
class Asked:
    """A field says what a verdict means, so that a client of a grading service asks for it. All others, limits above
    all, are the service's to decide."""


VERDICT, GPU_VERDICT = Decides("any device"), Decides("a GPU")
ASKED = Asked()
OWN = UsedWhen("url", None)
"""A field of grades on this machine or at Modal; a grading service has its own."""
BY_SERVICE = UsedWhen("url", NOT_NULL)

MAX_TRIALS = 64
"""The report of a candidate has room for so many calls."""


@chz.chz
class GraderSettings(Settings):
    """How candidates are graded, beside what is asked for: the language, the calls, the speed, and where it is done."""

    precision: Annotated[Precision, ASKED, VERDICT, UsedWhen("runs_kernels")] = "float32"
    """Working precision of inputs, weights and outputs: float32, float16 or bfloat16."""
    scale: Annotated[Scale, ASKED, VERDICT, UsedWhen("runs_kernels")] = "fit"
    """Sizes of a problem: `fit` takes the smallest at which it is worth solving, `none` those it was published with."""
    policy: Annotated[Policy, ASKED, VERDICT, UsedWhen("runs_kernels")] = "strict"
    """`strict` wants all of the work done by kernels; `partial` lets PyTorch do up to half of it beside them, and the
    verdict says what share the kernels did."""
    compile_check: Annotated[CompileCheck, ASKED, VERDICT, UsedWhen("interprets")] = "right"
    """Which candidates are also compiled for a GPU: the numerically `right`, `all` (first), or none (`off`)."""
    arch: Annotated[str, ASKED, VERDICT, UsedWhen("compiles_ahead")] = "sm_90"
    """The GPU architecture to compile for."""
    max_programs: Annotated[int, AtLeast(1), VERDICT, UsedWhen("interprets"), OWN] = 4096
    """Program instances that the interpreter runs in one call of forward; a millisecond or two each."""
    wall_s: Annotated[float, Above(0), VERDICT, UsedWhen("runs_kernels"), OWN] = 60.0
    """Wall-clock limit of all that is run of one candidate: its host code and its kernels, at all sizes."""
    cpu_s: Annotated[float, Above(0), VERDICT, UsedWhen("runs_kernels"), OWN] = 30.0
    """CPU limit of one candidate, each time that its host code or its kernels are run."""
    memory_mb: Annotated[int, AtLeast(1), VERDICT, UsedWhen("interprets"), OWN] = 2048
    """Memory limit of one candidate, in MiB."""
    device: Annotated[Device, ASKED, VERDICT] = "cpu"
    """Where kernels run: `cpu`, in Triton's interpreter, or `cuda`, on a GPU."""
    setup_s: Annotated[float, Above(0), GPU_VERDICT, UsedWhen("on_gpu"), OWN] = 300.0
    """Seconds, of wall clock and of CPU, that a candidate on a GPU may take besides, to start CUDA and to compile."""
    device_memory_mb: Annotated[int, AtLeast(1), GPU_VERDICT, UsedWhen("on_gpu"), OWN] = 16384
    """Memory on the host that a candidate on a GPU may use, in MiB, in place of `memory_mb`."""
    baselines: Annotated[tuple[TimedAgainst, ...], ASKED, UsedWhen("measure_performance", True)] = ("eager",)
    """What they are timed against: the reference as it is (`eager`), under `torch.compile` (`compile`), or its launches
    replayed as a CUDA graph (`graph`), as those of a candidate are. The speedup over the first is the verdict's."""
    timing: Annotated[TimingConfig, UsedWhen("measure_performance", True), OWN] = chz.field(
        default_factory=TimingConfig
    )
    """How they are timed."""
    modal: Annotated[ModalSettings, UsedWhen("at_modal")] = chz.field(default_factory=ModalSettings)
    """App and containers of grades at Modal."""
    reference_device: Annotated[Device, GPU_VERDICT, UsedWhen("runs_kernels"), OWN] = "cpu"
    """Where this machine runs references, in float64: `cuda` for sizes that a processor is too slow for."""
    sandbox: Annotated[Walls, VERDICT, OWN] = "strict"
    """`unsafe` runs candidates, and the problems' own references, without walls where this machine cannot give any;
    never for rewards that train a model. At Modal only references run here."""
    workers: Annotated[int, AtLeast(0), UsedWhen("graded_here"), OWN] = 0
    """Candidates that run at a time; 0 for one per core."""
    draws: Annotated[int, AtLeast(1), UsedWhen("runs_kernels"), OWN] = 4
    """Sets of secret inputs kept for each problem."""
    uses_per_draw: Annotated[int, AtLeast(1), UsedWhen("runs_kernels"), OWN] = 32
    """Candidates that meet a set before a new one takes its place."""
    max_prepared: Annotated[int, AtLeast(1), UsedWhen("runs_kernels"), OWN] = 192
    """Problems at one size that are kept ready, least recently graded ones dropped first; each holds megabytes of
    arrays, and a problem that was made smaller has three. A training run needs those of two batches."""
    cache: Annotated[bool, OWN] = True
    """Keep verdicts, by problem, code and every setting above `sandbox`; failures of the grader are never kept."""
    cache_path: Annotated[str | None, UsedWhen("cache", True), OWN] = None
    """The file of verdicts; null for `kernels.sqlite` in the user's cache folder."""
    cache_mb: Annotated[int, AtLeast(1), UsedWhen("cache", True), OWN] = 256
    """Bound of that file, in MB; the oldest verdicts are dropped first."""
    url: Annotated[str | None, MAY_CHANGE] = None
    """Address of a grading service (`assay grade-server`), such as http://grader:8177, that grades in place of this
    machine. Its key is read from ASSAY_GRADER_KEY."""
    url_timeout_s: Annotated[float, Above(0), BY_SERVICE, MAY_CHANGE] = 900.0
    """Seconds that one verdict of the service may take, its queue and further attempts included; then the grade has
    failed (`infra_error`)."""
    url_in_flight: Annotated[int, AtLeast(1), BY_SERVICE, MAY_CHANGE] = 64
    """Grades that the service is asked for at a time; further ones wait here."""

    @chz.validate
    def _known_architecture(self) -> None:
        shared_limit(self.arch)

    @chz.validate
    def _reachable(self) -> None:
        refuse(_no_address(self.url))


@chz.chz
class GraderConfig(GraderSettings):
    """How candidates are graded."""

    backend: Annotated[Language, ASKED, VERDICT] = "triton"
    """Language of the kernels: `triton`, or `cuda` for sources given to `load_inline`."""
    num_correct_trials: Annotated[int, AtLeast(1), AtMost(MAX_TRIALS), ASKED, VERDICT, UsedWhen("runs_kernels")] = 6
    """Calls of forward that must be right, over inputs of all families, besides the calls that look for cheats."""
    run_on: Annotated[RunOn, GPU_VERDICT] = "local"
    """Whose device that is: this machine's (`local`), or that of a container at Modal (`modal`; see the node modal)."""
    measure_performance: Annotated[bool, ASKED, VERDICT] = False
    """Time right candidates against the reference; needs device=cuda."""
    modal: Annotated[ModalConfig, UsedWhen("run_on", "modal")] = chz.field(default_factory=ModalConfig)
    """GPU, time limit and app of run_on=modal. Only the GPU and the time limit may change a verdict."""

    @fact("kernels are run", "backend", "device", cure="Set device=cuda (or backend=triton)")
    def runs_kernels(self) -> bool:
        """Whether candidates are run: CUDA sources without a GPU are only compiled."""
        return self.backend == "triton" or self.on_gpu

    @fact("kernels run in Triton's interpreter", "backend", "device", cure="Set backend=triton and device=cpu")
    def interprets(self) -> bool:
        """Whether candidates run on the processor."""
        return self.backend == "triton" and not self.on_gpu

    @fact(
        "kernels are compiled for a GPU that need not be there",
        "device",
        "backend",
        "compile_check",
        cure="Set device=cpu, with compile_check=right or all",
    )
    def compiles_ahead(self) -> bool:
        """Whether candidates are compiled for `arch`."""
        return not self.on_gpu and (self.backend == "cuda" or self.compile_check != "off")

    @fact("device is cuda", "device", cure="Set device=cuda")
    def on_gpu(self) -> bool:
        """Whether candidates run on a GPU."""
        return self.device == "cuda"

    @fact("run_on is modal", "run_on", cure="Set run_on=modal")
    def at_modal(self) -> bool:
        """Whether candidates are graded in containers at Modal."""
        return self.run_on == "modal"

    @fact("run_on is local", "run_on", cure="Set run_on=local")
    def graded_here(self) -> bool:
        """Whether candidates are graded on this machine."""
        return not self.at_modal

    @chz.validate
    def _possible(self) -> None:
        refuse(_not_at_hand(self))
        refuse(_not_timed(self))


def _no_address(url: str | None) -> Iterator[str]:
    if url is None:
        return
    yield from kept_secrets("url", url)
    if not (is_url(url) and url.startswith(("http://", "https://"))) and not has_user(url):
        yield f"url={without_secrets(url)!r} is not an http:// or https:// address. Give one, such as http://127.0.0.1:8177."


def _not_at_hand(config: GraderConfig) -> Iterator[str]:
    if config.url is not None:
        if config.run_on == "modal":
            yield "run_on=modal and url are two places to grade kernels at. Set run_on=local, or url=null."
        return
    wanted = [name for name in ("device", "reference_device") if getattr(config, name) == "cuda"]
    if config.run_on == "modal":
        wanted = [name for name in wanted if name != "device"]
    if wanted and not nvidia_devices():
        yield (
            f"{wanted[0]}=cuda: this machine has no device file /dev/nvidia*, so nothing could run on a GPU here. Load "
            "its driver (nvidia-smi makes the files), grade at Modal (run_on=modal), or on the processor (device=cpu)."
        )
    if config.run_on == "modal" and config.backend == "cuda" and config.device == "cpu":
        yield (
            "backend=cuda with run_on=modal and device=cpu would compile CUDA sources in a container with a GPU and "
            "not run them. Set device=cuda."
        )


def _not_timed(config: GraderConfig) -> Iterator[str]:
    if not config.baselines or len(set(config.baselines)) < len(config.baselines):
        yield f"baselines={config.baselines}: give one or more of {', '.join(get_args(TimedAgainst))}."
    if not config.measure_performance:
        return
    if config.device != config.timing.device:
        yield (
            f"measure_performance=true with device={config.device} and timing.device={config.timing.device}: speed is "
            "measured on a GPU (device=cuda). timing.device=cpu beside device=cpu times the interpreter, which is "
            "only good for trying out the protocol."
        )
    if config.scale == "fit" and config.device == "cuda":
        yield (
            "measure_performance=true with scale=fit would time problems at the smallest sizes that tell right from "
            "wrong, where a launch takes longer than the work. Set scale=none."
        )
    if 0 < config.workers < 2:
        yield "measure_performance=true runs two jobs in step: give workers=2 or more, or 0."
