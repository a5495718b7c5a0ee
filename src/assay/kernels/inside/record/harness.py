"""The sandbox harness that records a candidate's program. It is given shapes and dtypes; there are no values to read.

The header has `init_inputs` and `inputs` (entries as in `assay.kernels.frames`, whose bytes are never delivered),
`structure`, how the tensors lie in the reference's output (`inside.tensors.structure_of`), where that is compared,
`changed`, the numbers of the inputs that the reference changes, where those are known,
`precision`, `text_checks`, and `program_bytes`, the size of the one output: a length (8 bytes, little endian) and the
program as JSON. A report with `fault` says why there is none, and `examined` what the text shows, which is looked at
before anything of it runs. With `reads` in the header, the capability of a GPU, it also says what Triton reads in the
launched kernels for that one (`own`). All comes through the candidate's hands: `assay.kernels.program.reading` takes
the program for what it is, a submission.
"""

from __future__ import annotations

import os

os.environ.pop("TRITON_INTERPRET", None)  # read when Triton is imported; launches are captured, not interpreted

import gc
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from assay.kernels.inside import pretend_cuda, submission
from assay.kernels.inside.problem import truncated
from assay.kernels.inside.problem.values import tensors_in
from assay.kernels.inside.problem.weights import is_fraction
from assay.kernels.inside.record import launches, light, reads, streams
from assay.kernels.inside.record.comparing import (
    Call,
    compare,
    groups_of,
    in_use,
    made_of,
    remade,
    settled,
    used_in_calls,
)
from assay.kernels.inside.record.devices import Pretended
from assay.kernels.inside.record.host import custom, gpu, meta_kernels, models, process
from assay.kernels.inside.record.host.returned import Lists, arguments_of, check_dtype, check_returned
from assay.kernels.inside.record.operators import Operators
from assay.kernels.inside.record.own_text import OwnTexts
from assay.kernels.inside.record.reads import HostReadError, NotRecordableError
from assay.kernels.inside.record.tape import Tape
from assay.kernels.inside.tensors import WrongOutputError, flat_tensors, hidden
from assay.kernels.program.reading import Refusal, read
from assay.kernels.text.examined import Examined
from assay.kernels.text.examining import examine
from assay.types import Json

if TYPE_CHECKING:
    from assay.sandbox.base import ReadInputs, WriteOutputs

PROGRAM_BYTES = 1 << 18
"""Room for a program."""
WARM_UPS = 12
"""After so many Python has specialised the bytecode, which then looks up fewer names. Each lookup changes the reference
count of a name, and a child copies the page that it lies in."""
MAX_DIFFERS = 256
"""Characters of what is said of calls that differ."""
_DEPENDS = (
    "forward reads best_config of an autotuned kernel and does something else for another configuration, and one "
    "program is recorded for all of them. Size what comes after the kernel for its smallest block, or launch it in one "
    "configuration"
)
_STALE = (
    "forward keeps what it made of {0} until something else changes, by its _version: after a step of an optimizer, or "
    "load_state_dict, it is stale. Compare the _version of everything that it is made of, or make it in every call"
)
_NO_VALUES = (
    "unallocated storage",
    "cannot be called on meta tensors",
    "meta device type tensor",
    "out of meta tensor",
)
"""In what PyTorch says where a value is read of a tensor without memory, past all that is watched here."""
_WARM_UP = """
import torch
import torch.nn as nn
import triton
import triton.language as tl
@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    tl.store(y + i, tl.load(x + i, mask=inside) + tl.load(x + i, mask=inside), mask=inside)
class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.scale = torch.nn.Parameter(torch.rand(4) + 0.5 * torch.randn(4))
    def forward(self, x):
        y = torch.zeros_like(x).to(torch.float16).float().clone()
        torch.cat([x * 2 - x, y.sum().reshape(1)]).copy_(torch.tensor([1.0] * 5))
        out = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 4),)](x.contiguous(), out, x.numel(), BLOCK=4)
        kernel[lambda meta: (triton.cdiv(x.shape[0], meta["BLOCK"]),)](x, y, 4, BLOCK=4)
        return out
"""


