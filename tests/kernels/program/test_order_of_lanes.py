"""What lanes of one program do to each other's elements: in order on a GPU by one thread or a barrier, or wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from test_gpu_meaning import asking

from assay.kernels.problems.sources import load_problems
from support.kernel_graders import Bench
from support.trials import SNAKE, Trials

pytest.importorskip("torch")
pytest.importorskip("triton")

SCAN = "1/6"
"""Smaller here than it is shipped: what goes element after element takes an interpreter seconds."""
UNUSUAL = Path(__file__).parents[3] / "exploits" / "unusual"


@pytest.fixture(scope="module")
def trials(bench: Bench) -> Trials:
    (scan,) = (problem for problem in load_problems("shipped", (1,)) if problem.key == SCAN)
    assert "batch_size = 20\nlength = 180\n" in scan.code
    small = scan.code.replace("batch_size = 20\nlength = 180\n", "batch_size = 4\nlength = 60\n")
    return Trials(bench, [replace(scan, code=small)])


WORK = "work = torch.zeros(65536, dtype=torch.int32, device=x.device)"
STORED = "p = w + tl.program_id(0) * 4096\ntl.store(p + k, k + 1)\n"
SHIFTED = "seen = tl.load(p + (k + 64) % BLOCK)"
LOOPED = """
p = w + tl.program_id(0) * 4096 + k
tl.store(p, k * 0 + 1)
seen = k * 0 + 1
for step in {}:
    seen = tl.minimum(seen, tl.load(p + step * BLOCK))
    tl.store(p + (step + 1) * BLOCK, seen){}
"""
MULTIPLIED = """
j = tl.arange(0, 16)
p = w.to(tl.pointer_type(tl.float32)) + tl.program_id(0) * 4096 + j[:, None] * 16 + j[None, :]
one = (j[:, None] == j[None, :]).to(tl.float32)
total = one
tl.store(p, one)
for step in range(7):
    found = tl.load(p + {} * 256)
    total = {}
    tl.store(p + (step + 1) * 256, found)
