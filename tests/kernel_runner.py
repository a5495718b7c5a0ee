"""Runs submissions against references in Triton's interpreter, for tests: a forked process each, errors from float64.

    python kernel_runner.py < jobs.jsonl     each line {"name", "reference", "submission", "seed"?, "timeout_s"?}

One line of JSON comes back for each job: name, ok, error, worst (largest error over the allowed one) and CPU seconds.
This is no grader: it trusts what it runs. A stub driver stands in where Triton wants a GPU to time autotuned kernels.
"""

from __future__ import annotations

import copy
import json
import linecache
import os
import signal
import sys
import time
import types

os.environ["TRITON_INTERPRET"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from triton.runtime.driver import driver


class StubDriver:
    """What an autotuner asks a driver for: every configuration is equally fast."""

    def get_benchmarker(self):
        def benchmark(call, quantiles):
            call()
            return [0.0 for _ in quantiles]

        return benchmark

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


def load(name, code):
    """The namespace of a module; its lines are kept where Triton looks for the source of a kernel."""
    file = f"<{name}>"
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    module = sys.modules[name] = types.ModuleType(name)  # dataclasses look their module up there
    exec(compile(code, file, "exec"), module.__dict__)
    return module.__dict__


def double(value):
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def clone(values):
    return [v.clone() if isinstance(v, torch.Tensor) else v for v in values]


def compare(reference, submission, seed):
    """Largest error of the submission's output, over 1e-4 of the reference's root mean square plus its value."""
    old, new = load("reference", reference), load("submission", submission)
    torch.manual_seed(seed)
    model = old["Model"](*old["get_init_inputs"]())
    torch.manual_seed(seed)
    candidate = new["ModelNew"](*old["get_init_inputs"]())
    torch.manual_seed(seed + 1)
    inputs = old["get_inputs"]()
    with torch.no_grad():
        exact_model = copy.deepcopy(model).double()
        torch.set_default_dtype(torch.float64)
        exact = exact_model(*[double(v) for v in clone(inputs)])
        torch.set_default_dtype(torch.float32)
        expected = model(*clone(inputs))
        begin = time.process_time()
        got = candidate(*clone(inputs))
        seconds = time.process_time() - begin
    if type(got) is not torch.Tensor or got.shape != expected.shape or got.dtype != expected.dtype:
        return {"ok": False, "error": f"output {type(got)} {getattr(got, 'shape', '')} {getattr(got, 'dtype', '')}"}
    scale = 1e-4 * (exact.double().square().mean().sqrt() + exact.double().abs())
    worst = ((got.double() - exact.double()).abs() / scale.clamp(min=1e-12)).max().item()
    return {"ok": worst <= 1.0, "worst": worst, "seconds": round(seconds, 3), "error": ""}


def run(job):
    """The result of one job, from a process of its own."""
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(source)
        signal.alarm(int(job.get("timeout_s", 60)))
        try:
            result = compare(job["reference"], job["submission"], job.get("seed", 0))
        except Exception as error:  # noqa: BLE001  any failure of a submission is its result
            result = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        os.write(sink, json.dumps(result).encode())
        os._exit(0)
    os.close(sink)
    with os.fdopen(source, "rb") as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    return {"name": job["name"], **(json.loads(text) if text else {"ok": False, "error": f"died with status {status}"})}


def main():
    torch.set_num_threads(1)
    driver.set_active(StubDriver())
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
