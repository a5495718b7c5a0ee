"""Workers that die, stall or are closed: no job lost, none doubled, nothing left behind."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from assay.errors import SandboxError
from assay.sandbox import Job, JobResult, Limits, Round
from assay.sandbox.host import worker_process
from assay.sandbox.host.cgroups import SLACK_BYTES, WorkerGroup
from assay.sandbox.inside import linux
from assay.sandbox.local import LocalConfig, LocalSandbox
from support.sandboxes import FEATURES, Box, needs_walls

pytestmark = needs_walls
ONE = LocalConfig(workers=1)
LIMITS = Limits(wall_s=30, cpu_s=30, memory_mb=256, tmp_mb=8)
ECHO = Job(
    "def run(inputs, header):\n    return inputs",
    "assay.sandbox.plain",
    (Round((b"one",), (3,)), Round((b"two",), (3,))),
    limits=LIMITS,
)
ENDLESS = replace(ECHO, source="while True: pass", limits=replace(LIMITS, wall_s=60, cpu_s=60))
ANSWER = ((b"one",), (b"two",))


def with_sandbox(body: Callable[[LocalSandbox], Awaitable[None]], config: LocalConfig = ONE) -> None:
    async def main() -> None:
        async with LocalSandbox(config, FEATURES) as sandbox:
            await body(sandbox)

    asyncio.run(main())


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def killing(sandbox: LocalSandbox, times: int) -> Callable[[int, tuple[bytes, ...]], bool]:
    """Kills the worker in the middle of a job, so many times."""
    left = [times]

    def after(index: int, outputs: tuple[bytes, ...]) -> bool:
        if left[0]:
            left[0] -= 1
            os.kill(sandbox.worker_pids()[0], signal.SIGKILL)
        return True

    return after


def test_a_job_whose_worker_dies_is_run_again() -> None:
    async def body(sandbox: LocalSandbox) -> None:
        result = await sandbox.run(ECHO, killing(sandbox, 1))
        assert (result.end, result.outputs, result.retried) == ("ok", ANSWER, True)
        assert sandbox.deaths == 1

    with_sandbox(body)


def test_a_job_that_loses_two_workers_is_our_failure() -> None:
    async def body(sandbox: LocalSandbox) -> None:
        result = await sandbox.run(ECHO, killing(sandbox, 2))
        assert (result.end, result.outputs, result.retried) == ("infra", (), True)
        assert (await sandbox.run(ECHO)).outputs == ANSWER

    with_sandbox(body)


def test_a_worker_that_died_idle_is_replaced() -> None:
    async def body(sandbox: LocalSandbox) -> None:
        await sandbox.run(ECHO)
        pid = sandbox.worker_pids()[0]
        os.kill(pid, signal.SIGKILL)
        assert await asyncio.to_thread(wait_until, lambda: gone(pid))
        assert (await sandbox.run(ECHO)).outputs == ANSWER
        assert pid not in sandbox.worker_pids()

    with_sandbox(body)


def test_a_worker_that_stalls_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "OVERDUE_S", 1.0)

    async def body(sandbox: LocalSandbox) -> None:
        await sandbox.run(ECHO)
        pid = sandbox.worker_pids()[0]
        os.kill(pid, signal.SIGSTOP)
        result = await sandbox.run(replace(ECHO, limits=replace(LIMITS, wall_s=1)))
        assert (result.outputs, result.retried) == (ANSWER, True)
        assert gone(pid)

    with_sandbox(body)


def test_a_cancelled_job_is_killed_and_its_worker_kept() -> None:
    async def body(sandbox: LocalSandbox) -> None:
        await sandbox.run(ECHO)
        workers = sandbox.worker_pids()
        task = asyncio.create_task(sandbox.run(ENDLESS))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await sandbox.run(ECHO)).outputs == ANSWER
        while sandbox._recoveries:
            await asyncio.sleep(0.01)
        assert set(workers) <= set(sandbox.worker_pids())
        assert sandbox.deaths == 0

    with_sandbox(body)


def test_no_more_jobs_run_than_there_are_workers() -> None:
    async def body(sandbox: LocalSandbox) -> None:
        results = await asyncio.gather(*(sandbox.run(ECHO) for _ in range(12)))
        assert [result.outputs for result in results] == [ANSWER] * 12
        assert len(sandbox.worker_pids()) == 2

    with_sandbox(body, LocalConfig(workers=2))


def test_closing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # others on this machine may have sandboxes too
    before = descriptors()

    async def main() -> list[int]:
        sandbox = LocalSandbox(LocalConfig(workers=2), FEATURES)
        await asyncio.gather(sandbox.run(ECHO), sandbox.run(ECHO))
        pids = sandbox.worker_pids()
        await sandbox.close()
        await sandbox.close()
        assert (await sandbox.run(ECHO)).end == "infra"
        return pids

    pids = asyncio.run(main())
    assert len(pids) == 2
    assert all(gone(pid) for pid in pids)
    assert descriptors() == before
    assert not list(tmp_path.glob("assay-*"))


def test_closing_ends_jobs_in_flight() -> None:
    async def main() -> JobResult:
        sandbox = LocalSandbox(ONE, FEATURES)
        await sandbox.run(ECHO)
        task = asyncio.create_task(sandbox.run(ENDLESS))
        await asyncio.sleep(0.2)
        await sandbox.close()
        return await task

    assert asyncio.run(main()).end == "infra"


def test_closing_while_the_first_worker_boots_ends_its_job() -> None:
    before = descriptors()

    async def main() -> JobResult:
        sandbox = LocalSandbox(ONE, FEATURES)
        task = asyncio.create_task(sandbox.run(ECHO))
        while not sandbox._all:
            await asyncio.sleep(0)
        await sandbox.close()
        with pytest.raises(SandboxError, match="closed"):
            await sandbox.start([ECHO.harness], each=1)
        assert not sandbox._all
        return await task

    result = asyncio.run(main())
    assert (result.end, "closed" in result.message) == ("infra", True), result
    assert descriptors() == before


def test_a_worker_that_dies_while_it_is_warmed_is_a_sandbox_error(tmp_path: Path) -> None:
    mark = tmp_path / "second"
    preload = f"import os, pathlib; pathlib.Path({str(mark)!r}).exists() or os._exit(3)"

    async def body(sandbox: LocalSandbox) -> None:
        with pytest.raises(SandboxError, match=r"No worker for dying can be started.*died at its start"):
            await sandbox.start(["dying"], each=1)
        mark.touch()
        await sandbox.start(["dying"], each=1)
        assert len(sandbox.worker_pids()) == 1

    config = harness(tmp_path, "dying", preload, "return 7")
    with_sandbox(body, config)


def test_no_memory_for_the_buffers_of_a_job_is_our_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(24, "Too many open files")

    async def body(sandbox: LocalSandbox) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(linux, "sealed_file", refuse)
            result = await sandbox.run(ECHO)
        assert (result.end, result.retried) == ("infra", True) and "Too many open files" in result.message, result
        assert (await sandbox.run(ECHO)).outputs == ANSWER

    with_sandbox(body)


@pytest.mark.parametrize("answer", ['{"child-pid":', "{}"])
def test_half_an_answer_of_bubblewrap_leaks_nothing(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    before = descriptors()
    started: list[subprocess.Popen[bytes]] = []
    spawn = worker_process.WorkerProcess._spawn
    aside, its_end = os.pipe()  # open to the end: bubblewrap, which answers there, would otherwise die of it

    def half(self: worker_process.WorkerProcess, control: int, info_end: int) -> subprocess.Popen[bytes]:
        started.append(spawn(self, control, its_end))
        os.write(info_end, answer.encode())
        return started[-1]

    async def body(sandbox: LocalSandbox) -> None:
        monkeypatch.setattr(worker_process.WorkerProcess, "_spawn", half)
        with pytest.raises(SandboxError, match="could not be started"):
            await sandbox.run(ECHO)

    with_sandbox(body)
    os.close(aside)
    os.close(its_end)
    assert [one.returncode for one in started] == [-signal.SIGKILL]
    assert descriptors() == before


def test_jobs_leak_no_descriptor() -> None:
    with Box(ONE) as box:
        box.run(ECHO)
        before = descriptors()
        for _ in range(20):
            box.run(ECHO)
        assert descriptors() == before


PARENT = """
import asyncio, sys
from assay.sandbox import Job
from assay.sandbox.local import LocalConfig, LocalSandbox

