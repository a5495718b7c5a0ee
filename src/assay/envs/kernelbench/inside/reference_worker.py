"""The process that runs references: trusted problem code, PyTorch, one fork for each request.

Started by `assay.envs.kernelbench.reference`; imports PyTorch once. A request comes as one line of JSON on standard
input; the answer goes to the descriptor that was standard output, framed by `assay.envs.kernelbench.wire`. The fork
keeps what a problem does to PyTorch's state, or to memory, from the next request. What a problem prints is dropped.
"""

from __future__ import annotations

import contextlib
import copy
import json
import math
import os
import resource
import sys
import tempfile
import traceback
from collections.abc import Sequence
from typing import IO, Any

import numpy as np
import torch

from assay.envs.kernelbench.arrays import HostTensor, Value
from assay.envs.kernelbench.families import vary
from assay.envs.kernelbench.inside.work import WorkTrace
from assay.envs.kernelbench.wire import Frame, write_frame
from assay.types import Json

_MEBIBYTE = 1 << 20


def to_value(value: Any) -> Value:
    """A value of a problem as plain data.

    Raises:
        TypeError: it is none that can travel.
    """
    if isinstance(value, torch.Tensor):
        tensor = value.detach().to("cpu").contiguous()
        raw = tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor
        return HostTensor(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), raw.numpy().tobytes())
    if isinstance(value, list | tuple):
        return tuple(to_value(part) for part in value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"an input or output of type {type(value).__name__} cannot be compared; only tensors and constants")


def from_value(value: Value, dtype: torch.dtype | None, device: str) -> Any:
    """The value that PyTorch takes, floating tensors in `dtype`."""
    if isinstance(value, HostTensor):
        name = "uint16" if value.dtype == "bfloat16" else value.dtype
        array = np.frombuffer(bytearray(value.data), dtype=name)
        tensor = torch.from_numpy(array)
        if value.dtype == "bfloat16":
            tensor = tensor.view(torch.bfloat16)
        tensor = tensor.reshape(value.shape)
        if dtype is not None and tensor.is_floating_point():
            tensor = tensor.to(dtype)
        return tensor.to(device)
    return [from_value(part, dtype, device) for part in value] if isinstance(value, tuple) else value


def flat_outputs(output: Any) -> list[HostTensor]:
    """The tensors of an output, however nested; numbers become tensors without dimensions."""
    if isinstance(output, torch.Tensor):
        value = to_value(output)
        return [value] if isinstance(value, HostTensor) else []
    if isinstance(output, list | tuple):
        return [tensor for part in output for tensor in flat_outputs(part)]
    if isinstance(output, dict):
        return [tensor for name in sorted(output) for tensor in flat_outputs(output[name])]
    if isinstance(output, bool | int | float):
        return flat_outputs(torch.tensor(output))
    return []


def is_constant(weight: torch.Tensor) -> bool:
    """Whether all elements of a parameter are equal."""
    return weight.numel() > 0 and bool((weight == weight.flatten()[0]).all())


class TooLargeError(Exception):
    """The output has more elements than the request allows."""


class Reference:
    """A problem's module, run: weights from one seed, inputs from others."""

    def __init__(self, code: str, device: str, precision: str) -> None:
        self.device, self.precision = device, getattr(torch, precision)
        self.space: dict[str, Any] = {"__name__": "problem"}
        exec(compile(code, "<problem>", "exec"), self.space)

    def model(self, seed: int, perturb: str) -> torch.nn.Module:
        """The model with weights from a seed, rounded to the working precision.

        `perturb` is `none`; `all`, which moves every weight at random; or `constant`, which moves the parameters whose
        elements are all equal (ones and zeros of a normalisation, say), so that they count as well.
        """
        torch.manual_seed(seed)
        model: torch.nn.Module = self.space["Model"](*self.space["get_init_inputs"]())
        if perturb != "none":
            with torch.no_grad():
                for weight in model.parameters():
                    if perturb == "constant" and not is_constant(weight):
                        continue
                    spread = 0.1 * (weight.std() if weight.numel() > 1 else weight.abs().mean()) + 0.05
                    weight.mul_(1 + 0.25 * (2 * torch.rand_like(weight) - 1)).add_(spread * torch.randn_like(weight))
        return model.to(self.device, self.precision)

    def inputs(self, seed: int) -> tuple[Value, ...]:
        """A draw of `get_inputs`, floating tensors in the working precision."""
        torch.manual_seed(seed)
        drawn = self.space["get_inputs"]()
        cast = [d.to(self.precision) if isinstance(d, torch.Tensor) and d.is_floating_point() else d for d in drawn]
        return tuple(to_value(value) for value in cast)

    def outputs(
        self, model: torch.nn.Module, inputs: Sequence[Value], dtype: torch.dtype, seed: int
    ) -> list[HostTensor]:
        """The outputs in some dtype; the model stays as it was."""
        return flat_outputs(self._run(model, inputs, dtype, seed))

    def work(self, model: torch.nn.Module, inputs: Sequence[Value], seed: int) -> dict[str, tuple[int, int]]:
        """Calls and work of each operator, from a pass of its own so that no output was computed under a trace."""
        trace = WorkTrace()
        self._run(model, inputs, self.precision, seed, trace)
        return trace.operations

    def _run(
        self,
        model: torch.nn.Module,
        inputs: Sequence[Value],
        dtype: torch.dtype,
        seed: int,
        trace: contextlib.AbstractContextManager[object] | None = None,
    ) -> Any:
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype if dtype.itemsize >= 4 else torch.float32)
        try:
            torch.manual_seed(seed)
            arguments = [from_value(value, dtype, self.device) for value in inputs]
            instance = copy.deepcopy(model).to(dtype)
            with torch.no_grad(), trace or contextlib.nullcontext():
                return instance(*arguments)
        finally:
            torch.set_default_dtype(before)


