"""How kernels are graded and what they earn: what data sets and the reward `kernelbench` have in common."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import chz

from assay.config import Above, AtLeast, AtMost, SettingsError, UsedWhen, fact, refuse
from assay.config.idle import qualified
from assay.config.schema import settings
from assay.envs.base import BuildContext
from assay.envs.kernelbench.rewards import KernelRewardConfig, impossible
from assay.errors import ConfigError
from assay.kernels.base import Language
from assay.kernels.config import MAX_TRIALS, GraderConfig, GraderSettings
from assay.kernels.pool import GradingPool, require_grader
from assay.kernels.problems.sources import DatasetSource, Problem, load_problems
from assay.kernels.service.client import service_check
from assay.sandbox.modal.config import ModalConfig, ModalSettings
from assay.types import Check

MODAL_KEYS = ("MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET")
MODAL_FILE = "~/.modal.toml"
"""Where Modal's own command keeps a token."""


@chz.chz
class KernelScoring(KernelRewardConfig):
    """How kernels are graded, and what they earn."""

    backend: Language = "triton"
    """Language of the kernels: `triton` or `cuda`."""
    num_correct_trials: Annotated[int, AtLeast(1), AtMost(MAX_TRIALS), UsedWhen("runs_kernels")] = 5
    """Calls of forward that must be right, one on each of six families of inputs at least, besides those that look for
    cheats."""
    measure_performance: bool = False
    """Time right kernels against the reference, so that speed can be paid for; needs a GPU, and `grader.scale=none`."""
    use_modal: bool = True
    """Grade kernels on GPUs at Modal, which needs its tokens; otherwise on this machine, as `grader.device` says."""
    modal_gpu_type: Annotated[str, UsedWhen("at_modal")] = "A100"
    """GPU for grades at Modal."""
    modal_timeout: Annotated[float, Above(0), UsedWhen("at_modal")] = 120.0
    """Seconds that the grade of one kernel may take there."""
    grader: GraderSettings = chz.field(default_factory=GraderSettings)
    """The rest of the grader's settings. `grader.device` is for grades on this machine."""

    @fact("kernels are run", "backend", "use_modal", "grader.device", cure="Set use_modal=true, or grader.device=cuda")
    def runs_kernels(self) -> bool:
        """Whether candidates are run: CUDA sources without a GPU are only compiled."""
        return self.backend == "triton" or self.on_gpu

    @fact("kernels run in Triton's interpreter", "backend", "use_modal", "grader.device", cure="Set use_modal=false")
    def interprets(self) -> bool:
        """Whether candidates run on the processor."""
        return self.backend == "triton" and not self.on_gpu

    @fact(
        "kernels are compiled for a GPU that need not be there",
        "use_modal",
        "grader.device",
        "grader.compile_check",
        cure="Set use_modal=false and grader.device=cpu",
    )
    def compiles_ahead(self) -> bool:
        """Whether candidates are compiled for `grader.arch`."""
        return not self.on_gpu and (self.backend == "cuda" or self.grader.compile_check != "off")

    @fact("kernels run on a GPU", "use_modal", "grader.device", cure="Set use_modal=true, or grader.device=cuda")
    def on_gpu(self) -> bool:
        """Whether candidates run on a GPU."""
        return self.use_modal or self.grader.device == "cuda"

    @fact("use_modal is true", "use_modal", cure="Set use_modal=true")
    def at_modal(self) -> bool:
        """Whether candidates are graded at Modal."""
        return self.use_modal

    @fact("use_modal is false", "use_modal", cure="Set use_modal=false")
    def graded_here(self) -> bool:
        """Whether candidates are graded on this machine."""
        return not self.use_modal

    @chz.validate
    def _gradable(self) -> None:
        refuse([*impossible(self, self.measure_performance), *_impossible(self)])
        try:
            self.grading()
        except SettingsError as error:
            refuse([_in_own_words(problem) for problem in error.problems])

    def grading(self) -> GraderConfig:
        """All settings of the grader.

        Raises:
            ConfigError: they cannot go together, or there is no such device.
        """
        runs = self.backend == "triton" or self.on_gpu
        own = ("backend", "measure_performance", *(("num_correct_trials",) if runs else ()))
        of_modal: dict[str, Any] = {name: getattr(self.grader.modal, name) for name in settings(ModalSettings)}
        asked: dict[str, Any] = {
            **{name: getattr(self.grader, name) for name in settings(GraderSettings) if name != "modal"},
            **{name: getattr(self, name) for name in own},
        }
        if self.use_modal:
            modal = ModalConfig(**of_modal, modal_gpu_type=self.modal_gpu_type, modal_timeout=self.modal_timeout)
            asked |= {"run_on": "modal", "modal": modal, "device": "cuda"}
        return GraderConfig(**asked)

    def check_tokens(self) -> None:
        """Refuse grades at Modal without its tokens, now and not after sampling.

        Raises:
            ConfigError: as said.
        """
        if self.use_modal and (missing := missing_tokens(os.environ)):
            raise ConfigError(
                f"use_modal=true grades kernels at Modal, and {missing}. Run `modal token new`, export both, or set "
                "use_modal=false to grade on this machine."
            )

    @property
    def timed_against(self) -> tuple[str, ...]:
        """What right kernels are timed against; nothing where speed is not measured."""
        return self.grader.baselines if self.measure_performance else ()

    def where(self) -> str:
        """Where kernels are graded, in words."""
        if self.use_modal:
            return f"at Modal on {self.modal_gpu_type}"
        place = f"by the service at {self.grader.url}" if self.grader.url is not None else "on this machine"
        return f"{place} ({self.grader.device})"

    async def checks(self, context: BuildContext) -> list[Check]:
        """See `DatasetBuilder.checks`: Modal's tokens, or the grading service, where kernels are graded there."""
        if self.grader.url is not None:
            return [await service_check(self.grading())]
        if not self.use_modal:
            return []
        missing = missing_tokens(os.environ)
        return [Check("Modal's tokens", not missing, missing or "there", "Run `modal token new`." if missing else "")]

    def pool(self, cache_dir: Path) -> GradingPool:
        """The grader of a run or an evaluation, whose verdicts are kept in `cache_dir`.

        Raises:
            ConfigError: no Modal token.
            SandboxError, MissingDependencyError: kernels cannot be graded on this machine.
            GradingServiceError: the service at `grader.url` does not answer, or is of another version.
        """
        self.check_tokens()
        config = self.grading()
        require_grader(config)
        if config.url is None and config.cache and config.cache_path is None:
            config = chz.replace(config, cache_path=str(cache_dir / "kernels.sqlite"))
        return GradingPool(config)


