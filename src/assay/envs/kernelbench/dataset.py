"""`KernelBenchDatasetBuilder`: which kernel problems a run trains on, how they are posed, graded and rewarded."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import chz

from assay.config import Above, AtLeast, AtMost, Below, SettingsError, UsedWhen, fact, refuse
from assay.config.idle import qualified
from assay.config.schema import settings
from assay.envs.base import BuildContext, DatasetBuilder, EnvData
from assay.envs.kernelbench.env import Course, KernelGroupBuilder, KernelShop, payload_of
from assay.envs.kernelbench.feedback import FeedbackConfig
from assay.envs.kernelbench.prompts import PromptOption, PromptStyle, Retrieval, open_retrieval, prompt_of
from assay.envs.kernelbench.rewards import KernelRewardConfig, impossible
from assay.envs.kernelbench.selection import chosen, split_problems
from assay.envs.tasks import TaskBatches
from assay.errors import ConfigError
from assay.kernels.base import Language
from assay.kernels.config import MAX_TRIALS, GraderConfig, GraderSettings
from assay.kernels.pool import GradingPool
from assay.kernels.problems.sources import DatasetSource, Problem, load_problems
from assay.kernels.sandboxes import require_packages
from assay.sandbox.modal.config import ModalConfig, ModalSettings
from assay.types import Check, Json, Message, Task

ENV_NAME = "kernelbench"
MODAL_KEYS = ("MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET")
MODAL_FILE = "~/.modal.toml"
"""Where Modal's own command keeps a token."""


