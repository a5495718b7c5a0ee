"""What a caller of forward has of it beside the numbers: tensors where it expects them, and its own inputs."""

from __future__ import annotations

import textwrap

import pytest

from assay.kernels.problems.sources import make_problem
from support.kernel_graders import Bench
from support.trials import SNAKE, Trials, snaking

REPLACED = {
    "data": "y = snake(x, self.frequency, torch.empty_like(x))\nx.data = y\nreturn y",
    "swapped": "y, z = snake(x, self.frequency, torch.empty_like(x)), torch.empty_like(x)\n"
    "torch.utils.swap_tensors(x, z)\nreturn y",
}
HELD = {
    "another parameter": ("self.frequency = nn.Parameter(self.frequency.detach().clone())", "the parameter frequency"),
    "other data of a buffer": ("self.shift.data = torch.zeros_like(self.shift)", "the buffer shift"),
    "another buffer": ("self.shift = torch.zeros_like(self.shift)", "the buffer shift"),
    "a buffer that is gone": ("self.shift = None", "the buffer shift"),
    "a buffer that is not saved": (
        "self.register_buffer('more', torch.zeros(4, device=x.device), persistent=False)",
        "",
    ),
    "another buffer of whole numbers": ("self.count = torch.ones_like(self.count)", ""),
}
DOUBLES = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        x.mul_(2)
        return torch.sin(x), x + 1


def get_inputs():
    return [torch.randn(20, 30)]


def get_init_inputs():
    return []
"""
KERNEL = """
import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x_ptr, y_ptr, z_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = 2 * tl.load(x_ptr + i, mask=i < n, other=0.0)
    tl.store(y_ptr + i, tl.sin(x), mask=i < n)
    tl.store(z_ptr + i, x + 1, mask=i < n)
    WRITE


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y, z = torch.empty_like(x), torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, z, x.numel(), BLOCK=256)
        return RETURNED
