"""Run as a program: launches of honest submissions, once as Triton's interpreter runs the submission's own function and
once as the rebuilt kernel, on the same bytes. Takes names of submissions; prints one JSON object.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
from benchmarks.common.submissions import Submission, read_submissions
from triton.runtime import interpreter as engine

from assay.kernels.inside import pretend_cuda, submission
from assay.kernels.inside.triton import interpreter
from assay.kernels.inside.triton.rebuilt import rebuild
from assay.kernels.language import Kernels, parse
from assay.kernels.problems.scaling import scale
from support.collected_kernels import collect
from support.kernelbench_data import HONEST, shipped

CAP = 64
seen: list[Any] = []
report: dict[str, Any] = {"launches": 0, "differ": [], "refused": [], "failed": {}, "idle": []}


def storages(value: Any) -> dict[int, Any]:
    """The storages that an argument touches, by address."""
    if isinstance(value, tuple | list):
        return {address: storage for each in value for address, storage in storages(each).items()}
    value = engine._unwrap_tensor(value.base if isinstance(value, engine.TensorDescriptor) else value)
    return {value.untyped_storage().data_ptr(): value.untyped_storage()} if isinstance(value, torch.Tensor) else {}


def octets(storage: Any) -> Any:
    return torch.tensor([], dtype=torch.uint8).set_(storage).numpy()


def both(launch: Any) -> Any:
    """A launch that is done both ways and compared."""

    def run(executor: Any, *args: Any, **named: Any) -> None:
        touched = storages([*args, *named.values()])
        before = {address: storage.clone() for address, storage in touched.items()}
        launch(executor, *args, **named)
        after = {address: storage.clone() for address, storage in touched.items()}
        for address, storage in touched.items():
            storage.copy_(before[address])
        own = next(each for each in reversed(seen) if each.fn.__name__ == executor.fn.__name__)
        table, keys = collect([own])
        kernels = parse(table)
        if not isinstance(kernels, Kernels):
            report["refused"].append(str(kernels))
            return
        made = rebuild(kernels)[keys[id(own.fn)]]
        launch(engine.GridExecutor(made.program, list(made.parameters), executor.grid), *args, **named)
        report["launches"] += 1
        if any(not np.array_equal(octets(touched[place]), octets(after[place])) for place in touched):
            report["differ"].append(executor.fn.__name__)

    return run


def run(one: Submission, problem: str) -> None:
    """Build the submission's model and call it once."""
    space: dict[str, Any] = {}
    exec(compile(problem, "problem.py", "exec"), space)
    torch.manual_seed(0)
    init, inputs = space["get_init_inputs"](), space["get_inputs"]()
    launches = report["launches"]
    with pretend_cuda.OnCpu(), torch.no_grad():
        submission.load(one.code).ModelNew(*init)(*inputs)
    if report["launches"] == launches:
        report["idle"].append(one.id)


def main() -> None:
    torch.set_num_threads(1)
    interpreter.install()
    pretend_cuda.install(232448, 90)
    init = engine.InterpretedFunction.__init__

    def noticed(self: Any, fn: Any, **named: Any) -> None:
        init(self, fn, **named)
        seen.append(self)

    engine.InterpretedFunction.__init__ = noticed
    engine.GridExecutor.__call__ = both(engine.GridExecutor.__call__)
    problems = shipped()
    for one in read_submissions(HONEST if len(sys.argv) < 3 else Path(sys.argv[2])):
        if sys.argv[1] == "all" or one.id in sys.argv[1].split(","):
            seen.clear()
            try:
                run(one, scale(problems[one.problem], CAP).code)
            except Exception as error:  # noqa: BLE001  whatever it was is reported
                report["failed"][one.id] = f"{type(error).__name__}: {error}"[:400]
    print(json.dumps(report))


if __name__ == "__main__":
    main()
