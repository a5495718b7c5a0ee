"""`KernelBenchDatasetBuilder`: which kernel problems a run trains on, how they are posed, graded and rewarded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import chz

from assay.config import DATA, NOT_NULL, Above, AtLeast, Below, UsedWhen, refuse
from assay.envs.base import BuildContext, DatasetBuilder, EnvData, Example, TokenizerCorpus
from assay.envs.environment import PIECES
from assay.envs.kernelbench.env import Course, KernelGroupBuilder, KernelShop, payload_of
from assay.envs.kernelbench.feedback import FeedbackConfig
from assay.envs.kernelbench.grading import KernelGrading
from assay.envs.kernelbench.imitation import KernelExamples, read_examples
from assay.envs.kernelbench.prompts import (
    PromptOption,
    PromptStyle,
    Retrieval,
    open_retrieval,
    own_examples,
    prompt_of,
)
from assay.envs.kernelbench.records import kernel_records, show_kernels
from assay.envs.kernelbench.rewards import pays_lateness
from assay.envs.kernelbench.selection import chosen, split_problems
from assay.envs.tasks import ExampleTexts, TaskBatches
from assay.kernels.base import Language
from assay.kernels.problems.sources import Problem
from assay.types import Json, Message, Task

ENV_NAME = "kernelbench"
ALPHABET = "".join(chr(code) for code in range(32, 127)) + "\n"
"""What the tokenizer of a model from scratch can write: printable ASCII."""


@chz.chz
class KernelBenchDatasetBuilder(KernelGrading, DatasetBuilder):
    """KernelBench: a GPU kernel that does what a PyTorch module does, judged by a grader that does not trust it."""

    level: Annotated[int, AtLeast(0), UsedWhen("levels", ())] = 1
    """KernelBench level."""
    levels: tuple[int, ...] = ()
    """Several levels at once, in place of `level`: `levels=1,2`."""
    start_problem: Annotated[int | None, AtLeast(1)] = None
    """First problem id of each level (inclusive); null begins with the first there is."""
    end_problem: Annotated[int | None, AtLeast(1)] = None
    """Last problem id of each level (inclusive); null goes on to the last there is."""
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
    early_stop_on_correct: Annotated[bool, UsedWhen("plays_turns")] = True
    """End a rollout as soon as a kernel is right, and as fast as `speedup_threshold` asks."""
    speedup_threshold: Annotated[float | None, Above(0), UsedWhen("plays_turns")] = None
    """Speedup that a right kernel must have to end a rollout early (1.0 insists on being faster); null asks for
    none."""
    sft_path: Annotated[str | None, DATA, UsedWhen("sft.num_steps", Above(0))] = None
    """Kernels to imitate in the SFT stage: a file of `assay export --samples`, or a data set as `assay index build
    --corpus` takes it (`kernelbook`, `drkernel-coldstart:FILE`, `FILE`). Solutions of held-out problems are left
    out."""
    sft_max_characters: Annotated[int, AtLeast(1), UsedWhen("sft_path", NOT_NULL)] = 20_000
    """Characters of prompt and answer together; longer examples of `sft_path` are left out. What then does not fit into
    the model's context is an error."""
    feedback: FeedbackConfig = chz.field(default_factory=FeedbackConfig)
    """What later turns are told of the earlier ones."""

    @chz.validate
    def _consistent(self) -> None:
        refuse(_impossible(self))

    @classmethod
    def in_turns(cls) -> type[DatasetBuilder]:
        """See `DatasetBuilder.in_turns`."""
        return MultiTurnKernelBenchDatasetBuilder if cls is KernelBenchDatasetBuilder else cls

    def build(self, context: BuildContext) -> EnvData:
        """See `DatasetBuilder.build`.

        Raises:
            ConfigError, DataError: no such problems, no index, or no Modal token.
            GradingServiceError: the grading service does not answer, or is of another version.
            SandboxError, MissingDependencyError: kernels cannot be graded on this machine.
        """
        self.check_tokens()
        problems = self.problems()
        train, heldout = split_problems(problems, self.test_fraction)
        style = PromptStyle(self.prompt_option, self.backend, self.pays_thinking, context.chat)
        retrieval = self._retrieval(problems)
        examples = (
            [] if self.sft_path is None else read_examples(self.sft_path, style, heldout, self.sft_max_characters)
        )
        shop = KernelShop(self.pool(context.cache_dir), self.rules, self.course(context.max_turns))
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
            sft=KernelExamples(examples, context.seed) if examples else None,
            tokenizer_corpus=TokenizerCorpus(
                ExampleTexts(lambda: [*_corpus(tasks, self.backend), *examples]), PIECES, ALPHABET
            ),
            figure=show_kernels,
            counters=shop.counters,
            records=kernel_records(sorted({p.level for p in problems}), context.max_turns, self.timed_against),
            close=shop.pool.close,
        )

    def refusals(self, gamma: float, max_turns: int) -> Iterator[str]:
        """See `DatasetBuilder.refusals`."""
        if max_turns > 1 and self.early_stop_on_correct and self.speedup_threshold is None:
            yield from filter(None, [pays_lateness(self, gamma)])

    def problems(self) -> tuple[Problem, ...]:
        """The problems of the run, training and held out.

        Raises:
            DataError: there are none, or not those that were asked for.
        """
        levels = self.levels or (self.level,)
        return chosen(self.load(levels), levels, self.start_problem, self.end_problem)

    def course(self, max_turns: int) -> Course:
        """How rollouts of at most so many turns go on."""
        return Course(max_turns, self.early_stop_on_correct, self.speedup_threshold, self.feedback, self.pays_thinking)

    def describe(self) -> str:
        """See `DatasetBuilder.describe`."""
        levels = ", ".join(map(str, self.levels or (self.level,)))
        first, last = self.start_problem, self.end_problem
        which = f", problems {first or 1} to {last or 'the last'}" if first or last else ""
        paid = ", ".join(f"{part} {weight:g}" for part, weight in self.rules.weights.items() if weight)
        return (
            f"KernelBench level {levels}{which}, from {self.dataset_src}: {self.backend} kernels, graded "
            f"{self.where()} in {self.num_correct_trials} calls{' and timed' if self.measure_performance else ''}; "
            f"{self.test_fraction:.0%} of the problems held out; prompts {self.prompt_option}. "
            f"Rewards ({self.reward.mode}): {paid}."
        )

    def _task(self, problem: Problem, prompt: tuple[Message, ...]) -> Task:
        asked: dict[str, Json] = {
            "backend": self.backend,
            "dataset_src": self.dataset_src,
            "prompt_option": self.prompt_option,
            "raicl_k": self.raicl_k if self.prompt_option == "raicl" else None,
            "renderer": self.renderer_name,
        }
        name = f"{problem.key}:{problem.name}"
        return Task(ENV_NAME, name, prompt, payload_of(problem, asked), (f"level{problem.level}",))

    def _retrieval(self, problems: Sequence[Problem]) -> Retrieval | None:
        if self.prompt_option != "raicl":
            return None
        assert self.rag_index_path is not None, "validation refuses raicl without an index"
        return open_retrieval(self.rag_index_path.expanduser(), self.raicl_k, self.backend, problems)


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


def _corpus(tasks: Sequence[Task], language: Language) -> list[Example]:
    """What a model from scratch would have to read and write: the prompts, and kernels."""
    return [Example(task.prompt, "") for task in tasks] + [Example((), one.kernel) for one in own_examples(language)]


def _impossible(config: KernelBenchDatasetBuilder) -> Iterator[str]:
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
