"""Candidates that cheat the clock, as source for `assay.kernels.timing.stopwatch`: plain PyTorch, for any device.

The reference is `REFERENCE`: tanh of a linear layer. `forging` makes a candidate whose forward has a given body.
"""

from __future__ import annotations

HARNESS = "assay.kernels.inside.timing.harness"
REFERENCE = """
import torch
class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = torch.nn.Linear(width, width)
    def forward(self, x):
        return torch.tanh(self.layer(x))
"""
HONEST = REFERENCE.replace("class Model(", "class ModelNew(")


def forging(body: str, before: str = "") -> str:
    """A candidate whose forward has this body; `self.right(x)` is the right answer, `harness` the module that calls
    it, `calls` how often that has been; `before` comes first."""
    lines = "\n".join(f"        {line}" for line in body.strip().splitlines())
    return f"""
import sys, threading, time, torch
harness = sys.modules["{HARNESS}"]
calls = 0
{before.strip()}
class ModelNew(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = torch.nn.Linear(width, width)
    def right(self, x):
        return torch.tanh(self.layer(x))
    def forward(self, x):
        global calls
        calls += 1
{lines}
"""


_CLAIM = "harness.{clock}.timed = lambda clock, call: ({value}, call())"
_BOTH = "\n".join(_CLAIM.format(clock=name, value="{value}") for name in ("CpuClock", "CudaClock"))
_SLOW = "time.sleep(0.2)\nreturn self.right(x)"

CHEATS: dict[str, tuple[str, frozenset[str]]] = {
    "a clock that stands still": (
        forging(_SLOW, "time.perf_counter = lambda: 1.0\ntorch.cuda.Event.elapsed_time = lambda begin, end: 0.0"),
        frozenset({"timer"}),
    ),
    "a clock that runs backwards": (
        forging("return self.right(x)", _BOTH.format(value="-1.0")),
        frozenset({"timer"}),
    ),
    "a harness that claims microseconds": (forging(_SLOW, _BOTH.format(value="1e-6")), frozenset({"timer"})),
    "no number at all": (forging("return self.right(x)", _BOTH.format(value="float('nan')")), frozenset({"timer"})),
    "right only in the first calls": (
        forging("return self.right(x) if calls <= 6 else torch.zeros_like(x)"),
        frozenset({"wrong"}),
    ),
    "wrong in a single call": (forging("return self.right(x) + (calls == 13)"), frozenset({"wrong"})),
    "the first output for ever": (
        forging(
            "self.kept = getattr(self, 'kept', None)\nif self.kept is None: self.kept = self.right(x)\nreturn self.kept"
        ),
        frozenset({"wrong"}),
    ),
    "work put off to a thread": (
        forging(
            "out = torch.zeros_like(x)\n"
            "def later():\n"
            "    time.sleep(0.2)\n"
            "    out.copy_(self.right(x))\n"
            "threading.Thread(target=later, daemon=True).start()\n"
            "return out"
        ),
        frozenset({"wrong", "deferred"}),
    ),
    "work put off until the output is fetched": (
        forging(
            "seen.append((self, x.clone()))\nreturn torch.zeros_like(x)",
            "seen = []\n"
            "written = harness.output_bytes\n"
            "def late(outputs, *rest):\n"
            "    model, x = seen.pop(0)\n"
            "    return written([model.right(x)], *rest)\n"
            "harness.output_bytes = late",
        ),
        frozenset({"deferred"}),
    ),
    "work done before the clock runs": (
        forging(
            "return done.pop(0)(self).reshape(x.shape)",
            "done = []\n"
            "prepare = harness.Bench.prepare\n"
            "def early(bench, blobs):\n"
            "    prepare(bench, blobs)\n"
            "    for (words,) in bench._sets:\n"
            "        x = words.clone().view(torch.float32)\n"
            "        done.append(lambda model, x=x: model.right(x.reshape(-1, model.layer.in_features)))\n"
            "harness.Bench.prepare = early",
        ),
        frozenset({"wrong"}),
    ),
    "a lazy tensor": (
        forging("class Lazy(torch.Tensor): pass\nreturn self.right(x).as_subclass(Lazy)"),
        frozenset({"wrong"}),
    ),
    "leaving with success": (forging("import os\nos._exit(0)"), frozenset({"crash"})),
}
"""Name -> source, and the kinds of finding of which one must come."""