"""
BACK = "tl.store(x_ptr + i, x, mask=i < n)"
KEPT = {
    "written back": (BACK, "y, z", "ok", ""),
    "left alone": ("pass", "y, z", "wrong", "input 0 is left otherwise"),
    "half": ("tl.store(x_ptr + i, x * 0.5, mask=i < n)", "y, z", "wrong", "input 0 is left otherwise"),
    "a list": (BACK, "[y, z]", "ok", ""),
    "a dictionary": (BACK, "{'a': y, 'b': z}", "wrong", "the reference returns (tensor, tensor)"),
    "nested": (BACK, "y, (z,)", "wrong", "forward returned (tensor, (tensor))"),
}
ALIKE = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        y = torch.sin(x)
        return y, y.clone(), y


def get_inputs():
    return [torch.randn(20, 30)]


def get_init_inputs():
    return []
"""
SINES = """
import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.sin(tl.load(x_ptr + i, mask=i < n)), mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        both = torch.empty((2, *x.shape), device=x.device)
        for y in both.unbind():
            kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        y, z = both
        return RETURNED
"""
TOGETHER = {
    "as the reference's": ("y, z, y", "ok", ""),
    "each apart": ("y, z, y.clone()", "ok", ""),
    "one for all": ("y, y, y", "wrong", "outputs 0 and 1 lie in the same memory"),
    "one that was a view": ("y, z, z.view(-1).view(x.shape)", "wrong", "outputs 1 and 2 lie in the same memory"),
}
STATES = """
import torch


class Model(torch.nn.Module):
    def forward(self, state, x, fresh):
        if bool(fresh.any()):
            state.data.mul_(0.5)
        return torch.sin(x) + 1.0


def get_inputs():
    return [torch.randn(8, 96), torch.randn(8, 96), torch.zeros(4, dtype=torch.bool)]


def get_init_inputs():
    return []
"""
STATE_KERNELS = """
import torch
import triton
import triton.language as tl


@triton.jit
def read(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.sin(tl.load(x_ptr + i, mask=i < n, other=0.0)) + 1.0, mask=i < n)


@triton.jit
def renew(s_ptr, f_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    fresh = tl.max(tl.load(f_ptr + tl.arange(0, 4)).to(tl.int32), 0) > 0
    s = tl.load(s_ptr + i, mask=i < n, other=0.0)
    tl.store(s_ptr + i, s * 0.5, mask=WHERE)


class ModelNew(torch.nn.Module):
    def forward(self, state, x, fresh):
        y = torch.empty_like(x)
        read[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        RENEW
        return y
"""
RENEW = "renew[(triton.cdiv(x.numel(), 256),)](state, fresh, x.numel(), BLOCK=256)"
RENEWED = {
    "on the flag": (RENEW, "(i < n) & fresh", "ok", ""),
    "never": ("pass", "(i < n) & fresh", "wrong", "input 0 is left otherwise"),
    "always": (RENEW, "i < n", "wrong", "forward changes input 0"),
}
CACHE = """
import torch


class Model(torch.nn.Module):
    def forward(self, cache, k):
        cache[:, 2:5] = torch.sin(k)
        return cache[:, :6]


def get_inputs():
    return [torch.randn(4, 8, 32), torch.randn(4, 3, 32)]


def get_init_inputs():
    return []
"""
CACHE_KERNEL = """
import torch
import triton
import triton.language as tl


@triton.jit
def put(c_ptr, out_ptr, k_ptr, T, ALL: tl.constexpr):
    b, t, i = tl.program_id(0), tl.program_id(1), tl.arange(0, 32)
    new = (t >= 2) & (t < 5)
    k = tl.sin(tl.load(k_ptr + (b * 3 + t - 2) * 32 + i, mask=(i < 32) & new, other=0.0))
    c = tl.load(c_ptr + (b * 8 + t) * 32 + i)
    tl.store(out_ptr + (b * T + t) * 32 + i, tl.where(new, k, c), mask=(i < 32) & (new | ALL))


class ModelNew(torch.nn.Module):
    def forward(self, cache, k):
        FORWARD
"""
IN_PLACE = "put[(4, 6)](cache, cache, k, 8, ALL=False)"
CACHED = {
    "rows in place": (f"{IN_PLACE}\nreturn cache[:, :6]", "ok", ""),
    "all in place": (f"{IN_PLACE.replace('False', 'True')}\nreturn cache[:, :6]", "ok", ""),
    "elsewhere": (
        "out = torch.empty_like(cache[:, :6])\nput[(4, 6)](cache, out, k, 6, ALL=True)\nreturn out",
        "wrong",
        "input 0 is left otherwise",
    ),
    "copied": (f"{IN_PLACE}\nreturn cache[:, :6].clone()", "cheat", "384 of 768 elements of output 0"),
    "on a stream that nobody waits for": (
        "side = torch.cuda.Stream()\nside.wait_stream(torch.cuda.current_stream())\n"
        f"with torch.cuda.stream(side):\n    {IN_PLACE}\nreturn cache[:, :6]",
        "unsupported",
        "on another stream",
    ),
}

