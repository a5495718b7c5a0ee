"""What is right at the small sizes that a problem is graded at, looked at where its tensors are large."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import chz
import pytest

from assay.errors import ReferenceModelError
from assay.kernels.inside.triton.compiled.stores import most_bytes
from assay.kernels.numerics.reference import ReferenceProcess
from assay.kernels.numerics.shapes import MAX_VALUES, shapes_of_answer
from assay.kernels.problems.scaling import scale
from assay.kernels.problems.sources import make_problem
from assay.kernels.program.operations import reference_arithmetic
from assay.kernels.program.published import launched_alike, outputs_reached
from support.kernel_graders import QUICK, Bench
from support.kernelbench_data import TINY
from support.programs import KERNEL, N, launch, made, operation, window
from support.sandboxes import needs_walls

FIT = chz.replace(QUICK, scale="fit")
COMPILED = chz.replace(FIT, compile_check="right")
SCALED = make_problem(1, 1, "scaled", TINY, "test")
BEFORE = "right at the sizes it was graded at, but at the published one: "

CANDIDATE = """
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def relu_kernel(x, out, n, scale, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.maximum(tl.load(x + i, mask=i < n), 0.0) * scale, mask=i < n)


@triton.jit
def other_kernel(x, out, n, scale, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, scale + 0 * tl.load(x + i, mask=i < n), mask=i < n)


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        n, kernel, block = x.numel(), relu_kernel, 16
        out = torch.empty_like(x)
        if n > 10000:
            LARGE
        kernel[(triton.cdiv(n, block),)](x, out, n, self.scale, BLOCK=block)
        return out
"""


def when_large(does: str) -> str:
    return CANDIDATE.replace("LARGE", does)


@needs_walls
@pytest.mark.parametrize(
    ("does", "kind", "cheat", "words"),
    [
        ("return torch.relu(x) * self.scale", "cheat", "kernels", "forward launches no kernel"),
        ("return out", "cheat", "kernels", "forward launches no kernel"),
        ("kernel = other_kernel", "cheat", "kernels", "does not launch the kernel relu_kernel"),
        ("x = torch.relu(x)", "cheat", "arithmetic", "arithmetic operations beside the kernels"),
        ("n = int(x.sum())", "cheat", "host_read", "host code is graded without any"),
        ("raise ValueError('too large')", "crash", "", "too large"),
    ],
)
def test_what_is_not_done_where_tensors_are_large(bench: Bench, does: str, kind: str, cheat: str, words: str) -> None:
    verdict = bench.grade(SCALED, when_large(does), FIT)
    assert (verdict.kind, verdict.cheat) == (kind, cheat), verdict
    assert verdict.message.startswith(BEFORE)
    assert words in verdict.message
    assert verdict.tests_passed > 0 and verdict.evidence["published"] == "refused"


@needs_walls
def test_an_honest_submission_is_recorded_there_too(bench: Bench) -> None:
    verdict = bench.grade(SCALED, when_large("block = 1024"), FIT)
    assert verdict.ok and verdict.evidence["published"] == "recorded" and verdict.evidence["sizes"] == 2, verdict
    assert "findings" not in verdict.evidence
    few = bench.grade(SCALED, when_large("other_kernel[(1,)](x, out, n, 1.0, BLOCK=16); block = 1 << 18"), FIT)
    assert few.ok, few
    said = " ".join(finding["message"] for finding in few.evidence["findings"])
    assert "other_kernel, which is not graded" in said and "fewer than the 4" in said


@needs_walls
def test_a_problem_graded_at_its_published_size_is_recorded_no_further(bench: Bench) -> None:
    small = make_problem(1, 3, "small", TINY.replace("64", "2").replace("4096", "24"), "test")
    verdict = bench.grade(small, when_large("pass"), FIT)
    assert verdict.ok and verdict.evidence["scaling"]["rule"] == "none", verdict
    assert verdict.evidence["sizes"] == 2 and "published" not in verdict.evidence
    chosen = bench.grade(scale(SCALED, 32), when_large("pass"), FIT)
    assert chosen.ok and "published" not in chosen.evidence, chosen


@needs_walls
@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("return torch.relu(x)", "assert bool((x >= x.min()).all())\n        return torch.relu(x)", "meta"),
        ("[torch.rand(batch_size, features)]", "[torch.from_numpy(torch.rand(batch_size, features).numpy())]", "meta"),
    ],
)
def test_a_problem_that_needs_values_is_not_looked_at(bench: Bench, old: str, new: str, why: str) -> None:
    reads = make_problem(1, 2, "reads", TINY.replace(old, new), "test")
    verdict = bench.grade(reads, when_large("return torch.relu(x) * self.scale"), FIT)
    assert verdict.ok, verdict
    said = verdict.evidence["published"]
    assert said.startswith("not looked at: the reference failed: ") and why in said


@needs_walls
def test_shapes_of_what_no_memory_would_hold(reference_process: ReferenceProcess) -> None:
    vast = TINY.replace("64", "1 << 17").replace("4096", "1 << 18")
    found = reference_process.shapes(vast, "bfloat16")
    assert found.inputs == ({"dtype": "bfloat16", "shape": [1 << 17, 1 << 18]},) and found.init_inputs == (1.5,)
    assert reference_arithmetic(found.work) == 2 << 35
    assert reference_process.shapes(TINY).inputs == ({"dtype": "float32", "shape": [64, 4096]},)
    same = reference_process.evaluate(TINY, input_seed=1, weight_seed=0, families=("given",))
    assert reference_process.shapes(TINY).work == same.work
    with pytest.raises(ReferenceModelError, match="GiB"):
        reference_process.shapes(TINY.replace("64", "1 << 20").replace("4096", "1 << 20"))


RECURRENT = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.lstm = nn.LSTM(size, size, num_layers=2, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(2 * size, size)
        self.last = nn.Linear(size, size)

    def forward(self, x):
        y, (h, c) = self.lstm(x)
        y, last = self.gru(y)
        return self.last(y), h + c, last

def get_inputs():
    return [torch.rand(2, STEPS, 16)]

def get_init_inputs():
    return [16]
"""


