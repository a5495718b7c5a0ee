"""The reference process: what it computes, that seeds decide it, and that no fault of a problem outlives its answer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from assay.errors import MissingDependencyError, ReferenceModelError
from assay.kernels.arrays import HostTensor, Layout, host_tensors, layout_of
from assay.kernels.base import Precision
from assay.kernels.numerics.families import FAMILIES
from assay.kernels.numerics.reference import ReferenceProcess, ReferenceResult, fit_problem
from assay.kernels.problems.scaling import scale
from assay.kernels.problems.sources import make_problem
from support.kernelbench_data import TINY
from support.sandboxes import children

LINEAR = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, wide):
        super().__init__()
        self.norm = nn.BatchNorm1d(20)
        self.linear = nn.Linear(20, wide)

    def forward(self, x, scale):
        return torch.relu(self.linear(self.norm(x))) * scale


def get_inputs():
    return [torch.rand(6, 20), 0.5]


def get_init_inputs():
    return [8]
"""


@pytest.fixture
def process(reference_process: ReferenceProcess, monkeypatch: pytest.MonkeyPatch) -> ReferenceProcess:
    """The shared process, with less memory for each evaluation."""
    monkeypatch.setattr(reference_process, "memory_mb", 1024)
    return reference_process


def arrays(result: ReferenceResult) -> list[bytes]:
    return [o.tobytes() for case in result.cases for o in (*case.exact, *case.rounded)]


def tensor(value: object) -> HostTensor:
    assert isinstance(value, HostTensor)
    return value


