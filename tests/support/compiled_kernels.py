"""Run as a program: launches of honest submissions compiled for sm_90, once from the submission's own function and once
from the generated text. Takes names of submissions; prints one JSON object.
"""

from __future__ import annotations

import json
import linecache
import os
import re
import sys
from types import ModuleType
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)

import torch
from benchmarks.common.submissions import Submission, read_submissions
from triton import knobs
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from assay.kernels.inside import pretend_cuda, submission
from assay.kernels.inside.triton import ahead_of_time
from assay.kernels.language import Kernels, parse, text
from assay.kernels.problems.scaling import scale
from support.collected_kernels import collect
from support.kernelbench_data import HONEST, shipped

CAP = 64
FILE = "generated.py"
report: dict[str, Any] = {"compiled": 0, "differ": [], "refused": [], "failed": {}}


def generated(function: Any) -> tuple[Any, dict[str, str]]:
    """The counterpart of a kernel, compiled from generated text, and the names of its parameters."""
    table, keys = collect([function])
    kernels = parse(table)
    if not isinstance(kernels, Kernels):
        report["refused"].append(str(kernels))
        raise ValueError(str(kernels))
    made = text(kernels)
    linecache.cache[FILE] = (len(made.source), None, made.source.splitlines(keepends=True), FILE)
    module = ModuleType("generated")
    exec(compile(made.source, FILE, "exec"), module.__dict__)
    key = keys[id(function.fn)]
    return getattr(module, made.names[key]), dict(made.parameters[key])


def assembly(kernel: Any) -> str:
    """The PTX of a kernel, without its name and without comments, whose place depends on the name."""
    return re.sub(rf"\b{re.escape(kernel.metadata.name)}", "kernel", re.sub(r"\s*//.*", "", kernel.asm["ptx"]))


def both(launch: Any) -> Any:
    """A compilation that is done both ways and compared, in place of a launch."""

    def run(function: Any, *args: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        kernel = launch(function, *args, grid=None, warmup=True, **named)
        made, names = generated(function)
        renamed = {names.get(name, name): value for name, value in named.items()}
        found = launch(made, *args, grid=None, warmup=True, **renamed)
        report["compiled"] += 1
        if assembly(found) != assembly(kernel):
            report["differ"].append(function.fn.__name__)
        return kernel

    return run


def first(tuner: Any, *args: Any, **named: Any) -> Any:
    """An autotuned kernel in its first configuration."""
    return tuner.fn.run(*args, **named, **tuner.configs[0].all_kwargs())


def run(one: Submission, problem: str) -> None:
    """Build the submission's model and call it once."""
    space: dict[str, Any] = {}
    exec(compile(problem, "problem.py", "exec"), space)
    init, inputs = space["get_init_inputs"](), space["get_inputs"]()
    with pretend_cuda.OnCpu(), torch.no_grad():
        submission.load(one.code).ModelNew(*init)(*inputs)


def main() -> None:
    torch.set_num_threads(1)
    ahead_of_time.install(pretend_cuda.CAPABILITY, pretend_cuda.SHARED_LIMIT)
    pretend_cuda.install(pretend_cuda.SHARED_LIMIT, pretend_cuda.CAPABILITY)
    knobs.compilation.store_binary_only = False
    knobs.compilation.disable_line_info = True  # lines differ
    JITFunction.run = both(JITFunction.run)
    Autotuner.run = first
    problems = shipped()
    for one in read_submissions(HONEST):
        if one.id in sys.argv[1].split(","):
            try:
                run(one, scale(problems[one.problem], CAP).code)
            except Exception as error:  # noqa: BLE001  whatever it was is reported
                report["failed"][one.id] = f"{type(error).__name__}: {error}"[:400]
    print(json.dumps(report))


if __name__ == "__main__":
    main()