def preload() -> None:
    """Import PyTorch and Triton and record one program: what a first one sets up, every child then shares."""
    torch.set_num_threads(1)
    light.install()
    truncated.install()
    launches.install()
    pretend_cuda.install(pretend_cuda.SHARED_LIMIT, pretend_cuda.CAPABILITY)
    gpu.install()
    custom.install()
    meta_kernels.install()
    models.hold()
    header: Json = {"init_inputs": [], "inputs": [{"dtype": "float32", "shape": [4], "blob": 0}]}
    header |= {"precision": "float32", "program_bytes": PROGRAM_BYTES, "text_checks": True}
    for _ in range(WARM_UPS):
        report = execute(_WARM_UP, header, lambda: None, lambda outputs, short=False: None)
        if "fault" in report:
            raise RuntimeError(f"a program of ours cannot be recorded: {report['fault']}")
    models.hold()  # again, with the classes that a first launch imports
    launches.hold()  # once Triton has all that it keeps from a first launch on


def execute(source: str, header: Json, read_inputs: ReadInputs, write_outputs: WriteOutputs) -> Json:
    """Record one candidate's program."""
    read_inputs()
    examined = examine(source) if header["text_checks"] else Examined()
    told: dict[str, Json] = {"examined": examined.to_json()}
    if examined.fault is not None or examined.cheats:
        return told
    tape = Tape()
    try:
        program = record(source, header, tape)
        text = json.dumps(program, separators=(",", ":"), allow_nan=False).encode()
    except MemoryError:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever a candidate raises is data
        return told | {"fault": _fault(error, tape)}
    room = header["program_bytes"]
    if len(text) + 8 > room:
        long = NotRecordableError(f"the program has {len(text)} bytes, and {room - 8} are taken")
        return told | {"fault": submission.fault("forward", long, "unsupported")}
    if capability := header.get("reads"):
        told["own"] = _own_texts(text, capability)
    write_outputs([len(text).to_bytes(8, "little") + text], short=True)
    read_inputs()  # there is no other round: this takes note that the last one is over
    return told


def _own_texts(text: bytes, capability: int) -> Json:
    """What Triton reads in the launched kernels (`own_text`); nothing of what is no program."""
    program = read(text)
    return {} if isinstance(program, Refusal) else OwnTexts(launches.recorded(), capability).of(program)


