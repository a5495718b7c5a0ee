"""The timed harness outside a sandbox: one precision policy, and the order of a GPU's calls."""

from __future__ import annotations

import ctypes
import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from assay.kernels.inside import timed
from assay.kernels.inside.precision import set_precision_policy
from assay.kernels.inside.tensors import WrongOutputError
from assay.kernels.inside.timed import CudaClock, flat_tensors


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


def test_fake_and_real_have_the_same_interface() -> None:
    for name in ("record", "elapsed_time"):
        assert callable(getattr(torch.cuda.Event, name))
    assert timed.CpuClock().timed(lambda: 7)[1] == 7


def test_outputs_are_taken_in_one_order() -> None:
    a, b, c = (torch.full((1,), value) for value in (1.0, 2.0, 3.0))
    assert [float(t) for t in flat_tensors([{"z": c, "a": a}, (b,), 4])] == [1.0, 3.0, 2.0, 4.0]
    with pytest.raises(WrongOutputError, match="str"):
        flat_tensors([a, "b"])
