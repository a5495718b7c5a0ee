"""The GPU profiles without a GPU: stand-in devices, what the filter opens and what stays shut, and pauses."""

from __future__ import annotations

import asyncio
import os
import textwrap
from collections.abc import Iterator
from dataclasses import replace

import pytest

from assay.errors import ConfigError
from assay.sandbox import Job, JobResult, Limits, Round
from assay.sandbox.base import Profile
from assay.sandbox.local import LocalConfig
from support.sandboxes import Box, needs_walls

LIMITS = Limits(wall_s=20, cpu_s=10, memory_mb=256, tmp_mb=8, processes=16, open_files=64)
STAND_INS = tuple(path for path in ("/dev/tty", "/dev/ptmx") if os.path.exists(path))


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    with Box(LocalConfig(workers=1, devices=STAND_INS)) as box:
        yield box


def answer(box: Box, body: str, profile: Profile = "gpu") -> str:
    """What the `run` with this body returns, as text; "errno N" where it meets an OSError."""
    inner = textwrap.indent(textwrap.dedent(body).strip(), "        ")
    source = (
        "import ctypes, mmap, os, resource, socket, stat, threading\n"
        f"def run(inputs, header):\n    try:\n{inner}\n"
        "    except OSError as error:\n        return [f'errno {error.errno}'.encode().ljust(64)]\n"
        "    return [repr(result).encode().ljust(64)]\n"
    )
    job = Job(source, "assay.sandbox.plain", (Round((), (64,)),), limits=LIMITS, profile=profile)
    result = box.run(job)
    assert result.end == "ok", result
    return result.outputs[0][0].decode().strip()


@needs_walls
@pytest.mark.parametrize("path", STAND_INS)
@pytest.mark.parametrize("profile", ["gpu", "gpu-compile"])
def test_a_device_is_there(box: Box, path: str, profile: Profile) -> None:
    assert answer(box, f"result = stat.S_ISCHR(os.stat({path!r}).st_mode)", profile) == "True"


@needs_walls
def test_a_device_that_was_not_named_is_not() -> None:
    with Box(LocalConfig(workers=1)) as plain:
        for path in STAND_INS:
            assert answer(plain, f"result = os.stat({path!r})") == "errno 2"


@pytest.mark.parametrize("path", ["/dev/no-such-gpu", "/usr", "nvidia0"])
def test_a_device_that_is_none_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match=path):
        LocalConfig(devices=(path,))


OPEN = {
    "an event": ("os.eventfd(1); result = 1", "1"),
    "a file in memory": ("os.memfd_create('x'); result = 1", "1"),
    "an epoll": ("import select; select.epoll(); result = 1", "1"),
    "a local socket to listen on": (
        "s = socket.socket(socket.AF_UNIX); s.bind('\\0cuda-uvmfd'); s.listen(); result = 1",
        "1",
    ),
    "a thread": ("t = threading.Thread(target=print); t.start(); t.join(); result = 1", "1"),
    "the names of its threads": (
        "def name():\n"
        "    path = f'/proc/self/task/{threading.get_native_id()}/comm'\n"
        "    with open(path, 'w') as file: file.write('cuda-EvtHandlr')\n"
        "    names.append(open(path).read())\n"
        "names = []\n"
        "t = threading.Thread(target=name); t.start(); t.join(); result = names",
        "['cuda-EvtHandlr\\n']",
    ),
    "its own maps": ("result = 'stack' in open('/proc/self/maps').read()", "True"),
    "terabytes of addresses": ("result = len(mmap.mmap(-1, 1 << 42, mmap.MAP_PRIVATE, 0)) >> 42", "1"),
}
SHUT = {
    "a socket to the network": ("result = socket.socket(socket.AF_INET)", "errno 1"),
    "netlink": ("result = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)", "errno 1"),
    "a pair of sockets": ("result = socket.socketpair()", "errno 1"),
    "connecting": ("result = socket.socket(socket.AF_UNIX).connect('\\0cuda-uvmfd')", "errno 1"),
    "a process": ("result = os.fork()", "errno 1"),
    "a program": ("result = os.execv('/bin/true', ['true'])", "errno 1"),
    "writing to /proc": ("result = open('/proc/self/oom_score_adj', 'w')", "errno 30"),
    "writing to a thread's files": ("result = open('/proc/self/task/1/oom_score_adj', 'w')", "errno 13"),
    "settings of the kernel": ("result = open('/proc/sys/kernel/core_pattern', 'w')", "errno 30"),
    "interrupts": ("result = open('/proc/irq/default_smp_affinity', 'w')", "errno 30"),
    "other processes": ("result = [p for p in os.listdir('/proc') if p.isdigit()]", "['1']"),
}