@chz.chz
class KernelBenchDatasetBuilder(KernelRewardConfig, DatasetBuilder):
    """KernelBench: a GPU kernel that does what a PyTorch module does, judged by a grader that does not trust it."""

    level: Annotated[int, AtLeast(0), UsedWhen("levels", ())] = 1
    """KernelBench level."""
    levels: tuple[int, ...] = ()
    """Several levels at once, in place of `level`: `levels=1,2`."""
    start_problem: Annotated[int | None, AtLeast(1)] = None
    """First problem id of each level (inclusive); null begins with the first there is."""
    end_problem: Annotated[int | None, AtLeast(1)] = None
    """Last problem id of each level (inclusive); null goes on to the last there is."""
    backend: Language = "triton"
    """Language of the kernels: `triton` or `cuda`."""
    dataset_src: DatasetSource = "huggingface"
    """Where problems come from: `huggingface` (the published data set), `local` (a checkout, which KERNELBENCH_ROOT
    names), `jsonl` (a file with the published columns), or `shipped` (small ones that come with Assay)."""
    problems_path: Annotated[Path | None, UsedWhen("dataset_src", "local", "jsonl")] = None
    """The checkout of `local`, in place of KERNELBENCH_ROOT, or the file of `jsonl`."""
    revision: Annotated[str | None, UsedWhen("dataset_src", "huggingface")] = None
    """Commit or tag of the published data set; name one for results that others can repeat."""
    batch_size: int = 4
    """Problems per batch."""
    group_size: int = 4
    """Rollouts per problem."""
    num_epochs: Annotated[int, AtLeast(1)] = 1
    """Passes over the training problems."""
    shuffle: bool = True
    """Reorder the training problems in every epoch."""
    renderer_name: str = "qwen3"
    """How messages become tokens: `qwen3` (the tokenizer's chat template, as `chat`), `plain`, or `auto`."""
    test_fraction: Annotated[float, AtLeast(0), Below(1)] = 0.1
    """Share of the problems that are held out, at least one; the same ones for every seed and every prompt."""
    prompt_option: PromptOption = "one_shot"
    """Examples in a prompt: `zero_shot`, `one_shot`, `few_shot` (three), or `raicl`: similar modules and their kernels
    from the index at `rag_index_path`."""
    rag_index_path: Annotated[Path | None, UsedWhen("prompt_option", "raicl")] = None
    """Index of examples (`assay index build`); required with `raicl`."""
    raicl_k: Annotated[int, AtLeast(1), UsedWhen("prompt_option", "raicl")] = 3
    """Examples in a `raicl` prompt."""
    num_correct_trials: Annotated[int, AtLeast(1), AtMost(MAX_TRIALS), UsedWhen("runs_kernels")] = 5
    """Calls of forward that must be right, besides those that look for cheats."""
    measure_performance: bool = False
    """Time right kernels against the reference, so that speed can be paid for; needs a GPU, and `grader.scale=none`."""
    early_stop_on_correct: Annotated[bool, UsedWhen("plays_turns")] = True
    """End a rollout as soon as a kernel is right, and as fast as `speedup_threshold` asks."""
    speedup_threshold: Annotated[float | None, Above(0), UsedWhen("plays_turns")] = None
    """Speedup that a right kernel must have to end a rollout early (1.0 insists on being faster); null asks for
    none."""
    feedback: FeedbackConfig = chz.field(default_factory=FeedbackConfig)
    """What later turns are told of the earlier ones."""
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
    def _consistent(self) -> None:
        refuse(_impossible(self))
        try:
            self.grading()
        except SettingsError as error:
            refuse([_in_own_words(problem) for problem in error.problems])

    def grading(self) -> GraderConfig:
        """All settings of the grader.

        Raises:
            ConfigError: they cannot go together, or there is no such device.
        """
        of_modal: dict[str, Any] = {name: getattr(self.grader.modal, name) for name in settings(ModalSettings)}
        asked: dict[str, Any] = {
            **{name: getattr(self.grader, name) for name in settings(GraderSettings) if name != "modal"},
            **{name: getattr(self, name) for name in ("backend", "measure_performance", "num_correct_trials")},
        }
        if self.use_modal:
            modal = ModalConfig(**of_modal, modal_gpu_type=self.modal_gpu_type, modal_timeout=self.modal_timeout)
            asked |= {"run_on": "modal", "modal": modal, "device": "cuda"}
        return GraderConfig(**asked)

    @classmethod
    def several_turns(cls) -> type[DatasetBuilder]:
        """See `DatasetBuilder.several_turns`."""
        return MultiTurnKernelBenchDatasetBuilder if cls is KernelBenchDatasetBuilder else cls

    def build(self, context: BuildContext) -> EnvData:
        """See `DatasetBuilder.build`.

        Raises:
            ConfigError, DataError: no such problems, no index, or no Modal token.
            SandboxError, MissingDependencyError: kernels cannot be graded on this machine.
        """
        self._check_tokens()
        problems = self.problems()
        train, heldout = split_problems(problems, self.test_fraction)
        style = PromptStyle(self.prompt_option, self.backend, self.pays_thinking)
        retrieval = self._retrieval(problems)
        config = self.grading()
        require_packages(config)
        if config.cache and config.cache_path is None:
            config = chz.replace(config, cache_path=str(context.cache_dir / "kernels.sqlite"))
        shop = KernelShop(GradingPool(config), self.rules, self.course(context.max_turns))
        by_key = {problem.key: problem for problem in problems}

        def task(problem: Problem) -> Task:
            found = retrieval.of(problem) if retrieval is not None else []
            return self._task(problem, prompt_of(problem, style, found))

        def group(task: Task) -> KernelGroupBuilder:
            payload = task.payload
            return KernelGroupBuilder(task, by_key[f"{payload['level']}/{payload['problem_id']}"], shop)

        tasks, heldout_tasks = [task(problem) for problem in train], [task(problem) for problem in heldout]
        return EnvData(
            train=TaskBatches(tasks, group, self.batch_size, self.num_epochs, self.shuffle, context.seed),
            heldout=TaskBatches(heldout_tasks, group, self.batch_size),
            counters=shop.counters,
            close=shop.pool.close,
        )

    def problems(self) -> tuple[Problem, ...]:
        """The problems of the run, training and held out.

        Raises:
            DataError: there are none, or not those that were asked for.
        """
        levels = self.levels or (self.level,)
        path = self.problems_path.expanduser() if self.problems_path is not None else None
        found = load_problems(self.dataset_src, levels, path, self.revision)
        return chosen(found, levels, self.start_problem, self.end_problem)

    def course(self, max_turns: int) -> Course:
        """How rollouts of at most so many turns go on."""
        return Course(max_turns, self.early_stop_on_correct, self.speedup_threshold, self.feedback, self.pays_thinking)

    async def checks(self, context: BuildContext) -> list[Check]:
        """See `DatasetBuilder.checks`: Modal's tokens, where kernels are graded there."""
        if not self.use_modal:
            return []
        missing = missing_tokens(os.environ)
        return [Check("Modal's tokens", not missing, missing or "there", "Run `modal token new`." if missing else "")]

    def describe(self) -> str:
        """See `DatasetBuilder.describe`."""
        levels = ", ".join(map(str, self.levels or (self.level,)))
        first, last = self.start_problem, self.end_problem
        which = f", problems {first or 1} to {last or 'the last'}" if first or last else ""
        where = f"at Modal on {self.modal_gpu_type}" if self.use_modal else f"on this machine ({self.grader.device})"
        paid = ", ".join(f"{part} {weight:g}" for part, weight in self.rules.weights.items() if weight)
        return (
            f"KernelBench level {levels}{which}, from {self.dataset_src}: {self.backend} kernels, graded {where} in "
            f"{self.num_correct_trials} calls{' and timed' if self.measure_performance else ''}; "
            f"{self.test_fraction:.0%} of the problems held out; prompts {self.prompt_option}. "
            f"Rewards ({self.reward.mode}): {paid}."
        )

    def _task(self, problem: Problem, prompt: tuple[Message, ...]) -> Task:
        asked: dict[str, Json] = {
            "backend": self.backend,
            "dataset_src": self.dataset_src,
            "prompt_option": self.prompt_option,
            "raicl_k": self.raicl_k if self.prompt_option == "raicl" else None,
        }
        name = f"{problem.key}:{problem.name}"
        return Task(ENV_NAME, name, prompt, payload_of(problem, asked), (f"level{problem.level}",))

    def _retrieval(self, problems: Sequence[Problem]) -> Retrieval | None:
        if self.prompt_option != "raicl":
            return None
        assert self.rag_index_path is not None, "validation refuses raicl without an index"
        return open_retrieval(self.rag_index_path.expanduser(), self.raicl_k, self.backend, problems)

    def _check_tokens(self) -> None:
        if self.use_modal and (missing := missing_tokens(os.environ)):
            raise ConfigError(
                f"use_modal=true grades kernels at Modal, and {missing}. Run `modal token new`, export both, or set "
                "dataset_builder.use_modal=false to grade on this machine."
            )


