"""The sandbox harness for timed calls of a candidate, and of a baseline, which is the trusted reference run alike.

A Triton candidate comes as its recorded program, a CUDA one and the reference as modules (`contestants`).

    setup       build the model and warm nothing; then, sample by sample, all of them alike:
    prepare     the inputs of K calls go to the device, under a mask
    run         their key comes; K times: unmask, prepare, clear the cache, wait, call, wait; then digests of outputs
    fetch       the outputs go back

CUDA starts in the child. What a module's events say may be forged: the parent holds its own clock against them.
"""

from __future__ import annotations

import ctypes
import os
import struct
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from assay.kernels.frames import value_of
from assay.kernels.inside.precision import set_precision_policy
from assay.kernels.inside.problem import truncated
from assay.kernels.inside.problem.values import tensors_in, tensors_of_output
from assay.kernels.inside.submission import fault, load
from assay.kernels.inside.tensors import (
    WrongOutputError,
    as_laid_out,
    flat_tensors,
    in_precision,
    output_bytes,
    tensors_of,
)
from assay.kernels.inside.timing import masking
from assay.kernels.inside.timing.contestants import Contestant, Module, Seconds

if TYPE_CHECKING:
    from assay.sandbox.base import ReadInputs, WriteOutputs
    from assay.types import Json

_contiguous, _detach = torch.Tensor.contiguous, torch.Tensor.detach


def preload() -> None:
    """Import PyTorch and Triton, with one thread and no device."""
    torch.set_num_threads(1)
    truncated.install()
    if find_spec("triton") is not None:
        import assay.kernels.inside.timing.recorded  # noqa: F401
    torch.ones(2).add_(1)


def execute(source: str, header: Json, read_inputs: ReadInputs, write_outputs: WriteOutputs) -> Json:
    """Run one side of a comparison; the report names the device, and the fault that ended it, if one did."""
    blobs = read_inputs()
    assert blobs is not None, "a job has a first round"
    set_precision_policy(header["tf32"])
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = (
        "1"  # in this process: a pool of its own would outlive the compilation
    )
    try:
        clock = CudaClock() if header["device"] == "cuda" else CpuClock()
        bench = Bench(header, clock)
        side = contestant(source, header, blobs, lambda call: clock.timed(call)[0])
    except Exception as error:  # noqa: BLE001  whatever a candidate raises is its own fault, and data
        return {"fault": fault("construct", error)}
    write_outputs([])
    for _ in range(header["samples"]):
        blobs = read_inputs()
        assert blobs is not None, "a sample has three rounds"
        bench.prepare(blobs)
        write_outputs([])
        blobs = read_inputs()
        assert blobs is not None, "a sample has three rounds"
        try:
            write_outputs([bench.run(side, *struct.unpack("<QQ", blobs[0]))])
            read_inputs()
            write_outputs(bench.fetch())
        except WrongOutputError as error:
            return {"fault": fault("forward", error, "wrong_output")}
        except Exception as error:  # noqa: BLE001  as above
            return {"fault": fault("forward", error)}
    while read_inputs() is not None:
        write_outputs([])
    return {"device": clock.name, "launched": side.launched}


def contestant(source: str, header: Json, blobs: Sequence[memoryview], seconds_of: Seconds) -> Contestant:
    """One side of a comparison from the text of its job.

    Raises:
        ForgedError: a program is not one that may be run.
        Exception: whatever the module's code, or the program's operations, raise.
    """
    init_inputs = tensors_of(header["init_inputs"], blobs, "cpu")
    if header["entry"] == "program":
        from assay.kernels.inside.timing.recorded import recorded  # Triton is only wanted for programs

        return recorded(source, header, tensors_in(init_inputs), seconds_of)
    module = load(source)
    torch.manual_seed(header["weight_seed"])
    model = getattr(module, header["entry"])(*init_inputs)
    if isinstance(model, torch.nn.Module):
        model = in_precision(model, getattr(torch, header["precision"]), header["device"])
    return Module(
        torch.compile(model) if header["baseline"] == "compile" else model, graph=header["baseline"] == "graph"
    )


class CpuClock:
    """Times calls on the processor."""

    name = "cpu"
    flush_bytes = 1 << 22

    def synchronize(self) -> None:
        """Nothing runs behind a call's back."""

    def timed(self, call: Callable[[], Any]) -> tuple[float, Any]:
        """Seconds of a call, and what it returned."""
        begin = time.perf_counter()
        value = call()
        return time.perf_counter() - begin, value