LAID = """
import torch


class Model(torch.nn.Module):
    def forward(self, x, bias, whole, part):
        whole.mul_(0.5)
        return torch.softmax(x + bias, -1), torch.tanh(part) + 1.0


def get_inputs():
    whole = torch.randn(8, 48)
    return [torch.randn(48, 8).t(), torch.randn(1, 48).expand(8, 48), whole, whole[:4]]


def get_init_inputs():
    return []
"""
LYING = """
import torch
import triton
import triton.language as tl


@triton.jit
def rows(x_ptr, b_ptr, y_ptr, n, xr, xc, br, bc, BLOCK: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * xr + i * xc, mask=i < n, other=0.0)
    x = tl.where(i < n, x + tl.load(b_ptr + row * br + i * bc, mask=i < n, other=0.0), float("-inf"))
    e = tl.exp(x - tl.max(x, 0))
    tl.store(y_ptr + row * n + i, e / tl.sum(e, 0), mask=i < n)


@triton.jit
def halved(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, 0.5 * tl.load(x_ptr + i, mask=i < n), mask=i < n)


@triton.jit
def squashed(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, 2.0 * tl.sigmoid(2.0 * tl.load(x_ptr + i, mask=i < n)), mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x, bias, whole, part):
        y, z = torch.empty(x.shape, device=x.device), torch.empty_like(part)
        m, n = x.shape
        rows[(m,)](x, bias, y, n, *STRIDES, BLOCK=64)
        STEPS
        return y, z
"""
HALVED, SQUASHED = "halved[(m,)](whole, m * n, BLOCK=64)", "squashed[(4,)](part, z, part.numel(), BLOCK=64)"
STRIDES = "x.stride(), *bias.stride()"
IN_PLACES = {
    "as they lie": (STRIDES, f"{HALVED}; {SQUASHED}", "ok", ""),
    "rows one after the other": ("(n, 1), *bias.stride()", f"{HALVED}; {SQUASHED}", "wrong", "family"),
    "a row for each": ("x.stride(), n, 1", f"{HALVED}; {SQUASHED}", "crash", "of a tensor that the kernel was given"),
    "memory of their own": (STRIDES, f"{SQUASHED}; {HALVED}", "wrong", "family"),
}
HALVES = """
import torch


class Model(torch.nn.Module):
    def forward(self, x, kept, sums):
        return sums.add_(torch.sin(x) * kept)


def get_inputs():
    both = torch.randn(2, 8, 32)
    return [torch.randn(8, 32), both[0], both[1]]


def get_init_inputs():
    return []
"""
HALF = """
import torch
import triton
import triton.language as tl


@triton.jit
def add(x_ptr, k_ptr, s_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(s_ptr + i, tl.load(s_ptr + i) + tl.sin(tl.load(x_ptr + i)) * tl.load(k_ptr + i))


class ModelNew(torch.nn.Module):
    def forward(self, x, kept, sums):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            add[(1,)](x, kept, sums, BLOCK=256)
        WAIT
        return sums
"""
WAITS = {
    "torch.cuda.current_stream().wait_stream(side)": ("ok", ""),
    "pass": ("unsupported", "on another stream"),
}


@pytest.fixture(scope="module")
def trials(bench: Bench) -> Trials:
    named = {"Doubles": DOUBLES, "States": STATES, "Cache": CACHE, "Laid": LAID, "Halves": HALVES, "Alike": ALIKE}
    own = [make_problem(9, place, *each, "local") for place, each in enumerate(named.items(), 1)]
    return Trials(bench, own)


@pytest.mark.parametrize("what", TOGETHER)
def test_outputs_lie_in_one_memory_where_the_reference_has_them_so(trials: Trials, what: str) -> None:
    returned, end, said = TOGETHER[what]
    outcome = trials.run("9/6", SINES.replace("RETURNED", returned))
    assert outcome.end == end and said in outcome.message, outcome


@pytest.mark.parametrize("how", REPLACED)
def test_an_input_stays_the_tensor_that_its_caller_holds(trials: Trials, how: str) -> None:
    outcome = trials.run(SNAKE, snaking(REPLACED[how]))
    assert outcome.end == "wrong" and "in the place of input 0" in outcome.message, outcome


@pytest.mark.parametrize("how", HELD)
def test_parameters_and_buffers_stay_the_tensors_that_a_caller_holds(trials: Trials, how: str) -> None:
    first, named = HELD[how]
    forward = f"""
    frequency = self.held[0]
    if not self.done:
        self.done = True
        {first}
    return snake(x, frequency, torch.empty_like(x))
    """
    made = """
    self.register_buffer("shift", torch.zeros(4))
    self.register_buffer("count", torch.zeros(1, dtype=torch.int32))
    self.held, self.done = [self.frequency], False
    """
    outcome = trials.run(SNAKE, snaking(forward, constructor=made))
    assert outcome.end == ("wrong" if named else "ok"), outcome
    assert not named or f"in the place of {named}" in outcome.message


