"""Candidates that use too much, die, refuse to die, or leave something behind; each followed by a good job."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import replace

import pytest

from assay.sandbox import Job, JobResult, Limits, Round
from assay.sandbox.local import LocalConfig
from support.sandboxes import Box, needs_walls

pytestmark = needs_walls
LIMITS = Limits(wall_s=20, cpu_s=20, memory_mb=256, tmp_mb=8, processes=16, open_files=64)
GOOD = Job("def run(inputs, header):\n    return [inputs[0][::-1]]", "assay.sandbox.plain", (Round((b"abc",), (3,)),))


@pytest.fixture(scope="module")
def shared() -> Iterator[Box]:
    with Box(LocalConfig(workers=1)) as box:
        yield box


@pytest.fixture
def box(shared: Box) -> Iterator[Box]:
    """The sandbox, whose one worker must survive the test and do a good job after it."""
    shared.run(GOOD)
    workers = shared.sandbox.worker_pids()
    yield shared
    assert shared.run(GOOD).outputs == ((b"cba",),)
    assert shared.sandbox.worker_pids() == workers


def attempt(box: Box, text: str, **limits: float) -> JobResult:
    """The result of a candidate whose `run` has this body."""
    body = textwrap.indent(textwrap.dedent(text).strip(), "    ")
    source = f"import ctypes, mmap, os, signal, sys, threading, time\ndef run(inputs, header):\n{body}\n"
    rounds = (Round((b"in",), (8,)),)
    job = Job(source, "assay.sandbox.plain", rounds, limits=replace(LIMITS, **limits))  # type: ignore[arg-type]
    result = box.run(job)
    assert result.end != "infra", result
    assert not result.retried
    return result


@pytest.mark.parametrize(
    "body",
    [
        "while True: pass",
        "time.sleep(1000)",
        "for n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass\n"
        "while True: pass",
        "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass",
        "while True:\n    try: time.sleep(1000)\n    except BaseException: pass",
        "threading.Thread(target=time.sleep, args=(1000,)).start()\nthreading.Event().wait()",
        "os.read(7, 1)",
        "sum(range(10**12))",
    ],
    ids=["loop", "sleep", "ignore", "block", "catch", "thread", "wait", "native"],
)
def test_what_does_not_end_is_ended(box: Box, body: str) -> None:
    result = attempt(box, body, wall_s=0.3)
    assert (result.end, result.signal) == ("timeout", 9)
    assert result.wall_s >= 0.3
    assert "0.3 s" in result.message


def test_cpu_time_is_bounded_also_for_who_ignores_the_signal(box: Box) -> None:
    result = attempt(box, "signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass", cpu_s=1)
    assert result.end == "timeout"
    assert "CPU" in result.message
    assert 0.9 < result.cpu_s < 4


@pytest.mark.parametrize(
    "body",
    [
        "x = bytearray(1 << 40)",
        "x = []\nwhile True: x.append(bytes(1 << 24))",
        "maps = []\nwhile True:\n    maps.append(mmap.mmap(-1, 1 << 24))\n    maps[-1].write(bytes(1 << 24))",
        "x = 'a'\nwhile True: x += x",
    ],
    ids=["huge", "steady", "shared", "text"],
)
def test_memory_is_bounded(box: Box, body: str) -> None:
    catch = f"try:\n{textwrap.indent(body, '    ')}\nexcept OSError as error:\n    raise MemoryError from error"
    assert attempt(box, catch).end == "memory"


@pytest.mark.parametrize(
    ("body", "number"),
    [
        ("ctypes.string_at(0)", 11),
        ("ctypes.memset(1, 0, 1)", 11),
        ("f = ctypes.CFUNCTYPE(None)(lambda: f())\nsys.setrecursionlimit(10**9)\nf()", 11),
    ],
    ids=["read", "write", "stack"],
)
def test_a_fault_is_a_crash_with_its_signal(box: Box, body: str, number: int) -> None:
    result = attempt(box, body)
    assert (result.end, result.signal, result.outputs) == ("crash", number, ())


def test_abort_is_a_crash(box: Box) -> None:
    result = attempt(box, "os.abort()")
    assert result.end == "crash"
    assert result.signal is not None


def test_it_cannot_kill_itself_unseen(box: Box) -> None:
    assert attempt(box, "os.kill(os.getpid(), signal.SIGKILL)\nos._exit(0)").end == "crash"


def test_threads_are_bounded(box: Box) -> None:
    body = """
    started = 0
    try:
        for _ in range(1000):
            threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
            started += 1
    except RuntimeError:
        pass
    return [b"%8d" % started]
    """
    result = attempt(box, body)
    assert result.end == "ok"
    assert 1 <= int(result.outputs[0][0]) < 16


def test_descriptors_are_bounded(box: Box) -> None:
    body = """
    opened = []
    try:
        while True: opened.append(os.open("/dev/null", 0))
    except OSError:
        pass
    return [b"%8d" % len(opened)]
    """
    assert 1 <= int(attempt(box, body).outputs[0][0]) < 64


def test_the_scratch_folder_is_bounded(box: Box) -> None:
    body = """
    written = 0
    try:
        for number in range(1000):
            with open(f"fill{number}", "wb", buffering=0) as file:
                written += file.write(bytes(1 << 20))
    except OSError:
        pass
    return [b"%8d" % (written >> 20)]
    """
    assert 4 <= int(attempt(box, body).outputs[0][0]) <= 8


def test_the_number_of_files_is_bounded(box: Box) -> None:
    body = """
    made = 0
    try:
        while True:
            os.close(os.open(f"f{made}", os.O_CREAT))
            made += 1
    except OSError:
        pass
    return [b"%8d" % made]
    """
    assert 1 <= int(attempt(box, body).outputs[0][0]) <= 2048


def test_no_file_is_longer_than_the_folder(box: Box) -> None:
    body = """
    try:
        with open("sparse", "wb") as file:
            file.truncate(1 << 40)
    except OSError:
        return [b"refused."]
    return [b"allowed."]
    """
    assert attempt(box, body).outputs == ((b"refused.",),)


def test_a_thread_left_behind_ends_with_the_child(box: Box) -> None:
    body = """
    def spin():
        while True: pass
    threading.Thread(target=spin, daemon=True).start()
    return [b"finished"]
    """
    result = attempt(box, body)
    assert (result.end, result.outputs) == ("ok", ((b"finished",),))


TRACES = {
    "file": ("open('left', 'w').write('x')", "os.path.exists('left')"),
    "file in shared memory": ("open('/dev/shm/left', 'w').write('x')", "os.path.exists('/dev/shm/left')"),
    "link": ("os.symlink('/etc', 'left')", "os.path.lexists('left')"),
    "import hook": ("sys.meta_path.insert(0, threading.Lock())", "type(sys.meta_path[0]) is type(threading.Lock())"),
    "builtin": ("import builtins; builtins.left = 1", "'left' in dir(__import__('builtins'))"),
    "module": ("sys.modules['left'] = sys", "'left' in sys.modules"),
    "patched function": ("os.getcwd = lambda: 'left'", "os.getcwd() == 'left'"),
    "patched harness": (
        "sys.modules['assay.sandbox.plain'].execute = None",
        "sys.modules['assay.sandbox.plain'].execute is None",
    ),
    "variable": ("os.environ['LEFT'] = '1'", "'LEFT' in os.environ"),
    "mode of files": ("os.umask(0)", "os.umask(0o77) == 0"),
    "signal handler": ("signal.signal(10, signal.SIG_IGN)", "signal.getsignal(10) == signal.SIG_IGN"),
    "memory": ("sys.left = 'x' * 1000", "hasattr(sys, 'left')"),
}


@pytest.mark.parametrize("name", TRACES)
def test_nothing_reaches_the_next_job(box: Box, name: str) -> None:
    leave, look = TRACES[name]
    body = f"found = {look}\nreturn [b'left----' if found else b'gone----']"
    assert attempt(box, f"{leave}\n{body}").outputs == ((b"left----",),)
    assert attempt(box, body).outputs == ((b"gone----",),)


def test_objects_of_the_worker_are_dead(box: Box) -> None:
    body = """
    import gc, socket
    alive = 0
    frame, found = sys._getframe(), []
    while frame:
        found += list(frame.f_locals.values())
        frame = frame.f_back
    for thing in gc.get_objects() + found:
        if isinstance(thing, socket.socket) and thing.fileno() >= 0:
            alive += 1
        if type(thing).__name__ == "Worker":
            try:
                thing._say(10)
                alive += 1
            except OSError:
                pass
    return [b"%8d" % alive]
    """
    assert int(attempt(box, body).outputs[0][0]) == 0


def test_no_earlier_candidate_can_be_found_in_memory(box: Box) -> None:
    attempt(box, "mark = 'sesame-' + 'open-sesame' * 3\nreturn [b'x' * 8]")
    body = """
    import gc
    word = "sesame-" + "open"
    hits = sum(word in text for text in gc.get_objects() if isinstance(text, str))
    hits += sum(word in str(value) for thing in gc.get_objects() if isinstance(thing, dict) for value in thing.values()
                if isinstance(value, str) and "hits" not in value)
    return [b"%8d" % hits]
    """
    assert int(attempt(box, body).outputs[0][0]) == 0
