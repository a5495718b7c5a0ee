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
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from assay.kernels.arrays import HostTensor, Value
from assay.kernels.frames import Frame
from assay.kernels.inside.construction import ConstructionTrace
from assay.kernels.inside.problem.held import Held, Left, same_in_both
from assay.kernels.inside.problem.recurrent import RecurrentLayers
from assay.kernels.inside.problem.starts import telling
from assay.kernels.inside.problem.ties import AnyOrder, chooses, same
from assay.kernels.inside.problem.values import flat_outputs, from_value, to_value
from assay.kernels.inside.problem.weights import constant_buffers, growth_of, move
from assay.kernels.inside.record import light
from assay.kernels.inside.tensors import digest, structure_of
from assay.kernels.inside.work import WorkTrace
from assay.kernels.numerics.families import has_flags, vary, with_numbers
from assay.kernels.numerics.held_inputs import tensors_among
from assay.kernels.numerics.tolerance import compare, tolerance_for
from assay.kernels.source_text import lines_of
from assay.types import Json


def _seed(seed: int, device: str) -> None:
    """As `torch.manual_seed`, which also prepares devices that are not there, at the cost of a small problem."""
    if device in ("cpu", "meta"):
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


class TooLargeError(Exception):
    """The output has more elements than the request allows."""


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError | OSError)
        and any(sign in str(error) for sign in ("allocate memory", "Cannot allocate", "not enough memory"))
    )


