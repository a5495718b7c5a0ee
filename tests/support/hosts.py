"""One scripted policy for every host, and what it plays: the same answers to the same prompts, in order of asking.

`PLAYS` are the tasks of the golden trajectories. `in_assays_loop` plays them as a run does; what an adapter makes of
them must be equal, to the byte.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from assay.backends.base import Backend, Capabilities
from assay.envs.base import build_data, iter_builders
from assay.grpo.advantages import group_advantages
from assay.integrations.environments import Budget, HostRow, Prepared, Sampled, prepared
from assay.integrations.environments.rows import host_rows
from assay.rollouts.runner import prepare, run_groups
from assay.types import Completion, Json, SamplingParams, TrajectoryGroup

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "integrations" / "environments" / "golden"
BUDGET = Budget(prompt=8192, response=8192)
END = "<|end|>"

_NO_KERNEL = (
    "import torch\nimport triton\nclass ModelNew(torch.nn.Module)\n    def forward(self, x):\n        return x\n"
)
_KERNEL = "<think>\n- {}\n</think>\n<KERNEL>\n```python\n{}```\n</KERNEL>"


@dataclass(frozen=True)
class Play:
    """Tasks, what is said to each in the order of asking, and how many rollouts a group has."""

    settings: tuple[str, ...]
    says: Mapping[str, Sequence[str]]
    """End of a prompt -> answers; `""` for any other prompt. The n-th time that a prompt is asked it gets the n-th."""
    group_size: int = 4
    tasks: int = 2


PLAYS: Mapping[str, Play] = {
    "own": Play(
        (f"dataset_builder={ROOT}/examples/own_env.py:LargestDigit", "max_tokens=8"),
        {"": ("9", "8", "x", "7", "", "6")},
        6,
    ),
    "guess": Play(
        (f"dataset_builder={ROOT}/examples/multi_turn.py:GuessTheDigit", "max_tokens=8", "gamma=0.5"),
        {"": ("3", "5", "x", "7"), ">": ("6", "8"), "<": ("2", "1"), "?": ("4", "3")},
    ),
    "chess": Play(
        (
            *("dataset_builder=chess", "dataset_builder.task=arbiter", "dataset_builder.num_train=2"),
            *("dataset_builder.num_heldout=1", "mode=multi_turn", "max_turns=2", "max_tokens=200"),
        ),
        {"": ("8/6R1/8/4k3/2K5/8/8/8 b - - 7 41+0.001+0+0", "nonsense", "8/8+1+0+0", "+++"), "Try again.": ("7", "")},
    ),
    "monitor": Play(
        (
            *("dataset_builder=monitor", "dataset_builder.reward.train_with_monitor=false", "max_tokens=200"),
            *("dataset_builder.num_train=2", "dataset_builder.num_heldout=1"),
        ),
        {"": (*(f"So.<measurements>{[v] * 3}</measurements>" for v in (True, False)), "no", "")},
    ),
    "kernels": Play(
        (
            *("dataset_builder=kernelbench_turns", "dataset_builder.prompt_option=zero_shot", "mode=multi_turn"),
            *("dataset_builder.use_modal=false", "dataset_builder.max_turns=2", "dataset_builder.dataset_src=shipped"),
            *("dataset_builder.measure_performance=false", "dataset_builder.start_problem=1"),
            *(
                "dataset_builder.end_problem=2",
                "max_tokens=2000",
                "dataset_builder.renderer_name=plain",
                "dataset_builder.reward_format_weight=0.25",
            ),
        ),
        {"": ("no kernel", _KERNEL.format("as it is", _NO_KERNEL), "<KERNEL>", _KERNEL.format("again", _NO_KERNEL))},
        group_size=3,
        tasks=1,
    ),
}


@cache
def bytes_tokenizer() -> Any:
    """One token per byte, and one that ends a text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    byte_level = Tokenizer(models.BPE({symbol: i for i, symbol in enumerate(alphabet)}, []))
    byte_level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    byte_level.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=byte_level, eos_token=END, pad_token=END)


