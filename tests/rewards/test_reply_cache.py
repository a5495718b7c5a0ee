"""Replies kept on disk: found again, bounded in size, shared by processes, and there after a kill."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from assay.errors import CacheError
from assay.rewards import cache as cache_module
from assay.rewards.base import Reply, Usage
from assay.rewards.cache import ReplyCache, StoredReply, default_cache_path
from support.stored_replies import key, output, program, reply, rows


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "rewards.sqlite"


def disk_bytes(path: Path) -> int:
    with sqlite3.connect(path) as db:
        return int(db.execute("PRAGMA page_count").fetchone()[0]) * int(db.execute("PRAGMA page_size").fetchone()[0])


def test_what_was_put_is_found_again_by_the_next_run(path: Path) -> None:
    first = ReplyCache(path, 10)
    assert first.put(rows(range(3))) is True
    assert first.get(key(1)) == reply(1)
    first.close()
    second = ReplyCache(path, 10)
    assert [second.get(key(n)) for n in range(4)] == [reply(0), reply(1), reply(2), None]
    assert len(second) == 3
    second.close()


@pytest.mark.parametrize("text", ["", "\0", "é 漢字 🙂", "\ud83d alone", '"\\\n', "x" * 3_000_000])
def test_any_text_comes_back_as_it_was(path: Path, text: str) -> None:
    cache = ReplyCache(path, 10)
    stored = StoredReply(text, "length", "m/漢", 2**40, 0)
    assert cache.put([(key(0), stored)])
    assert cache.get(key(0)) == stored
    assert cache.get_many([key(0)]) == {key(0): stored}
    cache.close()


def test_a_later_put_replaces_and_drop_forgets(path: Path) -> None:
    cache = ReplyCache(path, 10)
    cache.put(rows(range(2)))
    cache.put([(key(0), reply(9)), (key(1), reply(8)), (key(1), reply(7))])
    assert (cache.get(key(0)), cache.get(key(1))) == (reply(9), reply(7))
    cache.drop(key(0))
    cache.drop("never stored")
    assert (cache.get(key(0)), cache.get(key(1)), len(cache)) == (None, reply(7), 1)
    cache.close()


def test_many_are_found_at_once(path: Path) -> None:
    cache = ReplyCache(path, 10)
    cache.put(rows(range(1300), chars=20))
    wanted = [key(n) for n in range(200, 1400)]
    assert cache.get_many([*wanted, wanted[0]]) == dict(rows(range(200, 1300), chars=20))
    assert cache.get_many([]) == {}
    cache.close()


def test_a_stored_reply_costs_nothing_again() -> None:
    paid = Reply("True", "stop", "judge-1", Usage(2, 30, 4, 0.01), attempts=2, latency_s=1.5)
    stored = StoredReply.of(paid)
    assert stored == StoredReply("True", "stop", "judge-1", 30, 4)
    assert stored.reply() == Reply("True", "stop", "judge-1", Usage(), cached=True, attempts=1, latency_s=0.0)


def test_after_closing_nothing_is_found_or_stored_and_nothing_raises(path: Path) -> None:
    cache = ReplyCache(path, 10)
    cache.put(rows(range(1)))
    cache.close()
    cache.close()
    assert cache.get(key(0)) is None
    assert cache.get_many([key(0)]) == {}
    assert cache.put(rows(range(1, 2))) is False
    assert (cache.get(key(1)), len(cache), cache.write_failures, cache.lost) == (None, 0, 1, 1)


def test_the_size_bound_holds_and_the_newest_stay(path: Path) -> None:
    cache = ReplyCache(path, 1)
    for start in range(0, 6000, 50):
        cache.put(rows(range(start, start + 50)))
        assert cache.evicted + len(cache) == start + 50
    assert disk_bytes(path) < 1_250_000
    kept = [n for n in range(6000) if cache.get(key(n)) is not None]
    assert kept == list(range(6000 - len(kept), 6000))
    assert len(kept) * 400 > 0.5 * 1_000_000, "the bound should be used, not only kept"
    cache.close()


def test_what_is_read_now_and_then_stays(path: Path) -> None:
    cache = ReplyCache(path, 1)
    cache.put(rows(range(100)))
    for start in range(100, 8000, 50):
        cache.put(rows(range(start, start + 50)))
        if start % 400 == 0:
            assert cache.get(key(7)) == reply(7), f"lost after {start} replies"
    assert cache.get(key(8)) is None
    cache.close()


def test_a_read_is_remembered_by_the_next_process(path: Path) -> None:
    cache = ReplyCache(path, 1)
    cache.put(rows(range(1200)))
    cache.close()
    reader = ReplyCache(path, 1)
    for number in range(20):
        assert reader.get(key(number)) is not None
    reader.close()
    writer = ReplyCache(path, 1)
    for start in range(10_000, 20_000, 100):
        if writer.evicted >= 400:
            break
        writer.put(rows(range(start, start + 100)))
    assert all(writer.get(key(n)) is not None for n in range(20))
    assert writer.get(key(21)) is None
    writer.close()


def test_a_smaller_bound_shrinks_the_file(path: Path) -> None:
    cache = ReplyCache(path, 100)
    cache.put(rows(range(10_000)))
    cache.close()
    before = disk_bytes(path)
    smaller = ReplyCache(path, 1)
    for number in range(10_000, 10_010):
        smaller.put(rows(range(number, number + 1)))
    smaller.close()
    assert before > 4_000_000
    assert disk_bytes(path) < 1_300_000


def test_jumps_of_the_clock_change_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [2e9]
    monkeypatch.setattr(time, "time", lambda: now[0])
    monkeypatch.setattr(time, "time_ns", lambda: int(now[0] * 1e9))
    cache = ReplyCache(path, 1)
    for start in range(0, 4000, 50):
        now[0] += -1e9 if start % 100 else 1e9 + 7
        cache.put(rows(range(start, start + 50)))
    kept = [n for n in range(4000) if cache.get(key(n)) is not None]
    assert kept == list(range(4000 - len(kept), 4000))
    cache.close()


def test_nothing_that_was_acknowledged_is_lost_in_a_kill(path: Path) -> None:
    for round_number in range(3):
        writer = program(
            """
