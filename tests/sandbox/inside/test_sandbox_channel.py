"""What a child can say: output bytes, and nothing else. Forged messages, peeking at inputs, tampering with buffers."""

from __future__ import annotations

import asyncio
import struct
import textwrap
import time
from collections.abc import Iterator

import pytest

from assay.errors import ConfigError
from assay.sandbox import Job, Limits, Round
from assay.sandbox.base import REPORT_BYTES, STDERR_BYTES
from assay.sandbox.local import LocalConfig
from support.sandboxes import Box, needs_walls

pytestmark = needs_walls
LIMITS = Limits(wall_s=20, cpu_s=10, memory_mb=256, tmp_mb=8)
ROUNDS = tuple(Round((bytes([65 + i]) * 5, b"xy"), (5, 2)) for i in range(3))
UP, DOWN = 6, 7


@pytest.fixture(scope="module")
def shared() -> Iterator[Box]:
    with Box(LocalConfig(workers=1)) as box:
        yield box


@pytest.fixture
def box(shared: Box) -> Iterator[Box]:
    """The sandbox, none of whose workers may die of the test."""
    deaths = shared.sandbox.deaths
    yield shared
    assert shared.sandbox.deaths == deaths


def candidate(text: str, rounds: tuple[Round, ...] = ROUNDS, **fields: object) -> Job:
    return Job(textwrap.dedent(text), "assay.sandbox.plain", rounds, **{"limits": LIMITS, **fields})  # type: ignore[arg-type]


ECHO = """
def run(inputs, header):
    return inputs
"""


def test_every_round_comes_back_in_order(box: Box) -> None:
    result = box.run(candidate(ECHO))
    assert (result.end, result.exit_code, result.signal) == ("ok", 0, None)
    assert result.outputs == tuple(tuple(map(bytes, item.inputs)) for item in ROUNDS)
    assert result.report == {"rounds": 3}
    assert len(result.round_s) == 3
    assert 0 < result.setup_s < result.wall_s
    assert sum(result.round_s) < result.wall_s


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 4096, 65537, 3 << 20])
def test_sizes_of_any_kind_survive(box: Box, size: int) -> None:
    data = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    result = box.run(candidate(ECHO, (Round((data, b"", data), (size, 0, size)),) * 2))
    assert result.outputs == ((data, b"", data),) * 2


def test_an_input_may_be_a_view(box: Box) -> None:
    view = memoryview(bytearray(struct.pack("<4d", 1, 2, 3, 4))).cast("d")
    assert box.run(candidate(ECHO, (Round((view,), (32,)),))).outputs == ((bytes(view),),)


def test_the_header_and_the_seed_arrive(box: Box) -> None:
    source = """
    import json, random
    DRAWN = random.random()
    def run(inputs, header):
        return [json.dumps([header, DRAWN]).encode().ljust(200)]
    """
    job = candidate(source, (Round((), (200,)),), header={"shape": [2, 3], "text": "\u00e9\ud800"}, seed=7)
    first, second = box.run(job), box.run(job)
    assert first.outputs == second.outputs
    other = box.run(candidate(source, (Round((), (200,)),), header=job.header, seed=8))
    assert other.outputs != first.outputs
    assert b'"shape": [2, 3]' in first.outputs[0][0]


def test_a_header_that_is_no_json_is_refused(box: Box) -> None:
    with pytest.raises(ConfigError, match="header"):
        box.run(candidate(ECHO, header={"x": object()}))


def test_later_inputs_cannot_be_seen(box: Box) -> None:
    peek = """
    import mmap, os
    def run(inputs, header):
        size = os.fstat(4).st_size
        with mmap.mmap(4, size, mmap.MAP_PRIVATE, mmap.PROT_READ) as every:
            seen = bytes(sorted(set(every[:]) - {0}))
        return [seen.ljust(5, b"-"), b"ok"]
    """
    result = box.run(candidate(peek))
    assert [row[0] for row in result.outputs] == [b"Axy--", b"ABxy-", b"ABCxy"]


def test_asking_early_gains_nothing(box: Box) -> None:
    greedy = f"""
    import os
    for _ in range(2):
        os.write({UP}, b"?")
        os.read({DOWN}, 1)
    def run(inputs, header):
        return [b"wrong", b"no"]
    """
    result = box.run(candidate(greedy))
    assert result.outputs[:2] == ((bytes(5), bytes(2)),) * 2


