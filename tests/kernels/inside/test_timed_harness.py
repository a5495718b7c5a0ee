"""The timed harness outside a sandbox: one precision policy, and the order of a GPU's calls."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch

from assay.kernels.inside.precision import set_precision_policy
from assay.kernels.inside.replay.memory import Memory
from assay.kernels.inside.replay.player import Manner, NoRoomError, Player
from assay.kernels.inside.tensors import WrongOutputError
from assay.kernels.inside.timing import harness as timed
from assay.kernels.inside.timing.contestants import Module
from assay.kernels.inside.timing.harness import CudaClock, flat_tensors
from assay.kernels.inside.timing.recorded import Recorded
from assay.kernels.program.form import Launch, Program, Variant
from assay.kernels.program.reading import read
from support.programs import N, launch, window, written


@pytest.fixture
def policy() -> Any:
    backends = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)
    before = [backend.fp32_precision for backend in backends], os.environ.get("TRITON_F32_DEFAULT")
    yield lambda: [backend.fp32_precision for backend in backends]
    for backend, value in zip(backends, before[0], strict=True):
        backend.fp32_precision = value
    os.environ.pop("TRITON_F32_DEFAULT", None)
    if before[1] is not None:
        os.environ["TRITON_F32_DEFAULT"] = before[1]


@pytest.mark.parametrize(("tf32", "name"), [(False, "ieee"), (True, "tf32")])
def test_one_precision_policy_for_all(policy: Any, tf32: bool, name: str) -> None:
    set_precision_policy(tf32)
    assert policy() == [name] * 3
    assert os.environ["TRITON_F32_DEFAULT"] == name


class FakeCuda:
    """What the clock of a GPU asks of PyTorch and of the driver, with a log and a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.now_ms = 0.0
        properties = SimpleNamespace(name="NVIDIA H100 80GB HBM3", L2_cache_size=50 << 20)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: self.log.append("synchronize"))
        monkeypatch.setattr(torch.cuda, "Event", self.event)
        driver = SimpleNamespace(cuCtxResetPersistingL2Cache=lambda: self.log.append("reset"))
        monkeypatch.setattr(ctypes, "CDLL", lambda name: {"libcuda.so.1": driver}[name])

    def event(self, enable_timing: bool) -> Any:
        assert enable_timing
        fake = self

        class Event:
            def record(self) -> None:
                fake.log.append("record")
                self.at = fake.now_ms

            def elapsed_time(self, end: Any) -> float:
                return end.at - self.at

        return Event()

    def call(self) -> str:
        self.log.append("call")
        self.now_ms += 2.5
        return "value"


def test_a_gpu_is_idle_before_and_after_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCuda(monkeypatch)
    clock = CudaClock()
    assert (clock.name, clock.flush_bytes) == ("NVIDIA H100 80GB HBM3", 100 << 20)
    assert clock.timed(fake.call) == (0.0025, "value")
    assert fake.log == ["reset", "synchronize", "record", "call", "record", "synchronize"]