def record(source: str, header: Json, tape: Tape) -> Json:
    """The program of a candidate, as JSON.

    Raises:
        HostReadError: its host code reads a value.
        NotRecordableError: it does what a program has no form for.
        Exception: whatever it raises itself.
    """
    reads.begin()
    process.begin()
    capture = launches.Capture(tape)
    launches.begin(capture)
    # Twice on tensors of their own, and twice more on the same ones, which may hold other values by then. Before each
    # but the last, parameters change as an optimizer changes them.
    init_arguments, first, again = map(arguments_of, (header["init_inputs"], header["inputs"], header["inputs"]))
    lists = Lists((init_arguments, first, again))
    operators, pretended = Operators(tape), Pretended(tape)
    operators.pretended, pretended.operators = pretended, operators
    with operators, pretended:
        with tape.phase("importing the module") as module:
            made = submission.load(source)
        init_inputs = [tape.window(tensor) for tensor in tensors_in(init_arguments)]
        with tape.phase("constructing ModelNew") as init:
            operators.draws.begin()
            operators.draws.of_weights = True
            model = made.ModelNew(*init_arguments)
            operators.draws.of_weights = False
            lists.check("the constructor")
            check_dtype()
            reference = models.OfReference(header)
            models.check(model, reference)
            tape.doing = "moving ModelNew to the GPU"
            model = models.moved(model, header["precision"])
        params = models.named_parameters(model)
        named = [[name, tape.window(parameter)] for name, parameter in params]
        buffers = models.named_buffers(model)
        held = [[name, tape.window(buffer)] for name, buffer in buffers]
        pretended.held = [tensor for _, tensor in (*params, *buffers)]
        before = len(tape.sizes())
        calls: list[Call] = []
        caller = _Caller(model, dict(params), {name: each for name, each in buffers if is_fraction(each)}, lists)
        weights = {f"the parameter {name}": each for name, each in params}
        weights |= {f"the buffer {name}": each for name, each in buffers}
        for arguments in (first, again, again):
            _count_change(weights.values() if calls else ())
            calls.append(_call(caller, arguments, tape, header))
        repeated = tape.room.watched(partial(_call, caller, again, tape, header))
        kept = remade(calls, repeated, before, tape.constants)
        asked = [
            what
            for what, tensor in weights.items()
            if pretended.versions.get(id(tensor)) is tensor or made_of(calls[0], tape.storage(tensor), kept)
        ]
        some: list[Call] = []
        for group in groups_of(asked):
            _count_change(weights[what] for what in group)
            some.append(_call(caller, again, tape, header))
            left = remade(calls, some[-1], before, tape.constants)
            for what in group:
                if made_of(calls[0], tape.storage(weights[what]), left):
                    raise WrongOutputError(_STALE.format(" and ".join(group)))
        others = []
        for best in range(1, capture.asked):
            capture.best = best
            others.append(_call(caller, again, tape, header))
        capture.best = 0
        called_back = capture.called_back(partial(_call, caller, again, tape, header))
        tape.ask_allocators()
        lists.forget()
        del init_arguments, first, again, arguments
        _let_go(caller, tape)
    models.check(model, reference)
    models.check_accumulated(model)
    process.check()
    if tape.outside:
        raise NotRecordableError(
            f"{tape.outside[0].get('op', 'a launch')} of line {tape.outside[0].get('line', 0)} is made between two "
            "calls of forward or after them, as by a finalizer of what it was given or returned: do all work in forward"
        )
    tape.check_constants()
    sizes = tape.sizes()
    if (refused := reads.refused()) is not None:  # caught by host code, which then went on as it would not on a GPU
        raise refused
    reads.check_caught()
    tape.room.check_growth()
    every = [*calls, repeated, *some, *others, *(other for _, other in called_back)]
    used = iter(used_in_calls(every, tape.values.steps(), [window for _, window in (*named, *held)]))
    calls, repeated = [next(used) for _ in calls], next(used)
    some, others = [next(used) for _ in some], [next(used) for _ in others]
    called_back = [(chosen, next(used)) for chosen, _ in called_back]
    inputs, forward, outputs = calls[0]
    names = [entry["name"] for entry in capture.kernels.entries]
    literals = dict(tape.constants)
    compared = compare(calls, repeated, before, literals, names)
    if not compared.differs:
        said = (compare([calls[0], other], repeated, before, literals, names).differs for other in some)
        compared = replace(compared, differs=next(filter(None, said), ""))
    if others and compare([calls[0], *others], repeated, before, literals, names).differs:
        raise NotRecordableError(_DEPENDS)
    for chosen, other in called_back if not compared.differs else ():
        one, last = (calls[0], repeated) if chosen is None else (settled(calls[0], chosen), settled(repeated, chosen))
        if compare([one, other], last, before, literals, names).differs:
            raise NotRecordableError(launches.CALLED_BACK)
    if tape.replaced and not compared.differs:
        raise WrongOutputError(tape.replaced)
    windows = [*inputs, *init_inputs, *outputs, *(window for _, window in (*named, *held))]
    init = in_use(init, windows, forward)
    return {
        **{"version": 1, "storages": sizes, "constants": tape.constants},
        **{"inputs": inputs, "init_inputs": init_inputs, "params": named, "buffers": held},
        **{"module": in_use(module, windows, [*init, *forward]), "init": init},
        **{"outputs": outputs, "forward": forward, "kernels": capture.kernels.entries},
        **{"differs": compared.differs[:MAX_DIFFERS], "kept": compared.kept},
        **{"once": compared.once, "unchanged": compared.unchanged},
    }


@dataclass(frozen=True, slots=True)
class _Caller:
    """What a caller holds: a model, its parameters and buffers of fractions by name, and the lists that it gives."""

    model: Any
    parameters: Mapping[str, torch.Tensor]
    buffers: Mapping[str, torch.Tensor]
    lists: Lists

    def held(self) -> list[tuple[str, torch.Tensor]]:
        """The tensors, with what each is called."""
        found = [(f"the parameter {name}", tensor) for name, tensor in self.parameters.items()]
        return found + [(f"the buffer {name}", tensor) for name, tensor in self.buffers.items()]

    def state(self) -> list[str]:
        """The names of what an optimizer trains, and of what is saved and loaded."""
        trained = [name for name, _ in models.named_parameters(self.model)]
        return [*trained, *models.saved_names(self.model)]

    def gone(self) -> str:
        """What the model has no more under its name; empty where it has everything."""
        now = (dict(models.named_parameters(self.model)), dict(models.named_buffers(self.model)))
        there = [*map(now[0].get, self.parameters), *map(now[1].get, self.buffers)]
        held = zip(self.held(), there, strict=True)
        return next((what for (what, tensor), found in held if found is not tensor), "")


def _count_change(tensors: Iterable[torch.Tensor]) -> None:
    """Give tensors another `_version`, by which code that keeps what it made of them knows that it is stale."""
    for tensor in tensors:
        if not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)


