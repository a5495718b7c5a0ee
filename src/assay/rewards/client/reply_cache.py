"""Raw replies of judges, kept on disk by request: a `KeyedStore` whose values are replies."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

from assay.rewards.base import Reply
from assay.storage.keyed_store import KeyedStore, default_path
from assay.storage.sqlite_file import Contents

REPLIES = Contents(
    store="reply cache",
    items="replies",
    made_again="asked and paid for again",
    cure="choose another place with cache_path=..., or do without with cache=false",
)

_JSON = json.JSONDecoder()
_FIELDS = (str, str, str, int, int)


def default_cache_path() -> Path:
    """The user's own reply cache: `rewards.sqlite` in the user's cache folder.

    Raises:
        CacheError: no such folder is known.
    """
    return default_path("rewards.sqlite")


@dataclass(frozen=True, slots=True)
class StoredReply:
    """What is kept of a reply: what the judge said, and the tokens that it was billed for."""

    text: str
    finish_reason: str = "stop"
    model: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @classmethod
    def of(cls, reply: Reply) -> StoredReply:
        """What is to be kept of `reply`."""
        usage = reply.usage
        return cls(reply.text, reply.finish_reason, reply.model, usage.prompt_tokens, usage.completion_tokens)

    def reply(self) -> Reply:
        """The stored reply, at no cost."""
        return Reply(text=self.text, finish_reason=self.finish_reason, model=self.model, cached=True)

    def encoded(self) -> bytes:
        """As JSON in UTF-8."""
        fields = [self.text, self.finish_reason, self.model, self.prompt_tokens, self.completion_tokens]
        try:
            return json.dumps(fields, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            return json.dumps(fields).encode()  # Half of a surrogate pair, which JSON may hold but UTF-8 may not.

    @classmethod
    def decoded(cls, value: bytes) -> StoredReply | None:
        """Inverse of `encoded`; None for anything else."""
        try:
            fields = _JSON.raw_decode(value.decode())[0]
        except (ValueError, RecursionError):
            return None
        good = isinstance(fields, list) and tuple(map(type, fields)) == _FIELDS
        return cls(*fields) if good else None


class ReplyCache:
    """Replies by key, for one event loop or one thread. See `KeyedStore` for what happens when the disk fails."""

    def __init__(self, path: Path, max_mb: int) -> None:
        """Open the file, making it and its folder if needed; `max_mb` bounds its size (1 MB is 10**6 bytes).

        Raises:
            CacheError: it can neither be opened nor replaced by a new one.
        """
        self._store = KeyedStore(path, max_mb, REPLIES)
        self._rows: list[tuple[str, bytes]] = []
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def path(self) -> Path:
        """The file."""
        return self._store.path

    @property
    def write_failures(self) -> int:
        """Writes that did not reach the disk at once."""
        return self._store.write_failures

    def get(self, key: str) -> StoredReply | None:
        """The stored reply, or None."""
        value = self._store.get(key)
        return None if value is None else StoredReply.decoded(value)

    async def keep(self, key: str, reply: StoredReply) -> None:
        """Store a reply; returns once it would survive the death of this process, or the disk has refused it.

        All that come in one turn of the event loop share one transaction, which takes microseconds and so is not
        worth a thread.
        """
        loop = asyncio.get_running_loop()
        if not self._rows:
            loop.call_soon(self._flush)
        self._rows.append((key, reply.encoded()))
        written = loop.create_future()
        self._waiters.append(written)
        await written

    def drop(self, key: str) -> None:
        """Forget a stored reply."""
        self._store.drop(key)

    def close(self) -> None:
        """Write what waits and close the file; safe to call twice. Afterwards it finds and stores nothing."""
        self._flush()
        self._store.close()

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        waiters, self._waiters = self._waiters, []
        try:
            if rows:
                self._store.put(rows)
        finally:  # a reply that could not be stored is still a reply
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
