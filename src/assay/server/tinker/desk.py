"""What the handlers share: the model, the clients' sessions, the checkpoints, and the requests under way."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from assay.backends.local.adapters.layers import Weights
from assay.server.tinker.checkpoints import Checkpoint, CheckpointStore, missing
from assay.server.tinker.config import ServeConfig
from assay.server.tinker.errors import bad
from assay.server.tinker.futures import Promise, Promises
from assay.server.tinker.host import ModelHost
from assay.server.tinker.sessions import Sessions
from assay.storage.files import encode_json
from assay.types import Json

T = TypeVar("T")


def owner_of(key: str) -> str:
    """The owner of what is made with a key."""
    return hashlib.sha256(b"assay serve " + key.encode()).hexdigest()[:24]


class Desk:
    """The parts of the server."""

    def __init__(self, config: ServeConfig, host: ModelHost) -> None:
        """Take up what an earlier server left in `state_path`.

        Raises:
            RunDirectoryError: the folder cannot be used.
        """
        self.config = config
        self.host = host
        self.store = CheckpointStore(Path(config.state_path))
        self.sessions = Sessions(config)
        self.promises = Promises(config.result_s, config.max_requests, config.max_results_mb << 20)
        self._weights: WeakValueDictionary[tuple[str, float], Weights] = WeakValueDictionary()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._reading = asyncio.Lock()

    async def weights(self, checkpoint: Checkpoint) -> Weights:
        """What to sample from; those who sample from one checkpoint share it.

        Raises:
            CheckpointError: its files are damaged.
        """
        key = (checkpoint.path, checkpoint.created)
        held = self._weights.get(key)
        if held is None:
            read = await self.host.read_weights(self.store.folder(checkpoint), checkpoint.run.rank)
            held = self._weights.setdefault(key, read)
        return held

    async def off_loop(self, work: Callable[[], T]) -> T:
        """Do what reads or changes many files on a thread, one such work at a time, while the server goes on."""
        async with self._reading:
            return await asyncio.to_thread(work)

    def work(self, work: Coroutine[Any, Any, None], promise: Promise) -> None:
        """Work on a request side by side with others."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[promise.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(promise.id, None))

    def cancel(self, promise: Promise) -> None:
        """Give up on a request that is worked on so."""
        if promise.id in self._tasks:
            self._tasks[promise.id].cancel()

    def check_base(self, name: str) -> None:
        """Refuse another base model than the one that is served.

        Raises:
            RequestError: it is another.
        """
        if name != self.host.name:
            raise bad(f"base_model {name[:200]!r} is not served here; {self.host.name!r} is.")

    def checkpoint(self, owner: str, path: str, token: str | None = None) -> Checkpoint:
        """A checkpoint that a client may read.

        Args:
            token: another key whose checkpoint it is.

        Raises:
            RequestError: there is none, or it is somebody else's.
        """
        found = self.store.find(path)
        owners = {owner} if token is None else {owner, owner_of(token)}
        if found.run.owner not in owners and not found.public:
            raise missing(path)
        return found

    def own_checkpoint(self, owner: str, path: str) -> Checkpoint:
        """A checkpoint of a client, which it may change.

        Raises:
            RequestError: there is none, or it is somebody else's.
        """
        found = self.store.find(path)
        if found.run.owner != owner:
            raise missing(path)
        return found


def json_body(value: Json) -> bytes:
    """A JSON answer."""
    return encode_json(value)
