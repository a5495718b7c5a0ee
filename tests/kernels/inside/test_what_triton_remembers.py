"""What a launch of Triton's depends on beside its arguments: tuning before it, globals, and the best configuration."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from test_interpreter import OUT, X, module, ok, pointwise

from assay.kernels.inside.record.made import key_of
from support.kernel_graders import Bench

TUNED = """
def clear(arguments, reset_only=False):
    arguments["out"].zero_()

@triton.autotune(configs=[CONFIGURATIONS], key=["n"] OPTIONS)
@triton.jit
def kernel(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    v = tl.load(x + i, mask=m)
    BODY
"""
SIZES = "triton.Config({'BLOCK': 64}), triton.Config({'BLOCK': 32})"
CLEARED = SIZES.replace("})", "}, pre_hook=clear)")
ADDS, IN_PLACE = "tl.atomic_add(out + i, v, mask=m)", "tl.store(out + i, tl.load(out + i, mask=m) + v, mask=m)"
COPIES = "tl.store(out + i, v, mask=m)"
TRIES = {
    "adds": (ADDS, SIZES, "", False),
    "adds to zeros": (ADDS, SIZES, ", reset_to_zero=['out']", True),
    "adds to what a configuration clears": (ADDS, CLEARED, "", True),
    "adds to what the tuner clears": (ADDS, SIZES, ", pre_hook=clear", True),
    "adds, one configuration": (ADDS, "triton.Config({'BLOCK': 64})", "", True),
    "adds, one configuration left": (
        ADDS,
        SIZES,
        ", prune_configs_by={'early_config_prune': lambda c, *a, **k: c[:1]}",
        False,
    ),
    "in place": (IN_PLACE, SIZES, "", False),
    "in place, restored": (IN_PLACE, SIZES, ", restore_value=['out']", True),
    "anew": (COPIES, SIZES, "", True),
}
LAUNCH = "kernel[lambda meta: (triton.cdiv(n, meta['BLOCK']),)](x, out, n)"


@pytest.mark.parametrize("name", TRIES)
def test_what_an_autotuner_tries_stays_in_memory(bench: Bench, name: str) -> None:
    body, configurations, options, same = TRIES[name]
    code = TUNED.replace("BODY", body).replace("CONFIGURATIONS", configurations).replace("OPTIONS", options)
    later = {"restored": False, "seed": 3}
    assert np.array_equal(ok(bench.run(module(code, LAUNCH), X, outputs=OUT, controls=[{}, later])), X)
    tried = ok(bench.run(module(code, LAUNCH), X, outputs=OUT, controls=[{"tuning": True, "seed": 5}]))
    assert np.array_equal(tried, X) == same
    assert same or round(float(tried[0] / X[0])) in (2, 3, 4), "one to three launches before the one that counts"


OWN = "measures by a do_bench of its own"
MEASURED = {
    "raises": ("do_bench=refuse", OWN),
    "returns what cannot be compared": ("do_bench=lambda call, quantiles: {}[call]", OWN),
    "measures by Triton's and looks": ("do_bench=lambda call, quantiles: look(call, quantiles)", OWN),
    "is a method": ("do_bench=[].append", OWN),
    "is a part of its own": ("do_bench=functools.partial(refuse, warmup=1)", OWN),
    "counts in a part": ("do_bench=functools.partial(triton.testing.do_bench, grad_to_none=[1])", OWN),
    "for a text": ("rep='a'", "are milliseconds"),
    "for ever": ("warmup=float('inf')", "are milliseconds"),
    "is Triton's": ("do_bench=triton.testing.do_bench", ""),
    "is Triton's, for shorter": ("do_bench=functools.partial(triton.testing.do_bench, warmup=5, rep=10.5)", ""),
    "is a graph": ("use_cuda_graph=True, rep=20", ""),
    "is not said": ("warmup=5, rep=50", ""),
    "goes into a file": ("cache_results=True", ""),
}


@pytest.mark.parametrize("name", MEASURED)
def test_an_autotuner_measures_as_triton_does(bench: Bench, name: str) -> None:
    option, said = MEASURED[name]
    head = "import functools, triton.testing\ndef refuse(call, quantiles=None, warmup=0): raise ValueError\n"
    head += "def look(call, quantiles):\n    times = triton.testing.do_bench(call, quantiles=quantiles)\n"
    head += "    assert times[0] == 0.0\n    return times\n"
    code = head + TUNED.replace("BODY", COPIES).replace("CONFIGURATIONS", SIZES).replace("OPTIONS", f", {option}")
    ran = bench.run(module(code, LAUNCH), X, outputs=OUT)
    if said:
        assert said in ran.fault["message"], ran.fault
    else:
        assert np.array_equal(ok(ran), X)


HOW = {
    "is a Own": "class Own(type(kernel)):\n    def do_bench(self, *a, **k): pass\nkernel.__class__ = Own",
    "has another _bench": "kernel._bench = lambda *a, **k: [0.0]",
    "changed triton": "type(kernel)._bench = lambda *a, **k: [0.0]",
    OWN: "kernel.do_bench = lambda *a, **k: [0.0]",
}


@pytest.mark.parametrize("said", HOW)
def test_how_an_autotuner_measures_is_not_replaced(bench: Bench, said: str) -> None:
    code = TUNED.replace("BODY", COPIES).replace("CONFIGURATIONS", SIZES).replace("OPTIONS", "") + HOW[said]
    assert said in bench.run(module(code, LAUNCH), X, outputs=OUT).fault["message"]


def test_a_key_is_tuned_for_once(bench: Bench) -> None:
    code = TUNED.replace("BODY", ADDS).replace("CONFIGURATIONS", SIZES).replace("OPTIONS", "")
    twice = f"{LAUNCH}\nout.zero_()\n{LAUNCH}"
    assert np.array_equal(ok(bench.run(module(code, twice), X, outputs=OUT, controls=[{"tuning": True}])), X)
    other = f"{LAUNCH}\nout.zero_()\n{LAUNCH.replace('x, out, n)', 'x, out, n - 1)')}"
    found = ok(bench.run(module(code, other), X, outputs=OUT, controls=[{"tuning": True}]))
    assert not np.array_equal(found[:-1], X[:-1])


GLOBALS = "A = B = C = tl.constexpr(2.0)\n@triton.jit\ndef helper(v):\n    return v * B\n"
CHANGES = {
    "the kernel's": ("A = tl.constexpr(3.0)", "A"),
    "a helper's": ("B = tl.constexpr(3.0)", "B"),
    "to the same": ("A = tl.constexpr(2.0)", ""),
    "another": ("C = tl.constexpr(3.0)", ""),
    "the name of a parameter": ("n = 5", ""),
}


@pytest.mark.parametrize("name", CHANGES)
def test_triton_refuses_globals_that_change_once_it_compiled_a_kernel(bench: Bench, name: str) -> None:
    change, changed = CHANGES[name]
    head = f"{GLOBALS}n = 7\ndef change():\n    global A, B, C, n\n    {change}\n"
    launch = "kernel[(1,)](x, out, n, BLOCK=128)\nchange()\nkernel[(1,)](x, out, n, BLOCK=128)"
    ran = bench.run(
        pointwise("tl.store(out + i, helper(tl.load(x + i, mask=m)) * A, mask=m)", launch, head), X, outputs=OUT
    )
    if changed:
        assert f"Global variable {changed} has changed" in ran.fault["message"] and ran.fault["kind"] == "error"
    else:
        assert np.array_equal(ok(ran), X * 4)


ASKED = {
    "noted": ("self.found = kernel.best_config", ""),
    "decides": (
        "if kernel.best_config.kwargs['BLOCK'] == 32:\n    out.zero_()",
        "one program is recorded for all of them",
    ),
    "before a launch": ("unlaunched.best_config", "was not launched yet"),
}


@pytest.mark.parametrize("name", ASKED)
def test_forward_may_know_the_best_configuration_and_not_do_otherwise_for_it(bench: Bench, name: str) -> None:
    asks, said = ASKED[name]
    code = TUNED.replace("BODY", COPIES).replace("CONFIGURATIONS", SIZES).replace("OPTIONS", "")
    code += "unlaunched = triton.autotune(configs=kernel.configs, key=['n'])(kernel.fn)\n"
    ran = bench.run(module(code, f"{LAUNCH}\n{asks}"), X, outputs=OUT)
    if said:
        assert said in ran.fault["message"] and ran.fault["kind"] == ("unsupported" if name == "decides" else "error")
    else:
        assert np.array_equal(ok(ran), X)


PRUNING = "def left(configurations, arguments, **more):\n    CHOICE\n"
PRUNES = TUNED.replace("CONFIGURATIONS", SIZES).replace("OPTIONS", ", prune_configs_by={'early_config_prune': left}")


def test_a_key_is_pruned_for_once(bench: Bench) -> None:
    head = PRUNING.replace("CHOICE", "return configurations[:1] if arguments['x'].dim() == 1 else configurations[1:]")
    code = head + PRUNES.replace("BODY", "tl.store(out + i, 0.0 * v + BLOCK, mask=m)")
    twice = f"{LAUNCH}\n{LAUNCH.replace('(x, out, n)', '(x.view(2, -1), out, n)')}"
    assert (ok(bench.run(module(code, twice), X, outputs=OUT)) == 64).all()
    other = twice.replace("out, n)", "out, n - 1)", 2).replace("out, n - 1)", "out, n)", 1)
    assert (ok(bench.run(module(code, other), X, outputs=OUT))[:-1] == 32).all(), "another key"


KEYED = {
    "a number and its text": ("1, key='1'", "1, key=1", 2),
    "numbers that are equal": ("1, key=2", "1, key=2.0", 1),
    "one and true": ("1, key=True", "1, key=1.0", 1),
    "NaN": ("1, key=float('nan')", "1, key=float('nan')", 2),
    "one NaN": ("1, key=NAN", "1, key=NAN", 1),
    "dtypes": ("1, key=torch.float32", "1, key=torch.float64", 2),
    "what is no parameter": ("1, key=1, other=2", "1, key=1, other=3", 1),
}
"""Two launches, and for how many keys they are tuned."""


@pytest.mark.parametrize("name", KEYED)
def test_keys_are_one_where_triton_takes_them_for_one(name: str) -> None:
    one, other, keys = KEYED[name]

    def tuned_for(n: int, **given: object) -> tuple[object, ...]:
        tuner = SimpleNamespace(keys=["key", "other"], arg_names=["n", "key"], nargs={"n": n}, base_fn=tuned_for)
        return key_of(tuner, given)

    names = {"tuned_for": tuned_for, "torch": torch, "NAN": math.nan}
    assert len({eval(f"tuned_for({given})", names) for given in (one, other)}) == keys


def test_a_kernel_is_tuned_for_what_says_itself_what_it_equals(bench: Bench) -> None:
    head = "class Equal(int):\n    __hash__ = int.__hash__\n    def __eq__(self, other):\n        return True\n"
    code = head + PRUNES.replace("BODY", COPIES).replace(", prune_configs_by={'early_config_prune': left}", "")
    fault = bench.run(module(code, LAUNCH.replace("out, n)", "out, Equal(n))")), X, outputs=OUT).fault
    assert fault["kind"] == "unsupported" and "is tuned for each Equal" in fault["message"], fault


def test_a_kernel_may_be_tuned_for_each_tensor(bench: Bench) -> None:
    code = PRUNES.replace("BODY", COPIES).replace(", prune_configs_by={'early_config_prune': left}", "")
    assert np.array_equal(ok(bench.run(module(code.replace('["n"]', '["x"]'), LAUNCH), X, outputs=OUT)), X)


IN_BETWEEN = {
    "the grid function": ("", "def grid(meta):\n    out.zero_()\n    return (2,)\nkernel[grid](x, out, n)"),
    "a hook of the kernel": ("kernel.fn.add_pre_run_hook(lambda *a, **k: a[1].zero_())\n", LAUNCH),
    "heuristics": ("kernel.fn = triton.heuristics({'n': lambda a: (a['out'].zero_(), 100)[1]})(kernel.fn)\n", LAUNCH),
}


@pytest.mark.parametrize("name", IN_BETWEEN)
def test_nothing_is_computed_between_the_choice_and_the_launch(bench: Bench, name: str) -> None:
    after, launch = IN_BETWEEN[name]
    code = PRUNES.replace("BODY", COPIES).replace(", prune_configs_by={'early_config_prune': left}", "") + after
    fault = bench.run(module(code, launch), X, outputs=OUT).fault
    assert fault["kind"] == "unsupported", fault
    assert "while it tunes" in fault["message"] or name == "heuristics", fault


@pytest.mark.parametrize("choice", ["arguments['out'].zero_()", "kernel.fn[(1,)](*arguments.values(), BLOCK=64)"])
def test_pruning_does_nothing_else(bench: Bench, choice: str) -> None:
    code = PRUNING.replace("CHOICE", f"{choice}; return configurations") + PRUNES.replace("BODY", COPIES)
    fault = bench.run(module(code, LAUNCH), X, outputs=OUT).fault
    assert "which a GPU does once and not in each call" in fault["message"], fault


TAMPERED = {
    "what is compiled": "kernel.fn.device_caches.clear()",
    "what is tuned": "kernel.cache.clear()",
}


@pytest.mark.parametrize("name", TAMPERED)
def test_what_triton_keeps_is_left_alone(bench: Bench, name: str) -> None:
    code = PRUNES.replace("BODY", COPIES).replace(", prune_configs_by={'early_config_prune': left}", "")
    fault = bench.run(module(code, f"{LAUNCH}\n{TAMPERED[name]}"), X, outputs=OUT).fault
    assert fault["kind"] == "unsupported" and "later launches are made" in fault["message"], fault


CHANGED = "changes what the kernel is launched with"
GRIDS = {
    "a number": ("meta['n'] = 4", CHANGED),
    "one that is equal": ("meta['n'] = n + 0", ""),
    "another argument": ("meta['more'] = 4", CHANGED),
    "none": ("del meta['x']", CHANGED),
    "memory": ("x.data = x.data.clone()", CHANGED),
    "a global": ("globals().update(ONE=tl.constexpr(2))", "has changed since we compiled"),
    "nothing": ("meta['BLOCK']", ""),
}


@pytest.mark.parametrize("name", GRIDS)
def test_a_grid_function_says_the_grid_and_does_nothing_more(bench: Bench, name: str) -> None:
    change, said = GRIDS[name]
    head = "ONE = tl.constexpr(1)\n@triton.jit\ndef kernel(x, out, n, BLOCK: tl.constexpr):\n"
    head += "    i = tl.arange(0, BLOCK)\n    tl.store(out + i, tl.load(x + i, mask=i < n) * ONE, mask=i < n)\n"
    launch = f"def grid(meta):\n    {change}\n    return (1,)\nkernel[grid](x, out, n, BLOCK=128)"
    ran = bench.run(module(head, launch), X, outputs=OUT)
    if said:
        assert said in ran.fault["message"], ran.fault
    else:
        assert np.array_equal(ok(ran), X)


@pytest.mark.parametrize("option", ["num_stages", "num_warps", "maxnreg", "enable_fp_fusion"])
def test_a_parameter_may_have_the_name_of_an_option(bench: Bench, option: str) -> None:
    head = f"@triton.jit\ndef kernel(x, out, n, BLOCK: tl.constexpr, {option}: tl.constexpr):\n"
    head += "    i = tl.arange(0, BLOCK)\n"
    head += f"    tl.store(out + i, tl.load(x + i, mask=i < n) + {option}, mask=i < n)\n"
    value = "True" if option == "enable_fp_fusion" else "32"
    ran = bench.run(module(head, f"kernel[(1,)](x, out, n, BLOCK=128, {option}={value})"), X, outputs=OUT)
    assert np.array_equal(ok(ran), X + int(value == "True" or 32))