def _call(caller: _Caller, arguments: Sequence[Any], tape: Tape, header: Json) -> Call:
    """One call of forward: windows of its inputs, steps, windows of its outputs."""
    given = [(f"input {number}", tensor) for number, tensor in enumerate(tensors_in(arguments))]
    inputs = [tape.window(tensor) for _, tensor in given]
    held = caller.held()
    places = [*inputs, *(tape.window(tensor) for _, tensor in held)]
    kinds = [type(tensor) for _, tensor in (*given, *held)]
    trained, names = [_trained(tensor) for _, tensor in (*given, *held)], caller.state()
    # Streams may share the memory of parameters and of inputs that the reference leaves alone: a submission that
    # changes these is refused later.
    changed = [inputs[number] for number in header.get("changed", ())]
    streams.order.begin(
        ({window[0] for window in inputs} - {window[0] for window in changed})
        | {tape.storage(parameter) for parameter in caller.parameters.values()}
    )
    tape.follows_streams = tape.places.strict = True
    with tape.phase("forward") as steps, torch.no_grad():
        value = caller.model(*arguments)
        returned = flat_tensors(value)
        outputs = [tape.window(tensor) for tensor in returned]
        check_dtype()
    tape.follows_streams = tape.places.strict = False
    for (what, tensor), place, kind in zip((*given, *held), places, kinds, strict=True):
        if not tape.replaced and type(tensor) is not kind:
            tape.replaced = f"forward makes a {type(tensor).__name__:.80} of {what}, which its caller still holds"
        if not tape.replaced and (name := hidden(tensor)):
            tape.replaced = (
                f"forward puts another {name:.80} in the place of that of {what}, which its caller still holds"
            )
        if not tape.replaced and tape.window(tensor) != place:
            tape.replaced = f"forward puts another tensor in the place of {what}, which its caller still holds"
    for (what, tensor), before in zip((*given, *held), trained, strict=True):
        if not tape.replaced and _trained(tensor) != before:
            tape.replaced = f"forward changes whether and how {what}, which its caller still holds, is trained"
    if not tape.replaced and (gone := caller.gone()):
        tape.replaced = f"forward puts another tensor in the place of {gone}, which its caller still holds"
    if not tape.replaced and (now := caller.state()) != names:
        other = sorted({*now} ^ {*names}) or now
        tape.replaced = (
            f"forward changes what is trained, saved and loaded, or in which order ({other[0]:.80}): do it in the "
            "constructor"
        )
    caller.lists.check("forward")
    check_returned(value, returned, header, tape.places, [tensor for _, tensor in (*given, *held)])
    streams.order.end([*outputs, *changed])
    return inputs, steps, outputs


def _let_go(caller: _Caller, tape: Tape) -> None:
    """Let go of what forward was given and has made, with whatever that calls: steps are noted as made outside.

    Raises:
        WrongOutputError: something that a caller still holds is otherwise then.
    """

    def now() -> list[Any]:
        return [caller.gone(), caller.state(), *((tape.window(each), _trained(each)) for _, each in caller.held())]

    before = now()
    gc.collect()
    if now() != before:
        raise WrongOutputError(
            "a parameter or buffer is another one once what forward was given and has made is gone, as by a finalizer"
        )


def _trained(tensor: torch.Tensor) -> tuple[object, ...]:
    """What autograd and optimizers go by, besides values."""
    with torch._C.DisableTorchFunction():
        hooks = len(tensor._backward_hooks or ())
        return tensor.requires_grad, id(tensor.grad), id(tensor.grad_fn), hooks, models.dtype_of_gradients(tensor)


def _fault(error: BaseException, tape: Tape) -> Json:
    """Why there is no program. A read that a candidate caught is likelier the cause than what it raised instead."""
    if tape.replaced and not isinstance(error, HostReadError):  # which later calls stumble over
        return submission.fault(tape.doing, WrongOutputError(tape.replaced), "wrong_output")
    if isinstance(error, NotRecordableError):
        # What an earlier call did to its caller's tensors is wrong, whatever becomes of launches on them.
        if tape.replaced:
            return submission.fault(tape.doing, WrongOutputError(tape.replaced), "wrong_output")
        return submission.fault(tape.doing, error, "unsupported")
    if isinstance(error, HostReadError) or any(sign in submission.words(error) for sign in _NO_VALUES):
        return submission.fault(tape.doing, error, "host_read")
    if (refused := tape.reads or reads.refused()) is not None:
        kind = "host_read" if isinstance(refused, HostReadError) else "unsupported"
        return submission.fault(tape.doing, refused, kind)
    return submission.fault(tape.doing, error, "wrong_output" if isinstance(error, WrongOutputError) else "error")
