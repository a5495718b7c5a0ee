"""A cache file that is damaged, foreign, locked, forbidden, or on a full disk: said once, survived, nothing deleted."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import CacheError
from assay.rewards import cache as cache_module
from assay.rewards import cache_file
from assay.rewards.cache import ReplyCache
from support.stored_replies import key, output, program, reply, rows

STORED = 300


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rewards.sqlite"


@pytest.fixture
def full(path: Path) -> Path:
    """A closed cache file with `STORED` replies."""
    cache = ReplyCache(path, 10)
    cache.put(rows(range(STORED)))
    cache.close()
    return path


@pytest.fixture(scope="module")
def full_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("full") / "rewards.sqlite"
    cache = ReplyCache(path, 10)
    cache.put(rows(range(STORED)))
    cache.close()
    return path.read_bytes()


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_file, "BUSY_TIMEOUT_S", 0.05)
    monkeypatch.setattr(cache_file, "LOCK_TIMEOUT_S", 0.05)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def asides(path: Path) -> list[str]:
    return sorted(p.name for p in path.parent.iterdir() if re.fullmatch(r".*\.(damaged|foreign|version-7)-\d+", p.name))


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


def assert_usable_afresh(cache: ReplyCache) -> None:
    assert cache.get(key(0)) is None
    assert cache.put(rows(range(2)))
    assert cache.get(key(1)) == reply(1)
    assert cache.write_failures == 0


@pytest.mark.parametrize("content", [b"no database at all, only a sentence of some length\n" * 40, b"x", b"\0" * 8192])
def test_what_is_no_database_is_moved_aside(path: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    path.write_bytes(content)
    cache = ReplyCache(path, 10)
    assert asides(path) == ["rewards.sqlite.damaged-1"]
    assert (path.parent / "rewards.sqlite.damaged-1").read_bytes() == content
    (warning,) = warnings(caplog)
    assert f"{path} " in warning
    assert f"{path}.damaged-1 " in warning
    assert_usable_afresh(cache)
    cache.close()


def test_a_second_damage_keeps_the_first_file(path: Path) -> None:
    for content in (b"first", b"second"):
        path.write_bytes(content * 100)
        ReplyCache(path, 10).close()
    assert (path.parent / "rewards.sqlite.damaged-1").read_bytes() == b"first" * 100
    assert (path.parent / "rewards.sqlite.damaged-2").read_bytes() == b"second" * 100


def test_another_schema_version_is_moved_aside_and_named(full: Path, caplog: pytest.LogCaptureFixture) -> None:
    with sqlite3.connect(full) as db:
        db.execute("PRAGMA user_version = 7")
    cache = ReplyCache(full, 10)
    (warning,) = warnings(caplog)
    assert "schema version is 7" in warning
    assert asides(full) == ["rewards.sqlite.version-7-1"]
    assert_usable_afresh(cache)
    cache.close()
    with sqlite3.connect(full.parent / "rewards.sqlite.version-7-1") as db:
        assert db.execute("SELECT count(*) FROM replies").fetchone() == (STORED,)


def test_a_database_of_another_program_is_moved_aside(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE recipes (name TEXT)")
        db.execute("INSERT INTO recipes VALUES ('soup')")
    cache = ReplyCache(path, 10)
    (warning,) = warnings(caplog)
    assert "another program" in warning
    assert_usable_afresh(cache)
    cache.close()
    with sqlite3.connect(path.parent / "rewards.sqlite.foreign-1") as db:
        assert db.execute("SELECT name FROM recipes").fetchone() == ("soup",)


def test_the_death_of_a_process_that_makes_the_file_is_no_damage(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with sqlite3.connect(path, isolation_level=None) as db:
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        db.execute("PRAGMA journal_mode = WAL")
    cache = ReplyCache(path, 10)
    assert_usable_afresh(cache)
    cache.close()
    assert asides(path) == []
    assert warnings(caplog) == []


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damage_anywhere_gives_right_replies_or_none(full_bytes: bytes, data: st.DataObject) -> None:
    spots = data.draw(st.lists(st.tuples(st.integers(0, len(full_bytes) - 1), st.binary(min_size=1, max_size=64))))
    spots += data.draw(st.lists(st.tuples(st.integers(0, 120), st.binary(min_size=1, max_size=4)), max_size=2))
    length = data.draw(st.one_of(st.just(len(full_bytes)), st.integers(0, len(full_bytes))))
    content = bytearray(full_bytes)
    for offset, noise in spots:
        content[offset : offset + len(noise)] = noise
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rewards.sqlite"
        path.write_bytes(content[:length])
        cache = ReplyCache(path, 1)
        for number in range(0, STORED, 3):
            assert cache.get(key(number)) in (None, reply(number))
        assert cache.put(rows(range(STORED, 2 * STORED)))
        assert cache.get_many([key(n) for n in range(2 * STORED)]).items() <= dict(rows(range(2 * STORED))).items()
        assert cache.put(rows(range(5000, 5010)))
        assert cache.get(key(5000)) == reply(5000)
        cache.close()


def test_damage_found_while_reading(full: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = ReplyCache(full, 10)
    overwrite(full, 2 * 4096, os.urandom(full.stat().st_size - 2 * 4096))
    assert cache.get(key(0)) is None
    assert asides(full) == ["rewards.sqlite.damaged-1"]
    assert len(warnings(caplog)) == 1
    assert_usable_afresh(cache)
    cache.close()


def test_damage_found_while_writing_loses_nothing_that_is_written(full: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = ReplyCache(full, 10)
    overwrite(full, 2 * 4096, os.urandom(full.stat().st_size - 2 * 4096))
    assert cache.put(rows(range(1000, 1010)))
    assert asides(full) == ["rewards.sqlite.damaged-1"]
    cache.close()
    again = ReplyCache(full, 10)
    assert again.get_many([key(n) for n in range(1000, 1010)]) == dict(rows(range(1000, 1010)))
    again.close()
    assert len(warnings(caplog)) == 1


def test_a_reply_that_the_disk_has_changed_is_not_believed(full: Path, caplog: pytest.LogCaptureFixture) -> None:
    content = full.read_bytes()
    overwrite(full, content.index(b"verdict 7 "), b"Verdict 8 ")
    cache = ReplyCache(full, 10)
    assert cache.get(key(7)) is None
    assert cache.get_many([key(6), key(7)]) == {key(6): reply(6)}
    (warning,) = warnings(caplog)
    assert "checksum" in warning
    cache.put(rows(range(7, 8)))
    assert cache.get(key(7)) == reply(7)
    assert asides(full) == []
    cache.close()


def test_a_counter_at_its_end_is_damage(full: Path) -> None:
    with sqlite3.connect(full) as db:
        db.execute("UPDATE replies SET id = 9223372036854775807 WHERE id = 1")
    cache = ReplyCache(full, 10)
    assert cache.put(rows(range(1000, 1001)))
    assert asides(full) == ["rewards.sqlite.damaged-1"]
    assert cache.get(key(1000)) == reply(1000)
    cache.close()


def test_two_that_find_the_same_damage_share_the_new_file(full: Path) -> None:
    first, second, third = (ReplyCache(full, 10) for _ in range(3))
    overwrite(full, 2 * 4096, os.urandom(full.stat().st_size - 2 * 4096))
    assert first.put(rows(range(1000, 1010)))
    assert second.get(key(0)) is None
    assert second.get(key(1000)) == reply(1000)
    assert third.put(rows(range(1010, 1020)))
    assert asides(full) == ["rewards.sqlite.damaged-1"]
    for cache in (first, second, third):
        assert cache.get_many([key(n) for n in range(1000, 1020)]) == dict(rows(range(1000, 1020)))
        cache.close()


def test_eight_processes_that_find_damage_at_once_lose_nothing(full: Path) -> None:
    code = """
