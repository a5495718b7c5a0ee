"""What a job's processes may hold together, with a control group and without, and locks on this machine's files."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from assay.errors import SandboxError
from assay.sandbox import Job, Limits, Round, local
from assay.sandbox.host import cgroups, probe
from assay.sandbox.host.cgroups import WorkerGroup, find_home
from assay.sandbox.inside import measure
from assay.sandbox.inside.seccomp import FCNTL_HARMLESS
from assay.sandbox.inside.syscalls import NUMBERS, allowed
from assay.sandbox.local import LocalConfig
from support.sandboxes import Box, needs_walls

PLAIN = "assay.sandbox.plain"
PROFILES = [("numerics", False, False), ("compile", True, False), ("gpu", False, True), ("gpu-compile", True, True)]

SIX = """
import os, time
for _ in range(6):
    if os.fork() == 0:
        held = bytearray(b"x") * (200 << 20)
        {more}
        time.sleep(60)
time.sleep(60)
"""
EXECUTED = SIX.replace("held =", "os.execv({python!r}, [{python!r}, '-I', '-S', '-c', {code!r}]) #")
MANY = """
import os, time
for _ in range(40):
    if os.fork() == 0:
        time.sleep(60)
time.sleep(60)
"""


def job(source: str, profile: str = "compile", **limits: float) -> Job:
    given = {"wall_s": 20, "cpu_s": 20, "memory_mb": 256, "tmp_mb": 8, **limits}
    source += "\ndef run(inputs, header):\n    return inputs\n"
    return Job(source, PLAIN, (Round(),), profile=profile, limits=Limits(**given))  # type: ignore[arg-type]


@needs_walls
@pytest.mark.parametrize("cgroup", [None, ""], ids=["as it comes", "without a control group"])
@pytest.mark.parametrize("kind", ["forks", "programs"])
def test_six_children_hold_no_more_than_the_limit_together(kind: str, cgroup: str | None) -> None:
    held = "import time; held = bytearray(b'x') * (200 << 20); time.sleep(60)"
    source = SIX.format(more="") if kind == "forks" else EXECUTED.format(more="", python=sys.executable, code=held)
    with Box(LocalConfig(workers=1, cgroup=cgroup)) as box:
        assert box.run(job("x = 1")).end == "ok"
        (worker,) = box.sandbox.worker_pids()
        most = Watch(worker)
        result = box.run(job(source, wall_s=30 if cgroup == "" else 2))
        most.stop()
        if cgroup == "":
            assert (result.end, result.retried) == ("memory", False), result
        assert most.bytes < 700 << 20, f"{most.bytes >> 20} MiB at once; they asked for 1200"
        assert box.run(job("x = 1")).end == "ok"
        assert box.sandbox.worker_pids() == [worker]


class Watch:
    """The most that the processes below one hold at once, as another process sees it."""

    CODE = """
import os, sys, time
sys.path.insert(0, sys.argv[2])
from assay.sandbox.inside.measure import processes
most = 0
os.set_blocking(0, False)
def held(pid):
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            return sum(int(line.split()[1]) for line in file if line.startswith("Pss_Anon:")) * 1024
    except OSError:
        return 0
print("ready", flush=True)
while True:
    most = max(most, sum(map(held, processes(int(sys.argv[1])))))
    try:
        if os.read(0, 1) == b"":
            break
    except BlockingIOError:
        time.sleep(0.005)
