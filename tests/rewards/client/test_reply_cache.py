"""Replies as a keyed store keeps them: the same again, free of charge, and read from files of older versions."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import zlib
from pathlib import Path

import pytest

from assay.errors import CacheError
from assay.rewards.base import Reply, Usage
from assay.rewards.client.reply_cache import ReplyCache, StoredReply
from assay.storage.keyed_store import KeyedStore


@pytest.mark.parametrize("text", ["", "\0", "é 漢字 🙂", "\ud83d alone", '"\\\n', "x" * 3_000_000])
def test_any_text_comes_back_as_it_was(tmp_path: Path, text: str) -> None:
    stored = StoredReply(text, "length", "m/漢", 2**40, 0)
    cache = ReplyCache(tmp_path / "rewards.sqlite", 10)
    asyncio.run(cache.keep("key", stored))
    assert cache.get("key") == stored
    cache.close()


def test_a_stored_reply_costs_nothing_again() -> None:
    paid = Reply("True", "stop", "judge-1", Usage(2, 30, 4, 0.01), attempts=2, latency_s=1.5)
    stored = StoredReply.of(paid)
    assert stored == StoredReply("True", "stop", "judge-1", 30, 4)
    assert stored.reply() == Reply("True", "stop", "judge-1", Usage(), cached=True, attempts=1, latency_s=0.0)


VALUES = [b"", b"no json", b"\xff", b"3", b"{}", b"[]", b'["a", "stop", "m", 1]', b'["a", "stop", "m", 1, "2"]']


@pytest.mark.parametrize("value", VALUES)
def test_what_is_no_reply_counts_as_none(value: bytes) -> None:
    assert StoredReply.decoded(value) is None


def test_replies_of_one_turn_share_a_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    put = KeyedStore.put

    def counted(store: KeyedStore, rows: list[tuple[str, bytes]]) -> bool:
        sizes.append(len(rows))
        return put(store, rows)

    monkeypatch.setattr(KeyedStore, "put", counted)
    path = tmp_path / "rewards.sqlite"
    cache = ReplyCache(path, 10)

    async def body() -> None:
        await asyncio.gather(*(cache.keep(str(n), StoredReply(str(n))) for n in range(20)))
        other = ReplyCache(path, 10)
        assert [other.get(str(n)) for n in range(20)] == [StoredReply(str(n)) for n in range(20)], (
            "handed out too early"
        )
        other.close()
        await cache.keep("20", StoredReply("20"))
        waiting = asyncio.ensure_future(cache.keep("21", StoredReply("21")))
        await asyncio.sleep(0)
        cache.drop("0")
        await waiting

    asyncio.run(body())
    cache.close()
    assert sizes == [20, 1, 1]
    again = ReplyCache(path, 10)
    assert (again.get("0"), again.get("21")) == (None, StoredReply("21"))
    again.close()


def test_a_file_of_an_older_version_is_still_read(tmp_path: Path) -> None:
    """What was paid for stays paid for: the file as it was made before replies shared their store with other things."""
    path = tmp_path / "rewards.sqlite"
    body = json.dumps(["True", "stop", "judge-1", 30, 4]).encode()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA application_id = 1095979609")
        db.execute("PRAGMA user_version = 1")
        db.execute(
            "CREATE TABLE replies "
            "(id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, reply BLOB NOT NULL, checksum INTEGER NOT NULL)"
        )
        db.execute("INSERT INTO replies VALUES (1, 'key', ?, ?)", (body, zlib.crc32(b"key" + body)))
    db.close()
    cache = ReplyCache(path, 10)
    assert cache.get("key") == StoredReply("True", "stop", "judge-1", 30, 4)
    cache.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["rewards.sqlite", "rewards.sqlite.lock"]


def test_where_there_can_be_no_cache_the_settings_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CacheError, match=r"(?s)reply cache .*cannot be opened.*cache_path=.*cache=false"):
        ReplyCache(tmp_path / "file" / "rewards.sqlite", 10)