cache = ReplyCache(path, 10)
(path.parent / f"ready-{sys.argv[2]}").touch()
while not (path.parent / "go").exists():
    time.sleep(0.005)
number = 1000 * int(sys.argv[2])
assert cache.put(rows(range(number, number + 20)))
assert cache.get(key(number)) == reply(number)
cache.close()
"""
    processes = [program(code, full, me) for me in range(1, 9)]
    while len(list(full.parent.glob("ready-*"))) < 8 and all(p.poll() is None for p in processes):
        time.sleep(0.01)
    overwrite(full, 2 * 4096, os.urandom(full.stat().st_size - 2 * 4096))
    (full.parent / "go").touch()
    for process in processes:
        output(process)
    cache = ReplyCache(full, 10)
    wanted = [row for me in range(1, 9) for row in rows(range(1000 * me, 1000 * me + 20))]
    assert cache.get_many([k for k, _ in wanted]) == dict(wanted)
    cache.close()
    assert asides(full) == ["rewards.sqlite.damaged-1"]


def test_a_lock_of_another_process_delays_but_breaks_nothing(
    full: Path, short_waits: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = ReplyCache(full, 10)
    other = sqlite3.connect(full, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert cache.put(rows(range(1000, 1001))) is False
    assert cache.put(rows(range(1001, 1002))) is False
    assert cache.write_failures == 2
    assert cache.get(key(0)) == reply(0)
    assert cache.get(key(1000)) == reply(1000)
    assert cache.get_many([key(1), key(1001)]) == {key(1): reply(1), key(1001): reply(1001)}
    (warning,) = warnings(caplog)
    assert "locked" in warning
    other.execute("COMMIT")
    assert cache.put(rows(range(1002, 1003))) is False, "it should not be tried on every put"
    now = cache_module.time.monotonic() + cache_module.FIRST_RETRY_S
    monkeypatch.setattr(cache_module.time, "monotonic", lambda: now)
    assert cache.put(rows(range(1003, 1004))) is True
    assert other.execute("SELECT count(*) FROM replies").fetchone() == (STORED + 4,)
    assert cache.lost == 0
    other.close()
    cache.close()


def test_a_dropped_reply_stays_dropped_while_it_cannot_be_written(full: Path, short_waits: None) -> None:
    cache = ReplyCache(full, 10)
    other = sqlite3.connect(full, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    cache.drop(key(0))
    assert cache.get(key(0)) is None
    assert cache.get_many([key(0)]) == {}
    other.execute("COMMIT")
    cache.close()
    other.close()
    again = ReplyCache(full, 10)
    assert (again.get(key(0)), len(again)) == (None, STORED - 1)
    again.close()


def test_a_reader_that_is_locked_out_finds_nothing_and_says_so(
    full: Path, short_waits: None, caplog: pytest.LogCaptureFixture
) -> None:
    cache = ReplyCache(full, 10)
    cache.close()
    other = sqlite3.connect(full, isolation_level=None)
    cache = ReplyCache(full, 10)
    assert cache._file is not None
    cache._file.db.close()
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    other.execute("DELETE FROM replies WHERE id = 1")
    cache._file = cache_file.OpenFile(sqlite3.connect(full, timeout=0.05, isolation_level=None), cache._file.inode)
    assert cache.get(key(1)) is None
    assert cache.get_many([key(1)]) == {}
    assert len(warnings(caplog)) == 1
    assert asides(full) == []
    other.execute("ROLLBACK")
    other.close()
    cache.close()


def test_unwritten_replies_are_bounded_in_memory(
    full: Path, short_waits: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cache_module, "MAX_UNWRITTEN_CHARS", 4000)
    cache = ReplyCache(full, 10)
    other = sqlite3.connect(full, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for number in range(1000, 1025):
        cache.put(rows(range(number, number + 1), chars=400))
    assert [n for n in range(1000, 1025) if cache.get(key(n))] == list(range(1015, 1025))
    assert (cache.lost, len(warnings(caplog))) == (15, 2)
    other.close()
    cache.close()
    assert cache.lost == 15


def test_opening_where_nothing_can_be_written_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "rewards.sqlite").mkdir()
    for path in (tmp_path / "file" / "rewards.sqlite", tmp_path / "rewards.sqlite", Path("/proc/none/rewards.sqlite")):
        with pytest.raises(CacheError, match=r"(?s)cannot be opened.*cache_path=.*cache=false") as caught:
            ReplyCache(path, 10)
        assert str(path) in str(caught.value)


def test_an_opening_that_another_process_blocks_gives_up(full: Path, short_waits: None) -> None:
    with cache_file.locked(full.with_name("rewards.sqlite.lock"), 1.0), pytest.raises(CacheError, match="another pro"):
        ReplyCache(full, 10)


def test_a_refused_write_is_tried_again(full: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = ReplyCache(full, 10)
    assert cache._file is not None
    cache._file.db.execute("PRAGMA query_only = ON")  # What a file system gives that was remounted for reading.
    assert cache.put(rows(range(1000, 1002))) is False
    assert cache.get(key(1001)) == reply(1001)
    assert cache.get(key(1)) == reply(1)
    cache._file.db.execute("PRAGMA query_only = OFF")
    cache.close()
    again = ReplyCache(full, 10)
    assert (again.get(key(1000)), len(again), cache.lost) == (reply(1000), STORED + 2, 0)
    again.close()
    assert len(warnings(caplog)) == 2


FILL = """
import logging
logging.basicConfig(format="%(message)s")
cache = ReplyCache(path, 100)
make_full()
number = 0
while cache.put(rows(range(number, number + 20))):
    number += 20
    assert number < 100_000