async def main():
    sandbox = LocalSandbox(LocalConfig(workers=1, sandbox=sys.argv[1]))
    job = "import os, time; os.write(2, b'x')\\nwhile True: time.sleep(0.01)"
    await sandbox.run(Job("def run(i, h): return []", "assay.sandbox.plain"))
    print(*sandbox.worker_pids(), flush=True)
    await sandbox.run(Job(job, "assay.sandbox.plain"))

asyncio.run(main())
"""


@pytest.mark.parametrize("sandbox", ["strict", "unsafe"])
def test_a_killed_parent_leaves_no_process(sandbox: str, tmp_path: Path) -> None:
    source = str(Path(worker_process.__file__).parents[3])
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", PARENT, sandbox],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # A folder of its own for what is temporary: others on this machine may have sandboxes too.
        env={**os.environ, "PYTHONPATH": source, "TMPDIR": str(tmp_path)},
        text=True,
    ) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        children = Path(f"/proc/{worker}/task/{worker}/children")
        assert wait_until(lambda: bool(children.read_text(encoding="ascii").split()))
        child = int(children.read_text(encoding="ascii").split()[0])
        assert bool(list(tmp_path.glob("assay-*"))) == (sandbox == "unsafe")
        parent.kill()
    assert wait_until(lambda: gone(worker) and gone(child))
    assert wait_until(lambda: not list(tmp_path.glob("assay-*")))


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's workers read what the user reads")
def test_root_is_told_what_nobody_cannot_read(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(SandboxError, match="chmod"):
        LocalSandbox(replace(ONE, readable=(str(tmp_path),)), FEATURES)


def harness(folder: Path, name: str, preload: str, execute: str = "return None") -> LocalConfig:
    """A sandbox that can import a harness of this text."""
    text = f"def preload():\n    {preload}\ndef execute(source, header, read_inputs, write_outputs):\n    {execute}\n"
    (folder / f"{name}.py").write_text(text, encoding="utf-8")
    folder.chmod(0o755)
    return replace(ONE, import_roots=(str(folder),))


@pytest.mark.parametrize(
    ("preload", "words"),
    [
        ("raise LookupError('no such card')", "LookupError: no such card"),
        ("import threading, time; threading.Thread(target=time.sleep, args=(60,)).start()", "left 2 threads"),
        ("from assay.sandbox.inside import jail; jail.cover_folders = lambda *_: None", "/proc is empty"),
        ("from assay.sandbox.inside import linux; linux.filter_syscalls = lambda *_: None", "sockets are refused"),
        ("from assay.sandbox.inside import linux; linux.close_from = lambda *_: None", "no descriptor of the worker"),
        ("from assay.sandbox.inside import jail; jail.NAMESPACES = 0", "denied"),
        ("import os; os._exit(3)", "died"),
    ],
    ids=["raises", "threads", "folders", "filter", "descriptors", "namespaces", "dies"],
)
def test_a_worker_whose_walls_or_harness_fail_is_refused(tmp_path: Path, preload: str, words: str) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        with pytest.raises(SandboxError, match="harness_at_fault") as caught:
            await sandbox.run(replace(ECHO, harness="harness_at_fault"))
        assert words in str(caught.value)
        assert sandbox.worker_pids() == []

    with_sandbox(body, harness(tmp_path, "harness_at_fault", preload))


def test_an_unknown_harness_is_named() -> None:
    async def body(sandbox: LocalSandbox) -> None:
        with pytest.raises(SandboxError, match=r"assay\.sandbox\.no_such"):
            await sandbox.run(replace(ECHO, harness="assay.sandbox.no_such"))

    with_sandbox(body)


def test_harnesses_have_workers_of_their_own(tmp_path: Path) -> None:
    config = harness(tmp_path, "marking", "import sys; sys.mark = 1", "import sys; return hasattr(sys, 'mark')")

    async def body(sandbox: LocalSandbox) -> None:
        await sandbox.start(["marking", "assay.sandbox.plain"])
        assert len(sandbox.worker_pids()) == 2
        quiet = replace(ECHO, source="import sys\ndef run(inputs, header):\n    return [b'%3d' % hasattr(sys, 'mark')]")
        assert (await sandbox.run(quiet)).outputs[0] == (b"  0",)
        marked = await sandbox.run(replace(ECHO, harness="marking"))
        assert marked.report is True

    with_sandbox(body, config)


def test_what_is_shown_and_hidden(tmp_path: Path) -> None:
    (tmp_path / "shown").mkdir()
    for name in ("key", "notes"):
        (tmp_path / "shown" / name).write_text(name, encoding="utf-8")
    (tmp_path / "shown").chmod(0o755)
    config = replace(
        ONE,
        readable=(str(tmp_path / "shown"),),
        hidden=(str(tmp_path / "shown" / "key"),),
        environment={"COLOUR": "blue"},
    )
    source = f"""