print(most, flush=True)
"""

    def __init__(self, pid: int) -> None:
        source = str(Path(cgroups.__file__).parents[3])
        self.process = subprocess.Popen(
            [sys.executable, "-c", self.CODE, str(pid), source], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None and self.process.stdout.readline() == b"ready\n"
        self.bytes = 0

    def stop(self) -> None:
        said, _ = self.process.communicate()
        self.bytes = int(said)


@needs_walls
def test_without_a_control_group_processes_are_few() -> None:
    with Box(LocalConfig(workers=1, cgroup="")) as box:
        result = box.run(job(MANY))
        assert result.end == "memory" and "too many" in result.message
        few = box.run(job(MANY.replace("range(40)", "range(8)"), wall_s=1))
        assert few.end == "timeout", "a compiler's own processes are not too many"


@needs_walls
def test_a_busy_worker_has_room_for_its_own_memory_in_its_group() -> None:
    """It rewrites its memory into huge pages after two jobs, which a group accounts anew."""
    if not find_home():
        pytest.skip("no control group can be used here")
    with Box(LocalConfig(workers=1)) as box:
        for _ in range(5):
            assert box.run(job("held = bytearray(b'x') * (60 << 20)", memory_mb=128)).end == "ok"


def test_a_group_allows_for_what_its_worker_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Path.mkdir

    def mkdir(self: Path) -> None:  # the kernel fills a new group with files
        make(self)
        (self / "memory.max").touch()

    monkeypatch.setattr(Path, "mkdir", mkdir)
    group = WorkerGroup(str(tmp_path), "worker")
    held = bytearray(b"x") * (50 << 20)
    group.add(os.getpid())
    group.allow(1 << 20)
    assert int((tmp_path / "worker" / "memory.max").read_text()) > cgroups.SLACK_BYTES + len(held)


def test_groups_of_the_dead_are_removed(tmp_path: Path) -> None:
    dead = subprocess.Popen(["/bin/true"])
    dead.wait()
    for owner in (dead.pid, os.getpid()):
        (tmp_path / f"assay-{owner}-1").mkdir()
    (tmp_path / "another-1-1").mkdir()
    cgroups._sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["another-1-1", f"assay-{os.getpid()}-1"]


def test_the_doctor_says_how_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "probe", lambda: probe.Features("/usr/bin/bwrap", "user", ()))
    for home, said in (
        ("/sys/fs/cgroup/x", "control groups in /sys/fs/cgroup/x"),
        ("", "no control group can be used"),
    ):
        monkeypatch.setattr(probe, "find_home", lambda home=home: home)
        (row,) = (check for check in probe.checks() if check.name == "sandbox: memory")
        assert row.ok and said in row.found


def test_a_process_that_is_gone_holds_nothing() -> None:
    dead = subprocess.Popen(["/bin/true"])
    dead.wait()
    assert measure.processes(dead.pid) == [dead.pid]
    assert not measure.too_much(dead.pid, 0)


LOCKS = {
    "flock": "fcntl.flock(file, fcntl.LOCK_SH)",
    "flock, exclusive": "fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)",
    "a POSIX lock": "fcntl.lockf(file, fcntl.LOCK_SH)",
    "a lock of the open file": "fcntl.fcntl(file, 37, struct.pack('hhqqi', 0, 0, 0, 0, 0))",
    "a lease": "fcntl.fcntl(file, 1024, 0)",
}


@needs_walls
@pytest.mark.parametrize("profile", ["numerics", "compile"])
@pytest.mark.parametrize("lock", LOCKS)
def test_no_job_can_lock_a_file_of_this_machine(lock: str, profile: str) -> None:
    source = f"import fcntl, struct\\nfile = open({os.__file__!r}, 'rb')\\n{LOCKS[lock]}\\n".replace("\\n", "\n")
    with Box(LocalConfig(workers=1)) as box:
        result = box.run(job(source, profile))
    assert result.end == "crash" and "PermissionError" in result.stderr, result


@needs_walls
@pytest.mark.parametrize("path", ["/dev/null", "/dev/full", "/dev/urandom", "own"])
def test_no_job_can_set_the_times_of_a_file(path: str) -> None:
    source = f"import os\nopen('own', 'w').close()\nos.utime({path!r})"
    with Box(LocalConfig(workers=1)) as box:
        result = box.run(job(source, "numerics"))
    assert result.end == "crash" and "PermissionError" in result.stderr, result


@pytest.mark.parametrize(("profile", "compilers", "devices"), PROFILES)
def test_times_of_files_are_for_compilers_alone(profile: str, compilers: bool, devices: bool) -> None:
    for architecture, numbers in NUMBERS.items():
        let_through = allowed(architecture, compilers, devices)
        for name in {"utime", "utimes", "utimensat", "fadvise64"} & numbers.keys():
            assert (numbers[name] in let_through) == compilers, (profile, name)


@needs_walls
def test_descriptors_can_still_be_handled() -> None:
    source = (
        "import os, fcntl; file = open('x', 'w'); fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 9); os.set_blocking(1, True)"
    )
    with Box(LocalConfig(workers=1)) as box:
        assert box.run(job(source, "numerics")).end == "ok"


@pytest.mark.parametrize(("profile", "compilers", "devices"), PROFILES)
def test_locks_are_for_those_alone_that_cannot_do_without(profile: str, compilers: bool, devices: bool) -> None:
    for architecture, numbers in NUMBERS.items():
        let_through = allowed(architecture, compilers, devices)
        assert (numbers["flock"] in let_through) == (profile == "gpu-compile")
        assert numbers["fcntl"] not in let_through, "only with certain commands"
    assert not {fcntl.F_SETLK, fcntl.F_SETLKW, 37, 38, 1024, fcntl.F_SETOWN} & set(FCNTL_HARMLESS)


@needs_walls
def test_a_group_that_was_found_and_is_no_more_costs_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without a memory controller, as a group is that another process removed or changed meanwhile."""
    monkeypatch.setattr(local, "find_home", lambda: str(tmp_path))
    with Box(LocalConfig(workers=1)) as box:
        assert box.run(job("x = 1")).end == "ok"
        assert box.run(job(MANY)).end == "memory", "the worker measures its jobs instead"
    assert list(tmp_path.iterdir()) == []
    with Box(LocalConfig(workers=1, cgroup=str(tmp_path))) as box, pytest.raises(SandboxError, match="cgroup="):
        box.run(job("x = 1"))