failed = number
for number in range(failed + 20, failed + 400, 20):
    assert cache.put(rows(range(number, number + 20))) is False
assert cache.write_failures == 20, cache.write_failures
assert cache.get_many([key(n) for n in range(failed + 400)]) == dict(rows(range(failed + 400)))
make_room()
time.sleep(1.1)
assert cache.put(rows(range(failed + 400, failed + 420))) is True
cache.close()
again = ReplyCache(path, 100)
assert len(again) == failed + 420 and cache.lost == 0
again.close()
print(failed)
"""

LIMITED = """
def make_full():
    resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, resource.RLIM_INFINITY))
def make_room():
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""

SMALL_DISK = """
def make_full():
    (path.parent / "ballast").write_bytes(bytes(6_000_000))
def make_room():
    (path.parent / "ballast").unlink()
"""


def said_once(errors: str) -> bool:
    return errors.count("cannot be written") == 1 and errors.count("can be written again") == 1


def test_a_file_that_may_not_grow(path: Path) -> None:
    process = program(LIMITED + FILL, path)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert int(out) > 0
    assert said_once(errors), errors


@pytest.fixture
def private_mounts() -> Iterator[tuple[str, ...]]:
    """Command prefix under which a process may mount file systems that only it sees."""
    prefix = ("unshare", "-rm")
    probe = 'mount -t tmpfs -o size=1m none "$0"'
    with tempfile.TemporaryDirectory() as folder:
        allowed = (
            shutil.which("unshare") is not None
            and subprocess.run([*prefix, "sh", "-c", probe, folder], capture_output=True).returncode == 0
        )
    if not allowed:
        pytest.skip("this system does not let a user mount a tmpfs in a namespace of their own (unshare -rm)")
    yield prefix


def mounting(private_mounts: tuple[str, ...], folder: Path, size: str) -> tuple[str, ...]:
    return (*private_mounts, "sh", "-c", f'mount -t tmpfs -o size={size} none "{folder}" && exec "$@"', "sh")


def test_a_full_disk(path: Path, private_mounts: tuple[str, ...]) -> None:
    process = program(SMALL_DISK + FILL, path, prefix=mounting(private_mounts, path.parent, "8m"))
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert int(out) > 0
    assert said_once(errors), errors


def test_a_disk_that_is_for_reading_only(path: Path, private_mounts: tuple[str, ...]) -> None:
    code = """
import subprocess
from assay.errors import CacheError
cache = ReplyCache(path, 10)
cache.put(rows(range(3)))
cache.close()
subprocess.run(["mount", "-o", "remount,ro", path.parent], check=True)
try:
    ReplyCache(path, 10)
except CacheError as error:
    print(error)
"""
    said = output(program(code, path, prefix=mounting(private_mounts, path.parent, "3m")))
    assert "Read-only file system" in said
    assert "cache_path" in said
