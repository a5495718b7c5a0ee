"""Host code sees what a GPU would show it, or its submission is refused; honest ways to write it are taken."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from benchmarks.common.submissions import Submission, read_submissions

pytest.importorskip("torch")

import torch

from assay.kernels.inside.record import reads
from assay.kernels.inside.record.host.addresses import Address, SeenStorage
from assay.kernels.inside.record.reads import HostReadError, NotRecordableError
from support.kernel_graders import Bench
from support.kernelbench_data import ATTACKS
from support.trials import SNAKE, Trials, snaking

RECORDED = read_submissions(ATTACKS / "recorded")
ENDS = {"host_read": "cheat", "error": "crash"}
RIGHT = "return snake(x, self.frequency, torch.empty_like(x))"
OPERATOR = """
lib = torch.library.Library("seen", "DEF")
lib.define("snake(Tensor x, Tensor f) -> Tensor")
lib.impl("snake", lambda x, f: snake(x, f, torch.empty(x.shape, device="cuda")), "CUDA")
lib.impl("snake", lambda x, f: torch.empty_like(x), "Meta")
"""
CUSTOM = """
@torch.library.custom_op("seen::custom", mutates_args=())
def custom(x: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
    assert x.is_cuda and x.device.type == "cuda"
    return snake(x, f, torch.empty(x.shape, device="cuda", dtype=x.dtype))
"""
STREAM = """
s = self.s
s.wait_stream(torch.cuda.current_stream())
y = torch.empty_like(x)
with torch.cuda.stream(s):
    y.copy_(x)
    y.record_stream(s)
    out = snake(y, self.frequency, torch.empty_like(x))
del y
torch.zeros_like(x)
torch.cuda.current_stream().wait_stream(s)
out.record_stream(torch.cuda.current_stream())
return out
"""
HONEST = {
    "a library's operator": ("return torch.ops.seen.snake(x, self.frequency)", OPERATOR, ""),
    "a custom operator that names devices": ("return custom(x, self.frequency)", CUSTOM, ""),
    "a stream that is kept, and record_stream": (STREAM, "", "self.s = torch.cuda.Stream()"),
    "marks for a profiler": (
        f"with torch.cuda.nvtx.range('snake'):\n    torch.cuda.nvtx.mark('x')\n    {RIGHT}",
        "",
        "",
    ),
    "type_as": ("return snake(x, self.frequency, torch.zeros(1).type_as(x).new_empty(x.shape))", "", ""),
    "addresses that differ": (
        f"y = torch.empty_like(x)\nassert x.data_ptr() != y.data_ptr() and x.data_ptr() % 16 == 0\n"
        f"assert x.untyped_storage().data_ptr() != y.untyped_storage().data_ptr()\nassert x.data_ptr()\n{RIGHT}",
        "",
        "",
    ),
    "the answers of shapes and dtypes": (
        "assert x.dim() == x.ndim == 2 and x.numel() and x.element_size() == 4 and x.is_contiguous()\n"
        f"assert x.type() == 'torch.cuda.FloatTensor' and not x.is_pinned() and x.get_device() == 0\n{RIGHT}",
        "",
        "",
    ),
    "a seed for other GPUs, and flags": (
        RIGHT,
        "torch.manual_seed(0)\ntorch.cuda.manual_seed_all(0)\ntorch.backends.cuda.matmul.allow_tf32 = True",
        "",
    ),
    "a view, or else a copy": (
        "try:\n    x = x.t().view(-1).view(x.shape)\nexcept RuntimeError:\n    x = x.contiguous()\n" + RIGHT,
        "",
        "",
    ),
    "a copy that is waited for": (
        "c = x[:1].to('cpu', non_blocking=True)\ntorch.cuda.synchronize()\nx = x.clone()\n"
        f"x[:1].copy_(c.clone())\n{RIGHT}",
        "",
        "",
    ),
    "strides of an extent of 1": (
        "y = torch.empty(1, 6, device=x.device).t()[:, :1]\nassert torch.empty_like(y).stride() == (1, 6)\n"
        f"assert torch.floor_divide(x.t()[:8], 2.0).stride() == (1, 8)\n{RIGHT}",
        "",
        "",
    ),
    "a buffer drawn last, in a fork": (
        RIGHT,
        "",
        "with torch.random.fork_rng(devices=[]):\n    self.register_buffer('other', torch.rand(features))",
    ),
    "an allocator": (
        RIGHT,
        "triton.set_allocator(lambda size, *_: torch.empty(size, dtype=torch.int8, device='cuda'))",
        "",
    ),
    "eight bits that are cast and viewed": (
        f"x[0].to(torch.float8_e4m3fn).view(torch.uint8)\n{RIGHT}",
        "",
        "",
    ),
    "autocast around a launch": (f"with torch.autocast('cuda', dtype=torch.float16):\n    {RIGHT}", "", ""),
    "moves and fills of a list": (
        "y, z = torch.ones_like(x), torch.empty_like(x)\ntorch._foreach_copy_([z], [x])\ntorch._foreach_zero_([y])\n"
        "return snake(z, self.frequency, y)",
        "",
        "",
    ),
    "views in place": (f"y = torch.empty_like(x)\ny.unsqueeze_(0).squeeze_(0)\ny.t_()\ny.t_()\n{RIGHT}", "", ""),
    "a checkpoint": (
        f"x = torch.utils.checkpoint.checkpoint(lambda t: t, x, use_reentrant=False)\n{RIGHT}",
        "import torch.utils.checkpoint",
        "",
    ),
    "memory that is given back": (
        f"for _ in range(4):\n    x.new_empty(1 << 33)\n{RIGHT}",
        "",
        "",
    ),
    "streams that are told apart": (
        f"assert torch.cuda.current_stream() == torch.cuda.default_stream() != torch.cuda.Stream()\n{RIGHT}",
        "",
        "",
    ),
}
CLEARED = """
def clearing(size, alignment, stream):
    return torch.zeros(size, dtype=torch.int8, device="cuda")
triton.set_allocator(clearing)
"""
KEEPING = """
kept = []
def keeping(size, alignment, stream):
    kept.append(torch.empty(size, device="cuda"))
    return kept[-1]
triton.set_allocator(keeping)
"""
REPEATED = """
state = torch.get_rng_state()
self.register_buffer("one", torch.rand(features))
torch.set_rng_state(state)
self.register_buffer("other", torch.rand(features))
"""
FORKED = """
with torch.random.fork_rng(devices=[]):
    self.register_buffer("one", torch.rand(features))
self.register_buffer("other", torch.rand(features))
"""
REFUSED = {
    "a finalizer of the input": (
        "o = snake(x, self.frequency, torch.empty_like(x))\nweakref.finalize(x, o.zero_)\nreturn o",
        "import weakref",
        "",
        "by a finalizer of what it was given",
    ),
    "garbage that clears the weights": (
        f"Last(self.frequency.data)\n{RIGHT}",
        "class Last:\n    def __init__(self, held): self.held, self.own = held, self\n"
        "    def __del__(self): self.held.zero_()\n",
        "",
        "by a finalizer of what it was given",
    ),
    "an allocator that does more": (RIGHT, CLEARED, "", "triton.set_allocator makes zero"),
    "an allocator's memory as a tensor": (
        "y = snake(x, self.frequency, torch.empty_like(x))\nif kept:\n    y[0].copy_(kept[-1][: x.shape[1]])\nreturn y",
        KEEPING,
        "",
        "triton.set_allocator has returned",
    ),
    "a draw that is repeated": (RIGHT, "", REPEATED, "rand draws after host code put the generator"),
    "a draw after a fork": (RIGHT, "", FORKED, "the end of a fork_rng"),
    "a draw of a GPU that is repeated": (
        f"torch.cuda.manual_seed(1)\ntorch.rand(4, device=x.device)\n{RIGHT}",
        "",
        "",
        "rand draws after",
    ),
    "a seed at import": (RIGHT, "torch.manual_seed(1)\ntable = torch.rand(4)", "", "rand draws after"),
    "denormals that are flushed": (
        f"torch.set_flush_denormal(True)\nx = x * 1.0\n{RIGHT}",
        "",
        "",
        "set_flush_denormal",
    ),
    "eight bits that are rolled": (
        f"x[0].to(torch.float8_e5m2).roll(1)\n{RIGHT}",
        "",
        "",
        "roll of torch.float8_e5m2",
    ),
    "numbers that are conjugated in place": (
        f"x.to(torch.complex64).conj().resolve_conj()\n{RIGHT}",
        "",
        "",
        "conjugates or negates where they are read",
    ),
    "a tensor that an operator changes beside its result": (
        f"torch.ops.aten.rrelu_with_noise(x, torch.empty_like(x), 0.1, 0.1, True)\n{RIGHT}",
        "",
        "",
        "writes a tensor that it does not give back",
    ),
    "an answer of an operator": (f"torch.ops.aten.q_scale(x)\n{RIGHT}", "", "", "cannot be recorded"),
}
ODD = {
    "no word": ("assert x.dim() == 3", "assert x.dim() == 3"),
    "none that can be made": (
        "class Odd(Exception):\n    def __str__(self): raise KeyError\nraise Odd",
        "Odd while forward: its text cannot be made: KeyError",
    ),
    "no exception": ("class Odd(BaseException): pass\nraise Odd('there')", "Odd while forward: there"),
    "a view beyond its storage": ("x.new_empty(4).as_strided(x.shape, x.stride())", "out of bounds for storage"),
}


@pytest.fixture(scope="module")
def trials(bench: Bench) -> Trials:
    return Trials(bench)


@pytest.mark.parametrize("attack", RECORDED, ids=lambda attack: attack.id)
def test_what_a_gpu_would_show_otherwise_earns_nothing(trials: Trials, attack: Submission) -> None:
    outcome = trials.run(attack.problem, attack.code)
    assert ENDS.get(outcome.end, outcome.end) in attack.expect, outcome


@pytest.mark.parametrize("style", HONEST)
def test_honest_host_code_is_taken(trials: Trials, style: str) -> None:
    forward, head, constructor = HONEST[style]
    outcome = trials.run(SNAKE, snaking(forward, head=head, constructor=constructor))
    assert outcome.end == "ok", outcome


@pytest.mark.parametrize("what", REFUSED)
def test_what_no_replay_has_is_refused(trials: Trials, what: str) -> None:
    forward, head, constructor, said = REFUSED[what]
    outcome = trials.run(SNAKE, snaking(forward, head=head, constructor=constructor))
    assert outcome.end == "unsupported" and said in outcome.message, outcome


@pytest.mark.parametrize("words", ODD)
def test_an_odd_exception_is_told_with_its_line(trials: Trials, words: str) -> None:
    forward, said = ODD[words]
    outcome = trials.run(SNAKE, snaking(f"{forward}\n{RIGHT}"))
    assert outcome.end == "crash" and said in outcome.message and outcome.line > 0, outcome


OF_STREAMS = ("default_stream", "current_stream", "synchronize", "get_device_properties", "get_device_name")
SIGNED = ("set_device", "empty_cache", "set_stream", "stream", "Event", "is_bf16_supported", "device_of", *OF_STREAMS)
SIGNATURES = """
import inspect, json, torch
{before}
signatures = {{name: [(one.name, one.default is one.empty) for one in
    inspect.signature(getattr(torch.cuda, name)).parameters.values()] for name in {names}}}
print(json.dumps(signatures))
"""
PRETENDED = """
from assay.kernels.inside import pretend_cuda
from assay.kernels.inside.record.host import gpu
pretend_cuda.install(pretend_cuda.SHARED_LIMIT, 90)
gpu.install()
"""


def test_what_is_pretended_takes_what_pytorch_takes() -> None:
    texts = [SIGNATURES.format(before=before, names=SIGNED) for before in ("", PRETENDED)]
    found = [json.loads(subprocess.check_output([sys.executable, "-c", text], text=True)) for text in texts]
    assert found[1] == found[0] and len(found[0]) == len(SIGNED)


@pytest.mark.parametrize(("kind", "stand_in"), [(int, Address), (torch.UntypedStorage, SeenStorage)])
def test_a_stand_in_answers_or_refuses_whatever_python_may_ask(kind: type, stand_in: type) -> None:
    own = {name for one in stand_in.__mro__[:-1] for name in vars(one)}
    special = {name for name in dir(kind) if name.startswith("__")}
    told = set(dir(object)) - {"__eq__", "__hash__", "__repr__", "__str__", "__format__", "__reduce_ex__", "__reduce__"}
    found = special - told - own - {"__annotations__", "__dict__", "__weakref__", "__ceil__"}
    assert not found, found


def test_hashes_of_addresses_are_those_of_numbers() -> None:
    reads.begin()
    tensors = [torch.empty(4, device="meta") for _ in range(2)]
    one, other = (Address(tensor.untyped_storage(), 0) for tensor in tensors)
    assert hash(one) == hash(Address(tensors[0].untyped_storage(), 0)) != hash(other)
    assert hash(one) % 256 == 0 < hash(one) < 1 << 47 and hash(Address(tensors[0].untyped_storage(), 4)) % 256 == 4
    assert len({one, other}) == 2 and one in {one: 1}
    del tensors[1]
    with pytest.raises(NotRecordableError, match="that is gone"):
        hash(one)
    reads.begin()


def test_an_address_is_no_number() -> None:
    reads.begin()
    one, other = (torch.empty(4, device="meta") for _ in range(2))
    here = Address(one.untyped_storage(), 4)
    assert here == Address(one.untyped_storage(), 4) and here != Address(one.untyped_storage(), 0)
    assert here % 16 == 4 and here & 7 == 4 and here and here != 0
    assert Address(torch.empty(0, device="meta").untyped_storage(), 0) == 0
    there = Address(other.untyped_storage(), 0)
    assert here != there
    for asked in (int, str, repr, float, "{:x}".format, lambda a: a + 1, lambda a: a < there, lambda a: a == 5):
        with pytest.raises(HostReadError):
            asked(here)
    del other
    with pytest.raises(NotRecordableError, match="that is gone"):
        _ = here == there
    assert isinstance(reads.refused(), HostReadError)
    reads.begin()
    assert reads.refused() is None