@needs_walls
def test_a_group_that_cannot_be_entered_or_removed_costs_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    home = find_home()
    if not home:
        pytest.skip("no control group can be used here")

    def refuse(self: WorkerGroup, *_: object) -> None:
        raise PermissionError(1, "refused")

    with monkeypatch.context() as patched:
        patched.setattr(WorkerGroup, "add", refuse)
        with Box(LocalConfig(workers=1)) as box:
            assert box.run(job("x = 1")).end == "ok"
        with Box(LocalConfig(workers=1, cgroup=home)) as box, pytest.raises(SandboxError, match="refused"):
            box.run(job("x = 1"))
    close = WorkerGroup.close
    left: list[WorkerGroup] = []
    monkeypatch.setattr(WorkerGroup, "close", lambda self: left.append(self) or refuse(self))
    with Box(LocalConfig(workers=1)) as box:
        assert box.run(job("x = 1")).end == "ok"
    assert len(left) == 1
    close(left[0])


def test_a_machine_without_groups_has_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cgroups, "candidates", lambda told: [tmp_path, tmp_path / "gone"])
    assert cgroups.find_home.__wrapped__() == "" and list(tmp_path.iterdir()) == []


def test_no_worker_leaves_a_group_that_has_a_limit(tmp_path: Path) -> None:
    told = "12:pids:/a\n0::/user/session/scope\n"
    folder = tmp_path / "user" / "session" / "scope"
    folder.mkdir(parents=True)
    found = [path.relative_to(tmp_path).as_posix() for path in cgroups.candidates(told, tmp_path)]
    assert found == ["user/session/scope", "user/session", "user", "."]
    for limit, count in (("max\n", 4), ("1073741824\n", 2)):
        (tmp_path / "user" / "session" / "memory.max").write_text(limit)
        assert len(list(cgroups.candidates(told, tmp_path))) == count
    assert list(cgroups.candidates("4:memory:/job/7\n3:cpu:/\n", tmp_path)) == [tmp_path / "memory/job/7"]
    assert list(cgroups.candidates("", tmp_path)) == []
