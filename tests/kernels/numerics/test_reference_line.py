"""Who waits for a reference waits for one answer to each other, and never for a problem that does not end."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from assay.errors import ReferenceModelError
from assay.kernels.numerics import reference as reference_module
from assay.kernels.numerics.conversation import Line
from assay.kernels.numerics.reference import MAX_TIMEOUTS, ReferenceProcess, fit_problem
from assay.kernels.numerics.reference_launch import launch, read
from assay.kernels.problems.sources import make_problem
from assay.sandbox.host.bubblewrap import kill
from support.kernelbench_data import TINY
from support.sandboxes import needs_walls

SLEEPS = TINY.replace("    return [torch.rand", "    import time; time.sleep(1000)\n    return [torch.rand")
LEAVES = TINY.replace("    return [torch.rand", "    import os; os._exit(4)\n    return [torch.rand")
SEEDS = {"input_seed": 1, "weight_seed": 0}


@needs_walls
def test_a_process_that_is_ended_while_it_starts_leaves_nothing_that_holds_its_pipes() -> None:
    for attempt in range(60):
        ended = threading.Event()
        process = launch(sys.executable, "cpu", "strict", ended)
        time.sleep(0.001 + 0.00005 * attempt)  # in which bubblewrap makes its child
        kill(process)
        with pytest.raises(EOFError):
            read(process, 6, time.monotonic() + 20.0)
        for pipe in (process.stdin, process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()
        process.wait()
        ended.set()


def test_a_line_is_served_in_its_order() -> None:
    line, order, threads = Line(), list[int](), list[threading.Thread]()

    def wait(number: int) -> None:
        with line:
            order.append(number)

    with line:
        for number in range(8):
            threads.append(threading.Thread(target=wait, args=(number,)))
            threads[-1].start()
            while len(line._waiting) < number + 1:
                time.sleep(0.001)
        assert order == []
    for thread in threads:
        thread.join()
    assert order == list(range(8))
    with line:
        pass


@pytest.fixture
def process() -> Iterator[ReferenceProcess]:
    with ReferenceProcess(timeout_s=30, quick_s=0.5) as made:
        made.evaluate(TINY, families=("given",), **SEEDS)
        yield made


@needs_walls
def test_a_problem_that_does_not_end_holds_up_no_other(process: ReferenceProcess) -> None:
    failures: list[str] = []

    def wait() -> None:
        try:
            process.evaluate(SLEEPS, **SEEDS)
        except ReferenceModelError as error:
            failures.append(error.kind)

    slow = threading.Thread(target=wait)
    slow.start()
    while not process._slow:
        time.sleep(0.02)
    for _ in range(3):
        assert process.evaluate(TINY, families=("given",), **SEEDS).cases
    assert slow.is_alive() and not failures, "it is still being tried, in the other process"
    process.close()
    slow.join(30)
    assert failures == ["crash"]


@needs_walls
def test_what_takes_long_is_answered_all_the_same(process: ReferenceProcess) -> None:
    naps = SLEEPS.replace("1000", "1.0")
    assert process.evaluate(naps, families=("given",), **SEEDS).cases
    assert list(process._slow) == [naps] and process._patient.pid != process._quick.pid


@needs_walls
def test_sizes_that_take_too_long_are_tried_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = list[str]()
    with ReferenceProcess(timeout_s=0.5, quick_s=0.5) as process:
        evaluate = process.evaluate
        monkeypatch.setattr(process, "evaluate", lambda code, **given: (tried.append(code), evaluate(code, **given))[1])
        with pytest.raises(ReferenceModelError, match="more than") as caught:
            fit_problem(make_problem(1, 1, "sleeps", SLEEPS, "test"), process)
    assert caught.value.kind == "timeout" and len(tried) == MAX_TIMEOUTS == len(set(tried))


@needs_walls
def test_a_problem_that_ends_its_process_is_to_blame(reference_process: ReferenceProcess) -> None:
    with pytest.raises(ReferenceModelError, match="left with status 4") as caught:
        fit_problem(make_problem(1, 1, "leaves", LEAVES, "test"), reference_process)
    assert caught.value.kind == "ended"
    assert reference_process.evaluate(TINY, families=("given",), **SEEDS).cases


def test_slow_problems_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_module, "MOST_SLOW", 2)
    process = ReferenceProcess(timeout_s=2, quick_s=1)

    def answered(lane: object, request: object, limit: float, read: object) -> str:
        if limit == 1:
            raise ReferenceModelError("timeout", "late")
        return "answer"

    monkeypatch.setattr(process, "_answered", answered)
    assert [process._answer({}, owner, lambda *_: None) for owner in "abcd"] == ["answer"] * 4
    assert list(process._slow) == ["c", "d"]


def test_waiting_for_references_holds_no_thread_of_others() -> None:
    process, free = ReferenceProcess(), threading.Event()

    async def main() -> str:
        waiting = [asyncio.ensure_future(process.waited(free.wait)) for _ in range(40)]  # more than a loop has threads
        done = await asyncio.wait_for(asyncio.to_thread(lambda: "done"), 20)
        free.set()
        await asyncio.gather(*waiting)
        return done

    assert asyncio.run(main()) == "done"
    process.close()
