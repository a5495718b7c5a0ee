"""Where tensors are: kernels and callers take those of one GPU, to which a model is moved as PyTorch moves it."""

from __future__ import annotations

import pytest

from support.kernel_graders import Bench
from support.trials import SNAKE, Trials, snaking

HOST = "is on the host"
RIGHT = "return snake(x, self.frequency, torch.empty_like(x))"
DEVICES = {
    "made without a device": (
        "return snake(x, self.frequency, torch.empty(x.shape))",
        "crash",
        "Pointer argument (at 2",
    ),
    "made with one": ("return snake(x, self.frequency, torch.empty(x.shape, device=x.device))", "ok", ""),
    "by its number": ("return snake(x, self.frequency, torch.empty(x.shape, device=torch.device(0)))", "ok", ""),
    "a module by its number": (f"nn.ReLU().to(0)\nnn.ReLU().to(device=0)\n{RIGHT}", "ok", ""),
    "another GPU by its number": ("torch.empty(4, device=torch.device(1))", "crash", "invalid device"),
    "made on the host": ("return snake(x, self.frequency, torch.empty(x.shape, device='cpu'))", "crash", "cpu tensor"),
    "moved": ("return snake(x, self.frequency, torch.zeros(x.shape).to(x.device))", "ok", ""),
    "moved as another tensor": ("return snake(x, self.frequency, torch.zeros(x.shape, dtype=int).to(x))", "ok", ""),
    "under a context": (
        "with torch.device('cuda'):\n    y = torch.zeros(x.shape)\nreturn snake(x, self.frequency, y)",
        "ok",
        "",
    ),
    "another GPU": ("return snake(x, self.frequency, torch.empty_like(x, device='cuda:1'))", "crash", "invalid device"),
    "mixed": (
        "y = snake(x, self.frequency, torch.empty_like(x))\nreturn y + torch.zeros(x.shape)",
        "crash",
        "same device",
    ),
    "a choice on the host": (f"torch.where(torch.arange(4) > 1, 1.0, 0.0).mul_(torch.ones(4))\n{RIGHT}", "ok", ""),
    "places set on the host": (f"h = torch.zeros(4)\nh[h > 1] = 5.0\n{RIGHT}", "ok", ""),
    "classes on the host": (
        f"torch.nn.functional.one_hot(torch.arange(4), 4).add_(torch.ones(1))\n{RIGHT}",
        "crash",
        "",
    ),
    "a choice on the GPU": (f"torch.where(x[0, :9] > 1, 1.0, 0.0).mul_(x[0, :9])\n{RIGHT}", "ok", ""),
    "a number of the host": (f"x = x.clone()\nx[0, 0].mul_(torch.tensor(1.0))\n{RIGHT}", "ok", ""),
    "a weight of the host": (f"torch.lerp(x[0, :9], x[0, :9], torch.tensor(0.5))\n{RIGHT}", "ok", ""),
    "what begins at a number of the host": (
        f"torch.lerp(torch.tensor(0.5), x[0], x[0])\n{RIGHT}",
        "crash",
        "same device",
    ),
    "bounds of the host": (f"x[0].clamp(torch.tensor(0.0), torch.tensor(1.0))\n{RIGHT}", "crash", "same device"),
    "a mask of the host": (f"x[0].masked_fill(torch.tensor(True), 1.0)\n{RIGHT}", "crash", "same device"),
    "a literal": ("return snake(x, torch.tensor([1.0] * x.shape[1]), torch.empty_like(x))", "crash", "at 1"),
    "without memory": ("return snake(x, self.frequency, torch.empty_like(x, device='meta'))", "crash", "device 'meta'"),
    "without memory by default": (
        "torch.set_default_device('meta')\nreturn snake(x, self.frequency, torch.empty(x.shape))",
        "crash",
        "device 'meta'",
    ),
    "returned without memory": (f"{RIGHT}.to('meta')", "wrong", "device 'meta'"),
    "copied from where no memory is": (
        f"{RIGHT}.copy_(torch.empty(x.shape, device='meta'))",
        "crash",
        "has no memory",
    ),
    "for its shape": (f"y = torch.empty(x.shape, device='meta').t()\nassert y.is_meta\n{RIGHT}", "ok", ""),
    "another maker's": (
        "return snake(x, self.frequency, torch.empty(x.shape, device='xla'))",
        "crash",
        "no device xla",
    ),
    "copied to the host": ("return snake(x, self.frequency, torch.empty_like(x)).cpu()", "wrong", HOST),
    "asked for": (f"assert x.is_cuda and not x.is_cpu and torch.zeros(1).device.type == 'cpu'\n{RIGHT}", "ok", ""),
    "an attribute": ("return snake(x, self.frequency, self.y.expand(x.shape))", "crash", "register it as a buffer"),
}
LEFT = "moves parameters and buffers alone"
TAKES = "return snake(x, self.y, torch.empty_like(x))"
PARTED = {
    "the data of a parameter": ("self.y = self.frequency.data", TAKES, "crash", LEFT),
    "a window of one": ("self.y = self.frequency.detach().view(-1)", TAKES, "crash", LEFT),
    "a buffer itself": ("self.register_buffer('b', torch.ones(features))\nself.y = self.b", TAKES, "crash", LEFT),
    "a second parameter": ("self.y = nn.Parameter(self.frequency.data)", TAKES, "wrong", "once the weights have other"),
    "a flat buffer": (
        "self.register_buffer('y', torch.cat([self.frequency.data] * 2))\nself.frequency.data = self.y[:features]",
        TAKES,
        "wrong",
        "once the weights have other",
    ),
    "two names of a buffer": (
        "s = torch.ones(features)\nself.register_buffer('y', s)\nself.register_buffer('z', s)",
        "copy_kernel[(1,)](self.frequency, self.z, x.shape[1], BLOCK=1024)\n" + TAKES,
        "wrong",
        "elements are wrong",
    ),
    "moved in each call": ("self.y = self.frequency.data", TAKES.replace("self.y", "self.y.cuda()"), "wrong", "once"),
    "nothing": ("self._apply = lambda fn, recurse=True: self", RIGHT, "unsupported", "has a _apply of its own"),
    "nothing by to()": ("self.to = lambda *_, **__: self", RIGHT, "unsupported", "has a to of its own"),
    "no memory": (
        "with torch.device('meta'):\n    self.z = nn.Parameter(torch.rand(1))",
        RIGHT,
        "crash",
        "has no memory",
    ),
    "the same parameter": ("self.y = [self.frequency]", TAKES.replace("self.y", "self.y[0]"), "ok", ""),
    "a part of a memory": ("self.frequency.data = torch.cat([self.frequency.data] * 2)[features:]", RIGHT, "ok", ""),
    "on the GPU before": ("self.cuda()\nself.y = self.frequency.data", TAKES, "ok", ""),
    "literal values": (
        "self.y = [nn.Parameter(torch.tensor([1.0]))]\nself.z = self.y[0]",
        f"assert self.y[0].is_cuda\n{RIGHT}",
        "ok",
        "",
    ),
}
"""What the constructor makes and what forward does; on a GPU, each parameter and each buffer has memory of its own."""


@pytest.fixture(scope="module")
def trials(bench: Bench) -> Trials:
    return Trials(bench)


@pytest.mark.parametrize("what", DEVICES)
def test_kernels_and_callers_take_tensors_of_one_gpu(trials: Trials, what: str) -> None:
    forward, end, said = DEVICES[what]
    outcome = trials.run(SNAKE, snaking(forward, constructor="self.y = torch.zeros(1)"))
    assert outcome.end == end and said in outcome.message, outcome


@pytest.mark.parametrize("what", PARTED)
def test_a_model_is_moved_to_the_gpu_as_pytorch_moves_it(trials: Trials, what: str) -> None:
    constructor, forward, end, said = PARTED[what]
    outcome = trials.run(SNAKE, snaking(forward, constructor=constructor))
    assert outcome.end == end and said in outcome.message, outcome
