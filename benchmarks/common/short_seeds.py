"""The local backend with the seeds that the Tinker API takes (31 bits), so that both draw the same samples."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path

from assay.backends.config import PolicySpec
from assay.backends.local.backend import TorchBackend, open_backend
from assay.backends.tinker.convert import MOST_SEED
from assay.envs.base import EnvData
from assay.types import Completion, SamplingParams


class ShortSeeds(TorchBackend):
    """See `TorchBackend`."""

    async def sample_stream(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, seeds: Sequence[int]
    ) -> AsyncGenerator[tuple[int, Completion], None]:
        """See `Backend.sample_stream`."""
        stream = super().sample_stream(prompts, params, [seed % MOST_SEED for seed in seeds])
        async with aclosing(stream) as parts:
            async for found in parts:
                yield found


async def open_short_seeds(policy: PolicySpec, data: EnvData, resume: Path | None) -> ShortSeeds:
    """`open_backend` of the local backend, with short seeds."""
    backend = await open_backend(policy, data, resume)
    backend.__class__ = ShortSeeds
    assert isinstance(backend, ShortSeeds)
    return backend