@needs_walls
def test_recurrent_layers_take_no_steps_where_there_are_no_values(reference_process: ReferenceProcess) -> None:
    few = RECURRENT.replace("STEPS", "6")
    run = reference_process.evaluate(few, input_seed=1, weight_seed=0, families=("given",))
    found, expected = (reference_arithmetic(work) for work in (reference_process.shapes(few).work, run.work))
    assert 0.7 * expected < found <= expected
    many = reference_process.shapes(RECURRENT.replace("STEPS", "6_000_000"))
    assert 0.99e6 * found < reference_arithmetic(many.work) < 1.01e6 * found


ANSWER: dict[str, Any] = {"inputs": [{"dtype": "float32", "shape": [2]}], "init_inputs": 3, "work": {"mm": [1, 2]}}


@pytest.mark.parametrize(
    "forged",
    [
        {"inputs": 1},
        {"inputs": [{"dtype": "x", "shape": [1]}]},
        {"inputs": [{"dtype": "float32", "shape": [-1]}]},
        {"inputs": [{"dtype": "float32", "shape": [True]}]},
        {"inputs": [{"dtype": "float32", "shape": [10**400]}]},
        {"inputs": [{"dtype": "float32", "shape": "12"}]},
        {"inputs": [{"dtype": "float32", "shape": [1] * 13}]},
        {"inputs": [{"dtype": "float32", "shape": [1 << 30, 1 << 30]}]},
        {"inputs": [1] * MAX_VALUES},
        {"inputs": [[[[[[[[1]]]]]]]]},
        {"inputs": ["x" * 1000]},
        {"inputs": [10**400]},
        {"inputs": [float("inf")]},
        {"inputs": [{}]},
        {"work": {"mm": [1, -1]}},
        {"work": [1]},
    ],
)
def test_forged_shapes_are_an_error(forged: dict[str, Any]) -> None:
    assert shapes_of_answer(ANSWER).init_inputs == (3,)
    with pytest.raises((ArithmeticError, AttributeError, LookupError, TypeError, ValueError)):
        shapes_of_answer(ANSWER | forged)


def test_kernels_are_told_apart_by_their_text() -> None:
    first = made()
    assert launched_alike(first, first) == []
    empty = replace(first.kernels[0], source=KERNEL.replace("scaled(", "("))
    missing, new = launched_alike(first, replace(first, kernels=(empty, *first.kernels[1:])))
    assert missing.refused and "does not launch the kernel double" in missing.message and not new.refused


def test_programs_may_be_fewer_where_blocks_are_larger() -> None:
    first, args = made(), launch()["variants"][0]["args"]
    fewer = made(forward=[launch(grid=(1,))])
    (told,) = launched_alike(first, fewer)
    assert told.refused and "fewer than the 2" in told.message and launched_alike(fewer, first) == []
    larger = made(forward=[launch(grid=(1,), **(args | {"BLOCK": 8}))])
    (told,) = launched_alike(first, larger)
    assert not told.refused and "fewer than the 2" in told.message
    (told,) = launched_alike(first, made(forward=[launch(grid=(1,), **(args | {"n": 100}))]))
    assert told.refused  # a number of run time says nothing about blocks


def test_no_program_is_no_launch() -> None:
    first, args = made(), launch()["variants"][0]["args"]
    idle, larger = launch(grid=(0,)), launch(grid=(0,), **(args | {"BLOCK": 8}))
    for step in (idle, larger):
        (told,) = launched_alike(first, made(forward=[step]))
        assert told.refused and "does not launch the kernel double" in told.message
    assert launched_alike(first, made(forward=[idle, launch()])) == []  # the rest of a division, say
    tuned = launch()
    tuned["variants"].append(idle["variants"][0])
    (told,) = launched_alike(first, made(forward=[tuned]))
    assert told.refused and "does not launch" in told.message  # a tuner would choose that one