def test_outputs_are_taken_when_a_round_is_acknowledged(box: Box) -> None:
    rewriter = """
    import mmap, os
    calls = 0
    def run(inputs, header):
        global calls
        if calls == 1:
            with mmap.mmap(5, os.fstat(5).st_size) as every:
                every[:5] = inputs[0]
        calls += 1
        return [b"first", b"ok"]
    """
    result = box.run(candidate(rewriter))
    assert result.outputs == ((b"first", b"ok"),) * 3


@pytest.mark.parametrize(
    "tail",
    ["os._exit(0)", "os.write(6, b'?' * 4); os._exit(0)", "os.write(6, b'SSSSFFFF'); os._exit(0)", "raise SystemExit"],
)
def test_leaving_early_with_status_0_is_a_crash(box: Box, tail: str) -> None:
    text = "{'correct': True}"
    source = f"""
    import os
    def run(inputs, header):
        for descriptor in range(1024):
            try:
                os.write(descriptor, {text!r}.encode())
            except OSError:
                pass
        {tail}
    """
    result = box.run(candidate(source))
    assert (result.end, result.exit_code, result.retried) == ("crash", 0, False)
    assert all(b"correct" not in output for row in result.outputs for output in row)


@pytest.mark.parametrize("status", [1, 3, 86, 87, 255])
def test_no_exit_status_is_our_failure(box: Box, status: int) -> None:
    result = box.run(candidate(f"import os; os._exit({status})"))
    assert result.end in ("crash", "memory")
    assert not result.retried


def test_a_refusal_cannot_be_forged(box: Box) -> None:
    result = box.run(candidate(f"import os; os.write({UP}, b'Fthe walls fell'); os._exit(1)"))
    assert (result.end, result.exit_code) == ("crash", 1)


def test_whoever_asks_after_the_last_round_is_ended_and_not_answered_for_ever(box: Box) -> None:
    source = f"""
    import os
    while True:
        os.write({UP}, b"?" * 65536)
    """
    result = box.run(candidate(source, limits=Limits(wall_s=60, cpu_s=60, memory_mb=256)))
    assert (result.end, result.retried) == ("crash", False)
    assert "after its last one" in result.message and len(result.round_s) <= len(ROUNDS)


def test_a_flood_of_requests_is_bounded(box: Box) -> None:
    source = f"""
    import fcntl, os
    fcntl.fcntl({UP}, fcntl.F_SETFL, os.O_NONBLOCK)
    try:
        while True:
            os.write({UP}, b"?" * 4096)
    except BlockingIOError:
        pass
    {ECHO.strip().replace(chr(10), chr(10) + "    ")}
    """
    result = box.run(candidate(source, limits=Limits(wall_s=5, cpu_s=5, memory_mb=256)))
    assert result.end != "ok" or result.outputs != tuple(tuple(map(bytes, item.inputs)) for item in ROUNDS)
    assert result.end != "infra"


def test_closing_every_descriptor_is_a_crash(box: Box) -> None:
    result = box.run(candidate("import os\nos.closerange(0, 64)"))
    assert result.end == "crash"


@pytest.mark.parametrize(
    "attempt",
    [
        "os.ftruncate(4, 0)",
        "os.ftruncate(5, 0)",
        "os.ftruncate(5, 1 << 30)",
        "os.pwrite(4, b'x', 0)",
        "mmap.mmap(4, 4096)",
        "fcntl.fcntl(4, fcntl.F_ADD_SEALS, 1)",
        "fcntl.fcntl(5, fcntl.F_ADD_SEALS, 8)",
        "os.posix_fallocate(5, 0, 1 << 30)",
        "libc.fallocate(4, 3, ctypes.c_long(0), ctypes.c_long(4096)) == 0 or fail()",
        "os.pwrite(3, b'x', 0)",
    ],
)
def test_buffers_keep_size_and_seals(box: Box, attempt: str) -> None:
    source = f"""
    import ctypes, fcntl, mmap, os
    libc = ctypes.CDLL(None)
    def fail():
        raise OSError("refused")
    def run(inputs, header):
        try:
            {attempt}
        except (OSError, ValueError):
            return [inputs[0], b"no"]
        return [inputs[0], b"ha"]
    """
    result = box.run(candidate(source))
    assert [row[1] for row in result.outputs] == [b"no"] * 3, result
    assert [row[0] for row in result.outputs] == [item.inputs[0] for item in ROUNDS]


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ("[b'123', b'xy']", "output 0 has 3 bytes, 5 are expected"),
        ("[b'12345']", "1 outputs were written, 2 are expected"),
        ("[b'12345', 'xy']", "TypeError"),
        ("None", "TypeError"),
    ],
)
def test_outputs_of_another_size_are_refused_in_words(box: Box, returned: str, words: str) -> None:
    result = box.run(candidate(f"def run(inputs, header):\n    return {returned}\n"))
    assert (result.end, result.exit_code) == ("crash", 1)
    assert words in result.stderr