class Script:
    """A host's policy that says what a play says. Log-probabilities follow from the tokens."""

    def __init__(self, play: Play) -> None:
        self._says, self._asked = play.says, Counter[tuple[int, ...]]()

    def tokens(self, prompt: Sequence[int], most: int) -> list[int]:
        tokenizer = bytes_tokenizer()
        text = tokenizer.decode(list(prompt), skip_special_tokens=False)
        end = next((end for end in self._says if end and text.endswith(end)), "")
        answers = self._says[end]
        answer = answers[self._asked[tuple(prompt)] % len(answers)]
        self._asked[tuple(prompt)] += 1
        return [*tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id][:most]

    async def sample(self, prompt_ids: Sequence[int], params: SamplingParams, seed: int) -> Sampled:
        tokens = self.tokens(prompt_ids, params.max_tokens)
        return Sampled(tokens, logprobs_of(tokens))


def logprobs_of(tokens: Sequence[int]) -> list[float]:
    return [-1.0 - token / 512 for token in tokens]


class ScriptBackend(Backend):
    """The same policy for Assay's own loop."""

    capabilities = Capabilities(frozenset(), frozenset(), False, False, False, True)
    policy_version, context_length, vocab_size = 0, 16384, 512

    def __init__(self, play: Play) -> None:
        self.tokenizer: Any = bytes_tokenizer()
        self._script = Script(play)

    async def sample_stream(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, seeds: Sequence[int]
    ) -> AsyncGenerator[tuple[int, Completion], None]:
        for place, prompt in enumerate(prompts):
            tokens = self._script.tokens(prompt, params.max_tokens)
            stopped = tokens[-1] in params.stop
            yield place, Completion(tuple(tokens), tuple(logprobs_of(tokens)), "stop" if stopped else "length", 0)


def prepared_play(play: Play, *more: str) -> Prepared:
    return prepared(None, [*play.settings, f"dataset_builder.group_size={play.group_size}", *more], bytes_tokenizer())


def in_assays_loop(play: Play, *more: str) -> tuple[list[TrajectoryGroup], list[list[list[float]] | None]]:
    """The groups of a play as Assay's runner plays them, and Assay's advantages."""
    one = prepared_play(play, *more)
    config = one.environment.config()

    async def run() -> list[TrajectoryGroup]:
        data = build_data(config.dataset_builder, config.context())
        try:
            tasks = {b.task.key: b for b in iter_builders(data.train)}
            builders = [tasks[key] for key in sorted(tasks)][: play.tasks]
            backend, playing = ScriptBackend(play), one.playing
            return await run_groups(
                await prepare(builders, play.group_size),
                backend,
                one.renderer(backend.tokenizer),
                playing.params,
                max_turns=playing.max_turns,
                seed=playing.seed,
            )
        finally:
            await data.close()

    groups = asyncio.run(run())
    credit = one.playing.credit
    how: dict[str, Any] = {"gamma": credit.gamma, "normalize_by_std": credit.by_std, "baseline": credit.baseline}
    return groups, [group_advantages(group, **how) for group in groups]


def record_of(groups: Sequence[TrajectoryGroup], credits: Sequence[Any]) -> Json:
    """Groups as golden data: the task, each rollout's end and reward, and its rows."""
    return [
        {
            "task": group.task.key,
            "rollouts": [
                {
                    "end": rollout.stop_reason,
                    "reward": rollout.reward,
                    "rows": [row_record(row) for row in rows_of(rollout, credit[place] if credit else None)],
                }
                for place, rollout in enumerate(group.trajectories)
            ],
        }
        for group, credit in zip(groups, credits, strict=True)
    ]


def row_record(row: HostRow) -> Json:
    """A row as golden data. Prompts are long, so only their hash is kept."""
    ids = row.prompt_ids
    return {**row.to_json(), "prompt_ids": [len(ids), hashlib.sha256(json.dumps(ids).encode()).hexdigest()]}


def rows_of(rollout: Any, credit: Sequence[float] | None) -> list[HostRow]:
    if rollout.errored:
        return []
    return host_rows(rollout, credit if credit is not None else [0.0] * len(rollout.transitions))


def written(record: Json) -> str:
    """Golden data as text."""
    return json.dumps(record, separators=(",", ":")) + "\n"
