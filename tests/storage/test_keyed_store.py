"""Values kept on disk: found again, bounded in size, shared by processes, and there after a kill."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from assay.errors import CacheError
from assay.storage import keyed_store
from assay.storage.keyed_store import default_path
from support.stored_values import found, key, open_store, output, program, rows, value


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "things.sqlite"


def disk_bytes(path: Path) -> int:
    with sqlite3.connect(path) as db:
        return int(db.execute("PRAGMA page_count").fetchone()[0]) * int(db.execute("PRAGMA page_size").fetchone()[0])


def test_what_was_put_is_found_again_by_the_next_run(path: Path) -> None:
    first = open_store(path)
    assert first.put(rows(range(3))) is True
    assert first.get(key(1)) == value(1)
    first.close()
    second = open_store(path)
    assert [second.get(key(n)) for n in range(4)] == [value(0), value(1), value(2), None]
    assert len(second) == 3
    second.close()


@pytest.mark.parametrize("stored", [b"", b"\0", bytes(range(256)), b"x" * 3_000_000])
def test_any_bytes_come_back_as_they_were(path: Path, stored: bytes) -> None:
    store = open_store(path)
    assert store.put([(key(0), stored)])
    assert store.get(key(0)) == stored
    store.close()


def test_a_later_put_replaces_and_drop_forgets(path: Path) -> None:
    store = open_store(path)
    store.put(rows(range(2)))
    store.put([(key(0), value(9)), (key(1), value(8)), (key(1), value(7))])
    assert (store.get(key(0)), store.get(key(1))) == (value(9), value(7))
    store.drop(key(0))
    store.drop("never stored")
    assert (store.get(key(0)), store.get(key(1)), len(store)) == (None, value(7), 1)
    store.close()


def test_after_closing_nothing_is_found_or_stored_and_nothing_raises(path: Path) -> None:
    store = open_store(path)
    store.put(rows(range(1)))
    store.close()
    store.close()
    assert store.get(key(0)) is None
    assert store.put(rows(range(1, 2))) is False
    assert (store.get(key(1)), len(store), store.write_failures, store.lost) == (None, 0, 1, 1)


def test_the_size_bound_holds_and_the_newest_stay(path: Path) -> None:
    store = open_store(path, 1)
    for start in range(0, 6000, 50):
        store.put(rows(range(start, start + 50)))
        assert store.evicted + len(store) == start + 50
    assert disk_bytes(path) < 1_250_000
    kept = [n for n in range(6000) if store.get(key(n)) is not None]
    assert kept == list(range(6000 - len(kept), 6000))
    assert len(kept) * 400 > 0.5 * 1_000_000, "the bound should be used, not only kept"
    store.close()


def test_what_is_read_now_and_then_stays(path: Path) -> None:
    store = open_store(path, 1)
    store.put(rows(range(100)))
    for start in range(100, 8000, 50):
        store.put(rows(range(start, start + 50)))
        if start % 400 == 0:
            assert store.get(key(7)) == value(7), f"lost after {start} replies"
    assert store.get(key(8)) is None
    store.close()


def test_a_read_is_remembered_by_the_next_process(path: Path) -> None:
    store = open_store(path, 1)
    store.put(rows(range(1200)))
    store.close()
    reader = open_store(path, 1)
    for number in range(20):
        assert reader.get(key(number)) is not None
    reader.close()
    writer = open_store(path, 1)
    for start in range(10_000, 20_000, 100):
        if writer.evicted >= 400:
            break
        writer.put(rows(range(start, start + 100)))
    assert all(writer.get(key(n)) is not None for n in range(20))
    assert writer.get(key(21)) is None
    writer.close()


def test_a_smaller_bound_shrinks_the_file(path: Path) -> None:
    store = open_store(path, 100)
    store.put(rows(range(10_000)))
    store.close()
    before = disk_bytes(path)
    smaller = open_store(path, 1)
    for number in range(10_000, 10_010):
        smaller.put(rows(range(number, number + 1)))
    smaller.close()
    assert before > 4_000_000
    assert disk_bytes(path) < 1_300_000


def test_jumps_of_the_clock_change_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [2e9]
    monkeypatch.setattr(time, "time", lambda: now[0])
    monkeypatch.setattr(time, "time_ns", lambda: int(now[0] * 1e9))
    store = open_store(path, 1)
    for start in range(0, 4000, 50):
        now[0] += -1e9 if start % 100 else 1e9 + 7
        store.put(rows(range(start, start + 50)))
    kept = [n for n in range(4000) if store.get(key(n)) is not None]
    assert kept == list(range(4000 - len(kept), 4000))
    store.close()


def test_nothing_that_was_acknowledged_is_lost_in_a_kill(path: Path) -> None:
    for round_number in range(3):
        writer = program(
            """
