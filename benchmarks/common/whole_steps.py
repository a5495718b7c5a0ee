"""Whole GRPO steps of Assay and of TRL on the same work: random words, a reward on text, every step new prompts.

Both sides sample, score, train and take one optimizer step, each through its public API: Assay's `run_groups` and
`GRPOTrainer.update`, metrics and health monitor included, and TRL's `train()` with logging and saving off. Blocks of
steps alternate in one process; Assay's run inside a callback of TRL's trainer.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from assay.backends.local.backend import TorchBackend
from assay.envs.base import Env, EnvGroupBuilder, StepResult
from assay.grpo.config import GRPOConfig
from assay.grpo.trainer import GRPOTrainer
from assay.rollouts.renderers.base import PlainRenderer
from assay.rollouts.runner import prepare, run_groups
from assay.types import Message, SamplingParams, Score, Task

LEARNING_RATE = 1e-6
"""So small that both policies stay what they are and draw completions of the same length throughout."""


@dataclass(frozen=True)
class Work:
    """What a step is: `prompts` of `prompt_tokens` words with `group_size` completions each; `distinct` of them differ.

    Prompts that are equal follow one another in turn, so that equal ones are in different groups.
    """

    vocab: int
    prompt_tokens: int
    prompts: int
    group_size: int
    distinct: int
    max_tokens: int

    @property
    def completions(self) -> int:
        """Completions of a step."""
        return self.prompts * self.group_size

    def texts(self, step: int) -> list[str]:
        """The prompts of a step; word 0 ends a text."""
        draw = random.Random(step)
        words = [[draw.randrange(1, self.vocab) for _ in range(self.prompt_tokens)] for _ in range(self.distinct)]
        texts = [" ".join(f"w{word}" for word in prompt) for prompt in words]
        return [texts[i % self.distinct] for i in range(self.prompts)]


def word_tokenizer(vocab: int) -> Any:
    """A tokenizer for which `w0 w1 ...` are the tokens 0, 1, ...; token 0 ends a text."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({f"w{i}": i for i in range(vocab)}, unk_token="w0"))
    words.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w0", pad_token="w0")


def reward_of(text: str) -> float:
    """The share of even words: cheap, and different within a group."""
    words = text.split()
    return sum(word[-1] in "02468" for word in words) / max(1, len(words))


class _WordsEnv(Env):
    def __init__(self, task: Task) -> None:
        self._task = task

    async def reset(self) -> list[Message]:
        return list(self._task.prompt)

    async def step(self, text: str) -> StepResult:
        return StepResult(Score("scored", reward_of(text)), done=True)


class _WordsGroup(EnvGroupBuilder):
    def __init__(self, prompt: str) -> None:
        self.task = Task.of(prompt)

    async def make(self, n: int) -> list[Env]:
        return [_WordsEnv(self.task) for _ in range(n)]


class AssaySteps:
    """Assay's side: TRL's clipped loss without KL or weight decay, averaged over tokens, on every completion."""

    def __init__(
        self, backend: TorchBackend, builders: Callable[[int], Sequence[EnvGroupBuilder]], group: int, max_tokens: int
    ) -> None:
        """`builders` makes the groups of a step, `group` completions each."""
        self._backend, self._builders, self._group, self._max_tokens = backend, builders, group, max_tokens
        self._renderer = PlainRenderer(backend.tokenizer)
        config = GRPOConfig(
            loss_fn="ppo",
            normalize_advantages_by_std=True,
            remove_constant_reward_groups=False,
            kl_coef=0.0,
            learning_rate=LEARNING_RATE,
            weight_decay=0.0,
        )
        self._trainer = GRPOTrainer.over(backend, config)
        self.lengths: list[float] = []
        """Mean number of completion tokens of each step."""
        self.rewards: list[float] = []
        """Mean reward of each step."""

    async def steps(self, first: int, count: int) -> None:
        """Steps `first` to `first + count`."""
        for index in range(first, first + count):
            prepared = await prepare(self._builders(index), self._group)
            params = SamplingParams(self._max_tokens)
            groups = await run_groups(prepared, self._backend, self._renderer, params, max_turns=1, seed=index)
            metrics = (await self._trainer.update(groups)).rollouts
            self.lengths.append(metrics["rollout/completion_tokens_mean"])
            self.rewards.append(metrics["reward/mean"])


