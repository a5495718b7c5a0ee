"""Many completions at once, each handed on as it is done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection

import tinker

from assay.backends.tinker import convert
from assay.backends.tinker.service import Service
from assay.errors import ServiceError


async def stream(
    service: Service,
    sampler: tinker.SamplingClient,
    asked: convert.Asked,
    places: Collection[int],
    seconds: float,
) -> AsyncGenerator[tuple[int, tinker.SampledSequence], None]:
    """A completion for each of `places`, as they are done; closing the stream ends the others on the server.

    Args:
        places: which of those asked for.
        seconds: longest wait for one of them.

    Raises:
        ServiceError: one of them cannot be had; those that were done were handed on.
    """

    async def one(place: int) -> tuple[int, tinker.SampledSequence]:
        params = convert.sampling_params(asked.params, asked.rooms[place], asked.seeds[place])
        pending = sampler.sample(convert.model_input(asked.prompts[place]), 1, params)
        found = await service.wait(pending, "sample", seconds)
        if len(found.sequences) != 1:
            raise ServiceError(f"The server gave {len(found.sequences)} completions where one was asked for.")
        return place, found.sequences[0]

    tasks = {asyncio.create_task(one(place)) for place in sorted(places)}
    try:
        failed: ServiceError | None = None
        while tasks and failed is None:
            done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                error = task.exception()
                if error is None:
                    yield task.result()
                elif isinstance(error, ServiceError):
                    failed = error
                else:
                    raise error
        if failed is not None:
            raise failed
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
