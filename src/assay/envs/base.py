"""The interface of an environment: messages in, scores out, no tokens and no torch.

An `Env` is single use: one rollout. An `EnvGroupBuilder` makes the envs of one group and does the work they share
(one engine analysis per prompt, say). An `RLDataset` is a deterministic sequence of batches of such builders.
A `DatasetBuilder` is the config node that a run names; it makes the train and held-out data sets, the supervised
examples of an optional SFT stage, and the corpus that a from-scratch tokenizer is trained on.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Protocol, runtime_checkable

import chz

from assay.config import AtLeast, Code, Settings, UsedWhen
from assay.envs.chat import ChatConfig
from assay.errors import ConfigError
from assay.plugins import Kind, calling
from assay.types import Check, Json, Message, Score, Task, Trajectory, TrajectoryGroup


@dataclass(frozen=True, slots=True)
class StepResult:
    """Answer of an env to one turn. `messages` are shown to the policy next; empty when `done`.

    With `replace`, `messages` are the whole conversation that the policy sees next, instead of the conversation so far;
    such a turn is its own training sequence.
    """

    score: Score
    done: bool
    messages: tuple[Message, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    replace: bool = False


class Env(Protocol):
    """One rollout of one task; single use.

    One whose `whole_replies` is true is given the thoughts of a thinking model too: the reply as one text, in which
    they stand between `<think>` and `</think>`. Others are given the answer alone.
    """

    async def reset(self) -> list[Message]:
        """The first messages shown to the policy."""
        ...

    async def step(self, text: str) -> StepResult:
        """Judge the policy's reply. Never raises for any text; a failing verifier gives `Score(status="errored")`."""
        ...


class EnvGroupBuilder(Protocol):
    """Makes the envs of one group, all of the same task."""

    task: Task

    async def make(self, n: int) -> list[Env]:
        """`n` fresh envs. Work that the group shares is done here, once."""
        ...


@runtime_checkable
class GroupScorer(Protocol):
    """An `EnvGroupBuilder` that rescores a finished group as a whole (a ranking judge, say)."""

    async def score_group(self, trajectories: Sequence[Trajectory]) -> list[Score]:
        """One score per trajectory, in order; it replaces the score of the last turn. Errored rollouts are left out."""
        ...


class RLDataset(Protocol):
    """A deterministic sequence of batches: `batch(i)` depends on the seed and on i alone."""

    def __len__(self) -> int:
        """Number of batches over all epochs."""
        ...

    def batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        """The builders of batch `index` (0-based)."""
        ...


@dataclass(frozen=True, slots=True)
class Example:
    """One supervised example: the policy must answer `prompt` with `completion`."""

    prompt: tuple[Message, ...]
    completion: str


class SupervisedDataset(Protocol):
    """Endless deterministic supervised batches for the SFT stage."""

    def batch(self, index: int, size: int) -> list[Example]:
        """`size` examples; depends on the seed, `index` and `size` alone."""
        ...


BuildProgress = Callable[[str, int, int], None]
"""`(what, done, total)`: so many of the total of something (positions, say) are made."""


def _unseen(what: str, done: int, total: int) -> None:
    """Progress that is not shown."""


@dataclass(frozen=True, slots=True)
class BuildContext:
    """What a run tells its data set builder. `max_turns` is 1 in single-turn mode."""

    seed: int
    max_turns: int
    cache_dir: Path
    chat: bool = False
    """Whether messages are written by a chat template, so that the model can be told what to do."""
    progress: BuildProgress = field(default=_unseen, compare=False)
    """Where a builder whose work takes long says how far it is; call it as often as you like."""


BaselineMetrics = Mapping[str, Mapping[str, Sequence[float]]]
"""policy name -> metric name -> one expected value per held-out task (in data set order; tasks without it left out)."""


