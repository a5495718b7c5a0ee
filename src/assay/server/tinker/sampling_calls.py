"""The requests of sampling clients: a session for some weights, samples, and log-probabilities of prompts."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np
from tinker import types

from assay.backends.local.adapters.engine import Call, EndsText
from assay.backends.local.adapters.layers import Weights
from assay.backends.local.adapters.scoring import Asked
from assay.backends.seeds import spread
from assay.server.tinker import wire
from assay.server.tinker.desk import Desk
from assay.server.tinker.errors import RequestError, bad, failure
from assay.server.tinker.futures import PROTOBUF, Promise, Result
from assay.server.tinker.sessions import Sampler
from assay.types import Json, SamplingParams

MOST_TOP, MOST_DRAWS, MOST_STOPS, LONGEST_STOP = 128, 64, 64, 256
NOT_FINITE = (
    "Sampling gave log-probabilities that are not finite: the weights are far too large or NaN. Go back to an earlier "
    "checkpoint, with a lower learning rate."
)


async def create_sampling_session(desk: Desk, owner: str, body: bytes) -> dict[str, Json]:
    """Get ready to sample from a checkpoint or the base model."""
    request = wire.read_json(types.CreateSamplingSessionRequest, body)
    session = desk.sessions.get(owner, request.session_id)
    number = request.sampling_session_seq_id
    if not 0 <= number < 10**9:
        raise bad("sampling_session_seq_id is out of range.")
    name = f"{session.id}:sample:{number}"
    sampler = Sampler(name, owner, request.model_path, base=request.model_path is None)
    if request.base_model is not None:
        desk.check_base(request.base_model)
    if request.model_path is None and request.base_model is None:
        raise bad("Give a model_path or a base_model to sample from.")
    held = session.samplers.get(number)
    if held is None or held.path != sampler.path or held.base != sampler.base:
        if held is not None:
            raise bad(f"{name} exists already, and samples from something else.")
        await weights_of(desk, owner, sampler)
        desk.sessions.add_sampler(session, number, sampler)
    return {"type": "create_sampling_session", "sampling_session_id": name}


async def weights_of(desk: Desk, owner: str, sampler: Sampler) -> Weights | None:
    """What a sampling session samples from, read from its checkpoint where it is not in memory; None is the base model.

    Raises:
        RequestError: the checkpoint is gone, or to train on alone.
        CheckpointError: its files are damaged.
    """
    if sampler.follows is not None:
        return sampler.follows.shared
    if sampler.weights is None and sampler.path is not None:
        checkpoint = desk.checkpoint(owner, sampler.path)
        if checkpoint.kind != "sampler_weights":
            raise bad(f"{sampler.path} is to train on; sample from one of save_weights_for_sampler.")
        desk.check_base(checkpoint.run.base_model)
        sampler.weights = await desk.weights(checkpoint)
    return sampler.weights


async def sample(desk: Desk, owner: str, body: bytes) -> dict[str, Json]:
    """Take a request to sample on."""
    request = wire.read_json(types.SampleRequest, body)
    key = None
    if request.sampling_session_id is not None:
        sampler = desk.sessions.sampler(owner, request.sampling_session_id)
        key = (sampler.id, request.seq_id) if request.seq_id is not None else None
    elif request.model_path is not None or request.base_model is not None:
        sampler = Sampler("", owner, request.model_path, base=request.model_path is None)
        if request.base_model is not None:
            desk.check_base(request.base_model)
    else:
        raise bad("Give a sampling_session_id, a model_path or a base_model to sample from.")
    promise, new = desk.promises.open(owner, "sample", key)
    if new:
        desk.work(_sample(desk, owner, sampler, request, promise), promise)
    ids: list[Json] = [f"{promise.id}:{n}" for n in range(max(0, min(request.num_samples, 65536)))]
    return {"request_id": promise.id, "sample_sequence_ids": ids}


async def _sample(desk: Desk, owner: str, sampler: Sampler, request: Any, promise: Promise) -> None:
    try:
        promise.resolve(await _sampled(desk, owner, sampler, request, promise))
    except asyncio.CancelledError:
        promise.resolve(RequestError(400, "The request was cancelled."))
        raise
    except Exception as error:  # noqa: BLE001 - of one client's request, who is told
        promise.resolve(failure(error))


async def _sampled(desk: Desk, owner: str, sampler: Sampler, request: Any, promise: Promise) -> Result:
    host = desk.host
    prompt = wire.prompt_of(request.prompt.chunks, context=host.context_length, vocabulary=host.vocab_size)
    seed = _seed(request, promise)
    call = _call(desk, request, prompt, seed, await weights_of(desk, owner, sampler))
    asked = _asked(request, prompt, seed, host.vocab_size)
    scores = None if asked is None else await host.score(call.weights, prompt, asked)
    samples = await host.sample(call)
    if any(s.failed for s in samples):
        raise bad(NOT_FINITE)
    first = 1 if asked is None else asked.first
    body = wire.sample_response(samples, len(prompt), first, scores, bool(request.prompt_logprobs))
    return Result(body, PROTOBUF)


def _call(desk: Desk, request: Any, prompt: tuple[int, ...], seed: int, weights: Weights | None) -> Call:
    host, params = desk.host, request.sampling_params
    room = max(1, host.context_length - len(prompt))
    most = room if params.max_tokens is None else params.max_tokens
    if most < 1:
        raise bad(f"max_tokens={most}: give at least 1.")
    most = min(most, room)
    if not 1 <= request.num_samples <= 65536 or request.num_samples * most > desk.config.max_batch_tokens:
        raise bad(
            f"num_samples={request.num_samples} of up to {most} tokens is out of range: at least 1, and at most "
            f"{desk.config.max_batch_tokens} tokens in all (max_batch_tokens)."
        )
    if not (math.isfinite(params.temperature) and params.temperature >= 0):
        raise bad("temperature must be a finite number, 0 or more.")
    if not 0 < params.top_p <= 1:
        raise bad("top_p must be above 0 and at most 1.")
    if params.top_k == 0 or params.top_k < -1:
        raise bad("top_k must be -1 (off) or at least 1.")
    if not 0 <= request.topk_sample_logprobs <= MOST_TOP:
        raise bad(f"topk_sample_logprobs must be 0 to {MOST_TOP}.")
    if request.record_stability_info:
        raise bad("record_stability_info is not served here: there is no stable_reinforce loss. Leave it out.")
    tokens, ends = _stops(desk, params.stop)
    settings = SamplingParams(most, params.temperature, params.top_k, params.top_p, tokens)
    return Call(prompt, seeds(seed, request.num_samples), settings, weights, ends, request.topk_sample_logprobs)


def _seed(request: Any, promise: Promise) -> int:
    seed = request.sampling_params.seed
    return secrets.randbits(63) if seed is None else int(seed) % 2**64


def seeds(seed: int, count: int) -> tuple[int, ...]:
    """A seed for each sample; the first is the client's own, so that a sample asked for alone has the seed given."""
    return tuple(spread(seed, number) for number in range(count))