OF_CALLERS = {
    "another buffer": ("self.register_buffer('more', torch.zeros(4, device=x.device))", "order (more)"),
    "another parameter": ("self.more = nn.Parameter(torch.zeros(4, device=x.device))", "order (more)"),
    "a buffer that is saved no more": ("self._non_persistent_buffers_set.add('shift')", "order (shift)"),
    "parameters in another order": ("self._buffers['shift'] = self._buffers.pop('shift')", ""),
    "a gradient": ("self.frequency.grad = torch.empty_like(self.frequency)", "is trained"),
    "a frozen parameter": ("self.frequency.requires_grad_(False)", "is trained"),
    "a dtype of gradients": ("self.frequency.grad_dtype = torch.float16", "is trained"),
}


@pytest.mark.parametrize("how", OF_CALLERS)
def test_forward_leaves_alone_what_is_trained_and_saved(trials: Trials, how: str) -> None:
    first, said = OF_CALLERS[how]
    forward = f"""
    if not self.done:
        self.done = True
        {first}
    return snake(x, self.frequency, torch.empty_like(x))
    """
    buffers = "; ".join(f"self.register_buffer('{name}', torch.zeros(4))" for name in ("shift", "last"))
    outcome = trials.run(SNAKE, snaking(forward, constructor=f"self.done = False; {buffers}"))
    assert outcome.end == "wrong" and said in outcome.message, outcome


VERSIONS = {
    "of everything": ("self.frequency._version, self.shift._version", "ok", ""),
    "of a parameter": ("self.frequency._version", "wrong", "the buffer shift"),
    "of a buffer": ("self.shift._version", "wrong", "the parameter frequency"),
    "added up": ("self.frequency._version + self.shift._version", "ok", ""),
    "added up by sum": ("sum(each._version for each in (self.frequency, self.shift))", "ok", ""),
    "by their bits": ("self.frequency._version ^ self.shift._version", "unsupported", ""),
    "with factors": ("2 * self.frequency._version - self.shift._version", "unsupported", ""),
    "by what is left": ("self.frequency._version % 16, self.shift._version % 16", "unsupported", ""),
    "as texts": ("str(self.frequency._version), str(self.shift._version)", "unsupported", ""),
}


@pytest.mark.parametrize("compared", VERSIONS)
def test_what_is_kept_by_version_is_kept_by_that_of_all_that_it_is_made_of(trials: Trials, compared: str) -> None:
    versions, end, said = VERSIONS[compared]
    forward = f"""
    if self.key != ({versions},):
        self.key, self.kept = ({versions},), torch.cat([self.frequency.detach(), self.shift])
    return snake(x, self.kept, torch.empty_like(x))
    """
    made = "self.register_buffer('shift', torch.zeros(4))\nself.key = self.kept = None"
    outcome = trials.run(SNAKE, snaking(forward, constructor=made))
    assert outcome.end == end and (not said or f"what it made of {said}" in outcome.message), outcome


