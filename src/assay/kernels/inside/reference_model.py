"""A problem's module, run with PyTorch: weights from one seed, inputs from others, outputs in two precisions.

`evaluate` answers one request of `assay.kernels.numerics.reference`, `shapes` one that asks for no values. Both run in
a fork of the reference worker and may raise whatever the problem raises. A family of inputs that the problem refuses,
by raising, is named and left out; only the given inputs have to work.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import linecache
import math
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from assay.kernels.arrays import HostTensor, Value
from assay.kernels.frames import Frame
from assay.kernels.inside.construction import ConstructionTrace
from assay.kernels.inside.problem.ties import AnyOrder, chooses, same
from assay.kernels.inside.problem.weights import constant_buffers, growth_of, is_constant, move
from assay.kernels.inside.record import light
from assay.kernels.inside.tensors import digest, structure_of
from assay.kernels.inside.work import WorkTrace
from assay.kernels.numerics.families import vary, with_numbers
from assay.kernels.source_text import lines_of
from assay.types import Json


def to_value(value: Any) -> Value:
    """A value of a problem as plain data.

    Raises:
        TypeError: it is none that can travel.
    """
    if isinstance(value, torch.Tensor):
        tensor = value.detach().to("cpu").resolve_conj().resolve_neg().contiguous()
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


def _seed(seed: int, device: str) -> None:
    """As `torch.manual_seed`, which also prepares devices that are not there, at the cost of a small problem."""
    if device in ("cpu", "meta"):
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")


class TooLargeError(Exception):
    """The output has more elements than the request allows."""


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError | OSError)
        and any(sign in str(error) for sign in ("allocate memory", "Cannot allocate", "not enough memory"))
    )


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for part in value for tensor in _tensors(part)] if isinstance(value, list) else []


def _all_tensors(output: Any) -> list[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        return [output]
    parts = output.values() if isinstance(output, dict) else output if isinstance(output, list | tuple) else ()
    return [tensor for part in parts for tensor in _all_tensors(part)]


class Reference:
    """A problem's module, run: weights from one seed, inputs from others."""

    def __init__(self, code: str, device: str, precision: str) -> None:
        self.device, self.precision = device, getattr(torch, precision)
        # Data classes look their module up, and TorchScript and others the text of a function.
        module = sys.modules["problem"] = types.ModuleType("problem")
        linecache.cache["<problem>"] = (len(code), None, lines_of(code), "<problem>")
        self.space: dict[str, Any] = module.__dict__
        exec(compile(code, "<problem>", "exec"), self.space)
        _seed(0, device)
        self.init_inputs: Any = self.space["get_init_inputs"]()
        self.init_work = 0
        """Arithmetic that the constructor does on what it draws, as of the last model."""
        self.structure: Json = None
        """How the tensors lie in the last output."""
        self.after: dict[int, Value] = {}
        """What the last pass left in inputs that it changed and did not return."""
        self.overwritten: set[int] = set()
        """Numbers of the tensors among the inputs into which forward wrote so far."""

    def model(self, seed: int, perturb: str, only: str = "") -> torch.nn.Module:
        """The model with weights from a seed, rounded to the working precision.

        `perturb` is `none`; `all`, which moves every weight at random; `far`, which moves them further; or
        `constant`, which moves the parameters whose elements are all equal (ones and zeros of a normalisation, say), so
        that they count as well, and such buffers.
        `only`: the one parameter that is moved of those; empty for all.
        """
        _seed(seed, self.device)
        init_inputs = copy.deepcopy(self.init_inputs)
        with ConstructionTrace(init_inputs) as trace:
            model: torch.nn.Module = self.space["Model"](*init_inputs)
        self.init_work = trace.amount
        if perturb != "none":
            growth = growth_of(model) if perturb == "far" else 0.0
            with torch.no_grad():
                for name, weight in model.named_parameters():
                    if only in ("", name) and (perturb != "constant" or is_constant(weight)):
                        move(weight, growth)
                for buffer in constant_buffers(model).values() if perturb == "constant" else ():
                    move(buffer)
        return model.to(self.device, self.precision)

    def inputs(self, seed: int) -> tuple[Value, ...]:
        """A draw of `get_inputs`, floating tensors in the working precision."""
        return tuple(to_value(value) for value in self.drawn(seed))

    def drawn(self, seed: int) -> list[Any]:
        """The same, as the problem made it."""
        _seed(seed, self.device)
        drawn = self.space["get_inputs"]()
        if not isinstance(drawn, list | tuple):
            raise TypeError(f"get_inputs returns a {type(drawn).__name__}, not a list of arguments")
        return [self._rounded(value) for value in drawn]

    def _rounded(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(self.precision) if value.is_floating_point() else value
        return [self._rounded(part) for part in value] if isinstance(value, list | tuple) else value

    def outputs(
        self,
        model: torch.nn.Module,
        inputs: Sequence[Value],
        dtype: torch.dtype,
        seed: int,
        under: contextlib.AbstractContextManager[object] | None = None,
    ) -> list[HostTensor]:
        """The outputs in some dtype, `under` what changes operators; the model stays as it was."""
        return flat_outputs(self._run(model, inputs, dtype, seed, under))

    def work(self, model: torch.nn.Module, inputs: Sequence[Value], seed: int) -> dict[str, tuple[int, int]]:
        """Calls and work of each operator, from a pass of its own so that no output was computed under a trace."""
        trace = WorkTrace()
        self._run(model, inputs, self.precision, seed, trace)
        return trace.operations

    def buffers_that_matter(self, model: torch.nn.Module, inputs: Sequence[Value], seed: int) -> list[str]:
        """The constant buffers whose values the outputs depend on: not running statistics that are only kept."""
        names = list(constant_buffers(model))
        if not names or not self._changes(model, names, inputs, seed):
            return []
        return [name for name in names if len(names) == 1 or self._changes(model, [name], inputs, seed)]

    def _changes(self, model: torch.nn.Module, names: Sequence[str], inputs: Sequence[Value], seed: int) -> bool:
        other = copy.deepcopy(model)
        own = constant_buffers(other)
        with torch.no_grad():
            for name in names:
                move(own[name])
        return self.outputs(other, inputs, self.precision, seed) != self.outputs(model, inputs, self.precision, seed)

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
            _seed(seed, self.device)
            arguments = [from_value(value, dtype, self.device) for value in inputs]
            given = _tensors(arguments)
            versions = [tensor._version for tensor in given]
            instance = copy.deepcopy(model).to(dtype)
            with torch.no_grad(), trace or contextlib.nullcontext():
                output = instance(*arguments)
            self.structure = structure_of(output)
            changed = [place for place, tensor in enumerate(given) if tensor._version != versions[place]]
            self.overwritten |= set(changed)
            own = {tensor.untyped_storage().data_ptr() for tensor in _all_tensors(output)}
            # What it returns is compared in any case, wherever a submission has it.
            changed = [place for place in changed if given[place].untyped_storage().data_ptr() not in own]
            self.after = {place: to_value(given[place]) for place in changed}
            return output
        finally:
            torch.set_default_dtype(before)


def evaluate(request: Json) -> Frame:
    """The answer to one request: a case for each family, and the two comparisons that screening wants."""
    torch.set_num_threads(1)
    reference = Reference(request["code"], request["device"], request["precision"])
    model = reference.model(request["weight_seed"], request["perturb"], request["only"])
    parameters = sum(p.numel() for p in model.parameters())
    frame = Frame({"parameters": parameters, "exact": "float64", "cases": [], "refused": {}})
    weights = list(model.named_parameters())
    frame.header["init_work"] = reference.init_work
    frame.header["weights"] = [[name, list(weight.shape)] for name, weight in weights]
    frame.header["constant"] = [name for name, weight in weights if is_constant(weight)]
    frame.header["initial"] = [digest(weight) for _, weight in weights]
    first: tuple[Value, ...] | None = None
    work: dict[str, tuple[int, int]] = {}
    other = reference.inputs(request["number_seed"]) if request["number_seed"] != request["input_seed"] else None
    for number, family in enumerate(request["families"]):
        # Each family starts from a fresh draw of its own, so no two show the same numbers in another dress.
        given = reference.inputs(request["input_seed"] + number)
        other = given if other is None else other
        inputs = vary(with_numbers(given, other), family, np.random.default_rng((request["input_seed"], number)), other)
        if inputs is None:
            continue
        try:
            _add_case(frame, family, reference, model, inputs, request["weight_seed"], request["max_output"])
            if first is not None and chooses(work) and _has_ties(frame, reference, model, inputs, request):
                frame.header["cases"].pop()
                frame.header["refused"][family] = "equal elements, in whose order its outputs are one answer of several"
        except (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError) as error:
            # Inputs that the problem refuses are not part of it; its own have to work.
            if first is None or out_of_memory(error):
                raise
            frame.header["refused"][family] = f"{type(error).__name__}: {error}"[:500]
        if first is None:
            first, work = inputs, reference.work(model, inputs, request["weight_seed"])
    if first is not None:
        frame.header["work"] = work
        frame.header["overwritten"] = sorted(reference.overwritten)
        frame.header["structure"] = reference.structure
        frame.header["constant"] += reference.buffers_that_matter(model, first, request["weight_seed"])
        if request["screen"]:
            _add_case(frame, "again", reference, model, first, request["weight_seed"] + 1)
        if request["screen"] and parameters:
            _add_case(frame, "other_weights", reference, reference.model(request["weight_seed"] + 1, "all"), first, 0)
    if request["state"]:
        frame.header["state"] = {name: frame.add(to_value(tensor)) for name, tensor in model.state_dict().items()}
    frame.header["init_inputs"] = frame.add(to_value(reference.init_inputs))
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
    rounded_after = dict(reference.after)
    size = sum(math.prod(tensor.shape) for tensor in rounded)
    if limit is not None and size > limit:
        raise TooLargeError(f"{size} elements in the output, more than {limit}")
    try:
        exact = reference.outputs(model, inputs, torch.float64, seed)
        after = dict(reference.after)
    except RuntimeError as error:
        if out_of_memory(error):
            raise
        # Some modules insist on float32 inside; their own output is then the best truth there is.
        frame.header["exact"] = str(reference.precision).removeprefix("torch.")
        exact, after = rounded, rounded_after
    if after.keys() != rounded_after.keys():
        raise ValueError("it changes other inputs in float64")
    frame.header["cases"].append(
        {
            "family": name,
            "inputs": [frame.add(value) for value in inputs],
            "exact": [frame.add(value) for value in exact],
            "rounded": [frame.add(value) for value in rounded],
            "after": [[place, frame.add(after[place]), frame.add(rounded_after[place])] for place in sorted(after)],
        }
    )


def _has_ties(
    frame: Frame, reference: Reference, model: torch.nn.Module, inputs: Sequence[Value], request: Json
) -> bool:
    """Whether the last case has other outputs where equal elements come in another order."""
    dtype: torch.dtype = getattr(torch, frame.header["exact"])
    seed = request["weight_seed"]
    found = (reference.outputs(model, inputs, dtype, seed, under) for under in (None, AnyOrder(seed)))
    return not same(*found)


def shapes(request: Json) -> Frame:
    """What the constructor and forward are given, and the work of one pass, from tensors that have no memory.

    Raises:
        Exception: the problem needs values, memory or a device for that.
    """
    gc.unfreeze()  # what was loaded before the fork has to be found
    light.install()
    with torch.device("meta"):
        reference = Reference(request["code"], "meta", request["precision"])
        model = reference.model(0, "none")
        inputs = [_without_memory(value) for value in reference.drawn(0)]
        entries = {"inputs": _entry(inputs), "init_inputs": _entry(reference.init_inputs)}
        with torch.no_grad(), RecurrentLayers() as layers, WorkTrace() as trace:
            model(*inputs)
    return Frame({**entries, "work": {**trace.operations, **layers.operations}})


class RecurrentLayers(TorchFunctionMode):
    """Gives tensors without memory the shapes that a recurrent layer gives them, at once: PyTorch would take each step
    of it, a minute for a long sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: dict[str, tuple[int, int]] = {}
        """Calls and work of each kind of layer: each weight once for each sample and step."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name not in _RECURRENT or len(args) != 9 or not isinstance(args[2], list):
            return func(*args, **(kwargs or {}))
        sequence, hidden, weights, bidirectional = args[0], args[1], args[2], args[7]
        states = hidden if isinstance(hidden, list | tuple) else (hidden,)
        features = states[0].shape[-1] * (2 if bidirectional else 1)
        steps = sequence.numel() // max(1, sequence.shape[-1])
        calls, work = self.operations.get(name, (0, 0))
        work += steps * sum(weight.numel() for weight in weights if weight.dim() == 2)
        self.operations[name] = calls + 1, work
        made = sequence.new_empty((*sequence.shape[:-1], features))
        return (made, *(state.clone() for state in states))


def _without_memory(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to("meta")
    return [_without_memory(part) for part in value] if isinstance(value, list | tuple) else value


def _entry(value: Any) -> Json:
    """A value as in a frame, but for the bytes of tensors.

    Raises:
        TypeError: it is none that can travel.
    """
    if isinstance(value, torch.Tensor):
        return {"dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
    if isinstance(value, list | tuple):
        return [_entry(part) for part in value]
    return to_value(value)