import os
def run(inputs, header):
    folder = {str(tmp_path / "shown")!r}
    texts = [open(os.path.join(folder, name)).read() for name in ("key", "notes")]
    return [" ".join([os.environ["COLOUR"], *texts]).encode().ljust(20)]
"""

    async def body(sandbox: LocalSandbox) -> None:
        result = await sandbox.run(Job(source, "assay.sandbox.plain", (Round((), (20,)),)))
        assert result.outputs == ((b"blue  notes".ljust(20),),), result

    with_sandbox(body, config)


COMPILE = """
import socket, subprocess
def run(inputs, header):
    done = subprocess.run(["/bin/sh", "-c", "cat > f && cat f | tr a-z A-Z"], input=inputs[0], capture_output=True)
    try:
        socket.socket()
        return [b"network"]
    except OSError:
        return [done.stdout]
"""


def test_the_compile_profile_may_run_programs_but_not_the_network() -> None:
    job = Job(COMPILE, "assay.sandbox.plain", (Round((b"compile",), (7,)),), profile="compile", limits=LIMITS)
    with Box(ONE) as box:
        assert box.run(job).outputs == ((b"COMPILE",),)
        bomb = replace(
            job, source="import os\nwhile True:\n    os.fork()", limits=replace(LIMITS, wall_s=1, processes=20)
        )
        assert box.run(bomb).end in ("timeout", "crash")
        escape = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)\nos._exit(0)"
        assert box.run(replace(job, source=escape)).end == "crash"
        worker = box.sandbox.worker_pids()[0]
        assert Path(f"/proc/{worker}/task/{worker}/children").read_text(encoding="ascii") == ""
        assert box.run(job).outputs == ((b"COMPILE",),)


def test_the_compile_profile_can_be_held_to_some_programs() -> None:
    shell = os.path.realpath("/bin/sh")
    loaders = tuple(str(path.resolve()) for path in Path("/lib64").glob("ld-linux*"))
    config = replace(ONE, executables=(shell, *loaders))
    job = Job(
        "import subprocess\ndef run(inputs, header):\n    return [b'%3d' % subprocess.call(header)]",
        "assay.sandbox.plain",
        (Round((), (3,)),),
        profile="compile",
        limits=LIMITS,
    )
    with Box(config) as box:
        if not os.path.exists("/sys/kernel/security") and not loaders:
            pytest.skip("no Landlock to test")
        assert box.run(replace(job, header=["/bin/sh", "-c", "exit 7"])).outputs == ((b"  7",),)
        refused = box.run(replace(job, header=["/bin/true"]))
        assert (refused.end, "PermissionError" in refused.stderr) == ("crash", True), refused


HUNGRY = """
import os, time
held = []
for _ in range(6):
    if os.fork() == 0:
        held.append(bytearray(b"x") * (60 << 20))
        time.sleep(60)
