"""A store file that is damaged, foreign, locked, forbidden, or on a full disk: said once, survived, nothing deleted."""

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
from assay.storage import keyed_store, sqlite_file
from assay.storage.keyed_store import KeyedStore
from support.stored_values import found, key, open_store, output, program, rows, value

STORED = 300


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "things.sqlite"


@pytest.fixture
def full(path: Path) -> Path:
    """A closed store with `STORED` values."""
    store = open_store(path)
    store.put(rows(range(STORED)))
    store.close()
    return path


@pytest.fixture(scope="module")
def full_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("full") / "things.sqlite"
    store = open_store(path)
    store.put(rows(range(STORED)))
    store.close()
    return path.read_bytes()


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_file, "BUSY_TIMEOUT_S", 0.05)
    monkeypatch.setattr(sqlite_file, "LOCK_TIMEOUT_S", 0.05)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def asides(path: Path) -> list[str]:
    return sorted(p.name for p in path.parent.iterdir() if re.fullmatch(r".*\.(damaged|foreign|version-7)-\d+", p.name))


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


def assert_usable_afresh(store: KeyedStore) -> None:
    assert store.get(key(0)) is None
    assert store.put(rows(range(2)))
    assert store.get(key(1)) == value(1)
    assert store.write_failures == 0


@pytest.mark.parametrize("content", [b"no database at all, only a sentence of some length\n" * 40, b"x", b"\0" * 8192])
def test_what_is_no_database_is_moved_aside(path: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    path.write_bytes(content)
    store = open_store(path)
    assert asides(path) == ["things.sqlite.damaged-1"]
    assert (path.parent / "things.sqlite.damaged-1").read_bytes() == content
    (warning,) = warnings(caplog)
    assert f"{path} " in warning
    assert f"{path}.damaged-1 " in warning
    assert_usable_afresh(store)
    store.close()


def test_a_second_damage_keeps_the_first_file(path: Path) -> None:
    for content in (b"first", b"second"):
        path.write_bytes(content * 100)
        open_store(path).close()
    assert (path.parent / "things.sqlite.damaged-1").read_bytes() == b"first" * 100
    assert (path.parent / "things.sqlite.damaged-2").read_bytes() == b"second" * 100


def test_another_schema_version_is_moved_aside_and_named(full: Path, caplog: pytest.LogCaptureFixture) -> None:
    with sqlite3.connect(full) as db:
        db.execute("PRAGMA user_version = 7")
    store = open_store(full)
    (warning,) = warnings(caplog)
    assert "schema version is 7" in warning
    assert asides(full) == ["things.sqlite.version-7-1"]
    assert_usable_afresh(store)
    store.close()
    with sqlite3.connect(full.parent / "things.sqlite.version-7-1") as db:
        assert db.execute("SELECT count(*) FROM replies").fetchone() == (STORED,)


def test_a_database_of_another_program_is_moved_aside(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE recipes (name TEXT)")
        db.execute("INSERT INTO recipes VALUES ('soup')")
    store = open_store(path)
    (warning,) = warnings(caplog)
    assert "another program" in warning
    assert_usable_afresh(store)
    store.close()
    with sqlite3.connect(path.parent / "things.sqlite.foreign-1") as db:
        assert db.execute("SELECT name FROM recipes").fetchone() == ("soup",)


def test_the_death_of_a_process_that_makes_the_file_is_no_damage(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with sqlite3.connect(path, isolation_level=None) as db:
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        db.execute("PRAGMA journal_mode = WAL")
    store = open_store(path)
    assert_usable_afresh(store)
    store.close()
    assert asides(path) == []
    assert warnings(caplog) == []


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damage_anywhere_gives_right_values_or_none(full_bytes: bytes, data: st.DataObject) -> None:
    spots = data.draw(st.lists(st.tuples(st.integers(0, len(full_bytes) - 1), st.binary(min_size=1, max_size=64))))
    spots += data.draw(st.lists(st.tuples(st.integers(0, 120), st.binary(min_size=1, max_size=4)), max_size=2))
    length = data.draw(st.one_of(st.just(len(full_bytes)), st.integers(0, len(full_bytes))))
    content = bytearray(full_bytes)
    for offset, noise in spots:
        content[offset : offset + len(noise)] = noise
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "things.sqlite"
        path.write_bytes(content[:length])
        store = open_store(path, 1)
        for number in range(0, STORED, 3):
            assert store.get(key(number)) in (None, value(number))
        assert store.put(rows(range(STORED, 2 * STORED)))
        assert found(store, range(2 * STORED)).items() <= dict(rows(range(2 * STORED))).items()
        assert store.put(rows(range(5000, 5010)))
        assert store.get(key(5000)) == value(5000)
        store.close()


def test_damage_found_while_reading(full: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(full)
    overwrite(full, 2 * 4096, os.urandom(full.stat().st_size - 2 * 4096))
    assert store.get(key(0)) is None
    assert asides(full) == ["things.sqlite.damaged-1"]
    assert len(warnings(caplog)) == 1
    assert_usable_afresh(store)
    store.close()


def test_damage_found_while_writing_loses_nothing_that_is_written(full: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(full)
    overwrite(full, 2 * 4096, os.urandom(full.stat().st_size - 2 * 4096))
    assert store.put(rows(range(1000, 1010)))
    assert asides(full) == ["things.sqlite.damaged-1"]
    store.close()
    again = open_store(full)
    assert found(again, range(1000, 1010)) == dict(rows(range(1000, 1010)))
    again.close()
    assert len(warnings(caplog)) == 1


def test_a_value_that_the_disk_has_changed_is_not_believed(full: Path, caplog: pytest.LogCaptureFixture) -> None:
    content = full.read_bytes()
    overwrite(full, content.index(b"thing 7 "), b"Thing 8 ")
    store = open_store(full)
    assert store.get(key(7)) is None
    assert found(store, (6, 7)) == {key(6): value(6)}
    (warning,) = warnings(caplog)
    assert "checksum" in warning
    store.put(rows(range(7, 8)))
    assert store.get(key(7)) == value(7)
    assert asides(full) == []
    store.close()


def test_a_counter_at_its_end_is_damage(full: Path) -> None:
    with sqlite3.connect(full) as db:
        db.execute("UPDATE replies SET id = 9223372036854775807 WHERE id = 1")
    store = open_store(full)
    assert store.put(rows(range(1000, 1001)))
    assert asides(full) == ["things.sqlite.damaged-1"]
    assert store.get(key(1000)) == value(1000)
    store.close()


def test_two_that_find_the_same_damage_share_the_new_file(full: Path) -> None:
    first, second, third = (open_store(full) for _ in range(3))
    overwrite(full, 2 * 4096, os.urandom(full.stat().st_size - 2 * 4096))
    assert first.put(rows(range(1000, 1010)))
    assert second.get(key(0)) is None
    assert second.get(key(1000)) == value(1000)
    assert third.put(rows(range(1010, 1020)))
    assert asides(full) == ["things.sqlite.damaged-1"]
    for store in (first, second, third):
        assert found(store, range(1000, 1020)) == dict(rows(range(1000, 1020)))
        store.close()


def test_eight_processes_that_find_damage_at_once_lose_nothing(full: Path) -> None:
    code = """
store = open_store(path)
(path.parent / f"ready-{sys.argv[2]}").touch()
while not (path.parent / "go").exists():
    time.sleep(0.005)
number = 1000 * int(sys.argv[2])
assert store.put(rows(range(number, number + 20)))
assert store.get(key(number)) == value(number)
store.close()
"""
    processes = [program(code, full, me) for me in range(1, 9)]
    while len(list(full.parent.glob("ready-*"))) < 8 and all(p.poll() is None for p in processes):
        time.sleep(0.01)
    overwrite(full, 2 * 4096, os.urandom(full.stat().st_size - 2 * 4096))
    (full.parent / "go").touch()
    for process in processes:
        output(process)
    store = open_store(full)
    for me in range(1, 9):
        written = range(1000 * me, 1000 * me + 20)
        assert found(store, written) == dict(rows(written))
    store.close()
    assert asides(full) == ["things.sqlite.damaged-1"]


def test_a_lock_of_another_process_delays_but_breaks_nothing(
    full: Path, short_waits: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(full)
    other = sqlite3.connect(full, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert store.put(rows(range(1000, 1001))) is False
    assert store.put(rows(range(1001, 1002))) is False
    assert store.write_failures == 2
    assert store.get(key(0)) == value(0)
    assert store.get(key(1000)) == value(1000)
    assert found(store, (1, 1001)) == {key(1): value(1), key(1001): value(1001)}
    (warning,) = warnings(caplog)
    assert "locked" in warning
    other.execute("COMMIT")
    assert store.put(rows(range(1002, 1003))) is False, "it should not be tried on every put"
    now = keyed_store.time.monotonic() + keyed_store.FIRST_RETRY_S
    monkeypatch.setattr(keyed_store.time, "monotonic", lambda: now)
    assert store.put(rows(range(1003, 1004))) is True
    assert other.execute("SELECT count(*) FROM replies").fetchone() == (STORED + 4,)
    assert store.lost == 0
    other.close()
    store.close()


def test_a_dropped_value_stays_dropped_while_it_cannot_be_written(full: Path, short_waits: None) -> None:
    store = open_store(full)
    other = sqlite3.connect(full, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    store.drop(key(0))
    assert store.get(key(0)) is None
    other.execute("COMMIT")
    store.close()
    other.close()
    again = open_store(full)
    assert (again.get(key(0)), len(again)) == (None, STORED - 1)
    again.close()


def test_a_reader_that_is_locked_out_finds_nothing_and_says_so(
    full: Path, short_waits: None, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(full)
    store.close()
    other = sqlite3.connect(full, isolation_level=None)
    store = open_store(full)
    assert store._file is not None
    store._file.db.close()
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    other.execute("DELETE FROM replies WHERE id = 1")
    store._file = sqlite_file.OpenFile(sqlite3.connect(full, timeout=0.05, isolation_level=None), store._file.inode)
    assert store.get(key(1)) is None
    assert len(warnings(caplog)) == 1
    assert asides(full) == []
    other.execute("ROLLBACK")
    other.close()
    store.close()


def test_unwritten_values_are_bounded_in_memory(
    full: Path, short_waits: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(keyed_store, "MAX_UNWRITTEN_BYTES", 4000)
    store = open_store(full)
    other = sqlite3.connect(full, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for number in range(1000, 1025):
        store.put(rows(range(number, number + 1), size=400))
    assert [n for n in range(1000, 1025) if store.get(key(n))] == list(range(1015, 1025))
    assert (store.lost, len(warnings(caplog))) == (15, 2)
    other.close()
    store.close()
    assert store.lost == 15


def test_opening_where_nothing_can_be_written_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "things.sqlite").mkdir()
    for path in (tmp_path / "file" / "things.sqlite", tmp_path / "things.sqlite", Path("/proc/none/things.sqlite")):
        with pytest.raises(CacheError, match=r"(?s)cannot be opened.*choose another folder=") as caught:
            open_store(path)
        assert str(path) in str(caught.value)


def test_a_store_that_is_not_required_goes_on_without_its_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    path = tmp_path / "file" / "things.sqlite"
    store = open_store(path, required=False)
    assert store.get(key(0)) is None
    assert store.put(rows(range(2))) is False
    assert store.get(key(0)) == value(0)
    (warning,) = warnings(caplog)
    assert str(path) in warning and "cannot be written" in warning
    (tmp_path / "file").unlink()
    now = keyed_store.time.monotonic() + keyed_store.FIRST_RETRY_S
    monkeypatch.setattr(keyed_store.time, "monotonic", lambda: now)
    assert store.put(rows(range(2, 3))) is True
    store.close()
    again = open_store(path)
    assert found(again, range(3)) == dict(rows(range(3)))
    again.close()


def locked_away(full: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every opening for writing fails, as in a folder that may not be written."""

    def refuse(path: Path) -> sqlite_file.OpenFile:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(sqlite_file, "_connect", refuse)


def test_a_store_that_is_not_required_is_read_where_it_cannot_be_written(
    full: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        locked_away(full, patch)
        before = full.read_bytes()
        store = open_store(full, required=False)
        assert [store.get(key(n)) for n in (0, 1)] == [value(0), value(1)]
        assert store.put(rows(range(1000, 1001))) is False
        assert store.get(key(1000)) == value(1000)
        assert full.read_bytes() == before
    store.close()
    again = open_store(full)
    assert (again.get(key(1000)), len(again)) == (value(1000), STORED + 1), "at its end it can be written again"
    again.close()


def test_what_is_read_without_locks_is_never_taken_for_damaged(
    full: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    locked_away(full, monkeypatch)
    store = open_store(full, required=False)
    overwrite(full, 2 * 4096, os.urandom(full.stat().st_size - 2 * 4096))
    assert store.get(key(0)) is None
    assert store.put(rows(range(1000, 1001))) is False
    assert found(store, (0, 1000)) == {key(1000): value(1000)}
    assert asides(full) == []
    assert ["cannot be written" in warning for warning in warnings(caplog)] == [True, False]
    store.close()


@pytest.mark.parametrize("left", ["log", "foreign", "version", "nothing"])
def test_what_cannot_be_read_without_writing_is_not_read(
    full: Path, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if left == "log":
        full.with_name(full.name + "-wal").write_bytes(b"entries that are not in the file yet")
    elif left == "nothing":
        full.unlink()
    else:
        with sqlite3.connect(full) as db:
            db.execute("PRAGMA application_id = 7" if left == "foreign" else "PRAGMA user_version = 7")
        db.close()
    locked_away(full, monkeypatch)
    store = open_store(full, required=False)
    assert store.get(key(0)) is None
    store.close()


def test_an_opening_that_another_process_blocks_gives_up(full: Path, short_waits: None) -> None:
    with sqlite_file.locked(full.with_name("things.sqlite.lock"), 1.0), pytest.raises(CacheError, match="another pro"):
        open_store(full)


def test_a_refused_write_is_tried_again(full: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(full)
    assert store._file is not None
    store._file.db.execute("PRAGMA query_only = ON")  # What a file system gives that was remounted for reading.
    assert store.put(rows(range(1000, 1002))) is False
    assert store.get(key(1001)) == value(1001)
    assert store.get(key(1)) == value(1)
    store._file.db.execute("PRAGMA query_only = OFF")
    store.close()
    again = open_store(full)
    assert (again.get(key(1000)), len(again), store.lost) == (value(1000), STORED + 2, 0)
    again.close()
    assert len(warnings(caplog)) == 2


FILL = """
import logging
logging.basicConfig(format="%(message)s")
store = open_store(path, 100)
make_full()
number = 0
while store.put(rows(range(number, number + 20))):
    number += 20
    assert number < 100_000
failed = number
for number in range(failed + 20, failed + 400, 20):
    assert store.put(rows(range(number, number + 20))) is False
assert store.write_failures == 20, store.write_failures
assert found(store, range(failed + 400)) == dict(rows(range(failed + 400)))
make_room()
time.sleep(1.1)
assert store.put(rows(range(failed + 400, failed + 420))) is True
store.close()
again = open_store(path, 100)
assert len(again) == failed + 420 and store.lost == 0
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
store = open_store(path)
store.put(rows(range(3)))
store.close()
subprocess.run(["mount", "-o", "remount,ro", path.parent], check=True)
try:
    open_store(path)
except CacheError as error:
    print(error)
"""
    said = output(program(code, path, prefix=mounting(private_mounts, path.parent, "3m")))
    assert "Read-only file system" in said
    assert "choose another folder=" in said
