"""A run that is killed, or runs out of disk, and then goes on must equal one that was left alone, byte for byte."""

import errno
import json
import os
import random
import resource
import signal
import subprocess
import time
from pathlib import Path

import pytest

from assay.errors import RunDirectoryError
from assay.training.run.ledger import read_ledger
from assay.training.run.retention import Keep
from support.small_process import in_small_process
from support.toy_run import RL_STEPS, SFT_STEPS, content, in_child, killed_at, memory_folder, run_toy


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    path = tmp_path_factory.mktemp("reference") / "run"
    run_toy(path)
    return content(path)


@pytest.fixture
def memory_path(tmp_path):
    with memory_folder(tmp_path) as path:
        yield path


def steps(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (path / "metrics.jsonl").read_text().splitlines()]


def test_a_run_killed_at_any_file_operation_and_again_while_resuming_equals_an_uninterrupted_one(
    memory_path, reference
):
    in_small_process(kill_at_every_operation, memory_path, reference, None)


def test_a_run_that_removes_checkpoints_may_be_killed_at_any_file_operation_too(memory_path, tmp_path, reference):
    keep = Keep(last=1, best=1, metric="loss")
    run_toy(tmp_path / "run", keep=keep)
    pruned = content(tmp_path / "run")
    assert len(pruned) < len(reference)
    in_small_process(kill_at_every_operation, memory_path, pruned, keep)


def kill_at_every_operation(memory_path, reference, keep):
    generator = random.Random(0)
    operation = 0
    while True:
        operation += 1
        path = memory_path / f"run{operation}"
        if killed_at(operation, lambda path=path: run_toy(path, keep=keep)):
            break
        check_that_a_resume_has_its_checkpoint(path)
        if operation % 4 == 1:
            killed_at(generator.randrange(1, 40), lambda path=path: run_toy(path, keep=keep))
        run_toy(path, keep=keep)
        assert content(path) == reference, f"killed at operation {operation}"
        assert steps(path) == list(range(SFT_STEPS + RL_STEPS))
    assert operation > 100, "the run made fewer changes than a run must"


def check_that_a_resume_has_its_checkpoint(path):
    saved = [
        commit.checkpoint for commit in read_ledger(path / "ledger.jsonl").commits if commit.checkpoint is not None
    ]
    assert not saved or (path / "checkpoints" / saved[-1] / "manifest.json").exists()


def test_a_rewind_killed_at_any_file_operation_leaves_a_run_that_goes_on_to_the_same_end(memory_path, reference):
    in_small_process(kill_rewinds, memory_path, reference)


def kill_rewinds(memory_path, reference):
    for operation in range(1, 100):
        path = memory_path / f"run{operation}"
        run_toy(path)
        rewound = killed_at(operation, lambda path=path: run_toy(path, resume_from_batch=0, stop_after=0))
        run_toy(path)
        assert content(path) == reference, f"killed at operation {operation}"
        if rewound:
            break
    else:
        raise AssertionError("the rewind never came to its end")


def test_a_run_killed_at_random_moments_equals_an_uninterrupted_one(memory_path, reference):
    in_small_process(kill_at_random_moments, memory_path, reference)


def kill_at_random_moments(memory_path, reference):
    generator = random.Random(1)
    path = memory_path / "run"
    kills = 0
    while kills < 15:
        child = os.fork()
        if child == 0:
            try:
                run_toy(path)
            finally:
                os._exit(0)
        time.sleep(generator.uniform(0, 0.03))
        os.kill(child, signal.SIGKILL)
        kills += os.WIFSIGNALED(os.waitpid(child, 0)[1])
        if (path / "report.html").exists():
            run_toy(path)
            assert content(path) == reference
            path = memory_path / f"run{kills}"
    run_toy(path)
    assert content(path) == reference


def test_a_limit_on_file_size_is_reported_and_the_run_resumes_once_it_is_lifted(memory_path, reference):
    limits = sorted({len(data) - 1 for name, data in reference.items() if len(data) > 300})
    for limit in limits:
        path = memory_path / f"run{limit}"

        def work(path=path, limit=limit):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            with pytest.raises(RunDirectoryError, match=r"(?s)No room to write .* free.*run the same command again"):
                run_toy(path)

        assert in_child(work) == 0
        run_toy(path)
        assert content(path) == reference


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting a small file system is not permitted here")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_is_reported_with_what_was_needed_and_loses_nothing(tmp_path, small_disk):
    run_toy(tmp_path / "reference", size=60_000)
    for free_kb in (4, 40, 90, 100, 150, 170, 230, 240):
        path = small_disk / f"run{free_kb}"
        ballast = small_disk / "ballast"
        with open(ballast, "wb") as file:
            fill(file, small_disk, free_kb * 1000)
        with pytest.raises(RunDirectoryError, match=r"No room to write .*: .* free") as caught:
            run_toy(path, size=60_000)
        assert isinstance(caught.value.__cause__, OSError)
        assert caught.value.__cause__.errno == errno.ENOSPC
        ballast.unlink()
        run_toy(path, size=60_000)
        assert content(path) == content(tmp_path / "reference")
        subprocess.run(["rm", "-r", str(path)], check=True)


def fill(file, disk, leave):
    while os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize > leave:
        file.write(bytes(4096))
        file.flush()


def test_the_message_of_a_full_disk_says_how_much_a_later_checkpoint_needs(small_disk):
    with open(small_disk / "ballast", "wb") as file:
        fill(file, small_disk, 150_000)
    with pytest.raises(RunDirectoryError, match=r"checkpoint sft_000002 .*\(needs 6\d\.\d kB\): \d+(\.\d+)? \w+ free"):
        run_toy(small_disk / "run", size=60_000)
