"""A problem's module, run with PyTorch: weights from one seed, inputs from others, outputs in two precisions.

`evaluate` answers one request of `assay.kernels.numerics.reference`, `shapes` one that asks for no values. Both run in
a fork of the reference worker and may raise whatever the problem raises. Only the given inputs have to work. Where the
problem raises on a family of inputs, they are varied one after the other; if it takes none of them varied, the family
is named and left out.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import json
import linecache
import sys
import time
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from assay.kernels.arrays import HostTensor, Layout, Value, host_tensors
from assay.kernels.base import Manner
from assay.kernels.frames import Frame, entry_of
from assay.kernels.inside.construction import ConstructionTrace
from assay.kernels.inside.problem.asked import AskedAs
from assay.kernels.inside.problem.cases import Families, Tried, add_case, evaluated
from assay.kernels.inside.problem.held import Held, Left
from assay.kernels.inside.problem.recurrent import RecurrentLayers
from assay.kernels.inside.problem.starts import telling
from assay.kernels.inside.problem.values import (
    flat_outputs,
    from_arguments,
    layouts_of,
    tensors_in,
    tensors_of_output,
    to_arguments,
    to_value,
)
from assay.kernels.inside.problem.weights import constant_buffers, growth_of, movable_buffers, move, move_in_manner
from assay.kernels.inside.record import light
from assay.kernels.inside.tensors import digest, in_precision, meeting, structure_of, structure_text
from assay.kernels.inside.work import WorkTrace
from assay.kernels.operators import Draw
from assay.kernels.source_text import lines_of
from assay.types import Json


def _seed(seed: int, device: str) -> None:
    """As `torch.manual_seed`, which also prepares devices that are not there, at the cost of a small problem."""
    if device in ("cpu", "meta"):
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


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
        self.zeros: dict[str, torch.Tensor] = {}
        """Where parameters of the last model that was moved were zero at the start, beside others that were not."""
        self.draws: list[Draw] = []
        """What it draws from, as of the last model."""
        self.structure: Json = None
        """What each output is beside the elements of its tensors."""
        self._structure_text = ""
        self.meeting: frozenset[tuple[int, int]] = frozenset()
        """The pairs of tensors in some output that lie in the same memory (`arrays.meetings`)."""
        self.left = Left()
        """What the last pass left in its inputs."""
        self._layouts: dict[int, Layout] | None = None

    def built(self, seed: int) -> tuple[torch.nn.Module, ConstructionTrace]:
        """The model as its constructor leaves it under a seed, and what the constructor did."""
        _seed(seed, self.device)
        init_inputs = copy.deepcopy(self.init_inputs)
        with ConstructionTrace(init_inputs) as trace:
            model: torch.nn.Module = self.space["Model"](*init_inputs)
        return model, trace

    def model(
        self, seed: int, perturb: str, only: Collection[str] = (), manners: Mapping[str, Manner] | None = None
    ) -> torch.nn.Module:
        """The model with weights from a seed, rounded to the working precision.

        `perturb` is `none`; `all`, which moves weights at random; `far`, which moves them further; or `grown`, the same
        with their signs.
        `only`: the parameters and buffers that are moved; empty for all parameters. `manners`: how those are moved of
        which the reference takes no others.
        """
        model, trace = self.built(seed)
        self.init_work, self.draws = trace.amount, list(trace.draws)
        if perturb != "none":
            growth = growth_of(model) if perturb in ("far", "grown") else 0.0
            with torch.no_grad():
                self.zeros = _some_zeros(model, only)
                moved = {name: weight for name, weight in model.named_parameters() if not only or name in only}
                buffers = {name: buffer for name, buffer in movable_buffers(model).items() if name in only}
                for name, weight in (moved | buffers).items():
                    further = growth if name in moved else 0.0
                    if manners and name in manners:
                        move_in_manner(weight, manners[name], further)
                    else:
                        move(weight, further, turned=perturb == "far")
        return in_precision(model, self.precision, self.device)

    def inputs(self, seed: int) -> tuple[Value, ...]:
        """A draw of `get_inputs`, floating tensors in the working precision.

        Raises:
            TypeError, ValueError: they cannot travel, or lie otherwise in memory than those of another draw.
        """
        drawn = to_arguments(*self.drawn(seed))
        layouts = {place: tensor.layout for place, tensor in enumerate(host_tensors(drawn)) if tensor.layout}
        if self._layouts not in (None, layouts):
            raise ValueError(
                "get_inputs returns tensors that lie otherwise in memory in each draw, and a program has "
                "one layout: return .contiguous() tensors from it"
            )
        self._layouts = layouts
        return drawn

    def drawn(self, seed: int) -> tuple[list[Any], list[Layout | None]]:
        """The same with the problem's own tensors, rounded to the working precision, and how they lay before that."""
        _seed(seed, self.device)
        drawn = self.space["get_inputs"]()
        if not isinstance(drawn, list | tuple):
            raise TypeError(f"get_inputs returns a {type(drawn).__name__}, not a list of arguments")
        plain = _plain(drawn)
        rounded = self._rounded(plain)
        # Rounding gives each tensor dense memory of its own.
        return rounded, layouts_of(tensors_in(plain), [tensor.dtype for tensor in tensors_in(rounded)])

    def _rounded(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(self.precision) if value.is_floating_point() else value
        return _each(self._rounded, value)

    def _take_structure(self, output: Any) -> None:
        self.structure = structure_of(output)
        text = json.dumps(self.structure)
        if self._structure_text not in ("", text):
            raise ChangingOutputError(
                f"forward returns {structure_text(self.structure)[:256]} here, and other constants or parts elsewhere, "
                "so that no launches could give them: return tensors"
            )
        self._structure_text = text

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
        row, name = _copied(model), str(self.precision).removeprefix("torch.")
        made = ((call, self._call(row, call.inputs, self.precision, seed)) for call in calls)
        return any(not call.gives(flat_outputs(output), name) for call, output in made)

    def that_matter(
        self, model: torch.nn.Module, names: Sequence[str], inputs: Sequence[Value], seed: int
    ) -> list[str]:
        """The buffers among some on whose values the outputs depend: not running statistics that are only kept."""
        there = movable_buffers(model)  # in the working precision
        names = [name for name in dict.fromkeys(names) if name in there]
        if not names or not self._changes(model, names, inputs, seed):
            return []
        return [name for name in names if len(names) == 1 or self._changes(model, [name], inputs, seed)]

    def _changes(self, model: torch.nn.Module, names: Sequence[str], inputs: Sequence[Value], seed: int) -> bool:
        other = _copied(model)
        own = movable_buffers(other)
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
        return self._call(in_precision(_copied(model), dtype, self.device), inputs, dtype, seed, trace)

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
            arguments = from_arguments(inputs, dtype, self.device)
            held = Held(arguments)
            asked = AskedAs(self.precision) if dtype == torch.float64 else contextlib.nullcontext()
            with torch.no_grad(), asked, trace or contextlib.nullcontext():
                output = instance(*arguments)
            self._take_structure(output)
            self.meeting |= meeting(tensors_of_output(output))
            self.left = held.left(output)
            return output
        finally:
            torch.set_default_dtype(before)


def _some_zeros(model: torch.nn.Module, only: Collection[str]) -> dict[str, torch.Tensor]:
    """Of each parameter, among some or of all, which elements are zero; none of one that has no other ones."""
    zeros = {name: weight == 0 for name, weight in model.named_parameters() if not only or name in only}
    return {name: each for name, each in zeros.items() if each.any() and not each.all()}


_DRAWS, _SEARCH_S = 1 << 10, 0.5
"""Of inputs that are looked through, and in how many CPU seconds."""


def _seed_that_reaches_zeros(reference: Reference, model: torch.nn.Module, request: Json) -> int:
    """A seed of inputs on which outputs depend on those moved weights that are zero at the start, beside others of
    theirs that are not (the row of an embedding that stands for padding); the one asked for where there are none, or
    where a few draws do not reach them."""
    seed: int = request["input_seed"]
    if not reference.zeros:
        return seed
    other = _copied(model)
    with torch.no_grad():
        for name, weight in other.named_parameters():
            if name in reference.zeros:
                weight[reference.zeros[name].to(weight.device)] = 0
    ends = time.process_time() + _SEARCH_S
    for number in range(_DRAWS):
        if time.process_time() > ends:
            break
        inputs = reference.inputs(seed + _FAR * number)
        made = [reference.outputs(each, inputs, reference.precision, request["weight_seed"]) for each in (model, other)]
        if made[0] != made[1]:
            return seed + _FAR * number
    return seed


_FAR = 1 << 20
"""Between seeds that are looked through: families are drawn under those behind each."""


def _copied(model: torch.nn.Module) -> torch.nn.Module:
    """A copy of a model. PyTorch copies no tensor that was computed of parameters, as some layers keep (the older
    `nn.utils.weight_norm`); a model that computes it anew in each call is as well off with its value."""
    kept = [each for part in model.modules() for each in vars(part).values() if isinstance(each, torch.Tensor)]
    return copy.deepcopy(model, {id(each): each.detach().clone() for each in kept if not each.is_leaf})


class ChangingOutputError(Exception):
    """A constant in the output is another one on other inputs. No family of inputs is to blame for it."""


def evaluate(request: Json) -> Frame:
    """The answer to one request: a case for each family, and the comparisons that screening wants."""
    torch.set_num_threads(1)
    reference = Reference(request["code"], request["device"], request["precision"])
    seed = request["weight_seed"]
    perturb = request["perturb"]
    model = reference.model(seed, perturb, request["only"], request["manners"])
    if perturb == "far" and not _takes(reference, model, request):
        model = reference.model(seed, "grown", request["only"], request["manners"])
    if perturb != "none":
        request = request | {"input_seed": _seed_that_reaches_zeros(reference, model, request)}
    parameters = sum(p.numel() for p in model.parameters())
    frame = Frame({"parameters": parameters, "exact": "float64", "cases": [], "refused": {}})
    weights = list(model.named_parameters())
    frame.header["init_work"], frame.header["draws"] = reference.init_work, reference.draws
    frame.header["weights"] = [[name, list(weight.shape)] for name, weight in weights]
    frame.header["fixed"] = [
        *model.state_dict().keys() - dict(weights),
        *(n for n, w in weights if not w.requires_grad),
    ]
    frame.header["initial"] = [digest(weight) for _, weight in weights]
    tried = Families(frame, reference, model, request).add()
    if tried:
        first = tried[0].inputs
        frame.header["structure"] = reference.structure
        frame.header["meeting"] = sorted(reference.meeting)
        if request["screen"]:
            frame.header["carries"] = reference.carries(model, (*tried[:2], tried[0]), seed)
            add_case(frame, "again", evaluated(reference, model, first, seed + 1))
        elif request["perturb"] == "none":
            named, buffers = telling(reference.built, seed)
            buffers = reference.that_matter(model, [*constant_buffers(model), *buffers], first, seed)
            frame.header["needed"] = [*named, *buffers]
        if request["screen"] and parameters:
            add_case(frame, "other_weights", evaluated(reference, reference.model(seed + 1, "all"), first, 0))
    if request["state"]:
        frame.header["state"] = {name: frame.add(to_value(tensor)) for name, tensor in model.state_dict().items()}
    frame.header["init_inputs"] = frame.add(to_value(reference.init_inputs))
    return frame


def _takes(reference: Reference, model: torch.nn.Module, request: Json) -> bool:
    """Whether the outputs are finite with some weights, on inputs as they are drawn."""
    try:
        found = reference.outputs(
            model, reference.inputs(request["input_seed"]), reference.precision, request["weight_seed"]
        )
    except (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError):
        return False
    return all(bool(np.isfinite(output.array()).all()) for output in found)


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
        drawn, layouts = reference.drawn(0)
        entries = {"inputs": _entry(drawn, iter(layouts)), "init_inputs": _entry(reference.init_inputs, iter(()))}
        inputs = [_without_memory(value) for value in drawn]
        with torch.no_grad(), RecurrentLayers() as layers, WorkTrace() as trace:
            model(*inputs)
    return Frame({**entries, "work": {**trace.operations, **layers.operations}})


def _plain(value: Any) -> Any:
    """A value with tensors whose memory holds what they show."""
    return value.resolve_conj().resolve_neg() if isinstance(value, torch.Tensor) else _each(_plain, value)


def _without_memory(value: Any) -> Any:
    return value.to("meta") if isinstance(value, torch.Tensor) else _each(_without_memory, value)


def _each(function: Callable[[Any], Any], value: Any) -> Any:
    """The same of each part of a list or a tuple; anything else as it is."""
    return type(value)(map(function, value)) if type(value) in (list, tuple) else value


def _entry(value: Any, layouts: Iterator[Layout | None]) -> Json:
    """A value as in a frame, but for the bytes of tensors. `layouts`: of its tensors, in their order; tensors for
    which there are none left are dense.

    Raises:
        TypeError: it is none that can travel.
    """

    def tensor(found: Any) -> Json | None:
        if not isinstance(found, torch.Tensor):
            return None if isinstance(found, list | tuple) else to_value(found)
        layout = next(layouts, None)
        entry: dict[str, Json] = {"dtype": str(found.dtype).removeprefix("torch."), "shape": list(found.shape)}
        return entry if layout is None else {**entry, "layout": layout.to_json()}

    return entry_of(value, tensor)