@dataclass(frozen=True, slots=True)
class Tried:
    """Inputs that a problem takes, and its outputs in the working precision and in float64."""

    inputs: tuple[Value, ...]
    rounded: list[HostTensor]
    exact: list[HostTensor]

    @property
    def finite(self) -> bool:
        """Whether all outputs are finite."""
        return all(np.isfinite(output.array()).all() for output in self.rounded)

    def gives(self, outputs: Sequence[HostTensor], precision: str) -> bool:
        """Whether outputs are the same within the tolerance: rounding differs with where memory lies."""
        known = [(one.array(), other.array()) for one, other in zip(self.exact, self.rounded, strict=True)]
        return len(outputs) == len(known) and all(
            compare(output.array(), rounded, tolerance_for(exact, rounded, precision)).ok
            for output, (exact, rounded) in zip(outputs, known, strict=True)
        )


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
        self.left = Left()
        """What the last pass left in its inputs."""

    def built(self, seed: int) -> tuple[torch.nn.Module, ConstructionTrace]:
        """The model as its constructor leaves it under a seed, and what the constructor did."""
        _seed(seed, self.device)
        init_inputs = copy.deepcopy(self.init_inputs)
        with ConstructionTrace(init_inputs) as trace:
            model: torch.nn.Module = self.space["Model"](*init_inputs)
        return model, trace

    def model(self, seed: int, perturb: str, only: Collection[str] = ()) -> torch.nn.Module:
        """The model with weights from a seed, rounded to the working precision.

        `perturb` is `none`; `all`, which moves weights at random; or `far`, which moves them further.
        `only`: the parameters and constant buffers that are moved; empty for all parameters.
        """
        model, trace = self.built(seed)
        self.init_work = trace.amount
        if perturb != "none":
            growth = growth_of(model) if perturb == "far" else 0.0
            with torch.no_grad():
                for name, weight in model.named_parameters():
                    if not only or name in only:
                        move(weight, growth)
                for name, buffer in constant_buffers(model).items():
                    if name in only:
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

    def carries(self, model: torch.nn.Module, calls: Sequence[Tried], seed: int) -> bool:
        """Whether outputs depend on what earlier calls left in the model. `calls`: some that are made in a row, each
        with what it gives alone."""
        row, name = copy.deepcopy(model), str(self.precision).removeprefix("torch.")
        made = ((call, self._call(row, call.inputs, self.precision, seed)) for call in calls)
        return any(not call.gives(flat_outputs(output), name) for call, output in made)

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
        found = [(self.outputs(one, inputs, self.precision, seed), self.left.after) for one in (other, model)]
        return found[0] != found[1]

    def _run(
        self,
        model: torch.nn.Module,
        inputs: Sequence[Value],
        dtype: torch.dtype,
        seed: int,
        trace: contextlib.AbstractContextManager[object] | None = None,
    ) -> Any:
        return self._call(copy.deepcopy(model).to(dtype), inputs, dtype, seed, trace)

    def _call(
        self,
        instance: torch.nn.Module,
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
            held = Held(arguments)
            with torch.no_grad(), trace or contextlib.nullcontext():
                output = instance(*arguments)
            self.structure = structure_of(output)
            self.left = held.left(output)
            return output
        finally:
            torch.set_default_dtype(before)


def evaluate(request: Json) -> Frame:
    """The answer to one request: a case for each family, and the comparisons that screening wants."""
    torch.set_num_threads(1)
    reference = Reference(request["code"], request["device"], request["precision"])
    seed = request["weight_seed"]
    model = reference.model(seed, request["perturb"], request["only"])
    parameters = sum(p.numel() for p in model.parameters())
    frame = Frame({"parameters": parameters, "exact": "float64", "cases": [], "refused": {}})
    weights = list(model.named_parameters())
    frame.header["init_work"] = reference.init_work
    frame.header["weights"] = [[name, list(weight.shape)] for name, weight in weights]
    frame.header["initial"] = [digest(weight) for _, weight in weights]
    tried = _add_families(frame, reference, model, request)
    if tried:
        first = tried[0].inputs
        frame.header["work"] = reference.work(model, first, seed)
        frame.header["structure"] = reference.structure
        if request["screen"]:
            frame.header["carries"] = reference.carries(model, (*tried[:2], tried[0]), seed)
            _add_case(frame, "again", reference, model, first, seed + 1)
        elif request["perturb"] == "none":
            buffers = reference.buffers_that_matter(model, first, seed)
            frame.header["needed"] = [*telling(reference.built, seed), *buffers]
        if request["screen"] and parameters:
            _add_case(frame, "other_weights", reference, reference.model(seed + 1, "all"), first, 0)
    if request["state"]:
        frame.header["state"] = {name: frame.add(to_value(tensor)) for name, tensor in model.state_dict().items()}
    frame.header["init_inputs"] = frame.add(to_value(reference.init_inputs))
    return frame


def _add_families(frame: Frame, reference: Reference, model: torch.nn.Module, request: Json) -> list[Tried]:
    """Add a case of each family that the problem takes, and its work in the first one."""
    tried: list[Tried] = []
    other = reference.inputs(request["number_seed"]) if request["number_seed"] != request["input_seed"] else None
    for number, family in enumerate(request["families"]):
        # Each family starts from a fresh draw of its own, so no two show the same numbers in another dress.
        given = reference.inputs(request["input_seed"] + number)
        other = given if other is None else other
        drawn = with_numbers(given, other)
        for flags in (True, False) if has_flags(drawn, family) else (False,):
            chance = np.random.default_rng((request["input_seed"], number))
            if (inputs := vary(drawn, family, chance, other, flags=flags)) is None:
                break
            found = _tried(frame, family, reference, model, inputs, request, first=not tried)
            # That they may be turned is a guess: if it gives no numbers, the rest of the family shall not be lost.
            if found is not None and flags and not found.finite:
                frame.header["cases"].pop()
            elif found is not None:
                frame.header["refused"].pop(family, None)
                tried.append(found)
                break
        if number == 0 and tried:
            frame.header["work"] = reference.work(model, tried[0].inputs, request["weight_seed"])
    return tried


def _tried(
    frame: Frame,
    family: str,
    reference: Reference,
    model: torch.nn.Module,
    inputs: tuple[Value, ...],
    request: Json,
    first: bool,
) -> Tried | None:
    """Add a case of a family; None where the problem refuses the inputs."""
    try:
        found = _add_case(frame, family, reference, model, inputs, request["weight_seed"], request["max_output"])
    except (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError) as error:
        # Inputs that the problem refuses are not part of it; its own have to work.
        if first or out_of_memory(error):
            raise
        frame.header["refused"][family] = f"{type(error).__name__}: {error}"[:500]
        return None
    if not first and chooses(frame.header["work"]) and _has_ties(frame, reference, model, inputs, request):
        frame.header["cases"].pop()
        frame.header["refused"][family] = "equal elements, in whose order its outputs are one answer of several"
        return None
    return found


def _add_case(
    frame: Frame,
    name: str,
    reference: Reference,
    model: torch.nn.Module,
    inputs: tuple[Value, ...],
    seed: int,
    limit: int | None = None,
) -> Tried:
    """Add a case, and say what it has."""
    rounded = reference.outputs(model, inputs, reference.precision, seed)
    rounded_left = reference.left
    size = sum(math.prod(tensor.shape) for tensor in rounded)
    if limit is not None and size > limit:
        raise TooLargeError(f"{size} elements in the output, more than {limit}")
    try:
        exact = reference.outputs(model, inputs, torch.float64, seed)
        exact_left, dtype = reference.left, torch.float64
    except RuntimeError as error:
        if out_of_memory(error):
            raise
        # Some modules insist on float32 inside; their own output is then the best truth there is.
        frame.header["exact"] = str(reference.precision).removeprefix("torch.")
        exact, exact_left, dtype = rounded, rounded_left, reference.precision
    alike = same_in_both(rounded_left, exact_left)
    frame.header["cases"].append(
        {
            "family": name,
            "inputs": [frame.add(value) for value in inputs],
            "exact": [frame.add(value) for value in exact],
            "rounded": [frame.add(value) for value in rounded],
            "after": _after(frame, inputs, (exact_left, dtype), (rounded_left, reference.precision)),
            "own": [[*place, frame.add(to_value(same))] for place, same in alike.items()],
        }
    )
    return Tried(inputs, rounded, exact)


def _after(
    frame: Frame, inputs: Sequence[Value], exact: tuple[Left, torch.dtype], rounded: tuple[Left, torch.dtype]
) -> list[Json]:
    """Inputs that a pass in either precision changes, what both leave there, and whether the outputs show all of it."""
    tensors = tensors_among(inputs)
    both = (exact, rounded)
    shown = exact[0].returned & rounded[0].returned
    return [
        [place, *(frame.add(left.value(place, tensors, dtype)) for left, dtype in both), place in shown]
        for place in sorted({*exact[0].after, *rounded[0].after})
    ]


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
