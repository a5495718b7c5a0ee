"""Whole training runs on kernels that take seconds: the loop, the trainer and the grader are real, the policy says
what a script does, with its own probability. `backend=support.kernel_run:open_scripted`."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

from assay.backends.config import LocalBackend, PolicySpec, ScratchModel
from assay.backends.local.backend import TorchBackend, open_backend
from assay.backends.parity import sampled_datum
from assay.envs.base import EnvData
from assay.envs.kernelbench.dataset import KernelBenchDatasetBuilder
from assay.kernels.config import GraderSettings
from assay.rollouts.seeds import derive
from assay.training.config import EvalConfig, TrainingConfig
from assay.types import Completion, SamplingParams
from support.kernel_policies import BROKEN, RIGHT, WRONG, reply

GRADER = GraderSettings(compile_check="off", draws=1, workers=1)


def words(prompt: str, seed: int) -> str:
    """A broken, a wrong or a right kernel; after a failure, the next better one."""
    if "correctness error" in prompt:
        return reply(RIGHT)
    if "compilation error" in prompt or "format error" in prompt:
        return reply(WRONG)
    return (reply(BROKEN), reply(WRONG), reply(RIGHT), "I cannot.")[derive("words", seed) % 4]


class Scripted:
    """The local backend, but for what is sampled."""

    def __init__(self, inner: TorchBackend) -> None:
        self.inner: Any = inner
        self.capabilities = dataclasses.replace(inner.capabilities, batch_invariant=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def sample_stream(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, seeds: Sequence[int]
    ) -> AsyncGenerator[tuple[int, Completion], None]:
        for place, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True)):
            text = words(self.inner.tokenizer.decode(list(prompt)), seed)
            said = tuple(self.inner.tokenizer.encode(text, add_special_tokens=False))
            said = (*said, self.inner.tokenizer.eos_token_id)
            drawn = Completion(said, (0.0,) * len(said), "stop", self.inner.policy_version)
            (logprobs,) = await self.inner.logprobs([sampled_datum(prompt, drawn)])
            yield place, dataclasses.replace(drawn, logprobs=tuple(map(float, logprobs[-len(said) :])))


async def open_scripted(policy: PolicySpec, data: EnvData, resume: Path | None) -> Scripted:
    """See the module."""
    inner: Any = await open_backend(policy, data, resume)
    return Scripted(inner)


def builder(**changes: Any) -> KernelBenchDatasetBuilder:
    """Problems 1/1 and 1/2 of those that Assay ships, graded here; one is held out."""
    settings: dict[str, Any] = {
        "dataset_src": "shipped",
        "use_modal": False,
        "end_problem": 2,
        "batch_size": 1,
        "group_size": 4,
        "num_epochs": 2,
        "num_correct_trials": 1,
        "prompt_option": "zero_shot",
        "renderer_name": "auto",
        "grader": GRADER,
    }
    return KernelBenchDatasetBuilder(**(settings | changes))


def kernels(path: Path, **changes: Any) -> TrainingConfig:
    """A run of one batch, evaluated before and after."""
    settings: dict[str, Any] = {
        "model_name": "scratch",
        "backend": "support.kernel_run:open_scripted",
        "lora_rank": 0,
        "learning_rate": 1e-3,
        "max_tokens": 2000,
        "max_batches": 1,
        "save_every": 1,
        "tensorboard_log_histograms_every": 1,
        "log_path": path,
        "cache_dir": path.parent / "cache",
        "local": LocalBackend(device="cpu"),
        "scratch": ScratchModel(hidden_size=16, num_layers=1, context_length=8192, vocab_size=600),
        "eval": EvalConfig(samples_per_task=1),
        "dataset_builder": builder(),
    }
    return TrainingConfig(**(settings | changes))