OF_ALL = "self.frequency._version, self.shift._version, self.codes._version"
SNAKED = "y = snake(x, self.frequency, torch.empty_like(x))"
CACHES = {
    "whole numbers by their own version": ("self.codes._version", "self.made = self.codes.float()", SNAKED, "ok", ""),
    "whole numbers by a weight's": (
        "self.frequency._version",
        "self.made = self.codes.float()",
        SNAKED,
        "wrong",
        "what it made of the buffer codes",
    ),
    "an input": (
        OF_ALL,
        "self.made = x.clone()",
        "y = snake(self.made, self.frequency, torch.empty_like(x))",
        "wrong",
        "in a call that finds memory as an earlier call left it",
    ),
    "an input in a buffer of whole numbers": (
        "self.frequency._version, self.shift._version",
        "self.codes[: x.numel()].copy_(x.flatten().view(torch.int32))",
        "kept = self.codes.view(torch.float32)[: x.numel()].view_as(x)\n"
        "y = snake(kept, self.frequency, torch.empty_like(x))",
        "wrong",
        "",
    ),
    "what a kernel uses up": (
        OF_ALL,
        "self.made = self.frequency.clone()",
        "y = snake(x, self.made, torch.empty_like(x))\ncopy_kernel[(1,)](x, self.made, 4, BLOCK=4)",
        "wrong",
        "in a call that finds memory as an earlier call left it",
    ),
    "a weight, unless one alone has changed": (
        "(self.frequency._version, self.shift._version) if self.key is None or (self.frequency._version != self.key[0])"
        " == (self.shift._version != self.key[1]) else self.key",
        "self.made = torch.cat([self.frequency.detach(), self.shift])",
        "y = snake(x, self.made, torch.empty_like(x))",
        "wrong",
        "what it made of the parameter frequency",
    ),
    "another launch where one alone has changed": (
        "self.frequency._version, self.shift._version",
        "alone = before is not None and (before[0] == key[0]) != (before[1] == key[1])",
        f"{SNAKED}\nif alone:\n    y = snake(x, self.frequency, y)",
        "cheat",
        "makes 2",
    ),
    "another launch where the first one alone has changed": (
        "self.frequency._version, self.shift._version",
        "alone = before is not None and before[0] != key[0] and before[1] == key[1]",
        f"{SNAKED}\nif alone:\n    y = snake(x, self.frequency, y)",
        "cheat",
        "makes 2",
    ),
}


@pytest.mark.parametrize("what", CACHES)
def test_what_is_kept_while_no_weight_changes_is_right_in_every_call(trials: Trials, what: str) -> None:
    versions, made, launched, end, said = CACHES[what]
    forward = (
        f"alone, before, key = False, self.key, ({versions})\nif before != key:\n"
        f"    self.key = key\n{textwrap.indent(made, '    ')}\n{launched}\nreturn y"
    )
    shift, codes = "torch.zeros(4)", "torch.zeros(2048, dtype=torch.int32)"
    buffers = f"self.register_buffer('shift', {shift})\nself.register_buffer('codes', {codes})"
    outcome = trials.run(SNAKE, snaking(forward, constructor=f"{buffers}\nself.key = None"))
    assert outcome.end == end and said in outcome.message, outcome


@pytest.mark.parametrize("what", KEPT)
def test_inputs_and_outputs_are_those_of_the_reference(trials: Trials, what: str) -> None:
    write, returned, end, said = KEPT[what]
    outcome = trials.run("9/1", KERNEL.replace("WRITE", write).replace("RETURNED", returned))
    assert outcome.end == end and said in outcome.message, outcome


@pytest.mark.parametrize("how", IN_PLACES)
def test_inputs_lie_in_memory_as_the_problem_makes_them(trials: Trials, how: str) -> None:
    strides, steps, end, said = IN_PLACES[how]
    outcome = trials.run("9/4", LYING.replace("STRIDES", strides).replace("STEPS", steps))
    assert outcome.end == end and said in outcome.message, outcome


@pytest.mark.parametrize("when", RENEWED)
def test_an_input_is_changed_where_the_reference_changes_it_alone(trials: Trials, when: str) -> None:
    renew, where, end, said = RENEWED[when]
    outcome = trials.run("9/2", STATE_KERNELS.replace("RENEW", renew).replace("WHERE", where))
    assert outcome.end == end and said in outcome.message, outcome


@pytest.mark.parametrize("where", CACHED)
def test_what_the_reference_returns_of_an_input_needs_no_kernel_in_its_place(trials: Trials, where: str) -> None:
    forward, end, said = CACHED[where]
    outcome = trials.run("9/3", CACHE_KERNEL.replace("FORWARD", textwrap.indent(forward, " " * 8).strip()))
    assert outcome.end == end and said in outcome.message, outcome