@chz.chz
class MultiTurnKernelBenchDatasetBuilder(KernelBenchDatasetBuilder):
    """KernelBench in several turns: each attempt is graded, and the next one sees what came of it."""

    max_turns: Annotated[int, AtLeast(1)] = 4
    """Most turns of a rollout."""
    prompt_option: PromptOption = "raicl"
    """Examples in a prompt: `zero_shot`, `one_shot`, `few_shot` (three), or `raicl`: similar modules and their kernels
    from the index at `rag_index_path`."""

    def turns(self, max_turns: int) -> int:
        """Its own number; one in single-turn mode."""
        return self.max_turns if max_turns > 1 else 1


def missing_tokens(environ: Mapping[str, str]) -> str:
    """Which of Modal's tokens are missing, in words; empty where they are there, or Modal keeps a token itself."""
    missing = [name for name in MODAL_KEYS if not environ.get(name, "").strip()]
    if not missing or (len(missing) == 2 and Path(environ.get("MODAL_CONFIG_PATH", MODAL_FILE)).expanduser().exists()):
        return ""
    return f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set"


def _in_own_words(problem: object) -> str:
    """What is said of the whole grader, under the builder's keys."""
    own = {"backend", "measure_performance", "num_correct_trials"}
    return qualified(str(problem), "grader", set(settings(GraderConfig)) - own - {"run_on"})


def _impossible(config: KernelBenchDatasetBuilder) -> Iterator[str]:
    yield from impossible(config, config.measure_performance)
    first, last = config.start_problem, config.end_problem
    if first is not None and last is not None and first > last:
        yield f"start_problem={first} is after end_problem={last}, so no problem is left. Swap them."
    if len(set(config.levels)) < len(config.levels):
        yield f"levels={','.join(map(str, config.levels))} names a level twice. Name each once."
    if config.prompt_option == "raicl" and config.rag_index_path is None:
        yield (
            "prompt_option=raicl shows examples from an index, and rag_index_path is not set. Build one (`assay index "
            "build`) and set rag_index_path to it, or set prompt_option to zero_shot, one_shot or few_shot."
        )
    if config.speedup_threshold is not None and not config.measure_performance:
        yield (
            f"speedup_threshold={config.speedup_threshold:g} asks for a speedup, which is not measured, so no rollout "
            "would end early. Set measure_performance=true, or speedup_threshold=null."
        )
    if config.dataset_src == "jsonl" and config.problems_path is None:
        yield "problems_path is not set, and dataset_src=jsonl reads a file. Set problems_path to it."
    if (
        config.backend == "cuda"
        and not config.on_gpu
        and any(weight for part, weight in config.rules.weights.items() if part in ("correctness", "speed"))
    ):
        yield (
            "backend=cuda with use_modal=false and grader.device=cpu: CUDA sources are only compiled here, so no "
            "kernel could be scored. Set use_modal=true, grader.device=cuda, or backend=triton."
        )