TTIR = """module {
  tt.func public @kernel(%x: !tt.ptr<f32>, %n: i32) {
    %s = "tt.reduce"(%a) <{axis = 0 : i32}> ({}) : (tensor<1024xf32>) -> f32
    tt.store %p, %v, %m : tensor<4x256x!tt.ptr<f32>>
    tt.store %q, %w : !tt.ptr<f64>
    %r = tt.atomic_rmw fadd, acq_rel, gpu, %i, %f, %m : (tensor<8x!tt.ptr<f16>>, tensor<8xf16>) -> tensor<8xf16>
    tt.descriptor_store %d[%y, %z], %t : !tt.tensordesc<tensor<16x16xf32>>, tensor<16x16xf32>
    tt.return
  }
}"""


def test_what_a_kernel_can_store_is_in_its_text() -> None:
    assert most_bytes(TTIR) == 4 * 1024 + 8 + 2 * 8 + 8 * 256
    assert most_bytes("module { tt.return }") == 0
    for repeats in ("scf.for %i = %a to %b", "scf.while (%a = %b)", "tt.call @helper(%x)"):
        assert most_bytes(TTIR.replace("tt.return", repeats)) is None


@pytest.mark.parametrize(
    ("stored", "forward", "enough"),
    [
        (4 * N, [launch()], True),
        (4 * N - 1, [launch()], False),
        (None, [launch()], True),
        (0, [launch(), operation("clone.default", window(0), outs=(window(1),))], True),
        (0, [operation("zeros.default", [N], outs=(window(1),)), launch()], False),
    ],
)
def test_stores_that_cannot_fill_the_outputs(stored: int | None, forward: list[Any], enough: bool) -> None:
    found = outputs_reached(made(forward=forward), stored)
    assert (found == []) is enough
    assert all(finding.refused and finding.rule == "outputs" for finding in found)


def test_an_output_that_repeats_its_elements_is_filled_by_fewer() -> None:
    spread = [1, "float32", [100, N], [0, 1], 0]
    assert outputs_reached(made(outputs=[spread]), 4 * N) == []
    assert outputs_reached(made(outputs=[window(1), window(1)]), 4 * N) == []


@needs_walls
@pytest.mark.parametrize(
    ("does", "kind", "cheat", "words"),
    [
        ("block = 1 << 21", "compile_error", "", "exceeds triton maximum tensor numel"),
        ("block, n = 1 << 10, n // 2", "cheat", "outputs", "store 524288 bytes at most, and the output has 1048576"),
        ("n = 0", "cheat", "kernels", "does not launch the kernel"),
    ],
)
def test_blocks_and_programs_where_tensors_are_large(
    bench: Bench, does: str, kind: str, cheat: str, words: str
) -> None:
    verdict = bench.grade(SCALED, when_large(does), COMPILED)
    assert (verdict.kind, verdict.cheat) == (kind, cheat), verdict
    assert verdict.message.startswith(BEFORE) and words in verdict.message


@needs_walls
@pytest.mark.parametrize(
    ("line", "kind", "words"),
    [
        ("i + n * n - n * n", "wrong", "more than 32 bits hold"),
        ("i + n.to(tl.int64) * n - n.to(tl.int64) * n", "ok", ""),
    ],
)
def test_numbers_that_wrap_around_where_tensors_are_large(bench: Bench, line: str, kind: str, words: str) -> None:
    code = when_large("pass").replace("mask=i < n), 0.0)", f"mask={line} < n), 0.0)")
    verdict = bench.grade(SCALED, code, FIT)
    assert verdict.kind == kind and words in verdict.message, verdict


PRODUCT = """
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x_there = tl.load(x + i, mask=i < n, other=0.0)
    eye = (tl.arange(0, BLOCK)[:, None] == tl.arange(0, BLOCK)[None, :]).to(tl.float32)
    rows = tl.dot(eye, x_there[:, None] * eye, input_precision="ieee")
    tl.store(out + i, tl.maximum(tl.sum(rows, 1), 0.0) * scale, mask=i < n)
"""


@needs_walls
@pytest.mark.parametrize(("block", "kind"), [(32, "ok"), (512, "compile_error")])
def test_shared_memory_that_blocks_need_where_tensors_are_large(bench: Bench, block: int, kind: str) -> None:
    head, _, tail = when_large(f"block = {block}").partition(":\n    i = tl.program_id(0)")
    code = f"{head}:{PRODUCT}\n\n@triton.jit\ndef other_kernel{tail.partition('def other_kernel')[2]}"
    verdict = bench.grade(SCALED, code, COMPILED)
    assert verdict.kind == kind, verdict
    assert (kind == "ok") is ("shared memory" not in verdict.message)
    assert kind == "ok" or verdict.message.startswith(BEFORE)