def test_outputs_are_those_of_the_module(process: ReferenceProcess) -> None:
    result = process.evaluate(LINEAR, input_seed=7, weight_seed=3, with_state=True)
    assert [case.family for case in result.cases] == list(FAMILIES)
    assert result.outputs == (("float32", (6, 8)),)
    assert result.parameters == 20 * 8 + 8 + 40 and result.init_inputs == (8,)
    assert result.exact_dtype == "float64" and not result.refused
    weight, bias = (result.state[f"linear.{name}"].array().astype(np.float64) for name in ("weight", "bias"))
    for case in result.cases:
        x = tensor(case.inputs[0]).array().astype(np.float64)
        normal = (x - x.mean(axis=0)) / np.sqrt(x.var(axis=0) + 1e-5)
        expected = np.maximum(normal @ weight.T + bias, 0) * 0.5
        assert case.exact[0].dtype == np.float64 and case.rounded[0].dtype == np.float32
        np.testing.assert_allclose(case.exact[0], expected, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(case.rounded[0], expected, rtol=1e-4, atol=1e-4)


def test_seeds_decide_everything_and_nothing_else_does(process: ReferenceProcess) -> None:
    first = process.evaluate(LINEAR, input_seed=7, weight_seed=3, with_state=True)
    process.evaluate(LINEAR, input_seed=8, weight_seed=3)
    again = process.evaluate(LINEAR, input_seed=7, weight_seed=3, with_state=True)
    assert arrays(first) == arrays(again) and first.state == again.state
    assert [c.inputs for c in first.cases] == [c.inputs for c in again.cases]
    worker = worker_of(process)
    os.kill(worker, signal.SIGKILL)
    with pytest.raises(ReferenceModelError, match="died") as caught:
        process.evaluate(LINEAR, input_seed=1, weight_seed=0)
    assert caught.value.kind == "crash"
    elsewhere = process.evaluate(LINEAR, input_seed=7, weight_seed=3, with_state=True)
    assert arrays(first) == arrays(elsewhere) and worker_of(process) != worker
    other_inputs = process.evaluate(LINEAR, input_seed=8, weight_seed=3, with_state=True)
    assert other_inputs.state == first.state and other_inputs.cases[0].inputs != first.cases[0].inputs
    other_weights = process.evaluate(LINEAR, input_seed=7, weight_seed=4, with_state=True)
    assert other_weights.state != first.state and other_weights.cases[0].inputs == first.cases[0].inputs


def test_weights_are_seeded_right_before_the_model_is_built(process: ReferenceProcess) -> None:
    drawing = LINEAR.replace("return [8]", "torch.rand(100); return [8]")
    one = process.evaluate(LINEAR, input_seed=7, weight_seed=3, with_state=True)
    other = process.evaluate(drawing, input_seed=7, weight_seed=3, with_state=True)
    assert one.state == other.state


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_low_precision_starts_from_rounded_inputs_and_weights(process: ReferenceProcess, precision: str) -> None:
    result = process.evaluate(
        LINEAR,
        input_seed=7,
        weight_seed=3,
        families=("given",),
        precision=precision,
        with_state=True,  # type: ignore[arg-type]
    )
    case = result.cases[0]
    assert tensor(case.inputs[0]).dtype == result.state["linear.weight"].dtype == precision
    assert result.outputs[0][0] == precision
    error = np.abs(case.exact[0] - case.rounded[0].astype(np.float64)).max()
    assert 1e-5 < error < 0.1


def test_moved_weights_leave_their_starting_values(process: ReferenceProcess) -> None:
    still = process.evaluate(LINEAR, input_seed=7, weight_seed=3, with_state=True)
    moved = process.evaluate(LINEAR, input_seed=7, weight_seed=3, with_state=True, perturb_weights=True)
    again = process.evaluate(LINEAR, input_seed=7, weight_seed=3, with_state=True, perturb_weights=True)
    for name in ("norm.weight", "norm.bias", "linear.weight", "linear.bias"):
        before, after = still.state[name].array(), moved.state[name].array()
        assert not np.any(before == after) and np.abs(after - before).max() < 2
    assert moved.state == again.state and arrays(moved) == arrays(again) != arrays(still)


def test_one_parameter_moves_alone(process: ReferenceProcess) -> None:
    still = process.evaluate(LINEAR, input_seed=7, weight_seed=3, with_state=True)
    moved = process.evaluate(
        LINEAR, input_seed=7, weight_seed=3, with_state=True, perturb_weights="all", only=("linear.bias",)
    )
    names = [name for name, _ in still.weights]
    assert [name for name in names if still.state[name] != moved.state[name]] == ["linear.bias"]
    differ = [name for name, one, two in zip(names, still.initial, moved.initial, strict=True) if one != two]
    assert differ == ["linear.bias"] and len(set(still.initial)) == 4


def test_constant_buffers_that_matter_move_with_constant_parameters(process: ReferenceProcess) -> None:
    statistics = ("norm.running_mean", "norm.running_var")
    in_training = process.evaluate(LINEAR, input_seed=7, weight_seed=3)
    assert set(in_training.needed) == {"norm.weight", "norm.bias"}, "which only keeps its statistics"
    code = LINEAR.replace("nn.Linear(20, wide)", "nn.Linear(20, wide)\n        self.eval()")
    in_eval = process.evaluate(code, input_seed=7, weight_seed=3, with_state=True)
    assert set(in_eval.needed) == {"norm.weight", "norm.bias", *statistics}
    moved = process.evaluate(
        code, input_seed=7, weight_seed=3, with_state=True, perturb_weights="all", only=in_eval.needed
    )
    assert all(moved.state[name] != in_eval.state[name] for name in statistics)
    assert moved.state["linear.weight"] == in_eval.state["linear.weight"]


def test_a_copy_of_a_weight_in_a_buffer_moves_as_the_weight_does(process: ReferenceProcess) -> None:
    made = "nn.Linear(20, wide)\n        self.register_buffer('anchor', self.linear.weight.detach().clone())"
    code = LINEAR.replace("nn.Linear(20, wide)", made)
    kept = process.evaluate(code, input_seed=7, weight_seed=3)
    assert set(kept.needed) == {"norm.weight", "norm.bias", "linear.weight"}, "no output depends on the copy"
    code = code.replace("torch.relu(", "torch.relu(nn.functional.linear(x, self.linear.weight - self.anchor) + ")
    used = process.evaluate(code, input_seed=7, weight_seed=3, with_state=True)
    assert set(used.needed) == {"norm.weight", "norm.bias", "linear.weight", "anchor"}
    moved = process.evaluate(
        code, input_seed=7, weight_seed=3, with_state=True, perturb_weights="all", only=used.needed
    )
    assert used.state["linear.weight"].array().tolist() == used.state["anchor"].array().tolist()
    assert not np.any(moved.state["linear.weight"].array() == moved.state["anchor"].array())


def test_inputs_that_forward_changes(process: ReferenceProcess) -> None:
    code = LINEAR.replace("def forward(self, x, scale):", "def forward(self, x, scale):\n        CHANGE")
    for change, changed in (("x[:0].add_(0)", []), ("x.mul_(1)", []), ("x.data[1:].mul_(2)", [0])):
        result = process.evaluate(code.replace("CHANGE", change), input_seed=7, weight_seed=3)
        assert all([left.place for left in case.after] == changed for case in result.cases), change


def test_work_is_counted_in_one_pass(process: ReferenceProcess) -> None:
    work = process.evaluate(LINEAR, input_seed=7, weight_seed=3).work
    assert work["addmm"] == (1, 6 * 20 * 8)
    assert work["relu"] == (1, 48) and work["mul"] == (1, 48)
    assert work["native_batch_norm"][0] == 1 and work["t"] == (1, 0)


@pytest.mark.parametrize("kinds", [2, 1])
def test_kinds_that_are_all_alike_are_turned_where_the_problem_takes_others(
    process: ReferenceProcess, kinds: int
) -> None:
    code = TINY.replace("return torch.relu(x)", f"return torch.relu(x) + torch.arange({kinds}.0)[kinds][:, None]")
    code = code.replace("def forward(self, x)", "def forward(self, x, kinds)")
    code = code.replace(
        "torch.rand(batch_size, features)", "torch.rand(batch_size, features), torch.zeros(batch_size).long()"
    )
    result = process.evaluate(code, input_seed=1, weight_seed=0)
    turned = {case.family for case in result.cases if tensor(case.inputs[1]).array().any()}
    assert [case.family for case in result.cases] == list(FAMILIES) and not result.refused
    assert turned == ({"signed", "sparse"} if kinds == 2 else set())


def test_a_family_that_the_problem_refuses_is_named_and_left_out(process: ReferenceProcess) -> None:
    picky = TINY.replace("return torch.relu(x)", "assert 0.27 < x.std() < 0.32 and x.min() >= 0; return torch.relu(x)")
    result = process.evaluate(picky, input_seed=1, weight_seed=0)
    assert [case.family for case in result.cases] == ["given", "faint", "permuted"]
    assert set(result.refused) == {"signed", "large", "sparse"}
    assert "AssertionError" in result.refused["signed"]


GATED = """
import torch


class Model(torch.nn.Module):
    def forward(self, x, p, y):
        BODY
        return torch.relu(x) * torch.log(p) + torch.relu(y)


def get_inputs():
    return [torch.rand(20, 30), torch.rand(20, 30) * 0.9 + 0.05, torch.rand(20, 30)]


def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("body", ["pass", "assert 0 <= p.min() and p.max() <= 1"])
def test_an_input_that_must_stay_as_it_is_does_not_keep_the_others_from_being_varied(
    process: ReferenceProcess, body: str
) -> None:
    result = process.evaluate(GATED.replace("BODY", body), input_seed=1, weight_seed=0)
    assert [case.family for case in result.cases] == list(FAMILIES) and all(case.finite for case in result.cases)
    for case in result.cases[1:4]:
        x, p, y = (value.array() for value in case.inputs if isinstance(value, HostTensor))
        assert x.min() < 0 < p.min() and y.min() < 0, case.family
        assert (p.max() <= 1) == (body != "pass") and len(set(p.ravel().tolist())) > 9, "varied, in its domain"
    assert not result.refused


def test_a_flag_that_must_stay_does_not_keep_a_mask_beside_it_from_being_turned(process: ReferenceProcess) -> None:
    code = GATED.replace("x, p, y", "x, p").replace("BODY", "assert int(p.min()) == int(p.max()) == 3")
    code = code.replace("torch.relu(x) * torch.log(p) + torch.relu(y)", "x * 2.0 + p")
    drawn = "torch.rand(20, 30), torch.rand(20, 30) * 0.9 + 0.05, torch.rand(20, 30)"
    code = code.replace(drawn, "torch.ones(4, 8, dtype=torch.bool), torch.full((4, 8), 3)")
    result = process.evaluate(code, input_seed=1, weight_seed=0)
    masks = [case.inputs[0] for case in result.cases]
    assert any(isinstance(mask, HostTensor) and not mask.array().all() for mask in masks), result.refused


def test_a_module_that_insists_on_float32_is_its_own_truth(process: ReferenceProcess) -> None:
    stubborn = TINY.replace("return torch.relu(x)", "return torch.ones(4096, 3, dtype=torch.float32).T @ x.T")
    stubborn = stubborn.replace(" * self.scale", "")
    result = process.evaluate(stubborn, input_seed=1, weight_seed=0, families=("given",))
    assert result.exact_dtype == "float32"


@pytest.mark.parametrize(
    ("extra", "forward"),
    [
        ("import dataclasses\n@dataclasses.dataclass\nclass Shape:\n    n: int = 2\n", "torch.relu(x) * Shape().n"),
        ("@torch.jit.script\ndef twice(x):\n    return x * 2\n", "twice(torch.relu(x))"),
    ],
    ids=["dataclass", "torchscript"],
)
def test_modules_may_use_what_looks_at_its_own_source(process: ReferenceProcess, extra: str, forward: str) -> None:
    code = TINY.replace("\n\nclass Model", f"\n\n{extra}\n\nclass Model").replace("torch.relu(x)", forward)
    result = process.evaluate(code, input_seed=1, weight_seed=0, families=("given",))
    x = tensor(result.cases[0].inputs[0]).array()
    np.testing.assert_array_equal(result.cases[0].rounded[0], np.maximum(x, 0) * 2 * np.float32(1.5))


def faulty(body: str) -> str:
    """The tiny problem, with a fault in its forward."""
    return TINY.replace("        return torch", f"        {body}\n        return torch")


FAULTS = {
    "error": ("raise ValueError('no such luck')", "error", "ValueError: no such luck"),
    "syntax": ("return return", "error", "SyntaxError"),
    "exit": ("import sys; sys.exit(0)", "error", "SystemExit"),
    "interrupt": ("raise KeyboardInterrupt", "error", "KeyboardInterrupt"),
    "exit at once": ("import os; os._exit(0)", "ended", "status 0"),
    "exit with the status of success": ("import os; os._exit(90)", "ended", ""),
    "segmentation fault": ("import ctypes; ctypes.string_at(0)", "ended", "SIGSEGV"),
    "abort": ("import os; os.abort()", "ended", "died of SIG"),
    "one large tensor": ("torch.empty(1 << 34).fill_(1)", "memory", "allocate"),
    "Python's memory": ("b = [bytes(1 << 28) for _ in range(100)]", "memory", ""),
    "descriptors": ("import os; os.closerange(0, 10000)", "ended", "status 1"),
    "reads": ("input()", "error", "EOF"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_answered_by_its_kind(process: ReferenceProcess, fault: str) -> None:
    body, kind, said = FAULTS[fault]
    with pytest.raises(ReferenceModelError) as caught:
        process.evaluate(faulty(body), input_seed=1, weight_seed=0)
    assert caught.value.kind == kind and said in str(caught.value)
    assert process.evaluate(TINY, input_seed=1, weight_seed=0, families=("given",)).cases


ENDLESS = {
    "loop": "while True: pass",
    "deaf loop": "import signal; [signal.signal(s, signal.SIG_IGN) for s in (2, 15)]\n        while True: pass",
    "sleep": "import time; time.sleep(1000)",
    "prints": "while True: print('x' * 100000)",
    "complains": "import sys\n        while True: sys.stderr.write('x' * 100000)",
    "waits for a thread": "import threading; threading.Event().wait()",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_what_does_not_end_is_ended(process: ReferenceProcess, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    process.evaluate(TINY, input_seed=1, weight_seed=0, families=("given",))
    worker = worker_of(process)
    monkeypatch.setattr(process, "timeout_s", 0.4)
    with pytest.raises(ReferenceModelError, match=r"more than 0\.4 s") as caught:
        process.evaluate(faulty(ENDLESS[name]), input_seed=1, weight_seed=0)
    assert caught.value.kind == "timeout"
    assert worker_of(process) == worker, "a slow reference does not cost the process that runs them"


def worker_of(process: ReferenceProcess) -> int:
    assert process._quick.pid is not None
    return process._quick.pid


SEEDS = {"input_seed": 1, "weight_seed": 0}


def gone(pids: set[int]) -> bool:
    """Whether all of these processes end within a while that no loaded machine exceeds."""
    for _ in range(600):
        if not any(Path("/proc", str(pid)).exists() and not zombie(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


SLEEPS = "import time; time.sleep(1000)"


@pytest.mark.parametrize("end", ["kill", "close"])
def test_nothing_outlives_the_process_that_is_killed_or_closed_at_work(end: str) -> None:
    process = ReferenceProcess(timeout_s=600, quick_s=600)
    process.evaluate(TINY, families=("given",), **SEEDS)
    failures: list[ReferenceModelError] = []

    def wait() -> None:
        try:
            process.evaluate(faulty(SLEEPS), **SEEDS)
        except ReferenceModelError as error:
            failures.append(error)

    idle = children(worker_of(process))
    thread = threading.Thread(target=wait)
    thread.start()
    while len(found := {worker_of(process), *children(worker_of(process))}) < 2 + len(idle):
        time.sleep(0.02)
    if end == "kill":
        os.kill(worker_of(process), signal.SIGKILL)
    else:
        process.close()
    thread.join(60)
    assert not thread.is_alive() and [f.kind for f in failures] == ["crash"]
    assert gone(found)
    if end == "kill":
        assert process.evaluate(TINY, families=("given",), **SEEDS).cases, "a later evaluation starts another"
        process.close()
    with pytest.raises(ReferenceModelError, match="closed") as closed:
        process.evaluate(TINY, families=("given",), **SEEDS)
    assert closed.value.kind == "crash"


def test_it_outlives_the_thread_that_first_used_it() -> None:
    with ReferenceProcess() as process:
        thread = threading.Thread(target=lambda: process.evaluate(TINY, families=("given",), **SEEDS))
        thread.start()
        thread.join()
        worker = worker_of(process)
        assert process.evaluate(TINY, families=("given",), **SEEDS).cases and worker_of(process) == worker


INTERRUPTED = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell started in the background
from assay.kernels.numerics.reference import ReferenceProcess
process = ReferenceProcess(timeout_s=600, quick_s=600)
process.evaluate(sys.argv[1], input_seed=1, weight_seed=0, families=("given",))
print("at work", flush=True)
try:
    process.evaluate(sys.argv[2], input_seed=1, weight_seed=0)
except KeyboardInterrupt:
    found = process.evaluate(sys.argv[1], input_seed=1, weight_seed=0, families=("given",))
    print("went on with", found.cases[0].rounded[0].shape, flush=True)
    process.evaluate(sys.argv[2], input_seed=1, weight_seed=0)
"""


def test_an_interrupted_parent_reads_no_stale_answer_and_a_killed_one_leaves_nothing() -> None:
    small = scale(make_problem(1, 1, "x", TINY, "x"), 32).code
    parent = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, small, faulty(SLEEPS)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None and parent.stdout.readline() == "at work\n"
    first = at_work(parent.pid)
    parent.send_signal(signal.SIGINT)
    assert parent.stdout.readline() == "went on with (2, 32)\n"
    assert gone(first), "what the interrupt found at work has ended"
    second = at_work(parent.pid)
    parent.kill()
    said, _ = parent.communicate(timeout=120)
    assert said == "" and gone(second)


def at_work(parent: int) -> set[int]:
    """What runs below a process, as soon as a fork is among it: bubblewrap twice, the worker, its fork."""
    while len(found := children(parent)) < 4:
        time.sleep(0.02)
    return found


def test_threads_wait_in_line(process: ReferenceProcess) -> None:
    results: dict[int, ReferenceResult] = {}

    def ask(seed: int) -> Callable[[], None]:
        return lambda: results.update({seed: process.evaluate(LINEAR, input_seed=seed, weight_seed=0)})

    threads = [threading.Thread(target=ask(seed)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len({arrays(results[seed])[0] for seed in range(4)}) == 4
    assert arrays(results[2]) == arrays(process.evaluate(LINEAR, input_seed=2, weight_seed=0))


def test_large_problems_and_large_answers_travel(process: ReferenceProcess) -> None:
    long = TINY + "#" * 500_000
    result = process.evaluate(long, input_seed=1, weight_seed=0, families=("given",))
    assert result.cases[0].exact[0].nbytes == 64 * 4096 * 8
    with pytest.raises(ReferenceModelError) as caught:
        process.evaluate(TINY, input_seed=1, weight_seed=0, max_output=1000)
    assert caught.value.kind == "too_large" and "262144 elements" in str(caught.value)


def test_an_interpreter_without_torch_is_said() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # what lies in /dev/shm, where pytest writes, is not seen
        os.chmod(folder, 0o755)
        without_torch(Path(folder))


def without_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}:$PYTHONPATH exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with (
        ReferenceProcess(python=str(python)) as process,
        pytest.raises(MissingDependencyError, match=r"\.\[torch\]"),
    ):
        process.evaluate(TINY, **SEEDS)
    with ReferenceProcess(python="/bin/false") as process, pytest.raises(ReferenceModelError, match="did not start"):
        process.evaluate(TINY, **SEEDS)


def test_fitting_picks_the_smallest_size_that_is_worth_it(process: ReferenceProcess) -> None:
    fitted = fit_problem(make_problem(1, 1, "x", TINY, "x"), process)
    assert fitted.scaled.scaling.cap == 32 and fitted.screening.rewarded
    empty_when_small = TINY.replace("torch.relu(x)", "torch.relu(x) * float(x.shape[1] > 60)")
    assert fit_problem(make_problem(1, 1, "x", empty_when_small, "x"), process).scaled.scaling.cap == 64
    too_large = TINY.replace("torch.relu(x)", "torch.relu(x).repeat(1, 400)")
    assert fit_problem(make_problem(1, 1, "x", too_large, "x"), process, max_output=20_000).scaled.scaling.cap == 16
    empty = fit_problem(make_problem(1, 1, "x", TINY.replace("torch.relu(x)", "0 * x"), "x"), process)
    assert empty.screening.reason == "zero" and empty.scaled.scaling.cap == 32
    broken = make_problem(1, 1, "x", faulty("raise RuntimeError('never')"), "x")
    with pytest.raises(ReferenceModelError, match="never"):
        fit_problem(broken, process)


CHOOSES = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x, slope):
        return CHOICE * slope, self.scale * slope


def get_inputs():
    return [torch.randn(12, 9), torch.rand(1).item()]


def get_init_inputs():
    return []
"""


def test_inputs_whose_ties_decide_are_left_out_where_no_order_is_promised(process: ReferenceProcess) -> None:
    found = {
        choice: process.evaluate(CHOOSES.replace("CHOICE", choice), input_seed=7, weight_seed=3)
        for choice in ("x.topk(8)[1]", "x.argmax(1)")
    }
    left_out, kept = found.values()
    assert "equal elements" in left_out.refused["faint"] and "equal elements" in left_out.refused["sparse"]
    assert not kept.refused and {case.family for case in left_out.cases} == {"given", "signed", "large", "permuted"}
    assert len({case.inputs[1] for result in found.values() for case in result.cases}) == 1


def test_weights_that_are_moved_far_change_their_signs_and_grow(process: ReferenceProcess) -> None:
    code = CHOOSES.replace("CHOICE", "x").replace("torch.ones(4)", "torch.ones(400)")
    other = process.evaluate(code, input_seed=9, number_seed=7, weight_seed=3, perturb_weights="far", with_state=True)
    scale = other.state["scale"].array()
    assert 0.1 < (scale < 0).mean() < 0.4 and 0.05 < (abs(scale) > 5).mean() < 0.25
    plain = process.evaluate(code, input_seed=7, weight_seed=3, families=("given",))
    assert {case.inputs[1] for case in other.cases} == {plain.cases[0].inputs[1]}


LAID = """
import torch


class Model(torch.nn.Module):
    def forward(self, x, row, whole, part):
        whole.mul_(0.5)
        return x + row, part * 1


def get_inputs():
    whole = torch.rand(4, 6)
    return [torch.rand(6, 4).t(), torch.rand(1, 6).expand(4, 6), whole, whole[:2]]


def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_inputs_lie_as_they_are_made_in_any_precision(process: ReferenceProcess, precision: Precision) -> None:
    case = process.evaluate(LAID, input_seed=1, weight_seed=0, families=("given",), precision=precision).cases[0]
    given = list(host_tensors(case.inputs))
    layouts = [Layout(0, 24, (1, 4), 0), Layout(1, 6, (0, 1), 0), Layout(2, 24, (6, 1), 0), Layout(2, 24, (6, 1), 0)]
    assert [tensor.layout for tensor in given] == layouts and given[0].dtype == precision
    entries = process.shapes(LAID, precision=precision).inputs
    assert [layout_of(entry["layout"]) for entry in entries] == layouts
    assert np.allclose(case.exact[1], 0.5 * given[3].array(), rtol=1e-6)


DOMAINS = {
    "roots": ("torch.exp(torch.sqrt(x) / 4)", lambda x: x.min() >= 0 and x.max() > 9),
    "logarithms": ("torch.log(x)", lambda x: x.min() > 0 and x.max() > 9),
    "probabilities": ("torch.log(x) + torch.log1p(-x)", lambda x: x.min() > 0 and x.max() < 1 and x.std() > 0.3),
    "a column of logarithms": (
        "torch.cat([torch.log(x[:, 3:4]), torch.relu(x[:, 4:]), torch.relu(x[:, :3])], 1)",
        lambda x: x[:, 3].min() > 0 > x[:, 2000:].min(axis=0).max(),
    ),
    "a row of logarithms": ("torch.cat([torch.log(x[:1]), torch.relu(x[1:])])", lambda x: x[0].min() > 0 > x[1:].min()),
}


@pytest.mark.parametrize("name", DOMAINS)
def test_a_family_is_brought_into_the_domain_that_the_problem_takes(process: ReferenceProcess, name: str) -> None:
    body, holds = DOMAINS[name]
    code = TINY.replace("return torch.relu(x) * self.scale", f"return {body}")
    result = process.evaluate(code, input_seed=1, weight_seed=0)
    assert [case.family for case in result.cases] == list(FAMILIES) and all(case.finite for case in result.cases)
    shown = "signed" if name.startswith("a ") else "large"
    (case,) = (case for case in result.cases if case.family == shown)
    assert holds(tensor(case.inputs[0]).array())
    assert not result.refused


TURNED = """
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.turn = torch.nn.Parameter(torch.view_as_complex(torch.randn(8, 2)))
        self.register_buffer("shift", torch.full((8,), 2j))
        self.levels = torch.nn.Parameter(torch.arange(8) * 3 % 8, requires_grad=False)
        self.places = torch.nn.Parameter(torch.arange(8), requires_grad=False)
        self.edges = torch.nn.Parameter(torch.linspace(1, -1, 8))

    def forward(self, z):
        return torch.view_as_real(z * self.turn + self.shift), self.turn, self.levels + 0, self.places + 0, self.edges


def get_inputs():
    return [torch.randn(4, 8, dtype=torch.complex64)]


def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("perturb", ["none", "all"])
def test_complex_and_whole_weights_are_what_they_are(
    process: ReferenceProcess, perturb: Literal["none", "all"]
) -> None:
    result = process.evaluate(TURNED, input_seed=1, weight_seed=0, perturb_weights=perturb, with_state=True)
    case = result.cases[0]
    exact, turn, levels, places, edges = case.exact
    z = tensor(case.inputs[0]).array().astype(np.complex128)
    expected = z * turn + 2j
    np.testing.assert_allclose(exact[..., 0] + 1j * exact[..., 1], expected, rtol=1e-12)
    assert turn.dtype == np.complex128 and (turn.imag != 0).all() and case.rounded[1].dtype == np.complex64
    assert sorted(levels) == list(range(8)) and (list(levels) == [0, 3, 6, 1, 4, 7, 2, 5]) == (perturb == "none")
    assert list(places) == list(range(8)) and (np.diff(edges) < 0).all()
    assert np.allclose(edges, np.linspace(1, -1, 8)) == (perturb == "none")