cache = ReplyCache(path, 100)
number = int(sys.argv[2])
while True:
    assert cache.put(rows(range(number, number + 5)))
    number += 5
    print(number, flush=True)
""",
            path,
            round_number * 1_000_000,
        )
        assert writer.stdout is not None
        for _ in range(40):
            writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        out, _ = writer.communicate(timeout=30)
        acknowledged = int(out.split("\n")[-2]) if out.count("\n") > 1 else round_number * 1_000_000 + 200
        cache = ReplyCache(path, 100)
        wanted = rows(range(round_number * 1_000_000, acknowledged))
        assert len(wanted) >= 200
        assert cache.get_many([k for k, _ in wanted]) == dict(wanted)
        cache.close()
    assert [p.name for p in path.parent.glob("*-1")] == []


def test_eight_processes_write_and_read_one_file(path: Path) -> None:
    code = """
cache = ReplyCache(path, 100)
me = int(sys.argv[2])
for start in range(0, 200, 10):
    cache.put(rows(range(1000 * me + start, 1000 * me + start + 10)))
    for other in range(8):
        found = cache.get(key(1000 * other + start))
        assert found is None or found == reply(1000 * other + start)
cache.close()
print(cache.lost)
"""
    outputs = [output(p) for p in [program(code, path, me) for me in range(8)]]
    assert outputs == ["0\n"] * 8
    cache = ReplyCache(path, 100)
    assert len(cache) == 8 * 200
    cache.close()


def test_a_file_that_was_deleted_meanwhile_is_made_again(path: Path) -> None:
    cache = ReplyCache(path, 10)
    cache.put(rows(range(2)))
    for file in path.parent.iterdir():
        file.unlink()
    assert cache.put(rows(range(2, 4)))
    cache.close()
    again = ReplyCache(path, 10)
    assert [again.get(key(n)) for n in range(4)] == [None, None, reply(2), reply(3)]
    again.close()


def test_the_default_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert default_cache_path() == Path("/caches/assay/rewards.sqlite")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert default_cache_path() == Path("/home/someone/.cache/assay/rewards.sqlite")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache_path() == Path("/home/someone/.cache/assay/rewards.sqlite")

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(CacheError, match="cache_path"):
        default_cache_path()


def test_a_link_leads_to_the_file_itself(path: Path, tmp_path: Path) -> None:
    cache = ReplyCache(path, 10)
    cache.put(rows(range(1)))
    link = tmp_path / "link.sqlite"
    os.symlink(path, link)
    linked = ReplyCache(link, 10)
    assert linked.get(key(0)) == reply(0)
    linked.put(rows(range(1, 2)))
    assert cache.get(key(1)) == reply(1)
    linked.close()
    cache.close()


def test_uses_are_written_before_they_take_much_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "MAX_TOUCHED", 10)
    cache = ReplyCache(path, 1)
    cache.put(rows(range(1200)))
    for number in range(25):
        cache.get(key(number))
    with sqlite3.connect(path) as db:
        (ids,) = db.execute("SELECT count(*) FROM replies WHERE id > 1200").fetchone()
    assert ids == 20
    cache.close()
