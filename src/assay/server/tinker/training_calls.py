"""The requests of training clients: make an adapter, train it, save it, load it."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tinker import types

from assay.backends.base import AdamParams
from assay.backends.local.adapters.bank import Adapter
from assay.server.tinker import wire
from assay.server.tinker.checkpoints import Checkpoint, Kind, Run, check_name, expiry
from assay.server.tinker.desk import Desk, json_body
from assay.server.tinker.errors import RequestError, bad
from assay.server.tinker.futures import PROTOBUF, Promise, Result
from assay.server.tinker.host import parts_of
from assay.server.tinker.lanes import Job
from assay.server.tinker.sessions import Model, Sampler, Session
from assay.types import Json

LOAD_LATE = (
    "LoadWeights is not permitted with seq_id {number}: weights are loaded by the first request of a model alone. Make "
    "a new client with create_training_client_from_state."
)


def create_model(desk: Desk, owner: str, body: bytes) -> dict[str, Json]:
    """Make a new adapter."""
    request = wire.read_json(types.CreateModelRequest, body)
    desk.check_base(request.base_model)
    _check_optimizer(request.optimizer_config)
    lora = request.lora_config
    if lora is None:
        raise bad("lora_config is missing: this server trains LoRA adapters, and no full weights.")
    if not 1 <= lora.rank <= desk.config.max_lora_rank:
        raise bad(f"rank {lora.rank} is not served; 1 to {desk.config.max_lora_rank} are (max_lora_rank).")
    parts = parts_of(lora.train_attn, lora.train_mlp, lora.train_unembed)
    if not parts:
        raise bad("train_attn, train_mlp and train_unembed are all false, so nothing would be trained.")
    seed = secrets.randbits(62) if lora.seed is None else lora.seed % 2**63
    session, number = _slot(desk, owner, request.session_id, request.model_seq_id)
    run_id = f"{session.id}:train:{number}"
    promise, new = desk.promises.open(owner, "create_model", run_id)
    if new:
        metadata = _metadata(request.user_metadata)
        run = Run(run_id, owner, desk.host.name, lora.rank, tuple(sorted(parts)), seed, time.time(), metadata)
        _make(desk, session, number, run, promise, None, False)
    return {"request_id": promise.id, "model_id": run_id}


def load_weights(desk: Desk, owner: str, body: bytes) -> dict[str, Json]:
    """Make an adapter from a checkpoint, or load one into an adapter that has done nothing yet."""
    request = wire.read_json(types.LoadWeightsRequest, body)
    checkpoint = desk.checkpoint(owner, request.path, request.weights_access_token)
    if checkpoint.kind != "weights":
        raise bad(f"{checkpoint.path} is to sample from; train on from a path with /weights/ (save_state).")
    if request.optimizer and not checkpoint.optimizer:
        raise bad(f"{checkpoint.path} holds no optimizer state.")
    if request.optimizer_config is not None:
        _check_optimizer(request.optimizer_config)
    desk.check_base(checkpoint.run.base_model)
    if request.base_model is not None:
        desk.check_base(request.base_model)
    if request.session_id is None:
        return _load_into(desk, owner, request, checkpoint)
    session, number = _slot(desk, owner, request.session_id, request.model_seq_id)
    run_id = f"{session.id}:train:{number}"
    promise, new = desk.promises.open(owner, "load_weights", run_id)
    if new:
        old = checkpoint.run
        metadata = _metadata(request.user_metadata)
        run = Run(run_id, owner, old.base_model, old.rank, old.parts, old.seed, time.time(), metadata)
        _make(desk, session, number, run, promise, checkpoint, request.optimizer)
    return {"request_id": promise.id, "model_id": run_id}


def _slot(desk: Desk, owner: str, session_id: str, number: int | None) -> tuple[Session, int]:
    if number is None or not 0 <= number < 10**9:
        raise bad("model_seq_id is missing or out of range.")
    return desk.sessions.get(owner, session_id), number


def _make(
    desk: Desk, session: Session, number: int, run: Run, promise: Promise, source: Checkpoint | None, optimizer: bool
) -> None:
    try:
        model = desk.sessions.add_model(session, number, run)
    except RequestError as error:
        promise.resolve(error)
        return

    async def work() -> Result:
        try:
            adapter = await desk.host.create(run.shape)
            if source is not None:
                await desk.host.read(desk.store.folder(source), adapter, optimizer)
            desk.store.add_run(run)
        except BaseException:
            session.models.pop(number, None)
            raise
        model.adapter = adapter
        if source is None:
            return Result(json_body({"model_id": run.id, "type": "create_model"}))
        return Result(json_body({"path": source.path, "model_id": run.id, "type": "load_weights"}))

    model.lane.submit(0, Job(promise, work))


def _load_into(desk: Desk, owner: str, request: Any, checkpoint: Checkpoint) -> dict[str, Json]:
    model = desk.sessions.model(owner, request.model_id or "")
    number = _number(request.seq_id)

    async def work(adapter: Adapter) -> Result:
        if number > 1 or (not number and model.lane.started):
            raise bad(LOAD_LATE.format(number=number))
        if checkpoint.run.shape.rank != model.run.rank or checkpoint.run.parts != model.run.parts:
            raise bad(f"{checkpoint.path} has rank {checkpoint.run.rank} and other layers than this model.")
        await desk.host.read(desk.store.folder(checkpoint), adapter, request.optimizer)
        return Result(json_body({"path": checkpoint.path, "model_id": model.run.id, "type": "load_weights"}))

    return _queue(desk, owner, model, number, "load_weights", work)


def _queue(desk: Desk, owner: str, model: Model, number: int, kind: str, work: Any) -> dict[str, Json]:
    """Give a request its place among those of its adapter."""
    key = (model.run.id, number) if number else None
    if desk.promises.known(owner, key) is None and model.lane.seen(number):
        raise RequestError(410, f"Request {number} was worked on, and its result was kept for its time.", "server")
    promise, new = desk.promises.open(owner, kind, key)
    if new:

        async def turn() -> Result:
            if model.adapter is None:
                raise bad("The model could not be made, so nothing can be done with it.")
            result: Result = await work(model.adapter)
            return result

        model.lane.submit(number, Job(promise, turn))
    return {"request_id": promise.id, "model_id": model.run.id}


def _number(seq_id: int | None) -> int:
    number = seq_id or 0
    if not 0 <= number < 2**31:
        raise bad("seq_id is out of range.")
    return number


def forward_backward(desk: Desk, owner: str, body: bytes) -> dict[str, Json]:
    """The loss of data and, unless it is only a forward pass, its gradient, which is added to the adapter's."""
    message = wire.read_forward_backward(body)
    model = desk.sessions.model(owner, message.model_id)
    number = _number(message.seq_id)
    backward = not message.forward_only

    async def work(adapter: Adapter) -> Result:
        try:
            loss = wire.loss_of(message)
            sizes = {"context": desk.host.context_length, "vocabulary": desk.host.vocab_size}
            data = wire.data_of(message, loss, **sizes, most_tokens=desk.config.max_batch_tokens)
            output = await desk.host.train(adapter, data, loss, backward)
        except Exception:
            if backward:
                await desk.host.discard(adapter)
                model.broken = f"forward_backward with seq_id {number} failed"
            raise
        return Result(wire.forward_backward_output(output), PROTOBUF)

    return _queue(desk, owner, model, number, "forward_backward", work)