def word_steps(backend: TorchBackend, work: Work) -> AssaySteps:
    """Assay's side on random words; the backend's tokenizer is that of `word_tokenizer`."""
    builders = lambda index: [_WordsGroup(prompt) for prompt in work.texts(index)]  # noqa: E731
    return AssaySteps(backend, builders, work.group_size, work.max_tokens)


def trl_config(completions: int, group: int, max_tokens: int, steps: int, **settings: Any) -> Any:
    """TRL's config for the same steps, whole batches in one pass; `settings` are fields of it that replace these."""
    from trl import GRPOConfig as TrlConfig

    return TrlConfig(
        **{
            "output_dir": tempfile.gettempdir(),  # nothing is saved
            "per_device_train_batch_size": completions,
            "num_generations": group,
            "max_completion_length": max_tokens,
            "max_steps": steps,
            "learning_rate": LEARNING_RATE,
            "lr_scheduler_type": "constant",
            "adam_beta2": 0.95,
            "beta": 0.0,
            "loss_type": "dapo",
            "shuffle_dataset": False,
            "gradient_checkpointing": False,
            "bf16": False,
            "use_cpu": True,
            "dataloader_pin_memory": False,
            "logging_strategy": "no",
            "save_strategy": "no",
            "report_to": [],
            "disable_tqdm": True,
            **settings,
        }
    )


def trl_trainer(
    model: Any, work: Work, steps: int, *, micro_batch: int | None = None, lengths: list[float], **settings: Any
) -> Any:
    """TRL's `GRPOTrainer` for so many steps; `settings` are fields of its config.

    Args:
        micro_batch: completions in one pass; None puts the whole batch into one.
        lengths: gets the mean number of completion tokens of each step.
    """
    from datasets import Dataset
    from trl import GRPOTrainer as TrlTrainer

    def reward(completions: list[str], completion_ids: list[list[int]], **_: object) -> list[float]:
        lengths.append(sum(map(len, completion_ids)) / len(completion_ids))
        return [reward_of(text) for text in completions]

    part = micro_batch or work.completions
    parts = {"per_device_train_batch_size": part, "gradient_accumulation_steps": work.completions // part}
    config = trl_config(work.completions, work.group_size, work.max_tokens, steps, **parts, **settings)
    rows = Dataset.from_list([{"prompt": text} for step in range(steps) for text in work.texts(step)])
    tokenizer = word_tokenizer(work.vocab)
    return TrlTrainer(model, reward, config, train_dataset=rows, processing_class=tokenizer)


def alternate(
    trainer: Any, others: Sequence[Callable[[int, int], Any]], block: int, clock: Callable[[], float]
) -> tuple[list[float], list[list[float]]]:
    """Run TRL's `train()`, and after each block of its steps the others' blocks `(first, count)` on the same steps.

    Returns:
        Seconds per step of each block: of TRL, and of each of the others.
    """
    from transformers import TrainerCallback

    theirs: list[float] = []
    ours: list[list[float]] = [[] for _ in others]

    class Turns(TrainerCallback):
        begin = 0.0

        def on_train_begin(self, *_: object, **__: object) -> None:
            self.begin = clock()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: object) -> None:
            if state.global_step % block == 0:
                theirs.append((clock() - self.begin) / block)
                for seconds, other in zip(ours, others, strict=True):
                    begin = clock()
                    other(state.global_step - block, block)
                    seconds.append((clock() - begin) / block)
                self.begin = clock()

    trainer.add_callback(Turns())
    trainer.train()
    return theirs, ours


def run_blocking(steps: AssaySteps, runner: asyncio.Runner) -> Callable[[int, int], None]:
    """The steps as a blocking function of `(first, count)`."""
    return lambda first, count: runner.run(steps.steps(first, count))