@needs_walls
@pytest.mark.parametrize(("body", "expected"), OPEN.values(), ids=OPEN)
def test_what_cuda_needs_is_open(box: Box, body: str, expected: str) -> None:
    assert answer(box, body) == expected


@needs_walls
@pytest.mark.parametrize(("body", "expected"), SHUT.values(), ids=SHUT)
def test_the_rest_is_shut(box: Box, body: str, expected: str) -> None:
    assert answer(box, body) == expected


@needs_walls
@pytest.mark.parametrize("name", [n for n in OPEN if "thread" not in n])
def test_numerics_opens_none_of_it(box: Box, name: str) -> None:
    body = f"try:\n    {OPEN[name][0].replace(chr(10), chr(10) + '    ')}\nexcept (OSError, MemoryError): result = 'no'"
    assert answer(box, body, "numerics") in ("'no'", "errno 1")


@needs_walls
def test_compilers_may_run_beside_a_gpu(box: Box) -> None:
    assert answer(box, "result = os.system('exit 3') >> 8", "gpu-compile") == "3"


@needs_walls
def test_private_memory_is_bounded(box: Box) -> None:
    body = "try: bytearray(1 << 30)\nexcept MemoryError: result = 'none left'"
    assert answer(box, body) == "'none left'"


MOST = 0.2
"""Share of its own turn's count that a thread which is stopped in its parent's turn stays below."""
COUNTS = """
import threading
count = 0
def tick():
    global count
    while True:
        count += 1
threading.Thread(target=tick, daemon=True).start()
def run(inputs, header):
    return [count.to_bytes(8, "little")]
"""


@needs_walls
@pytest.mark.parametrize("pause", [True, False])
def test_no_thread_runs_during_a_pause(box: Box, pause: bool) -> None:
    """A thread's count over a long turn of the parent's, as a share of what it counts in as long a turn of its own."""
    sleeping = COUNTS.replace("    return", "    import time; time.sleep(0.3 if inputs else 0.0)\n    return")
    rounds = (Round((), (8,)), Round((b"sleep",), (8,)), Round((), (8,)), Round((), (8,)))

    async def parents_turn(index: int, outputs: tuple[bytes, ...]) -> bool:
        await asyncio.sleep(0.6 if index == 1 else 0.0)
        return True

    job = Job(sleeping, "assay.sandbox.plain", rounds, limits=LIMITS, pause=pause)
    shares = []
    for _ in range(5):  # a busy machine may give the thread little of its own turn
        result: JobResult = box.run(job, parents_turn)
        assert result.end == "ok", result
        counts = [int.from_bytes(outputs[0], "little") for outputs in result.outputs]
        own, during = counts[1] - counts[0], counts[2] - counts[1]
        shares.append(during / max(own, 1))
        if (shares[-1] <= MOST) == pause:
            return
    pytest.fail(f"the thread counted {shares} of what it counts in its own turn")


@needs_walls
def test_a_paused_child_is_killed_like_any(box: Box) -> None:
    job = Job(COUNTS, "assay.sandbox.plain", (Round((), (8,)),) * 3, limits=LIMITS, pause=True)
    assert box.run(job, lambda index, outputs: index < 1).end == "stopped"
    endless = replace(job, source="def run(inputs, header):\n    while True: pass", limits=replace(LIMITS, wall_s=0.3))
    assert box.run(endless).end == "timeout"
    assert box.sandbox.deaths == 0