def optim_step(desk: Desk, owner: str, body: bytes) -> dict[str, Json]:
    """Apply and clear the accumulated gradient."""
    request = wire.read_json(types.OptimStepRequest, body)
    model = desk.sessions.model(owner, request.model_id)

    async def work(adapter: Adapter) -> Result:
        broken, model.broken = model.broken, ""
        if broken:
            await desk.host.discard(adapter)
            raise bad(
                f"No step was taken, because {broken}: it would train on a part of the batch. The weights are as they "
                "were, and the next step begins with an empty gradient."
            )
        norm = await desk.host.step(adapter, _adam(request.optim_params))
        metrics = {"grad_norm": norm, "unclipped_grad_l2:mean": norm, "optimizer_step": float(adapter.steps)}
        return Result(json_body({"metrics": metrics, "type": "optim_step"}))

    return _queue(desk, owner, model, _number(request.seq_id), "optim_step", work)


def _adam(params: Any) -> AdamParams:
    if not isinstance(params, types.AdamParams):
        raise bad("The optimizer of this server is AdamW; give AdamParams.")
    values = {name: float(getattr(params, name)) for name in AdamParams.__slots__}
    if not all(math.isfinite(v) and v >= 0 for v in values.values()) or max(values["beta1"], values["beta2"]) >= 1:
        raise bad("AdamParams must be finite and not negative, and beta1 and beta2 less than 1.")
    return AdamParams(**values)


def _check_optimizer(config: Any) -> None:
    if config.type != "adamw":
        raise bad(f"The optimizer {str(config.type)[:40]!r} is not served; adamw is.")


