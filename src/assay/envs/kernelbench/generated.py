"""`GeneratedKernelsBuilder`: kernel problems that Assay makes up, small enough that a model from scratch learns them.

A problem is a composition of operators over the rows of a matrix (`family`). The held-out ones are compositions that
neither the supervised examples nor RL ever saw. The policy's answer is a whole module and is graded as it is, by the
same grader and for the same rewards as any kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

import chz

from assay.config import Above, AtLeast, AtMost, UsedWhen, refuse
from assay.envs.base import BuildContext, DatasetBuilder, EnvData, TokenizerCorpus
from assay.envs.kernelbench.env import Course, KernelGroupBuilder, KernelShop, payload_of
from assay.envs.kernelbench.family.compositions import VARIANTS
from assay.envs.kernelbench.family.examples import Skill
from assay.envs.kernelbench.family.posed import Posed, posed
from assay.envs.kernelbench.family.supervised import FamilySupervisedDataset
from assay.envs.kernelbench.family.tokens import ALPHABET, PIECES
from assay.envs.kernelbench.feedback import CompactFeedbackConfig, compact
from assay.envs.kernelbench.grading import KernelScoring
from assay.envs.kernelbench.records import kernel_records, show_kernels
from assay.envs.kernelbench.rewards import pays_lateness
from assay.envs.tasks import ExampleTexts, TaskBatches
from assay.errors import ConfigError
from assay.kernels.problems.sources import Problem, load_problems, make_problem
from assay.types import Message, Task

ENV_NAME = "kernelbench_generated"
LEVEL = 1
HELDOUT_SEEDS = {"validation": 20_261_123, "final": 20_261_124}
"""Held-out problems are drawn with these and not with the run's seed, so that runs can be compared."""
CORPUS_EXAMPLES = 2000
"""Supervised examples that a from-scratch tokenizer is trained on."""
Heldout = Literal["validation", "final", "shipped"]