class FakeGraphs:
    """CUDA graphs whose replay makes the captured call again; a capture fails where `broken` says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, log: list[str], broken: bool) -> None:
        fake = self
        self.calls: list[Any] = []

        class Graph:
            def replay(self) -> None:
                log.append("replay")
                for call in fake.calls:
                    call()

        @contextlib.contextmanager
        def graph(into: Graph) -> Iterator[None]:
            log.append("capture")
            yield
            if broken:
                raise RuntimeError("operation not permitted when stream is capturing")

        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: "stream")
        monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: log.append(f"back to {stream}"))
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
        monkeypatch.setattr(torch.cuda, "graph", graph)


class Doubling:
    """A machine that doubles, where a block of 64 is the fastest, and none of 256 finds room."""

    device = "cpu"
    follows = False

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def build(self, program: Program) -> list[Any]:
        return [None]

    @contextlib.contextmanager
    def running(self, memory: Memory, manner: Manner) -> Iterator[Doubling]:
        yield self

    def launch(self, launch: Launch, variant: Variant, arguments: dict[str, Any]) -> None:
        if arguments["BLOCK"] == 256:
            raise NoRoomError("out of resource", 9)
        self.log.append(f"launch {arguments['BLOCK']}")
        arguments["y"].copy_(arguments["x"].mul_(2))  # in place, so that a second launch on the same memory is wrong

    def told(self) -> dict[str, Any]:
        return {}

    def kind_of(self, error: Exception) -> Literal["error"]:
        return "error"


def program_of(blocks: Sequence[int]) -> Program:
    changed = written(forward=[launch(x={"window": window(0)}, y={"window": window(1)}, n=N, BLOCK=0)])
    (variant,) = changed["forward"][0]["variants"]
    variants = [{**variant, "args": {**variant["args"], "BLOCK": block}} for block in blocks]
    program = read(json.dumps({**changed, "forward": [{**changed["forward"][0], "variants": variants}]}).encode())
    assert isinstance(program, Program), program
    return program


@pytest.mark.parametrize("broken", [False, True])
def test_a_program_is_tuned_once_and_replayed_as_a_graph(monkeypatch: pytest.MonkeyPatch, broken: bool) -> None:
    log: list[str] = []
    graphs = FakeGraphs(monkeypatch, log, broken)
    player = Player(program_of((256, 128, 64)), Doubling(log), [], 0)
    seconds = iter((2.0, 1.0))

    def seconds_of(call: Any) -> float:
        call()
        return next(seconds)

    side = Recorded(player, seconds_of)
    graphs.calls.append(lambda: player.forward(Manner(), lambda launch, _: launch.variants[2:]))
    inputs = torch.arange(N, dtype=torch.float32)
    for number in range(3):
        side.prepare([inputs + number])
        assert player.memory.tensor(player.program.outputs[0]).isnan().all(), "fresh memory has no earlier output"
        (output,) = side.call()
        assert torch.equal(output, 2 * (inputs + number))
    tuning = ["launch 128", "launch 128", "launch 64", "launch 64", "launch 64"]
    later = ["launch 64"] if broken else ["replay", "launch 64"]
    capture = ["capture", "launch 64", *(["back to stream"] if broken else [])]
    assert log == [*tuning, *capture, *3 * later]
    assert side.launched == ("one by one" if broken else "cuda graph")


def test_a_program_without_room_for_any_variant_has_no_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeGraphs(monkeypatch, [], False)
    side = Recorded(Player(program_of((256,)), Doubling([]), [], 0), lambda call: 0.0)
    side.prepare([torch.zeros(N)])
    with pytest.raises(NoRoomError, match="out of resource"):
        side.call()


def test_a_reference_is_replayed_on_new_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    graphs = FakeGraphs(monkeypatch, log, False)
    out = torch.zeros(2)
    side = Module(lambda x, pair: out.copy_(x + pair[0]), graph=True)
    graphs.calls.append(lambda: side._forward())
    for number in (1.0, 2.0):
        side.prepare([torch.full((2,), number), (torch.ones(2), 3)])
        assert side.call().tolist() == [number + 1] * 2
    assert log == ["capture", "replay", "replay"] and side.launched == "cuda graph"


def test_fake_and_real_have_the_same_interface() -> None:
    for name in ("record", "elapsed_time"):
        assert callable(getattr(torch.cuda.Event, name))
    for name in ("graph", "CUDAGraph", "current_stream", "set_stream", "synchronize"):
        assert callable(getattr(torch.cuda, name))
    assert callable(torch.cuda.CUDAGraph.replay)
    assert timed.CpuClock().timed(lambda: 7)[1] == 7


def test_outputs_are_taken_in_one_order() -> None:
    a, b, c = (torch.full((1,), value) for value in (1.0, 2.0, 3.0))
    assert [float(t) for t in flat_tensors([{"z": c, "a": a}, (b,), 4, None, "b"])] == [3.0, 1.0, 2.0]
    with pytest.raises(WrongOutputError, match="set"):
        flat_tensors([a, {1}])
