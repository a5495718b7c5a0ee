"""A GPU's harness run on the processor, in a process of its own: `python device_stand_in.py KIND < job > result`.

`interpreted` puts Triton's interpreter in the place of the GPU. `compiled` keeps the launcher of a GPU and lets Triton
compile for one, but launch nothing. The job is a pickle of (source, header, blobs of each round); so is the result, of
(report, outputs of each round).
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from typing import Any

from assay.sandbox.base import Job, JobResult


def run_on_stand_in(job: Job, kind: str) -> JobResult:
    """The result of a job that is meant for a GPU."""
    given = pickle.dumps((job.source, job.header, [list(each.inputs) for each in job.rounds]))
    done = subprocess.run([sys.executable, __file__, kind], input=given, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    report, outputs = pickle.loads(done.stdout)
    end: Any = "ok" if "fault" not in report else "crash"
    return JobResult(end, "ended", tuple(map(tuple, outputs)), report=report)


def _main(kind: str) -> None:
    source, header, rounds = pickle.load(sys.stdin.buffer)
    answers: list[list[bytes]] = []
    waiting = iter([[memoryview(bytearray(blob)) for blob in blobs] for blobs in rounds])

    def read() -> Any:
        return next(waiting, None)

    def write(outputs: Any) -> None:
        answers.append([bytes(output) for output in outputs])

    report = _harness(kind).execute(source, header, read, write)
    sys.stdout.buffer.write(pickle.dumps((report, answers)))


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
    from assay.kernels.inside.triton import ahead_of_time

    ahead_of_time.install()
    ahead_of_time.begin(90, 232448)
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
