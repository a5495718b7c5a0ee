"""Points b, c and d: what is sampled, and whether sampler and trainer are the same policy."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import tinker

from assay.backends.parity import LIMITS, compare, sampled_datum
from assay.backends.tinker import convert
from assay.backends.tinker.probe.bench import Bench
from assay.backends.tinker.probe.finding import Finding, judged, wanting
from assay.types import Completion, FloatArray

COUNT = 8
"""Tokens of a sample."""
ROLLOUTS, ROLLOUT_TOKENS = 4, 12
SEED = 2**31 - 19
"""Large, as those of runs are."""
LIMIT = LIMITS["other"]


async def look_at_samples(bench: Bench, sampler: tinker.SamplingClient) -> list[Finding]:
    """Point b: count, end, log-probabilities and seeds of samples."""
    again, *others = [await _sample(bench, sampler, seed=seed) for seed in (SEED, SEED, 1, 2, 3)]
    count, named = len(again.tokens), again.logprobs is not None and len(again.logprobs) == len(again.tokens)
    differ = len({tuple(s.tokens) for s in others}) > 1
    return [
        judged(
            "b",
            "samples run to max_tokens when no stop is given",
            count == COUNT and again.stop_reason == "length",
            f"{count} of {COUNT} tokens, ended by {again.stop_reason}",
            "the server must take stop=[] for no stop at all, and max_tokens for the most",
            figure=float(count),
        ),
        judged(
            "b",
            "each sampled token has a log-probability",
            named,
            f"{len(again.logprobs or [])} for {count} tokens",
            "the server must return the log-probability of every sampled token, stop token included",
        ),
        wanting(
            "b",
            "a seed repeats its sample",
            list(again.tokens) == list(others[0].tokens),
            f"seed {SEED} gave {list(again.tokens)} and {list(others[0].tokens)}",
            "nothing trains wrongly, but a resumed run samples other answers than an uninterrupted one",
        ),
        judged(
            "b",
            "seeds differ",
            differ,
            "4 seeds gave different samples" if differ else "4 seeds gave one sample",
            "the rollouts of a group would all be the same; the server must draw each sample anew",
        ),
        await _together(bench, sampler, differ),
        await _stop(bench, sampler),
    ]


async def _together(bench: Bench, sampler: tinker.SamplingClient, differ: bool) -> Finding:
    """Whether the samples of one request are drawn one by one; `differ` says that those of several seeds differ."""
    params = tinker.SamplingParams(max_tokens=COUNT, seed=SEED, stop=[])
    pending = sampler.sample(convert.model_input(bench.tokens), ROLLOUTS, params)
    found = await bench.wait(pending, "sample")
    count, kinds = len(found.sequences), len({tuple(s.tokens) for s in found.sequences})
    return wanting(
        "b",
        "the samples of a request differ",
        count == ROLLOUTS and (kinds > 1 or not differ),
        f"{ROLLOUTS} samples were asked for; {count} came, of {kinds} kinds",
        "set tinker.group_requests=false: a run that asks for a group in one request stops where it gets copies",
    )


async def _stop(bench: Bench, sampler: tinker.SamplingClient) -> Finding:
    """Whether a stop token ends a sample and is part of it."""
    greedy = [int(t) for t in (await _sample(bench, sampler, seed=1, greedy=True)).tokens]
    # The token that comes first as late as possible: a stop that ends nothing early says little.
    stop = max(dict.fromkeys(greedy), key=greedy.index)
    ended = await _sample(bench, sampler, seed=1, greedy=True, stop=(stop,))
    tokens = [int(t) for t in ended.tokens]
    at = tokens.index(stop) + 1 if stop in tokens else 0
    ok = at == len(tokens) and ended.stop_reason == "stop"
    told = f"stop={stop} gave {tokens} ({ended.stop_reason})"
    return judged(
        "b",
        "a stop token ends a sample and is its last token",
        ok,
        told,
        "the server must honour stop=[ids] and return the stop token with its log-probability, or policies are not "
        "taught where to stop",
    )


async def look_at_logprobs(bench: Bench, sampler: tinker.SamplingClient) -> list[Finding]:
    """Point c: log-probabilities of a prompt, and whether they are the trainer's."""
    values = await bench.wait(sampler.compute_logprobs(convert.model_input(bench.tokens)), "compute_logprobs")
    length = values is not None and len(values) == len(bench.tokens)
    first = length and values[0] is None
    shaped = first and all(x is not None and np.isfinite(x) for x in values[1:])
    cure = "the server must return one log-probability for each token of the prompt, none for the first"
    findings = [
        judged(
            "c",
            "compute_logprobs has a value for each token but the first",
            bool(shaped),
            f"{len(values or [])} values for {len(bench.tokens)} tokens"
            + ("" if first or not length else ", first not null"),
            cure,
            figure=float(len(values or [])),
        )
    ]
    if shaped:
        gap = float(np.abs(convert.prompt_logprobs(values, bench.datum) - await bench.forward()).max())
        findings.append(
            judged(
                "c",
                "compute_logprobs agrees with the trainer",
                gap <= LIMIT.tail,
                f"the largest difference is {gap:.2g} nats (limit {LIMIT.tail:g})",
                "nobody can tell from such figures which weights a sampler has; look for shifted positions",
                figure=gap,
            )
        )
    return findings