@pytest.mark.parametrize("wait", WAITS)
def test_streams_are_watched_where_a_changed_input_shares_its_memory(trials: Trials, wait: str) -> None:
    end, said = WAITS[wait]
    outcome = trials.run("9/5", HALF.replace("WAIT", wait))
    assert outcome.end == end and said in outcome.message, outcome


TURNED = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        FIXED
        self.scale = nn.Parameter(torch.rand(features))

    def forward(self, x):
        return torch.relu(x * self.fixed) * self.scale


def get_inputs():
    return [torch.randn(16, 24)]


def get_init_inputs():
    return [24]
"""
TURNING = """
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def kernel(x_ptr, f_ptr, s_ptr, y_ptr, n, F, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    f, s = tl.load(f_ptr + i % F), tl.load(s_ptr + i % F)
    tl.store(y_ptr + i, tl.maximum(tl.load(x_ptr + i, mask=i < n) * f, 0.0) * s, mask=i < n)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        FIXED
        self.scale = nn.Parameter(torch.rand(features))

    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(8,)](x, self.fixed, self.scale, y, x.numel(), x.shape[1], 64)
        return y
"""
BUFFER = "self.register_buffer('fixed', torch.arange(features) * 0.1 + 0.1)"
FROZEN = "self.fixed = nn.Parameter(torch.arange(features) * 0.1 + 0.1, requires_grad=False)"
TRAINED = "self.fixed = nn.Parameter(torch.arange(features) * 0.1 + 0.1)"
EXPANDED = "self.fixed = nn.Parameter(torch.full((1,), 0.7).expand(features))"
WHOLE = "self.fixed = nn.Parameter(torch.full((features,), 0.7))"
NORMED = """
layer = nn.utils.weight_norm(nn.Linear(features, 1, bias=False))
self.layer = layer
self.register_buffer('fixed', torch.arange(features) * 0.1 + 0.1)
""".strip()
PARTED = """
layer, self.layer = nn.Linear(features, 1, bias=False), nn.Module()
self.layer.weight_g = nn.Parameter(layer.weight.detach().square().sum(1, keepdim=True).sqrt())
self.layer.weight_v = layer.weight
self.register_buffer('fixed', torch.arange(features) * 0.1 + 0.1)
""".strip()


@pytest.mark.parametrize(
    ("reference", "own", "kind", "said"),
    [
        (BUFFER, BUFFER, "ok", ""),
        (BUFFER, FROZEN, "ok", ""),
        (BUFFER, TRAINED, "unsupported", "optimizers change the parameter fixed"),
        (FROZEN, TRAINED, "unsupported", "optimizers change the parameter fixed"),
        (TRAINED, TRAINED, "ok", ""),
        (WHOLE, EXPANDED, "unsupported", "several elements in one place"),
        (WHOLE, WHOLE, "ok", ""),
        (WHOLE, "self.fixed = nn.Parameter(torch.full((2 * features,), 0.7)[::2])", "ok", ""),
        (WHOLE, "self.fixed = nn.Parameter(torch.full((features, 2), 0.7).t()[0])", "ok", ""),
        (NORMED, PARTED, "ok", ""),
        (BUFFER, f"{BUFFER[:-1]}, persistent=False)", "unsupported", "fixed is not saved with the model"),
        (f"{BUFFER[:-1]}, persistent=False)", BUFFER, "ok", ""),
    ],
)
def test_what_optimizers_change_is_what_they_change_of_the_reference(
    bench: Bench, reference: str, own: str, kind: str, said: str
) -> None:
    texts = [
        text.replace("FIXED", textwrap.indent(lines, " " * 8).strip())
        for text, lines in ((TURNED, reference), (TURNING, own))
    ]
    found = bench.grade(make_problem(1, 78, "turned", texts[0], "own"), texts[1])
    assert found.kind == kind and said in found.message, found