def test_an_exception_shows_where_it_was_raised(box: Box) -> None:
    result = box.run(candidate("def run(inputs, header):\n    raise RuntimeError('mark' * 3)\n"))
    assert result.end == "crash"
    assert 'File "candidate.py", line 2, in run' in result.stderr
    assert "RuntimeError: markmarkmark" in result.stderr
    assert "child.py" not in result.stderr


@pytest.mark.parametrize("stream", ["sys.stdout", "sys.stderr", "sys.__stderr__"])
def test_a_flood_of_text_is_cut_and_harms_nobody(box: Box, stream: str) -> None:
    source = f"""
    import sys
    def run(inputs, header):
        for _ in range(20000):
            try:
                print("flood" * 20, file={stream})
            except OSError:
                break
        return inputs
    """
    result = box.run(candidate(source))
    assert result.end == "ok"
    assert 0 < len(result.stderr.encode()) <= STDERR_BYTES
    assert result.stderr.startswith("flood")


@pytest.mark.parametrize(
    "data",
    [
        'b"not json"',
        'b"[" * 60000',
        'b"\\xff" * 100',
        'b""',
        'b"1" * 60000',
    ],
)
def test_a_damaged_report_is_none(box: Box, data: str) -> None:
    source = f"""
    import mmap, os, struct
    def run(inputs, header):
        with mmap.mmap(5, os.fstat(5).st_size) as file:
            data = {data}
            start = len(file) - {REPORT_BYTES}
            file[start:start + 4 + len(data)] = struct.pack("<I", len(data)) + data
        os._exit(0)
    """
    assert box.run(candidate(source)).report is None


def test_a_report_that_claims_to_be_longer_than_it_can_be_is_none(box: Box) -> None:
    source = f"""
    import mmap, os
    def run(inputs, header):
        with mmap.mmap(5, os.fstat(5).st_size) as file:
            start = len(file) - {REPORT_BYTES}
            file[start:start + 4] = b"\\xff" * 4
        os._exit(0)
    """
    assert box.run(candidate(source)).report is None


def test_the_caller_may_stop_after_a_round(box: Box) -> None:
    seen = []

    def after(index: int, outputs: tuple[bytes, ...]) -> bool:
        seen.append((index, outputs))
        return index < 1

    result = box.run(candidate(ECHO), after)
    assert result.end == "stopped"
    assert seen == [(0, (b"AAAAA", b"xy")), (1, (b"BBBBB", b"xy"))]
    assert result.outputs == ((b"AAAAA", b"xy"), (b"BBBBB", b"xy"))
    assert box.run(candidate(ECHO)).end == "ok"


def test_the_clock_stands_still_while_the_caller_thinks(box: Box) -> None:
    async def after(index: int, outputs: tuple[bytes, ...]) -> bool:
        await asyncio.sleep(0.4)
        return True

    started = time.monotonic()
    result = box.run(candidate(ECHO), after)
    assert result.end == "ok"
    assert result.wall_s <= time.monotonic() - started - 0.8


def test_an_error_of_the_caller_costs_no_worker(box: Box) -> None:
    def after(index: int, outputs: tuple[bytes, ...]) -> bool:
        raise LookupError("the caller's own")

    box.run(candidate(ECHO))
    workers = box.sandbox.worker_pids()
    with pytest.raises(LookupError):
        box.run(candidate(ECHO), after)
    assert box.run(candidate(ECHO)).end == "ok"
    assert box.sandbox.worker_pids() == workers


@pytest.mark.parametrize(
    "fields",
    [{"rounds": ()}, {"rounds": (Round(),) * 1001}, {"profile": "tpu"}],
)
def test_impossible_jobs_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Job("", "assay.sandbox.plain", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["wall_s", "cpu_s", "memory_mb", "tmp_mb", "processes", "open_files"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_impossible_limits_are_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=field):
        Limits(**{field: value})  # type: ignore[arg-type]