def save_weights(desk: Desk, owner: str, body: bytes) -> dict[str, Json]:
    """Write an adapter with its optimizer."""
    request = wire.read_json(types.SaveWeightsRequest, body)
    model = desk.sessions.model(owner, request.model_id)

    async def work(adapter: Adapter) -> Result:
        name = check_name(request.path or f"{adapter.steps:06d}-{secrets.token_hex(3)}")
        about = (request.ttl_seconds, request.user_metadata)
        saved = await _save(desk, model, adapter, "weights", name, about, request.overwrite)
        return Result(json_body({"path": saved.path, "type": "save_weights"}))

    return _queue(desk, owner, model, _number(request.seq_id), "save_weights", work)


def save_weights_for_sampler(desk: Desk, owner: str, body: bytes) -> dict[str, Json]:
    """Write an adapter to sample from; or, without a name, keep a copy in memory for a sampling session."""
    request = wire.read_json(types.SaveWeightsForSamplerRequest, body)
    model = desk.sessions.model(owner, request.model_id)
    session = desk.sessions.get(owner, model.run.id.partition(":")[0])
    sampler_number = request.sampling_session_seq_id
    if request.path is None and (sampler_number is None or not 0 <= sampler_number < 10**9):
        raise bad("Give a path to save under, or sampling_session_seq_id for a sampler of its own.")

    async def work(adapter: Adapter) -> Result:
        weights = await desk.host.snapshot(adapter)
        if request.path is not None:
            about = (request.ttl_seconds, request.user_metadata)
            name = check_name(request.path)
            saved = await _save(desk, model, adapter, "sampler_weights", name, about, False)
            return Result(json_body({"path": saved.path, "type": "save_weights_for_sampler"}))
        assert sampler_number is not None
        name = f"{session.id}:sample:{sampler_number}"
        sampler = Sampler(name, owner, None, weights)
        if request.kind == "inflight":
            model.shared, sampler.follows = weights, model
        desk.sessions.add_sampler(session, sampler_number, sampler)
        return Result(json_body({"path": None, "sampling_session_id": name, "type": "save_weights_for_sampler"}))

    return _queue(desk, owner, model, _number(request.seq_id), "save_weights_for_sampler", work)


async def _save(
    desk: Desk,
    model: Model,
    adapter: Adapter,
    kind: Kind,
    name: str,
    about: tuple[int | None, Mapping[str, str] | None],
    overwrite: bool,
) -> Checkpoint:
    now, optimizer = desk.store.now(), kind == "weights"

    async def write(folder: Path) -> None:
        await desk.host.write(folder, adapter, optimizer)

    expires = expiry(about[0], now)
    new = Checkpoint(model.run, kind, name, now, 0, adapter.steps, optimizer, expires, False, _metadata(about[1]))
    return await desk.store.save(new, write, overwrite=overwrite)


def get_info(desk: Desk, owner: str, body: bytes) -> dict[str, Json]:
    """What an adapter is."""
    model = desk.sessions.model(owner, wire.read_json(types.GetInfoRequest, body).model_id)
    return {
        "type": "get_info",
        "model_data": {"model_name": desk.host.name, "tokenizer_id": desk.host.tokenizer_id},
        "model_id": model.run.id,
        "model_name": desk.host.name,
        "is_lora": True,
        "lora_rank": model.run.rank,
        "optimizer_config": {"type": "adamw"},
    }


def unload_model(desk: Desk, owner: str, body: bytes) -> dict[str, Json]:
    """Take an adapter out of memory."""
    model = desk.sessions.model(owner, wire.read_json(types.UnloadModelRequest, body).model_id)
    session_id, _, number = model.run.id.partition(":train:")
    promise, new = desk.promises.open(owner, "unload_model", ("unload", model.run.id))
    if new:
        model.lane.close(bad("The model was unloaded."))
        del desk.sessions.get(owner, session_id).models[int(number)]
        promise.resolve(Result(json_body({"model_id": model.run.id, "type": "unload_model"})))
    return {"request_id": promise.id, "model_id": model.run.id}


def _metadata(given: Mapping[str, Any] | None) -> Mapping[str, str] | None:
    """What a client notes of itself, as texts, of bounded size.

    Raises:
        RequestError: it is too large.
    """
    if given is None:
        return None
    texts = {str(k): v if isinstance(v, str) else str(v) for k, v in given.items()}
    if sum(len(k) + len(v) for k, v in texts.items()) > 65536:
        raise bad("user_metadata is too large; 65536 characters are taken.")
    return texts
