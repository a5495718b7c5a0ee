"""Requests about what is there: sessions, runs, checkpoints; and what may be done with checkpoints as files."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator, Mapping

from tinker import types

from assay.server.tinker import wire
from assay.server.tinker.checkpoints import SCHEME, Checkpoint, CheckpointStore, Run, expiry, stamp
from assay.server.tinker.desk import Desk
from assay.server.tinker.errors import RequestError, absent, bad
from assay.types import Json

MOST_LISTED = 1000
CHUNK = 1 << 20


def capabilities(desk: Desk) -> dict[str, Json]:
    """What is served."""
    model: Json = {
        "model_name": desk.host.name,
        "max_context_length": desk.host.context_length,
        "trainable": True,
        "sampleable": True,
    }
    return {"supported_models": [model]}


def create_session(desk: Desk, owner: str, body: bytes) -> dict[str, Json]:
    """A session for a client."""
    request = wire.read_json(types.CreateSessionRequest, body)
    if len(body) > 65536:
        raise bad("A session's metadata is too large; 65536 bytes are taken.")
    session = desk.sessions.open(owner, request.user_metadata, request.display_name)
    return {"type": "create_session", "session_id": session.id}


def heartbeat(desk: Desk, owner: str, body: bytes) -> dict[str, Json]:
    """A sign of life.

    Raises:
        RequestError: there is no such session; 410 where it is closed, at which the SDK sends no more.
    """
    session = desk.sessions.get(owner, wire.read_json(types.SessionHeartbeatRequest, body).session_id, active=False)
    if session.finished:
        raise RequestError(410, f"The session is closed ({session.finished}). Make a new ServiceClient.")
    session.beats = True
    return {"type": "session_heartbeat"}


def finish(desk: Desk, owner: str, session_id: str, body: bytes) -> dict[str, Json]:
    """Close a session; the first reason counts."""
    reason = wire.read_object(body).get("reason")
    kind = reason.get("type") if isinstance(reason, dict) else None
    if kind not in ("success", "errored", "interrupted"):
        raise bad("reason.type must be success, errored or interrupted.")
    desk.sessions.finish(desk.sessions.get(owner, session_id, active=False), f"its client ended it as {kind}")
    return {}


async def get_session(desk: Desk, owner: str, session_id: str) -> dict[str, Json]:
    """A session's adapters and samplers."""
    session = desk.sessions.get(owner, session_id, active=False)
    prefix = f"{session.id}:train:"
    metadata = session.user_metadata
    runs = await desk.off_loop(lambda: desk.store.runs_of(owner, prefix))
    return {
        "training_run_ids": [*runs],
        "sampler_ids": [s.id for s in session.samplers.values()],
        "user_metadata": None if not metadata else {k: str(v) for k, v in metadata.items()},
        "display_name": session.display_name,
    }


def list_sessions(desk: Desk, owner: str, query: Mapping[str, str]) -> dict[str, Json]:
    """A client's sessions."""
    offset, limit = page(query)
    return {"sessions": [s.id for s in desk.sessions.of(owner)][offset : offset + limit]}


async def list_runs(desk: Desk, owner: str, query: Mapping[str, str]) -> dict[str, Json]:
    """A client's runs."""
    offset, limit = page(query)
    live = _last_requests(desk)

    def read() -> dict[str, Json]:
        runs = desk.store.runs_of(owner)
        shown = [own_run(desk, owner, name) for name in runs[offset : offset + limit]]
        cursor: Json = {"offset": offset, "limit": limit, "total_count": len(runs)}
        return {"training_runs": [_run(desk.store, run, live) for run in shown], "cursor": cursor}

    return await desk.off_loop(read)


async def get_run(desk: Desk, owner: str, run_id: str) -> dict[str, Json]:
    """A run of a client."""
    live = _last_requests(desk)
    return await desk.off_loop(lambda: _run(desk.store, own_run(desk, owner, run_id), live))


def _last_requests(desk: Desk) -> dict[str, float]:
    """When each adapter in training had its last request."""
    return {model.run.id: model.last_request for model in desk.sessions.models}


def own_run(desk: Desk, owner: str, run_id: str) -> Run:
    """A run of a client.

    Raises:
        RequestError: there is none.
    """
    run = desk.store.run(run_id)
    if run is None or run.owner != owner:
        raise absent(f"There is no training run {run_id[:120]!r} of this key.")
    return run