store = open_store(path, 100)
number = int(sys.argv[2])
while True:
    assert store.put(rows(range(number, number + 5)))
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
        store = open_store(path, 100)
        wanted = rows(range(round_number * 1_000_000, acknowledged))
        assert len(wanted) >= 200
        assert found(store, range(round_number * 1_000_000, acknowledged)) == dict(wanted)
        store.close()
    assert [p.name for p in path.parent.glob("*-1")] == []


def test_eight_processes_write_and_read_one_file(path: Path) -> None:
    code = """
store = open_store(path, 100)
me = int(sys.argv[2])
for start in range(0, 200, 10):
    store.put(rows(range(1000 * me + start, 1000 * me + start + 10)))
    for other in range(8):
        found = store.get(key(1000 * other + start))
        assert found is None or found == value(1000 * other + start)
store.close()
print(store.lost)
"""
    outputs = [output(p) for p in [program(code, path, me) for me in range(8)]]
    assert outputs == ["0\n"] * 8
    store = open_store(path, 100)
    assert len(store) == 8 * 200
    store.close()


def test_a_file_that_was_deleted_meanwhile_is_made_again(path: Path) -> None:
    store = open_store(path)
    store.put(rows(range(2)))
    for file in path.parent.iterdir():
        file.unlink()
    assert store.put(rows(range(2, 4)))
    store.close()
    again = open_store(path)
    assert [again.get(key(n)) for n in range(4)] == [None, None, value(2), value(3)]
    again.close()


def test_the_default_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert default_path("things.sqlite") == Path("/caches/assay/things.sqlite")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert default_path("things.sqlite") == Path("/home/someone/.cache/assay/things.sqlite")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_path("things.sqlite") == Path("/home/someone/.cache/assay/things.sqlite")

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(CacheError, match="cache_path"):
        default_path("things.sqlite")


def modes(folder: Path) -> dict[str, str]:
    return {file.name: oct(file.stat().st_mode & 0o777) for file in folder.iterdir()}


def test_only_its_owner_may_read_what_is_made(path: Path) -> None:
    before = os.umask(0o022)
    try:
        store = open_store(path)
        store.put(rows(range(1)))
        assert modes(path.parent) == dict.fromkeys(
            ["things.sqlite", "things.sqlite-wal", "things.sqlite-shm", "things.sqlite.lock"], "0o600"
        )
        store.close()
        path.chmod(0o640)
        open_store(path).close()
        assert modes(path.parent)["things.sqlite"] == "0o600", "also a file that was open to others"
    finally:
        os.umask(before)


def test_a_link_leads_to_the_file_itself(path: Path, tmp_path: Path) -> None:
    store = open_store(path)
    store.put(rows(range(1)))
    link = tmp_path / "link.sqlite"
    os.symlink(path, link)
    linked = open_store(link)
    assert linked.get(key(0)) == value(0)
    linked.put(rows(range(1, 2)))
    assert store.get(key(1)) == value(1)
    linked.close()
    store.close()


def test_uses_are_written_before_they_take_much_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed_store, "MAX_TOUCHED", 10)
    store = open_store(path, 1)
    store.put(rows(range(1200)))
    for number in range(25):
        store.get(key(number))
    with sqlite3.connect(path) as db:
        (ids,) = db.execute("SELECT count(*) FROM replies WHERE id > 1200").fetchone()
    assert ids == 20
    store.close()