def _stops(desk: Desk, stop: Any) -> tuple[tuple[int, ...], EndsText | None]:
    """Tokens, or text, at which a completion ends: where nothing is said the model's own end, with [] nothing."""
    if stop is None:
        return desk.host.stop_ids, None
    wanted = [stop] if isinstance(stop, str) else list(stop)
    if len(wanted) > MOST_STOPS:
        raise bad(f"stop has {len(wanted)} entries; at most {MOST_STOPS} are taken.")
    numbers = [s for s in wanted if isinstance(s, int)]
    if len(numbers) == len(wanted):
        if any(not 0 <= s < desk.host.vocab_size for s in numbers):
            raise bad(f"stop has a token that the model does not know; it knows 0 to {desk.host.vocab_size - 1}.")
        return tuple(sorted(set(numbers))), None
    if any(not isinstance(s, str) or not 0 < len(s) <= LONGEST_STOP for s in wanted):
        raise bad(f"stop takes tokens, or texts of 1 to {LONGEST_STOP} characters.")
    return (), _ends_text(desk.host.tokenizer, wanted)


def _ends_text(tokenizer: Any, stops: Sequence[str]) -> EndsText:
    # A character has at most four tokens; of more than that before the last one, none can be in the text.
    reach = 4 * max(len(s) for s in stops) + 4

    def ends(tokens: Sequence[int]) -> bool:
        text = tokenizer.decode(tokens[-reach:], skip_special_tokens=False)
        return any(s in text for s in stops)

    return ends