@chz.chz
class GeneratedKernelsBuilder(KernelScoring, DatasetBuilder):
    """Triton kernels for small modules that Assay makes up, learned from nothing and graded as they are."""

    batch_size: int = 12
    """Problems per batch."""
    group_size: int = 8
    """Rollouts per problem."""
    num_epochs: Annotated[int, AtLeast(1)] = 1
    """Passes over the training problems."""
    shuffle: bool = True
    """Reorder the training problems in every epoch."""
    num_train: Annotated[int, AtLeast(1)] = 480
    """Training problems. A few dozen are learned by heart."""
    num_heldout: Annotated[int, AtLeast(1), UsedWhen("heldout", "validation", "final")] = 100
    """Held-out problems; the same for every seed of a run."""
    heldout: Heldout = "validation"
    """What to evaluate on: held-out compositions for use while tuning (`validation`), others for a result to report
    (`final`), or the problems that come with Assay (`shipped`), which are like none in training."""
    hidden: bool = False
    """Hide the row operation of every problem (softmax, centring, or root mean square). Every prompt is there with each
    of the three, so that only a verdict tells which is meant: a set for several turns. `num_train` and `num_heldout`
    then count each prompt three times."""
    sft_skill: Annotated[float, Above(0), AtMost(1)] = 0.6
    """How often a choice of two is right in a supervised example; of more, less often."""
    use_modal: bool = False
    """Grade kernels on GPUs at Modal, which needs its tokens; otherwise on this machine, as `grader.device` says."""
    reward_format_weight: Annotated[float, AtLeast(0)] = 0.0
    """Weight for an answer with a kernel to grade."""
    reward_compile_weight: Annotated[float, AtLeast(0)] = 0.2
    """Weight for a kernel that is compiled."""
    reward_correctness_weight: Annotated[float, AtLeast(0)] = 0.8
    """Weight for a kernel that is right."""
    reward_length_weight: Annotated[float, AtLeast(0)] = 0.0
    """Weight for short code, a tie-breaker among kernels that compile."""
    reward_thinking_weight: Annotated[float, AtLeast(0)] = 0.0
    """Weight for a thought before the kernel."""
    early_stop_on_correct: Annotated[bool, UsedWhen("plays_turns")] = True
    """End a rollout as soon as a kernel is right."""
    feedback: CompactFeedbackConfig = chz.field(default_factory=CompactFeedbackConfig)
    """What later turns are told of the earlier ones."""

    @chz.validate
    def _consistent(self) -> None:
        refuse(_impossible(self))

    def build(self, context: BuildContext) -> EnvData:
        """See `DatasetBuilder.build`.

        Raises:
            ConfigError, SandboxError, MissingDependencyError, GradingServiceError: see `pool`.
        """
        course = Course(context.max_turns, self.early_stop_on_correct, None, self.feedback, self.pays_thinking)
        shop = KernelShop(self.pool(context.cache_dir), self.rules, course)
        train = self.training_problems(context.seed)
        heldout = self.heldout_problems()
        problems = {problem.hash: problem for problem, _ in (*train, *heldout)}
        sft = FamilySupervisedDataset(context.seed, self.hidden, Skill.of(self.sft_skill), compact)

        def group(task: Task) -> KernelGroupBuilder:
            return KernelGroupBuilder(task, problems[task.payload["hash"]], shop)

        return EnvData(
            train=TaskBatches(
                [task for _, task in train], group, self.batch_size, self.num_epochs, self.shuffle, context.seed
            ),
            heldout=TaskBatches([task for _, task in heldout], group, self.batch_size),
            sft=sft,
            tokenizer_corpus=TokenizerCorpus(ExampleTexts(lambda: sft.batch(0, CORPUS_EXAMPLES)), PIECES, ALPHABET),
            figure=show_kernels,
            counters=shop.counters,
            records=kernel_records(
                sorted({problem.level for problem in problems.values()}), context.max_turns, self.timed_against
            ),
            close=shop.pool.close,
        )

    def refusals(self, gamma: float, max_turns: int) -> Iterator[str]:
        """See `DatasetBuilder.refusals`."""
        if max_turns > 1 and self.early_stop_on_correct:
            yield from filter(None, [pays_lateness(self, gamma)])

    def training_problems(self, seed: int) -> list[tuple[Problem, Task]]:
        """What a run with this seed trains on, with the tasks that pose it.

        Raises:
            ConfigError: there are not `num_train` of them.
        """
        return self._tasks(posed(seed, "train", self.num_train, self.hidden), "train")

    def heldout_problems(self) -> list[tuple[Problem, Task]]:
        """What is held out, in the order of evaluations, with the tasks that pose it."""
        if self.heldout == "shipped":
            shipped = load_problems("shipped", None)
            return [(one, self._task(one, one.code, f"level{one.level}")) for one in shipped]
        return self._tasks(heldout_posed(self.heldout, self.num_heldout, self.hidden), self.heldout)

    def describe(self) -> str:
        """See `DatasetBuilder.describe`."""
        held = "the problems that come with Assay" if self.heldout == "shipped" else f"{self.num_heldout} others"
        hidden = f", with one row operation hidden ({', '.join(VARIANTS)})" if self.hidden else ""
        paid = ", ".join(f"{part} {weight:g}" for part, weight in self.rules.weights.items() if weight)
        return (
            f"Generated kernel problems: {self.num_train} compositions of operators{hidden}, graded {self.where()}; "
            f"held out: {held}. Rewards ({self.reward.mode}): {paid}."
        )

    def _tasks(self, problems: Sequence[Posed], name: str) -> list[tuple[Problem, Task]]:
        made = [make_problem(LEVEL, n, f"{name}_{n}", one.module, "generated") for n, one in enumerate(problems, 1)]
        return [(one, self._task(one, p.prompt, p.tag)) for one, p in zip(made, problems, strict=True)]

    def _task(self, problem: Problem, prompt: str, tag: str) -> Task:
        payload = payload_of(problem, {"backend": self.backend, "dataset_src": problem.source})
        return Task(ENV_NAME, f"{problem.key}:{problem.name}", (Message("user", prompt),), payload, (tag,))


def heldout_posed(name: Literal["validation", "final"], count: int, hidden: bool) -> list[Posed]:
    """`count` held-out problems; those of `final` share no signature with those of `validation`.

    Raises:
        ConfigError: there are not so many.
    """
    validation = posed(HELDOUT_SEEDS["validation"], "heldout", count, hidden)
    if name == "validation":
        return validation
    tuned = {one.composition.signature for one in validation}
    drawn = posed(HELDOUT_SEEDS["final"], "heldout", 2 * count, hidden)
    found = [one for one in drawn if one.composition.signature not in tuned][:count]
    if len(found) < count:
        raise ConfigError(
            f"num_heldout={count} with heldout=final: only {len(found)} of {len(drawn)} problems are unlike those of "
            "heldout=validation. Lower num_heldout."
        )
    return found


def _impossible(config: GeneratedKernelsBuilder) -> Iterator[str]:
    if config.backend != "triton":
        yield f"backend={config.backend}: the generated problems have solutions in Triton alone. Set backend=triton."
    counts = ("num_train",) if config.heldout == "shipped" else ("num_train", "num_heldout")
    for name in counts if config.hidden else ():
        if (count := getattr(config, name)) % len(VARIANTS):
            yield (
                f"{name}={count} with hidden=true: every prompt is there {len(VARIANTS)} times, once for each hidden "
                f"operation, so the number must be a multiple of {len(VARIANTS)}."
            )
