import asyncio
import json
import shutil

import pytest

from assay.errors import CheckpointError, RunDirectoryError
from assay.training.run.checkpoints import checkpoint_name, open_checkpoint, write_checkpoint

STATE = {"counter": 2**70, "rates": [0.1, None]}


async def save(path):
    (path / "deep").mkdir(parents=True)
    (path / "deep" / "weights.bin").write_bytes(bytes(range(100)))
    (path / "empty").touch()


@pytest.fixture
def checkpoint(tmp_path):
    asyncio.run(write_checkpoint(tmp_path / "checkpoints" / "rl_000010", 29, "rl", 9, save, STATE))
    return tmp_path / "checkpoints" / "rl_000010"


def test_a_checkpoint_gives_back_what_was_saved(checkpoint):
    opened = open_checkpoint(checkpoint)
    assert (opened.name, opened.step, opened.phase, opened.index, opened.batch) == ("rl_000010", 29, "rl", 9, 10)
    assert opened.state == STATE
    assert (opened.policy / "deep" / "weights.bin").read_bytes() == bytes(range(100))
    assert [path.name for path in checkpoint.parent.iterdir()] == ["rl_000010"]


def test_a_leftover_of_a_killed_write_is_replaced(checkpoint):
    target = checkpoint.parent / "rl_000020"
    (checkpoint.parent / "rl_000020.tmp" / "policy").mkdir(parents=True)
    (target / "stale").mkdir(parents=True)
    asyncio.run(write_checkpoint(target, 39, "rl", 19, save, STATE))
    assert open_checkpoint(target).step == 39
    assert not (target / "stale").exists()


def flip(path):
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    path.write_bytes(bytes(data))


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("name", ["policy/deep/weights.bin", "state.json"])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), "is missing"),
        (cut, "only partly written or copied"),
        (flip, r"was changed after it was written \(SHA-256 differs\)"),
    ],
    ids=["missing", "short", "changed"],
)
def test_a_damaged_file_is_named_with_the_cure(checkpoint, name, damage, message):
    damage(checkpoint / name)
    with pytest.raises(CheckpointError, match=rf"{name}.*{message}.*Try batch 5\."):
        open_checkpoint(checkpoint, cure="Try batch 5.")


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (None, "has no manifest.json"),
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"version": 1, "step": 1, "phase": "rl", "index": 1, "files": {"a": 3}}', "cannot be read"),
        ('{"version": 2, "step": 1, "phase": "rl", "index": 1, "files": {}}', "format version 2"),
        ('{"version": 1, "step": 1, "phase": "rl", "index": 1, "files": {}}', "does not list state.json"),
    ],
)
def test_a_folder_without_a_sound_manifest_is_refused(checkpoint, manifest, message):
    (checkpoint / "manifest.json").unlink()
    if manifest is not None:
        (checkpoint / "manifest.json").write_text(manifest)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(checkpoint)


def test_a_folder_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="does not exist"):
        open_checkpoint(tmp_path / "rl_000001")


def test_a_copied_checkpoint_opens_under_any_name(checkpoint, tmp_path):
    shutil.copytree(checkpoint, tmp_path / "best")
    assert open_checkpoint(tmp_path / "best").state == STATE


def test_the_manifest_measures_every_file(checkpoint):
    files = json.loads((checkpoint / "manifest.json").read_text())["files"]
    assert {name: entry["size"] for name, entry in files.items() if name != "state.json"} == {
        "policy/deep/weights.bin": 100,
        "policy/empty": 0,
    }


def test_a_writer_that_hides_a_full_disk_is_understood(tmp_path):
    async def hides(path):
        raise RuntimeError("I/O error: No space left on device (os error 28)")

    with pytest.raises(RunDirectoryError, match=r"No room to write checkpoint rl_000001.*\(needs 5 kB\)"):
        asyncio.run(write_checkpoint(tmp_path / "rl_000001", 0, "rl", 0, hides, {}, needed=5000))
    assert list(tmp_path.iterdir()) == []


def test_a_lost_connection_is_not_blamed_on_the_disk(tmp_path):
    async def hosted(path):
        raise ConnectionResetError("peer")

    with pytest.raises(ConnectionResetError):
        asyncio.run(write_checkpoint(tmp_path / "rl_000001", 0, "rl", 0, hosted, {}))


def test_names_count_finished_steps():
    names = [checkpoint_name("start", 0), checkpoint_name("sft", 149), checkpoint_name("rl", 9)]
    assert names == ["start", "sft_000150", "rl_000010"]