while True:
    try:
        if os.wait()[1]:
            os._exit(9)
    except ChildProcessError:
        os._exit(0)
"""


@pytest.fixture
def delegated() -> Iterator[str]:
    """A control group with a memory limit, made for the test."""
    for line in Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            folder = Path("/sys/fs/cgroup/memory", path.lstrip("/"), f"assay-test-{os.getpid()}")
            try:
                folder.mkdir()
            except OSError:
                break
            yield str(folder)
            folder.rmdir()
            return
    pytest.skip("no control group with a memory limit can be made here")


def test_a_control_group_bounds_all_processes_of_a_job_together(delegated: str) -> None:
    job = replace(ECHO, source=HUNGRY, profile="compile", limits=replace(LIMITS, memory_mb=128, wall_s=20))
    with Box(replace(ONE, cgroup=delegated)) as box:
        assert box.run(ECHO).outputs == ANSWER
        workers = box.sandbox.worker_pids()
        result = box.run(job)
        assert (result.end, result.retried) in (("crash", False), ("memory", False)), result
        assert box.run(ECHO).outputs == ANSWER
        assert box.sandbox.worker_pids() == workers
        assert len([path for path in Path(delegated).iterdir() if path.is_dir()]) == 1
    assert not [path for path in Path(delegated).iterdir() if path.is_dir()]


@pytest.mark.parametrize(("files", "limit"), [("memory.max", 1), ("memory.limit_in_bytes", 1)])
def test_both_versions_of_control_groups_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: str, limit: int
) -> None:
    make = Path.mkdir

    def mkdir(self: Path) -> None:  # the kernel fills a new group with files
        make(self)
        (self / files).touch()

    monkeypatch.setattr(Path, "mkdir", mkdir)
    group = WorkerGroup(str(tmp_path), "worker")
    group.add(123)
    group.allow(limit)
    assert (tmp_path / "worker" / "cgroup.procs").read_text() == "123"
    assert int((tmp_path / "worker" / files).read_text()) == limit + SLACK_BYTES


def test_a_folder_that_is_no_control_group_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="no memory controller"):
        WorkerGroup(str(tmp_path), "worker")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(300)
def test_a_soak_of_mixed_jobs_and_killed_workers_loses_none() -> None:
    draw = random.Random(5)
    sources = {
        "ok": "def run(inputs, header):\n    return [inputs[0]]",
        "wrong": "def run(inputs, header):\n    return [b'x' * 4]",
        "crash": "raise RuntimeError",
        "memory": "x = bytearray(1 << 40)",
        "left": "import os; os._exit(0)",
    }
    count = 150

    async def body(sandbox: LocalSandbox) -> None:
        answered: dict[int, JobResult] = {}

        async def one(index: int, kind: str) -> None:
            tag = index.to_bytes(4, "big")
            rounds = (Round((tag,), (4,)),)
            result = await sandbox.run(Job(sources[kind], "assay.sandbox.plain", rounds, limits=LIMITS))
            assert index not in answered
            answered[index] = result
            if result.end == "infra":
                return
            assert (result.end == "ok") == (kind in ("ok", "wrong")), (kind, result)
            if kind == "ok":
                assert result.outputs == ((tag,),)
            if draw.random() < 0.04 and (pids := sandbox.worker_pids()):
                os.kill(draw.choice(pids), signal.SIGKILL)

        kinds = [draw.choice(list(sources)) for _ in range(count)]
        await asyncio.gather(*(one(index, kind) for index, kind in enumerate(kinds)))
        assert len(answered) == count
        assert sum(result.end == "infra" for result in answered.values()) <= count // 20
        assert sandbox.deaths > 0

    before = descriptors()
    with_sandbox(body, LocalConfig(workers=2))
    assert descriptors() == before


USER = """
import asyncio, json, os
from assay.sandbox import Job, Round
from assay.sandbox.local import LocalConfig, LocalSandbox
from assay.sandbox.host.probe import Features, probe