def _asked(request: Any, prompt: tuple[int, ...], seed: int, vocabulary: int) -> Asked | None:
    """What is asked of the prompt itself; None where nothing is."""
    top, draws, last = request.topk_prompt_logprobs, request.prompt_alt_tokens_k, request.prompt_logprobs_last_n
    if not 0 <= top <= MOST_TOP or not 0 <= draws <= MOST_DRAWS:
        raise bad(f"topk_prompt_logprobs must be 0 to {MOST_TOP}, and prompt_alt_tokens_k 0 to {MOST_DRAWS}.")
    if last is not None and not (request.prompt_logprobs and 1 <= last <= len(prompt) - 1):
        raise bad("prompt_logprobs_last_n needs prompt_logprobs, and is 1 to the length of the prompt less 1.")
    targets = None
    if request.target_prompt_logprobs is not None:
        targets = _targets(request.target_prompt_logprobs, len(prompt), vocabulary)
    if not (request.prompt_logprobs or top or draws or targets is not None) or len(prompt) < 2:
        return None
    first = 1 if last is None else len(prompt) - last
    return Asked(first, top, targets, draws, request.sampling_params.temperature, seed)


def _targets(tensor: Any, length: int, vocabulary: int) -> Any:
    if tensor.sparse_crow_indices is not None:
        raise bad(
            "target_prompt_logprobs is sparse, which is not served here. Send it dense, with -1 where nothing is asked."
        )
    shape = list(tensor.shape or ())
    if len(shape) != 2 or shape[0] != length - 1 or not 1 <= shape[1] <= MOST_TOP:
        raise bad(f"target_prompt_logprobs must have the shape [{length - 1}, K] with K from 1 to {MOST_TOP}.")
    values = np.array(tensor.data, np.int64)
    if values.size != shape[0] * shape[1]:
        raise bad("target_prompt_logprobs has another number of values than its shape.")
    if values.min() < -1 or values.max() >= vocabulary:
        raise bad(f"target_prompt_logprobs has a token that the model does not know; it knows 0 to {vocabulary - 1}.")
    return values.reshape(shape)


def join_sampling_session(desk: Desk, owner: str, body: bytes) -> dict[str, Json]:
    """A number for a further client of a sampling session."""
    request = wire.read_json(types.JoinSamplingSessionRequest, body)
    sampler = desk.sessions.sampler(owner, request.sampling_session_id)
    sampler.clients += 1
    return {"type": "join_sampling_session", "client_counter": sampler.clients}


def cancel(desk: Desk, owner: str, body: bytes) -> dict[str, Json]:
    """Give up on a request to sample."""
    request_id = str(wire.read_object(body).get("request_id"))
    promise = desk.promises.find(owner, request_id)
    if promise is not None and promise.kind == "sample":
        desk.cancel(promise)
    return {}


def get_sampler(desk: Desk, owner: str, sampler_id: str) -> dict[str, Json]:
    """What a sampling session samples from."""
    sampler = desk.sessions.sampler(owner, sampler_id)
    return {"sampler_id": sampler.id, "base_model": desk.host.name, "model_path": sampler.path}