seen = tl.sum(total, 1)
"""
WAYS = {
    "a barrier": (STORED + "tl.debug_barrier()\n" + SHIFTED, "ok"),
    "no barrier": (STORED + SHIFTED, "a race"),
    "one lane": (STORED + "seen = tl.load(p + k)", "ok"),
    "one lane of some": (
        STORED.replace("k + 1)", "k + 1, mask=k < 99)") + "seen = tl.load(p + k, mask=k > 7, other=1)",
        "ok",
    ),
    "one place in another shape": (STORED + "seen = tl.load(p + k[None, :])\nseen = tl.max(seen, 0)", "a race"),
    "one element by all threads": (
        "tl.store(w + tl.program_id(0), 1)\nseen = tl.load(w + tl.program_id(0)) + k",
        "a race",
    ),
    "one element after a barrier": (
        "tl.store(w + tl.program_id(0), 1)\ntl.debug_barrier()\nseen = tl.load(w + tl.program_id(0)) + k",
        "ok",
    ),
    "loaded, then stored by others": (
        "p = w + tl.program_id(0) * 4096\nseen = tl.load(p + (k + 64) % BLOCK) + 1\ntl.store(p + k, k + 1)",
        "a race",
    ),
    "loaded, then stored unchanged": (
        "p = w + tl.program_id(0) * 4096\nseen = tl.load(p + (k + 64) % BLOCK) + 1\ntl.store(p + k, k * 0)",
        "ok",
    ),
    "stored twice": (STORED + "tl.store(p + BLOCK - 1 - k, k * 0 - 7)\nseen = k + 1", "a race"),
    "stored twice alike": (STORED + "tl.store(p + BLOCK - 1 - k, BLOCK - k)\nseen = k + 1", "ok"),
    "added, then loaded": ("p = w + tl.program_id(0) * 4096\ntl.atomic_add(p + k, 1)\n" + SHIFTED, "a race"),
    "stored, then added": (
        "p = w + tl.program_id(0) * 4096\ntl.store(p + k, k + 1)\ntl.atomic_add(p + (k + 64) % BLOCK, 1)\nseen = k + 1",
        "a race",
    ),
    "a result that is looked at": (
        STORED + "t = tl.atomic_add(p + 600, 1)\n"
        "seen = tl.load(p + (k + 64) % BLOCK, mask=(t == 0) & (k >= 0), other=0)",
        "ok",
    ),
    "a result that is not": (STORED + "tl.atomic_add(p + 600, 1)\n" + SHIFTED, "need not wait"),
    "a result times zero": (
        STORED + "t = tl.atomic_add(p + 600, 1) * 0\nseen = tl.load(p + (k + 64) % BLOCK + t)",
        "need not wait",
    ),
    "a sum that others add to": (
        "p = w + tl.program_id(0) * 4096\ntl.atomic_add(p + k * 0, 1)\nseen = tl.atomic_add(p, 0) + k",
        "a race",
    ),
    "a sum after a barrier": (
        "p = w + tl.program_id(0) * 4096\ntl.atomic_add(p + k * 0, 1)\n"
        "tl.debug_barrier()\nseen = tl.atomic_add(p, 0) + k",
        "ok",
    ),
    "tickets for each lane": (
        "p = w + tl.program_id(0) * 4096\nseen = tl.atomic_add(p + k % 3, 1) + tl.atomic_add(p + k % 2, 1)",
        "ok",
    ),
    "a loop of one stage": (LOOPED.format("tl.range(0, 6, num_stages=1)", ""), "ok"),
    "a loop": (LOOPED.format("range(6)", ""), "ok"),
    "a loop of three stages": (LOOPED.format("tl.range(0, 6, num_stages=3)", ""), "starts the load"),
    "a loop of stages by place": (LOOPED.format("tl.range(0, 6, 1, 3)", ""), "starts the load"),
    "three stages and a barrier": (LOOPED.format("tl.range(0, 6, num_stages=3)", "\n    tl.debug_barrier()"), "ok"),
    "a product of what is loaded": (
        MULTIPLIED.format("step", 'tl.dot(found, total, input_precision="ieee")'),
        "starts the load",
    ),
    "a product of something else": (
        MULTIPLIED.format("step", 'tl.dot(one, one, input_precision="ieee") + found * 0'),
        "ok",
    ),
    "a product of what stays": (MULTIPLIED.format("0", 'tl.dot(found, total, input_precision="ieee")'), "ok"),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_lanes_are_in_order_by_one_thread_or_a_barrier(trials: Trials, way: str) -> None:
    lines, said = WAYS[way]
    outcome = trials.run(SNAKE, asking(lines, "tl.min(seen, 0) > -9", "w, ", "work, ", WORK))
    assert outcome.end == ("ok" if said == "ok" else "wrong"), outcome
    if said != "ok":
        assert said in outcome.message and "asking()" in outcome.message
        assert outcome.line or "in line" in outcome.message


@pytest.mark.parametrize(
    ("operation", "first"),
    [
        ("tl.atomic_cas(w + k * 0, k * 0, k + 1)", "(k == 0) | (old == 1)"),
        ("tl.atomic_xchg(w + k * 0, k + 1)", "old == k"),
    ],
)
def test_lanes_of_an_atomic_operation_come_in_no_order(trials: Trials, operation: str, first: str) -> None:
    right = f"tl.min(({first}).to(tl.int32), 0) > 0"
    outcome = trials.run(SNAKE, asking(f"old = {operation}", right, "w, ", "work, ", WORK))
    assert outcome.end == "wrong", outcome


def test_lanes_are_followed_in_every_call(trials: Trials) -> None:
    """A race on inputs of one kind alone, which one call in five has."""
    lines = STORED + "large = tl.max(tl.abs(tl.load(x_ptr + k)), 0) > 50.0\nseen = k\nif large:\n    " + SHIFTED
    outcome = trials.run(SNAKE, asking(lines, "tl.min(seen, 0) >= 0", "w, ", "work, ", WORK))
    assert outcome.end == "wrong" and "a race" in outcome.message, outcome


def test_what_one_thread_has_is_not_what_all_have(trials: Trials) -> None:
    code = (UNUSUAL.parent / "attacks/order/one_thread_stores_what_a_sum_takes.py").read_text(encoding="utf-8")
    outcome = trials.run("1/9", code)
    assert outcome.end == "wrong" and "computes a block from 1 elements" in outcome.message, outcome
    load = "    work = tl.load("
    assert trials.run("1/9", code.replace(load, f"    tl.debug_barrier()\n{load}")).end == "ok"
    alone = "tl.sum(loss, 0) / n)\n    tl.store(out_ptr + row, tl.load(out_ptr + row) * work * work)"
    assert trials.run("1/9", code.replace("tl.sum(loss * work, 0) / n)", alone)).end == "ok"


def test_a_barrier_does_not_hold_back_descriptors(trials: Trials) -> None:
    code = (UNUSUAL.parent / "attacks/order/loads_what_a_descriptor_stored.py").read_text(encoding="utf-8")
    outcome = trials.run(SNAKE, code)
    assert outcome.end == "wrong" and "through a descriptor and through pointers" in outcome.message, outcome


AT = "p = w + tl.program_id(0) * 4096\n"
LEANING = {
    "loaded after a store": STORED + "seen = tl.load(p + k)",
    "stored after a store": STORED + "tl.store(p + k, k * 0 + 9)\nseen = k + 1",
    "added to after a store": STORED + "tl.atomic_add(p + k, 1)\nseen = k + 1",
    "loaded after a sum": AT + "tl.atomic_add(p + k, 1)\nseen = tl.load(p + k)",
}
IN_ORDER = {
    "a barrier between": STORED + "tl.debug_barrier()\nseen = tl.load(p + k)",
    "stored after a load": AT + "seen = tl.load(p + k) + 1\ntl.store(p + k, seen)",
    "one element": AT + "tl.store(p, 1)\nseen = k + 1",
    "other elements": STORED + "seen = tl.load(p + 1024 + k)",
}


@pytest.mark.parametrize("way", [*LEANING, *IN_ORDER])
def test_what_leans_on_lanes_having_one_thread_is_told(trials: Trials, way: str) -> None:
    lines = LEANING.get(way) or IN_ORDER[way]
    outcome = trials.run(SNAKE, asking(lines, "tl.min(seen, 0) >= 0", "w, ", "work, ", WORK))
    assert outcome.end == "ok", outcome
    told = outcome.facts.get("same_lanes", [])
    assert [(each["kernel"], each["shape"], each["bytes"]) for each in told] == [("asking", [512], 4)] * (
        way in LEANING
    )
    assert all(each["line"] > 0 and each["storage"] > 0 for each in told)


def test_more_forms_of_blocks_than_are_looked_up_are_wrong(trials: Trials) -> None:
    forms = "".join(
        f"j = tl.arange(0, {size})[{'None, ' * ones}:]\ntl.store(p + j, j)\nseen = tl.load(p + j) * 0\n"
        "tl.debug_barrier()\n"
        for ones in range(5)
        for size in (128, 256, 512, 1024)
    )
    lines = AT + forms + "seen = k"
    outcome = trials.run(SNAKE, asking(lines, "tl.min(seen, 0) >= 0", "w, ", "work, ", WORK))
    assert outcome.end == "wrong" and "blocks of more than 16 forms" in outcome.message, outcome


ONE = ("scan_by_one_thread", "exponentials_loaded_again", "sums_of_a_product_in_memory", "scan_by_way_of_memory")


@pytest.mark.parametrize("name", [*ONE, "stages_with_a_barrier"])
def test_what_honest_kernels_store_they_may_load(trials: Trials, name: str) -> None:
    code = (UNUSUAL / f"{name}.py").read_text(encoding="utf-8")
    outcome = trials.run(code.split('# problem = "')[1].split('"')[0], code)
    assert outcome.end == "ok", outcome