@dataclass(frozen=True)
class TokenizerCorpus:
    """Texts to train a from-scratch tokenizer on, and how to cut them before merges.

    `pieces` is a regular expression; each match becomes one pre-token (merges never cross pre-tokens), and characters
    outside any match stand alone. `alphabet` are the characters that must be representable; where it is empty, those of
    the texts.
    """

    texts: Sequence[str]
    pieces: str
    alphabet: str


@dataclass(frozen=True)
class Counters:
    """What something that serves a run has done since its start (calls, tokens, money), and how it stands now."""

    totals: Mapping[str, float] = field(default_factory=dict)
    """These only grow; a step's metrics have what it added to them."""
    levels: Mapping[str, float] = field(default_factory=dict)
    """These go up and down; a step's metrics have their value at its end."""


async def _nothing_to_close() -> None:
    return None


def _no_metrics(groups: Sequence[TrajectoryGroup]) -> Mapping[str, float]:
    return {}


def _no_histograms(groups: Sequence[TrajectoryGroup]) -> Mapping[str, Sequence[float]]:
    return {}


def _no_fields(rollout: Trajectory, turn: int) -> Mapping[str, Json]:
    return {}


@dataclass(frozen=True)
class Records:
    """What an environment adds to the records of a run. The functions are pure: nothing of the machine is in them."""

    metrics: Callable[[Sequence[TrajectoryGroup]], Mapping[str, float]] = _no_metrics
    """Further metrics of a batch; of an evaluation too, where their names are put behind `eval/`."""
    evaluation: Callable[[Sequence[TrajectoryGroup]], Mapping[str, float]] = _no_metrics
    """Metrics of an evaluation alone, whose names are put behind `eval/` too. Of two with one name these count."""
    histograms: Callable[[Sequence[TrajectoryGroup]], Mapping[str, Sequence[float]]] = _no_histograms
    """Further distributions of a batch, for TensorBoard."""
    trace: Callable[[Trajectory, int], Mapping[str, Json]] = _no_fields
    """Further fields of the record of a rollout's turn in `traces.jsonl`; those that it has already
    stay as they are."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Metric -> a further name under which it is recorded."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Metric or distribution -> a further tag under which TensorBoard shows it."""
    charts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Name of a chart -> tags of scalars that TensorBoard draws in it together (its Custom Scalars)."""

    def of_evaluation(self, groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
        """All metrics of an evaluation, by names that begin with `eval/`."""
        return {f"eval/{name}": value for name, value in {**self.metrics(groups), **self.evaluation(groups)}.items()}


@dataclass(frozen=True)
class EnvData:
    """Everything a builder makes."""

    train: RLDataset
    heldout: RLDataset
    """Tasks that share no canonical problem with `train` or `sft`."""
    sft: SupervisedDataset | None = None
    """Supervised examples, where the environment has them."""
    tokenizer_corpus: TokenizerCorpus | None = None
    """What a from-scratch tokenizer is trained on, where the environment's text has a closed grammar."""
    baseline_policies: Callable[[], Awaitable[BaselineMetrics]] | None = None
    """Policies whose held-out metrics are known exactly, without sampling."""
    figure: Callable[[Task, Sequence[str]], str] | None = None
    """An HTML fragment that shows a task and answers to it, for `report.html`."""
    counters: Callable[[], Counters] | None = None
    """What the environment's reward engine has done, for the metrics of each step."""
    records: Records = field(default_factory=Records)
    """What the environment adds to the records of a run."""
    notes: Sequence[str] = ()
    """Problems of the tasks that were fixed, such as repeats that were left out. They were logged already."""
    close: Callable[[], Awaitable[None]] = _nothing_to_close
    """Releases processes and files; safe to call twice."""