def _run(store: CheckpointStore, run: Run, live: Mapping[str, float]) -> dict[str, Json]:
    saved = store.of_run(run)
    last = {kind: [c.to_json() for c in saved if c.kind == kind][-1:] for kind in ("weights", "sampler_weights")}
    return {
        "training_run_id": run.id,
        "base_model": run.base_model,
        "model_owner": run.owner,
        "is_lora": True,
        "lora_rank": run.rank,
        "corrupted": False,
        "last_request_time": stamp(live.get(run.id, run.created)),
        "last_checkpoint": last["weights"][0] if last["weights"] else None,
        "last_sampler_checkpoint": last["sampler_weights"][0] if last["sampler_weights"] else None,
        "user_metadata": None if run.user_metadata is None else dict(run.user_metadata),
    }


async def list_checkpoints(desk: Desk, owner: str, run_id: str) -> dict[str, Json]:
    """The checkpoints of a run."""
    found = await desk.off_loop(lambda: desk.store.of_run(own_run(desk, owner, run_id)))
    return {"checkpoints": [c.to_json() for c in found]}


async def list_all_checkpoints(desk: Desk, owner: str, query: Mapping[str, str]) -> dict[str, Json]:
    """All checkpoints of a client, newest first."""
    offset, limit = page(query)

    def read() -> list[Checkpoint]:
        runs = [own_run(desk, owner, name) for name in desk.store.runs_of(owner)]
        found = [c for run in runs for c in desk.store.of_run(run)]
        return sorted(found, key=lambda c: (-c.created, c.path))

    found = await desk.off_loop(read)
    cursor: Json = {"offset": offset, "limit": limit, "total_count": len(found)}
    return {"checkpoints": [c.to_json() for c in found[offset : offset + limit]], "cursor": cursor}


def page(query: Mapping[str, str]) -> tuple[int, int]:
    """Offset and limit of a list.

    Raises:
        RequestError: they are not numbers in range.
    """
    found = []
    for name, default, most in (("offset", "0", 10**9), ("limit", "20", MOST_LISTED)):
        text = query.get(name, default)
        if not text.isdecimal() or len(text) > 10 or int(text) > most:
            raise bad(f"{name}={text[:40]!r} must be a number from 0 to {most}.")
        found.append(int(text))
    return found[0], found[1]


def weights_info(desk: Desk, owner: str, body: bytes) -> dict[str, Json]:
    """What a checkpoint is of."""
    given = wire.read_object(body)
    token = given.get("weights_access_token")
    path = given.get("tinker_path")
    if not isinstance(path, str) or not (token is None or isinstance(token, str)):
        raise bad("tinker_path must be the path of a checkpoint.")
    run = desk.checkpoint(owner, path, token).run
    return {
        "base_model": run.base_model,
        "is_lora": True,
        "lora_rank": run.rank,
        "optimizer_config": {"type": "adamw"},
        **{f"train_{part}": part in run.parts for part in ("attn", "mlp", "unembed")},
    }


async def delete_checkpoint(desk: Desk, owner: str, path: str) -> dict[str, Json]:
    """Remove a checkpoint."""
    await desk.off_loop(lambda: desk.store.delete(desk.own_checkpoint(owner, path)))
    return {}


async def publish(desk: Desk, owner: str, path: str, public: bool) -> dict[str, Json]:
    """Let every key of this server read a checkpoint, or only its own again."""
    await desk.off_loop(lambda: desk.store.change(desk.own_checkpoint(owner, path), public=public))
    return {}


async def set_ttl(desk: Desk, owner: str, path: str, body: bytes) -> dict[str, Json]:
    """When a checkpoint expires, from now on."""
    ttl = wire.read_object(body).get("ttl_seconds")
    if ttl is not None and (not isinstance(ttl, int) or isinstance(ttl, bool)):
        raise bad("ttl_seconds must be a whole number, or null.")
    expires = expiry(ttl, desk.store.now())
    await desk.off_loop(lambda: desk.store.change(desk.own_checkpoint(owner, path), expires=expires))
    return {}


def path_of(run_id: str, checkpoint_id: str) -> str:
    """A checkpoint's path from the parts of an address."""
    return f"{SCHEME}{run_id}/{checkpoint_id}"


def archive(desk: Desk, checkpoint: Checkpoint) -> Iterator[bytes]:
    """A checkpoint as an uncompressed tar archive, piece by piece."""
    for file in desk.store.files(checkpoint):
        with open(file, "rb") as source:
            header = tarfile.TarInfo(file.name)
            header.size = source.seek(0, io.SEEK_END)
            header.mtime = int(checkpoint.created)
            source.seek(0)
            yield header.tobuf(tarfile.PAX_FORMAT)
            left = header.size
            while left and (piece := source.read(min(CHUNK, left))):
                left -= len(piece)
                yield piece
            yield bytes(-header.size % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)