@chz.chz
class KernelGrading(KernelScoring):
    """Where problems are, how kernels for them are graded, and what they earn."""

    dataset_src: DatasetSource = "huggingface"
    """Where problems come from: `huggingface` (the published data set), `local` (a checkout, which KERNELBENCH_ROOT
    names), `jsonl` (a file with the published columns), `corpus` (another published data set: docs/retrieval.md), or
    `shipped` (small ones that come with Assay)."""
    problems_path: Annotated[Path | None, UsedWhen("dataset_src", "local", "jsonl", "corpus")] = None
    """The checkout of `local`, in place of KERNELBENCH_ROOT; the file of `jsonl`; the data set of `corpus`:
    `drkernel-rl:data.parquet`, or `cuda-agent-ops` from the hub. Those of a corpus are level 1."""
    revision: Annotated[str | None, UsedWhen("dataset_src", "huggingface")] = None
    """Commit or tag of the published data set; name one for results that others can repeat."""

    @chz.validate
    def _found(self) -> None:
        if self.dataset_src in ("jsonl", "corpus") and self.problems_path is None:
            refuse([f"problems_path is not set, and dataset_src={self.dataset_src} reads it. Set problems_path."])

    def load(self, levels: Sequence[int]) -> tuple[Problem, ...]:
        """The problems of some levels.

        Raises:
            ConfigError, DataError, MissingDependencyError: see `load_problems`.
        """
        path = self.problems_path.expanduser() if self.problems_path is not None else None
        return load_problems(self.dataset_src, levels, path, self.revision)


def missing_tokens(environ: Mapping[str, str]) -> str:
    """Which of Modal's tokens are missing, in words; empty where they are there, or Modal keeps a token itself."""
    missing = [name for name in MODAL_KEYS if not environ.get(name, "").strip()]
    if not missing or (len(missing) == 2 and Path(environ.get("MODAL_CONFIG_PATH", MODAL_FILE)).expanduser().exists()):
        return ""
    return f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set"


def _in_own_words(problem: object) -> str:
    """What is said of the whole grader, under the builder's keys."""
    own = {"backend", "measure_performance", "num_correct_trials"}
    said = str(problem).replace("run_on=modal", "use_modal=true").replace("run_on=local", "use_modal=false")
    return qualified(said, "grader", set(settings(GraderConfig)) - own)


def _impossible(config: KernelScoring) -> Iterator[str]:
    if (
        config.backend == "cuda"
        and not config.on_gpu
        and any(weight for part, weight in config.rules.weights.items() if part in ("correctness", "speed"))
    ):
        yield (
            "backend=cuda with use_modal=false and grader.device=cpu: CUDA sources are only compiled here, so no "
            "kernel could be scored. Set use_modal=true, grader.device=cuda, or backend=triton."
        )