NOSY = '''
import os
def run(inputs, header):
    seen = [os.getuid(), os.getpid(), len(os.listdir("/proc"))]
    for attempt in (os.fork, lambda: open("/etc/passwd"), lambda: os.listdir(header)):
        try:
            attempt()
            seen.append("allowed")
        except OSError:
            seen.append("refused")
    return [repr(seen).encode().ljust(100)]
'''

async def main():
    features = Features(**json.loads(os.environ["FEATURES"])) if "FEATURES" in os.environ else probe()
    async with LocalSandbox(LocalConfig(workers=1), features) as sandbox:
        job = Job(NOSY, "assay.sandbox.plain", (Round((), (100,)),), header="/root")
        result = await sandbox.run(job)
        seen = result.outputs[0][0].decode().strip() if result.outputs else ""
        print(json.dumps([os.getuid(), features.mode, result.end, seen, result.stderr]))

asyncio.run(main())
"""


NOBODY: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": []}


def python_for_everybody() -> str:
    """A Python that any user may run, with the sources of Assay readable too; skips the test where there is none."""
    for program in (sys.executable, "/usr/bin/python3"):
        source = Path(worker_process.__file__).parents[3]
        check = f"import sys; sys.path.insert(0, {str(source)!r}); import assay.sandbox.local"
        try:
            if (
                subprocess.run([program, "-c", check], capture_output=True, cwd="/", check=False, **NOBODY).returncode
                == 0
            ):
                return program
        except OSError:
            continue
    pytest.skip("no Python 3.11 that an ordinary user could run")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("mode", ["user", "nobody"])
def test_it_works_for_ordinary_users_and_for_root_without_mounts(mode: str) -> None:
    program = python_for_everybody()
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(worker_process.__file__).parents[3])}
    words = [program, "-c", USER]
    if mode == "nobody":
        assert FEATURES is not None
        environment["FEATURES"] = json.dumps({"bwrap": FEATURES.bwrap, "mode": mode, "missing": []})
    who = NOBODY if mode == "user" else {}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd="/", check=False, **who)
    assert done.returncode == 0, done.stderr
    uid, found, end, seen, stderr = json.loads(done.stdout)
    assert (uid, found, end) == (65534 if mode == "user" else 0, mode, "ok"), stderr
    assert seen == "[65534, 1, 0, 'refused', 'refused', 'refused']"
