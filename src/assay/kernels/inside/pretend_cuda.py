"""Lets host code that names a CUDA device run on CPU tensors, so that an honest kernel does not fail on a formality.

    x.cuda(), device="cuda", assert x.is_cuda, torch.cuda.current_stream(), torch.cuda.get_device_properties(0)

This is convenience and no wall: it changes what a candidate sees of PyTorch, and the candidate can change it back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from assay.kernels.inside.record import streams

DEVICE = torch.device("cuda", 0)
MULTIPROCESSORS = 132
REGISTERS = 65536
TOTAL_MEMORY = 81079 << 20
"""Bytes that CUDA says an H100 has."""
CLOCK_KHZ = 1_980_000


class OnCpu(TorchFunctionMode):
    """While active, CUDA devices mean the CPU, and tensors say that they are on a CUDA device."""

    def __init__(self) -> None:
        super().__init__()
        self._special: dict[Any, Callable[..., Any]] = {
            torch.Tensor.cuda: lambda tensor, *_, **__: tensor,
            torch.Tensor.pin_memory: lambda tensor, *_, **__: tensor,
            torch.Tensor.is_pinned: lambda *_, **__: True,
            torch.Tensor.get_device: lambda *_, **__: 0,
            torch.Tensor.record_stream: lambda *_, **__: None,
            torch.Tensor.is_cuda.__get__: lambda *_: True,  # type: ignore[attr-defined]
            torch.Tensor.is_cpu.__get__: lambda *_: False,  # type: ignore[attr-defined]
            torch.Tensor.device.__get__: lambda *_: DEVICE,
        }

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if (instead := self._special.get(func)) is not None:
            return instead(*args, **given)
        if "device" in given:
            given["device"] = _cpu(given["device"])
        if "pin_memory" in given:
            given["pin_memory"] = False
        return func(*(_cpu(argument) for argument in args), **given)


def default_stream() -> streams.Stream:
    """`torch.cuda.default_stream`, which need not be the caller's."""
    streams.Stream.several = True
    return streams.order.named


class UsingStream:
    """`torch.cuda.stream`, which may be entered again."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            streams.stream_or_current(self.stream).__enter__()

    def __exit__(self, *_: object) -> None:
        if self.stream is not None:
            self.stream.__exit__()


def use_stream(stream: Any) -> None:
    """`torch.cuda.set_stream`."""
    if stream is not None:
        streams.order.current = streams.stream_or_current(stream)


def _cpu(value: Any) -> Any:
    """The CPU where a value names a CUDA device, and the value itself otherwise."""
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == "cuda" else value
    if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")):
        return "cpu"
    return value


@contextlib.contextmanager
def _nothing(*_: Any, **__: Any) -> Iterator[None]:
    yield


SHARED_LIMIT = 232_448
CAPABILITY = 90
"""Of the GPU that is pretended where nothing is compiled: an H100."""
NAMES = {80: "NVIDIA A100-SXM4-80GB", 89: "NVIDIA L40S", 90: "NVIDIA H100 80GB HBM3", 100: "NVIDIA B200"}
"""Capability -> what a GPU that has it is called."""


def driver_properties(_: int = 0, shared_limit: int = SHARED_LIMIT) -> dict[str, int]:
    """What Triton's driver says of the device that is pretended."""
    return {
        "max_shared_mem": shared_limit,
        "max_num_regs": REGISTERS,
        "multiprocessor_count": MULTIPROCESSORS,
        "warpSize": 32,
        "sm_clock_rate": CLOCK_KHZ,
        "mem_clock_rate": 2_619_000,
        "mem_bus_width": 5120,
    }


def device_properties(shared_limit: int, capability: int) -> SimpleNamespace:
    """What `torch.cuda.get_device_properties` says of the device that is pretended."""
    return SimpleNamespace(
        name=NAMES.get(capability, f"sm_{capability}"),
        major=capability // 10,
        minor=capability % 10,
        total_memory=TOTAL_MEMORY,
        multi_processor_count=MULTIPROCESSORS,
        warp_size=32,
        max_threads_per_multi_processor=2048,
        max_threads_per_block=1024,
        regs_per_multiprocessor=REGISTERS,
        shared_memory_per_block=48 << 10,
        shared_memory_per_block_optin=shared_limit,
        shared_memory_per_multiprocessor=shared_limit + 1024,
        L2_cache_size=50 << 20,
        clock_rate=CLOCK_KHZ,
        is_integrated=0,
        is_multi_gpu_board=0,
        gcnArchName=NAMES.get(capability, f"sm_{capability}"),  # which CUDA builds of PyTorch give the name
    )


def install(shared_limit: int, capability: int) -> None:
    """Replace what `torch.cuda` says and does, for the rest of this process."""
    properties = device_properties(shared_limit, capability)
    names: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda including_emulation=True: True,
        "init": lambda: None,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "synchronize": lambda device=None: streams.order.host_waits_for_all(),
        "empty_cache": lambda: None,
        "current_stream": lambda device=None: streams.order.current,
        "default_stream": lambda device=None: default_stream(),
        "set_stream": use_stream,
        "stream": UsingStream,
        "device": _nothing,
        "device_of": _nothing,
        "Stream": streams.Stream,
        "Event": streams.Event,
        "get_device_properties": lambda device=None: properties,
        "get_device_name": lambda device=None: properties.name,
        "get_device_capability": lambda device=None: (properties.major, properties.minor),
        "reset_peak_memory_stats": lambda device=None: None,
    }
    for name, value in names.items():
        setattr(torch.cuda, name, value)
