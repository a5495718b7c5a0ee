"""The policy that several benchmarks measure: the chess preset's data and model, briefly trained."""

from __future__ import annotations

import asyncio
from pathlib import Path

from assay.backends.base import AdamParams, LossSpec
from assay.backends.config import LocalBackend, ScratchModel
from assay.backends.local.backend import TorchBackend
from assay.envs.base import BuildContext, EnvData
from assay.envs.chess.dataset import ChessDatasetBuilder
from assay.grpo.datum import example_datum
from assay.grpo.normalise import normalise
from assay.rollouts.renderers.base import PlainRenderer


def chess_data(batch_size: int, group_size: int, positions: int, cache_dir: Path) -> EnvData:
    """The chess preset's data with other sizes."""
    builder = ChessDatasetBuilder(
        batch_size=batch_size, group_size=group_size, num_train=positions, num_heldout=1, num_epochs=1000
    )
    return builder.build(BuildContext(seed=0, max_turns=1, cache_dir=cache_dir))


def chess_backend(data: EnvData) -> TorchBackend:
    """The chess preset's model with random weights: GPT-2, width 128, 3 layers, a tokenizer trained on chess text."""
    return TorchBackend.create("scratch", 0, LocalBackend(), ScratchModel(), data.tokenizer_corpus, seed=0)


def warm_up(backend: TorchBackend, data: EnvData, steps: int) -> None:
    """Supervised steps, so that completions look like those of a run: short, mostly well formed, sometimes legal."""
    assert data.sft is not None
    renderer = PlainRenderer(backend.tokenizer)
    for step in range(steps):
        examples = data.sft.batch(step, 32)
        batch = [example_datum(renderer.start(e.prompt), renderer.completion(e.completion)) for e in examples]
        rate = 2e-3 * min(1.0, (step + 1) / 30) * (1 - step / steps)
        asyncio.run(_train(backend, batch, rate))


async def _train(backend: TorchBackend, batch: list[object], rate: float) -> None:
    await backend.forward_backward(normalise(batch), LossSpec("cross_entropy"))  # type: ignore[arg-type]
    await backend.optim_step(AdamParams(rate))
