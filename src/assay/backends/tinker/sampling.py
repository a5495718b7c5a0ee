"""Many completions at once, each handed on as its request is answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Sequence

import tinker

from assay.backends.seeds import SEEDS, spread
from assay.backends.tinker import convert
from assay.backends.tinker.service import Service
from assay.errors import ServiceError

Answered = list[tuple[int, tinker.SampledSequence]]
"""Places with their completions."""


async def stream(
    service: Service, sampler: tinker.SamplingClient, asked: convert.Asked, places: Collection[int]
) -> AsyncGenerator[Answered, None]:
    """The completions of `places`, those of a request together, as they are done; closing the stream ends the others
    on the server.

    Args:
        places: which of those asked for.

    Raises:
        ServiceError: some of them cannot be had; those that were done were handed on.
    """
    settings = service.settings

    async def one(run: Sequence[int]) -> Answered:
        first = run[0]
        params = convert.sampling_params(asked.params, asked.rooms[first], asked.seeds[first])
        pending = sampler.sample(convert.model_input(asked.prompts[first]), len(run), params)
        found = await service.wait(pending, "sample", settings.sample_timeout_s)
        if len(found.sequences) != len(run):
            raise ServiceError(f"The server gave {len(found.sequences)} completions where {len(run)} were asked for.")
        convert.check_drawn_apart(found.sequences, asked.params)
        return list(zip(run, found.sequences, strict=True))

    tasks = {asyncio.create_task(one(run)) for run in requests(asked, places, grouped=settings.group_requests)}
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


def requests(asked: convert.Asked, places: Collection[int], *, grouped: bool) -> list[list[int]]:
    """The places of each request: those of one prompt whose seeds are what a request with the first one's seed gives
    its samples (`spread`), so that how they are asked for changes none of them. Not `grouped`, each is by itself.
    """
    found: list[list[int]] = []
    for place in sorted(places):
        run = found[-1] if grouped and found else []
        if run and _goes_on(asked, run, place):
            run.append(place)
        else:
            found.append([place])
    return found


def _goes_on(asked: convert.Asked, run: Sequence[int], place: int) -> bool:
    first = asked.seeds[run[0]]
    return (
        0 <= first < SEEDS
        and asked.seeds[place] == spread(first, len(run))
        and asked.prompts[place] == asked.prompts[run[0]]
    )