def evaluate(request: Json) -> Frame:
    """The answer to one request: a case for each family, and the two comparisons that screening wants."""
    torch.set_num_threads(1)
    reference = Reference(request["code"], request["device"], request["precision"])
    model = reference.model(request["weight_seed"], request["perturb"])
    frame = Frame({"parameters": sum(p.numel() for p in model.parameters()), "exact": "float64", "cases": []})
    frame.header["weights"] = [[name, list(weight.shape)] for name, weight in model.named_parameters()]
    first: tuple[Value, ...] = ()
    for number, family in enumerate(request["families"]):
        # Each family starts from a fresh draw of its own, so no two show the same numbers in another dress.
        given = reference.inputs(request["input_seed"] + number)
        inputs = vary(given, family, np.random.default_rng((request["input_seed"], number)))
        if inputs is None:
            continue
        first = first or inputs
        _add_case(frame, family, reference, model, inputs, request["weight_seed"], request["max_output"])
    if first:
        frame.header["work"] = reference.work(model, first, request["weight_seed"])
    if request["screen"] and first:
        _add_case(frame, "again", reference, model, first, request["weight_seed"] + 1)
        if frame.header["parameters"]:
            _add_case(frame, "other_weights", reference, reference.model(request["weight_seed"] + 1, "all"), first, 0)
    if request["state"]:
        frame.header["state"] = {name: frame.add(to_value(tensor)) for name, tensor in model.state_dict().items()}
    frame.header["init_inputs"] = frame.add(to_value(reference.space["get_init_inputs"]()))
    return frame


def _add_case(
    frame: Frame,
    name: str,
    reference: Reference,
    model: torch.nn.Module,
    inputs: Sequence[Value],
    seed: int,
    limit: int | None = None,
) -> None:
    rounded = reference.outputs(model, inputs, reference.precision, seed)
    size = sum(math.prod(tensor.shape) for tensor in rounded)
    if limit is not None and size > limit:
        raise TooLargeError(f"{size} elements in the output, more than {limit}")
    try:
        exact = reference.outputs(model, inputs, torch.float64, seed)
    except RuntimeError:
        # Some modules insist on float32 inside; their own output is then the best truth there is.
        frame.header["exact"] = str(reference.precision).removeprefix("torch.")
        exact = rounded
    frame.header["cases"].append(
        {
            "family": name,
            "inputs": [frame.add(value) for value in inputs],
            "exact": [frame.add(value) for value in exact],
            "rounded": [frame.add(value) for value in rounded],
        }
    )


def _in_child(request: Json, sink: IO[bytes]) -> None:
    """Answer in a fork: limits first, then the work; whatever goes wrong is an answer, too."""
    limit = request["memory_mb"] * _MEBIBYTE + _address_space()
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        frame = evaluate(request)
    except TooLargeError as error:
        frame = Frame({"error": "too_large", "message": str(error)})
    except MemoryError as error:
        frame = Frame({"error": "memory", "message": str(error) or "out of memory"})
    except Exception as error:  # noqa: BLE001  the boundary: whatever a problem raises is its own failure, named
        memory = isinstance(error, RuntimeError) and "allocate" in str(error)
        text = "".join(traceback.format_exception_only(error)).strip()
        frame = Frame({"error": "memory" if memory else "error", "message": text[:2000]})
    write_frame(sink, frame)
    sink.flush()


def _address_space() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _answer(request: Json, out: IO[bytes]) -> None:
    with tempfile.TemporaryFile() as file:
        child = os.fork()
        if child == 0:
            _in_child(request, file)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) != 0:
            file.seek(0)
            file.truncate()
            died = f"the process died ({os.waitstatus_to_exitcode(status)}; negative is a signal)"
            write_frame(file, Frame({"error": "crash", "message": died}))
            file.flush()
        size = os.fstat(file.fileno()).st_size
        out.write(size.to_bytes(8, "little"))
        offset = 0
        out.flush()
        while offset < size:
            offset += os.sendfile(out.fileno(), file.fileno(), offset, size - offset)


def main() -> None:
    """Answer requests until standard input ends."""
    torch.set_num_threads(1)
    torch.zeros(2).add_(1)
    out = os.fdopen(os.dup(1), "wb")
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1)
    out.write(b"ready\n")
    out.flush()
    for line in sys.stdin:
        _answer(json.loads(line), out)


if __name__ == "__main__":
    main()