RENDERER = Kind(
    "renderer",
    {
        "auto": "assay.rollouts.renderers.named:auto_renderer",
        "plain": "assay.rollouts.renderers.base:PlainRenderer",
        "role_colon": "assay.rollouts.renderers.role_colon:RoleColonRenderer",
        "chat": "assay.rollouts.renderers.chat:ChatRenderer",
        "qwen3": "assay.rollouts.renderers.chat:ChatRenderer",
    },
    callable,
)
"""What `renderer_name` may name: called with a tokenizer, it makes a `Renderer` (`assay.rollouts`)."""
BY_TEMPLATE = ("chat", "qwen3")
"""Renderers that write the tokenizer's own chat template."""


@chz.chz
class DatasetBuilder(Settings):
    """Config node of an environment; subclasses add fields, set their own defaults and implement `build`."""

    batch_size: Annotated[int, AtLeast(1)] = 4
    """Prompts per batch."""
    group_size: Annotated[int, AtLeast(1)] = 4
    """Rollouts per prompt."""
    renderer_name: Annotated[str, Code(RENDERER)] = "auto"
    """How messages become tokens: `chat` (the tokenizer's chat template; `qwen3` is another name), `plain` (their bare
    text), `role_colon` (`User: ...`, for base models), or `auto`: `chat` where the tokenizer has a template, else
    `plain`."""
    chat: Annotated[ChatConfig, UsedWhen("renderer_name", "auto", *BY_TEMPLATE)] = chz.field(default_factory=ChatConfig)
    """How the chat template is used."""

    @classmethod
    def environment(cls, environ: Mapping[str, str]) -> Mapping[str, Json]:
        """Settings that environment variables give, by dotted key below the node. They outrank the defaults alone.

        Raises:
            ConfigError: a variable's value cannot be read.
        """
        return {}

    @classmethod
    def in_turns(cls) -> type[DatasetBuilder]:
        """The class of `multiturn_dataset_builder` beside a `dataset_builder` of this class, unless it is chosen."""
        return cls

    def build(self, context: BuildContext) -> EnvData:
        """Make the data sets.

        Raises:
            ConfigError: impossible settings.  DataError: unreadable source files.
            EngineError: a verifier program is missing.
        """
        raise ConfigError(
            f"{type(self).__name__} does not define build(self, context). Define it to return an EnvData."
        )

    def turns(self, max_turns: int) -> int:
        """Most turns of a rollout, where the run's mode allows `max_turns`; a builder may have a number of its own."""
        return max_turns

    def refusals(self, gamma: float, max_turns: int) -> Iterable[str]:
        """Why the environment's rewards cannot be trained on with this discount between so many turns, in words."""
        return ()

    def gold(self, task: Task) -> str | None:
        """A best answer to a task, where one is known without asking a verifier. `assay check` plays it."""
        return None

    async def checks(self, context: BuildContext) -> list[Check]:
        """What the environment needs of the machine (an engine, an API key), tried out. `assay doctor` shows it."""
        return []

    def describe(self) -> str:
        """What the plan that is printed before a run says of it: the first line of the class's docstring."""
        said = next(iter((vars(type(self)).get("__doc__") or "").strip().splitlines()), "")
        return f"{type(self).__name__}: {said}" if said else f"{type(self).__name__}."


def build_data(builder: DatasetBuilder, context: BuildContext) -> EnvData:
    """What a builder makes, once it is known to be that.

    Raises:
        ConfigError: it makes something else, takes something else, or the builder cannot.
    """
    said = f"{type(builder).__name__}.build"
    try:
        inspect.signature(builder.build).bind(context)
    except TypeError as error:
        raise ConfigError(f"{said}{inspect.signature(builder.build)}: {error}. Define build(self, context).") from None
    with calling(f"{said}()"):
        data = builder.build(context)
    if not isinstance(data, EnvData):
        raise ConfigError(f"{type(builder).__name__}.build() returned {data!r}, not an EnvData. Return an EnvData.")
    return data


def iter_builders(dataset: RLDataset) -> Iterator[EnvGroupBuilder]:
    """All group builders of a data set, in order."""
    for index in range(len(dataset)):
        yield from dataset.batch(index)