class CudaClock:
    """Times calls on the current GPU with its events. The first to start CUDA in this process."""

    def __init__(self) -> None:
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self.name: str = properties.name
        self.flush_bytes = 2 * properties.L2_cache_size
        # Gives back lines of the second-level cache that a kernel has set apart for itself. The driver refuses it on
        # GPUs older than Ampere, which cannot set any apart.
        self._reset_persisting = ctypes.CDLL("libcuda.so.1").cuCtxResetPersistingL2Cache

    def synchronize(self) -> None:
        """Wait for every stream of the device."""
        torch.cuda.synchronize()

    def timed(self, call: Callable[[], Any]) -> tuple[float, Any]:
        """Seconds between the events around a call, and what it returned."""
        self._reset_persisting()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        begin.record()
        value = call()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 1000, value


class Bench:
    """The calls of one sample, on a device with its clock."""

    def __init__(self, header: Json, clock: CpuClock | CudaClock) -> None:
        self._header = header
        self._clock = clock
        self._sets: list[list[torch.Tensor]] = []
        self._outputs: list[list[torch.Tensor]] = []
        self._flush = torch.zeros(clock.flush_bytes // 4, dtype=torch.int32, device=header["device"])

    def prepare(self, blobs: Sequence[memoryview]) -> None:
        """Take the masked inputs of all calls to the device."""
        self._outputs = []
        per_call = len(self._header["sizes"])
        tensors = [_masked_words(blob).to(self._header["device"]) for blob in blobs]
        calls = self._header["calls"]
        self._sets = [tensors[call * per_call : (call + 1) * per_call] for call in range(calls)]
        self._clock.synchronize()

    def run(self, side: Contestant, first: int, second: int) -> bytes:
        """Unmask and call, set by set. Seconds of each call, then digests of the outputs of each call."""
        header = self._header
        seconds: list[float] = []
        with torch.no_grad():
            for tensors in self._sets:
                for place, words in enumerate(tensors):
                    masking.unmask(words, (first, second), len(seconds) * len(tensors) + place)
                inputs = _inputs(header, tensors)
                torch.manual_seed(header["weight_seed"])
                side.prepare(inputs)
                self._flush.add_(1)
                took, value = self._clock.timed(side.call)
                seconds.append(took)
                # Where a candidate keeps its output for the next call, that call must not change this one's.
                outputs = [_contiguous(_detach(output)) for output in self._tensors(value)]
                self._outputs.append([output.clone() for output in outputs])
            digests = [int(masking.digest(output)) for outputs in self._outputs for output in outputs]
        wanted = header["calls"] * len(header["outputs"])
        if len(digests) != wanted:
            raise WrongOutputError(f"{len(digests)} tensors were returned in {header['calls']} calls, not {wanted}")
        return struct.pack(f"<{len(seconds)}d{wanted}Q", *seconds, *(d & 0xFFFFFFFFFFFFFFFF for d in digests))

    def _tensors(self, value: Any) -> list[torch.Tensor]:
        """Those of an output; a reference may return what is derived from a tuple, as `torch.max` does."""
        of_reference = self._header["entry"] == "Model"
        return tensors_of_output(value) if of_reference else flat_tensors(value)

    def fetch(self) -> list[memoryview]:
        """The outputs of all calls."""
        header = self._header
        self._sets = []
        return [
            data for outputs in self._outputs for data in output_bytes(outputs, header["outputs"], header["device"])
        ]


def _masked_words(blob: memoryview) -> torch.Tensor:
    return torch.frombuffer(blob, dtype=torch.int64) if len(blob) else torch.empty(0, dtype=torch.int64)


def _inputs(header: Json, tensors: Sequence[torch.Tensor]) -> list[Any]:
    """The arguments of one call; their memory is that of the unmasked words, unless they have a layout."""
    memory: dict[int, torch.Tensor] = {}

    def tensor(entry: Json) -> torch.Tensor:
        dtype: torch.dtype = getattr(torch, entry["dtype"])
        size = header["sizes"][entry["blob"]]
        dense = tensors[entry["blob"]].view(torch.uint8)[:size].view(dtype).reshape(entry["shape"])
        return as_laid_out(dense, entry, memory)

    return [value_of(entry, tensor) for entry in header["inputs"]]