async def look_at_gap(bench: Bench, sampler: tinker.SamplingClient) -> list[Finding]:
    """Point d: whether tokens were sampled with the log-probabilities that the trainer computes for them."""
    prompts = [bench.tokens[: 3 + 2 * (i % 4)] for i in range(ROLLOUTS)]
    asked = [_sample(bench, sampler, seed=10 + i, prompt=p, most=ROLLOUT_TOKENS) for i, p in enumerate(prompts)]
    data = [
        sampled_datum(prompt, Completion(tuple(s.tokens), tuple(s.logprobs or ()), "length", 0))
        for prompt, s in zip(prompts, await asyncio.gather(*asked), strict=True)
    ]
    inputs = convert.supervised(data, [d.mask for d in data])
    output = await bench.wait(bench.client.forward(inputs, "cross_entropy"), "forward")
    found = compare(data, convert.target_logprobs(output.loss_fn_outputs, data))
    ok = found is not None and found.agrees(LIMIT)
    kl = found.kl if found is not None else float("nan")
    one = judged(
        "d",
        "samples have the trainer's log-probabilities",
        ok,
        f"a KL of {kl:.2g} nats per token (limit {LIMIT.kl:g})",
        "every ratio would be wrong; look for stale weights, another temperature, and truncated distributions",
        figure=kl,
    )
    return [one]


async def sampler_gap(bench: Bench, sampler: tinker.SamplingClient, against: FloatArray) -> float:
    """The largest difference, in nats, of a sampler's log-probabilities of the sequence from known ones, [T]."""
    values = await bench.wait(sampler.compute_logprobs(convert.model_input(bench.tokens)), "compute_logprobs")
    return float(np.abs(convert.prompt_logprobs(values, bench.datum) - against).max())


async def _sample(
    bench: Bench,
    sampler: tinker.SamplingClient,
    *,
    seed: int,
    greedy: bool = False,
    stop: Sequence[int] = (),
    prompt: Sequence[int] | None = None,
    most: int = COUNT,
) -> tinker.SampledSequence:
    params = tinker.SamplingParams(max_tokens=most, seed=seed, stop=list(stop), top_k=1 if greedy else -1)
    tokens = convert.model_input(bench.tokens if prompt is None else prompt)
    pending = sampler.sample(tokens, 1, params)
    found: tinker.SampleResponse = await bench.service.wait(pending, "sample", bench.settings.sample_timeout_s)
    return found.sequences[0]
