"""Clients' sessions, the adapters that they train and the weights that they sample from, and who may use which.

Sessions, and samplers of saved weights, are noted on disk and are there again after a restart. An adapter in training
is not: its client is told so, and goes on from its last saved state.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from assay.backends.local.adapters.bank import Adapter
from assay.backends.local.adapters.layers import Weights
from assay.server.tinker.checkpoints import Run
from assay.server.tinker.config import STATE, ServeConfig
from assay.server.tinker.errors import RequestError, absent, bad
from assay.server.tinker.lanes import Lane
from assay.storage.files import Writing, read_object, remove, replace_file
from assay.types import Json

_ID = re.compile(r"[0-9a-f]{16}")
CLOSED_REASON = "The session of this adapter was closed: {why}. What was saved is kept; make a new client from it."


@dataclass
class Model:
    """An adapter in training."""

    run: Run
    lane: Lane
    adapter: Adapter | None = None
    """None until it was made."""
    broken: str = ""
    """Why the gradient that the next step would take is not whole; empty where it is."""
    last_request: float = field(default_factory=time.time)
    shared: Weights | None = None
    """What `inflight` samplers of this adapter sample from."""


@dataclass
class Sampler:
    """What a sampling session samples from."""

    id: str
    owner: str
    path: str | None = None
    """The checkpoint; None where it is the base model, or weights that were never saved."""
    weights: Weights | None = None
    base: bool = False
    follows: Model | None = None
    """The adapter whose newest published weights it samples from."""
    last_used: float = field(default_factory=time.monotonic)
    clients: int = 0
    """Further clients that have joined it."""


@dataclass
class Session:
    """A client."""

    id: str
    owner: str
    created: float
    user_metadata: Mapping[str, Json] | None = None
    display_name: str | None = None
    models: dict[int, Model] = field(default_factory=dict)
    samplers: dict[int, Sampler] = field(default_factory=dict)
    last_sign: float = field(default_factory=time.monotonic)
    beats: bool = False
    """Whether its client sends heartbeats, so that their absence means something."""
    finished: str = ""


class Sessions:
    """All sessions of the server."""

    def __init__(self, config: ServeConfig) -> None:
        """Read the sessions that an earlier server left.

        Raises:
            RunDirectoryError: the folder cannot be made.
        """
        self._config = config
        self._root = Path(config.state_path) / "sessions"
        with Writing(self._root, "sessions", home=STATE):
            self._root.mkdir(parents=True, exist_ok=True)
        self._by_id: dict[str, Session] = {}
        for file in sorted(self._root.glob("*.json")):
            if (session := _session(file)) is not None:
                self._by_id[session.id] = session

    def __len__(self) -> int:
        return sum(not s.finished for s in self._by_id.values())

    @property
    def models(self) -> list[Model]:
        """All adapters in training."""
        return [m for s in self._by_id.values() for m in s.models.values()]

    def open(self, owner: str, user_metadata: Mapping[str, Json] | None, display_name: str | None) -> Session:
        """A new session.

        Raises:
            RequestError: there are too many.
            RunDirectoryError: it cannot be noted, and is not there then.
        """
        if len(self) >= self._config.max_sessions:
            raise RequestError(429, f"{len(self)} sessions are open already (max_sessions).", "server")
        session = Session(secrets.token_hex(8), owner, time.time(), user_metadata, display_name)
        self.note(session)  # first: where the disk is full, clients try again, and each try would take up a place
        self._by_id[session.id] = session
        return session

    def of(self, owner: str) -> list[Session]:
        """A client's sessions, newest first."""
        return sorted((s for s in self._by_id.values() if s.owner == owner), key=lambda s: -s.created)

    def get(self, owner: str, session_id: str, *, active: bool = True) -> Session:
        """A session of a client.

        Raises:
            RequestError: there is none, or it is closed.
        """
        session = self._by_id.get(session_id)
        if session is None or session.owner != owner:
            raise absent(f"There is no session {session_id[:80]!r} of this key. Make a new ServiceClient.")
        if active and session.finished:
            raise bad(f"The session is closed ({session.finished}). Make a new ServiceClient.")
        session.last_sign = time.monotonic()
        return session

    def model(self, owner: str, model_id: str) -> Model:
        """An adapter of a client, by its name.

        Raises:
            RequestError: there is none, or it was lost with an earlier server.
        """
        session_id, _, number = model_id.partition(":train:")
        session = self._by_id.get(session_id)
        if session is None or session.owner != owner:
            raise absent(f"There is no model {model_id[:120]!r} of this key.")
        if session.finished:
            raise bad(CLOSED_REASON.format(why=session.finished))
        model = session.models.get(int(number)) if number.isdecimal() and len(number) < 10 else None
        if model is None:
            raise absent(
                f"The model {model_id[:120]} is not in memory: it was never made, or the server was started again. "
                "Make a new client from its last saved state (create_training_client_from_state_with_optimizer)."
            )
        session.last_sign = time.monotonic()
        model.last_request = time.time()
        return model

    def add_model(self, session: Session, number: int, run: Run) -> Model:
        """A place for a new adapter.

        Raises:
            RequestError: there are too many; or there is one of this number, whose place nothing takes.
        """
        if number in session.models:
            raise RequestError(410, f"Model {number} was made, and the answer to that was kept for its time.", "server")
        if len(self.models) >= self._config.max_models:
            raise RequestError(
                429, f"{len(self.models)} models are in training (max_models). Close a client first.", "server"
            )
        model = Model(run, Lane(self._config.missing_s))
        session.models[number] = model
        return model

    def sampler(self, owner: str, sampler_id: str) -> Sampler:
        """What a sampling session of a client samples from.

        Raises:
            RequestError: there is none (any more).
        """
        session_id, _, number = sampler_id.partition(":sample:")
        session = self._by_id.get(session_id)
        if session is None or session.owner != owner:
            raise absent(f"There is no sampling session {sampler_id[:120]!r} of this key.")
        if session.finished:
            raise bad(f"The session is closed ({session.finished}). Make a new ServiceClient.")
        sampler = session.samplers.get(int(number)) if number.isdecimal() and len(number) < 10 else None
        if sampler is None:
            raise absent(
                f"The weights of the sampling session {sampler_id[:120]} are not in memory: newer ones took their "
                "place (max_samplers), or the server was started again. Save them for a sampler again."
            )
        session.last_sign = sampler.last_used = time.monotonic()
        return sampler

    def add_sampler(self, session: Session, number: int, sampler: Sampler) -> None:
        """Add weights to sample from; those that were unused for longest go, where there are too many."""
        session.samplers[number] = sampler
        held = [n for n, s in session.samplers.items() if s.weights is not None]
        for old in sorted(held, key=lambda n: session.samplers[n].last_used)[: -self._config.max_samplers]:
            if session.samplers[old].path is None:
                del session.samplers[old]
            else:
                session.samplers[old].weights = None  # read again when it is asked
        self.note(session)

    def finish(self, session: Session, why: str) -> None:
        """Close a session; what it has in memory goes."""
        if session.finished:
            return
        session.finished = why
        for model in session.models.values():
            model.lane.close(bad(CLOSED_REASON.format(why=why)))
        session.models.clear()
        session.samplers.clear()
        remove(self._root / f"{session.id}.json")

    def excuse(self, seconds: float) -> None:
        """Leave out of account a time in which the server itself stood still and could hear nobody."""
        for session in self._by_id.values():
            session.last_sign += seconds

    def sweep(self, now: float) -> None:
        """Close sessions that gave no sign of life, forget closed ones, and see to requests that wait in vain."""
        for session in list(self._by_id.values()):
            if session.finished:
                if now - session.last_sign > self._config.session_idle_s:
                    del self._by_id[session.id]
                continue
            if any(model.lane.busy for model in session.models.values()):
                session.last_sign = now  # what it asked for is still being done
            elif why := self._silence(session, now - session.last_sign):
                self.finish(session, why)
            for model in session.models.values():
                model.lane.check_gap(now)

    def _silence(self, session: Session, seconds: float) -> str:
        """Why a session that gave no sign of life for some time is over; empty where it is not."""
        beat, idle = self._config.heartbeat_timeout_s, self._config.session_idle_s
        if session.beats:
            return f"no heartbeat for {beat:g} s (heartbeat_timeout_s)" if seconds > beat else ""
        return f"no sign of life for {idle:g} s" if seconds > idle else ""

    def note(self, session: Session) -> None:
        """Write down what outlives the server."""
        record: dict[str, Json] = {
            "id": session.id,
            "owner": session.owner,
            "created": session.created,
            "user_metadata": None if session.user_metadata is None else dict(session.user_metadata),
            "display_name": session.display_name,
            "samplers": {str(n): s.path for n, s in session.samplers.items() if s.base or s.path is not None},
        }
        replace_file(self._root / f"{session.id}.json", json.dumps(record).encode(), durable=False, home=STATE)


def _session(file: Path) -> Session | None:
    record = read_object(file)
    if record is None or not _ID.fullmatch(str(record.get("id"))):
        return None
    samplers = record.pop("samplers", None)
    try:
        session = Session(**record)
    except TypeError:
        return None
    for number, path in (samplers if isinstance(samplers, dict) else {}).items():
        if number.isdecimal() and (path is None or isinstance(path, str)):
            name = f"{session.id}:sample:{number}"
            session.samplers[int(number)] = Sampler(name, session.owner, path, base=path is None)
    return session
