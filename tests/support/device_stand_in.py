"""A GPU's harness run on the processor, each job in a process of its own: `python device_stand_in.py KIND`.

`interpreted` puts Triton's interpreter in the place of the GPU. `compiled` keeps the launcher of a GPU and lets Triton
compile for one, but launch nothing. A job is a pickle of (source, header, blobs of each round); so is its result, of
(report, outputs of each round), or of the exit status of a process that died. The program reads jobs one after another
and forks for each: it imports PyTorch and Triton once.
"""

from __future__ import annotations

import atexit
import functools
import os
import pickle
import subprocess
import sys
from typing import Any

from assay.sandbox.base import Job, JobResult


def run_on_stand_in(job: Job, kind: str) -> JobResult:
    """The result of a job that is meant for a GPU."""
    program = _program(kind)
    assert program.stdin is not None and program.stdout is not None
    pickle.dump((job.source, job.header, [list(each.inputs) for each in job.rounds]), program.stdin)
    program.stdin.flush()
    found = pickle.load(program.stdout)
    assert not isinstance(found, int), f"status {found}; its words are on standard error"
    report, outputs = found
    end: Any = "ok" if "fault" not in report else "crash"
    return JobResult(end, "ended", tuple(map(tuple, outputs)), report=report)


@functools.cache
def _program(kind: str) -> subprocess.Popen[bytes]:
    """One for all tests of this process, which it ends with."""
    program = subprocess.Popen([sys.executable, __file__, kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    atexit.register(_end, program)
    return program


def _end(program: subprocess.Popen[bytes]) -> None:
    program.kill()
    program.communicate()


def _main(kind: str) -> None:
    harness = _harness(kind)
    while True:
        try:
            job = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        if (child := os.fork()) == 0:
            _run(harness, *job)
            os._exit(0)
        if status := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            sys.stdout.buffer.write(pickle.dumps(status))
            sys.stdout.buffer.flush()


def _run(harness: Any, source: str, header: Any, rounds: list[list[bytes]]) -> None:
    answers: list[list[bytes]] = []
    waiting = iter([[memoryview(bytearray(blob)) for blob in blobs] for blobs in rounds])

    def read() -> Any:
        return next(waiting, None)

    def write(outputs: Any) -> None:
        answers.append([bytes(output) for output in outputs])

    report = harness.execute(source, header, read, write)
    sys.stdout.buffer.write(pickle.dumps((report, answers)))
    sys.stdout.buffer.flush()


def _harness(kind: str) -> Any:
    return _interpreted() if kind == "interpreted" else _compiled()


def _interpreted() -> Any:
    from assay.kernels.inside.triton import interpreter

    interpreter.install()
    from assay.kernels.inside.replay.interpreted import Interpreted

    harness = _without_gpu()
    os.environ["TRITON_INTERPRET"] = "1"  # which the harness of a GPU takes away
    harness.OnDevice = lambda: Interpreted(4096, follows=False)
    return harness


def _compiled() -> Any:
    harness = _without_gpu()
    from triton.runtime.jit import JITFunction

    from assay.kernels.inside.triton import ahead_of_time

    ahead_of_time.install(90, 232448)
    run = JITFunction.run
    JITFunction.run = lambda self, *args, grid, warmup, **kwargs: run(self, *args, grid=grid, warmup=True, **kwargs)
    machine = harness.OnDevice
    harness.OnDevice = lambda: machine("cpu", lambda: None)
    return harness


def _without_gpu() -> Any:
    from assay.kernels.inside.replay import device_harness

    harness: Any = device_harness
    harness.torch.cuda.init = harness.wait_for_gpu = lambda: None
    return harness


if __name__ == "__main__":
    _main(sys.argv[1])
