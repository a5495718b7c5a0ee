"""In which order tests run, where they write, and what they leave to the garbage collector."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import frozen

TESTS = Path(__file__).parent
LONG = ("", "kernels", "training", "sandbox", "envs", "rewards")
"""Folders whose files take longest, `""` for the files beside this one. They are started first (`make test` gives each
process a file at a time), so that all processes are busy to the end."""
KEEPING = (
    *("cli", "envs", "integrations", "server", "training"),
    *("kernels/test_modal_grading.py", "kernels/timing/test_timing_stage.py"),
)
"""Folders and files whose tests grade kernels by the way, and share what a grader starts."""
MEMORY = Path("/dev/shm")
ROOM = 1 << 30
"""Bytes that must be free there. All tests together need less than a tenth of it at a time."""


def pytest_configure() -> None:
    """Put temporary folders into memory, where this machine has room there and runs programs from there.

    A run waits for the disk at each of its steps. Tests kill processes and not the machine, and what a killed process
    leaves behind does not depend on where it wrote.
    """
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK | os.X_OK):
        return
    if not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC and shutil.disk_usage(MEMORY).free >= ROOM:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


@pytest.fixture(scope="session")
def all_kept() -> Iterator[object]:
    """What graders leave for the next ones."""
    from support.kept_processes import KeptProcesses

    kept = KeptProcesses()
    yield kept
    kept.end()


@pytest.fixture(scope="module", autouse=True)
def kept_processes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let graders of a file share workers with those of other files, where it tests something else."""
    if not any(request.path.is_relative_to(TESTS / place) for place in KEEPING):
        yield
        return
    from support.kept_processes import sandboxes_keep

    with sandboxes_keep(request.getfixturevalue("all_kept")):
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: rank(item.path))


def pytest_collection_finish() -> None:
    """Keep all modules and tests out of garbage collection: there are so many that walking them takes most of a second,
    and hundreds of tests would."""
    frozen.freeze()


def rank(path: Path) -> int:
    """The place of a file's folder in the order."""
    *folders, _ = path.relative_to(TESTS).parts
    folder = folders[0] if folders else ""
    return LONG.index(folder) if folder in LONG else len(LONG)
