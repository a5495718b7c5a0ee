"""What the replay harnesses share: a program built once and called on sets of inputs, on some `Machine`.

The header has `init_inputs`, `inputs`, `outputs`, `parameters`, `initial` (a digest of each at the start),
`weight_seed`, and `after`, the number, dtype and shape of each input that the reference changes in some case: what they
hold after a call follows its outputs.
The first round has the tensors of `get_init_inputs`. A later one has the buffers of one or several calls, one after
the other, and last a list with a control record for each: the fields of `player.Manner`, `weights`, by name, `needed`,
`own`, the fields of each `numerics.held_inputs.Own`, and `blobs`, how many buffers are its own. Outputs are bytes; the
report has, for each of the `calls`, what the kernels did, or the fault that ended it, and `starts`: a digest of each
parameter as the constructor leaves it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from assay.kernels.inside import submission
from assay.kernels.inside.problem.values import tensors_in
from assay.kernels.inside.replay.kernels import NotInLanguageError
from assay.kernels.inside.replay.operators import ForgedError
from assay.kernels.inside.replay.outputs import inexact
from assay.kernels.inside.replay.outputs.written import Own
from assay.kernels.inside.replay.player import NO_KERNEL, Account, CompilerError, Machine, Manner, Player
from assay.kernels.inside.tensors import WrongOutputError, digest, tensors_of
from assay.kernels.inside.triton.ledger import UndecidedError, WrongValueError
from assay.kernels.program.form import Program
from assay.kernels.program.limits import Limits
from assay.kernels.program.reading import Refusal, read
from assay.types import Json

if TYPE_CHECKING:
    from assay.sandbox.base import ReadInputs, WriteOutputs


_OWN = "assay."
"""In this package are the classes of errors whose words are the grader's own."""


def play(
    source: str,
    header: Json,
    read_inputs: ReadInputs,
    write_outputs: WriteOutputs,
    machine: Machine,
    limits: Limits | None = None,
) -> Json:
    """Replay one program, call by call. A fault of a call without a kernel ends that call alone."""
    program = read(source.encode("utf-8", "replace"), limits)
    if isinstance(program, Refusal):
        return {"fault": {"stage": "program", "kind": "refused", "type": "Refusal", "message": program.reason}}
    blobs = read_inputs()
    assert blobs is not None, "a job has a round for the constructor"
    try:
        tensors = tensors_in(tensors_of(header["init_inputs"], blobs, "cpu"))
        player = Player(program, machine, tensors, header["weight_seed"])
        _check_outputs(program, header["outputs"])
    except Exception as error:  # noqa: BLE001 - whatever a program makes the interpreter raise is data
        return {"fault": _fault("constructing ModelNew", error, machine)}
    write_outputs([])
    told: list[Json] = []
    starts = [digest(player.memory.tensor(window)) for _, window in program.params]
    while (blobs := read_inputs()) is not None:
        outputs: list[memoryview] = []
        for control, own in _calls_of(blobs):
            entry, made = _call(player, machine, control, own, header | {"starts": starts})
            told.append(entry)
            if made is None:
                return {"calls": told, "starts": starts, "fault": entry["fault"]}
            outputs += made
        write_outputs(outputs)
    return {"calls": told, "starts": starts}


def _calls_of(blobs: Sequence[memoryview]) -> Iterator[tuple[Json, Sequence[memoryview]]]:
    """The calls of a round: what each is, and its own buffers."""
    at = 0
    for control in json.loads(bytes(blobs[-1])):
        size = control.pop("blobs")
        yield control, blobs[at : at + size]
        at += size


def _call(
    player: Player, machine: Machine, control: Json, blobs: Sequence[memoryview], header: Json
) -> tuple[dict[str, Json], list[memoryview] | None]:
    """What is told of one call, and its outputs; None where a fault ends the replay."""
    program = player.program
    inputs = tensors_in(tensors_of(header["inputs"], blobs, "cpu"))
    weights, whole = control.pop("weights"), not control.pop("needed")
    own = {output: _own(entry, blobs) for output, *entry in control.pop("own", ())}
    entry: dict[str, Json] = {}
    try:
        moved = _weights(
            program, header["parameters"], weights, blobs, whole, header["starts"], header.get("initial", ())
        )
        entry["weights"] = moved is not None
        account = player.call(inputs, Manner(**control), moved, own)
    except Exception as error:  # noqa: BLE001 - whatever a program makes the interpreter raise is data
        entry["fault"] = _fault("forward", error, machine)
        entry["unwritten"] = [0] * len(program.outputs)
        if control.get("skip", NO_KERNEL) == NO_KERNEL:
            return entry, None
        forms = (*header["outputs"], *(form for _, *form in header.get("after", ())))
        return entry, [_all_ones(dtype, shape) for dtype, shape in forms]  # bytes never right
    windows = (*program.outputs, *(program.inputs[place] for place, *_ in header.get("after", ())))
    entry |= _told(account) | inexact.told(player.memory, windows)
    return entry, [_bytes(player.memory.tensor(window)) for window in windows]


def _own(entry: Sequence[Any], blobs: Sequence[memoryview]) -> Own:
    place, offset, stride, same = entry
    return Own(place, offset, tuple(stride), tensors_of([same], blobs, "cpu")[0])


def _fault(stage: str, error: Exception, machine: Machine) -> dict[str, Json]:
    """What went wrong. What Python, NumPy or Triton say themselves may quote an input."""
    told = submission.fault(stage, error, _kind(error, machine)) | _place(error)
    if not type(submission.cause_of(error)).__module__.startswith(_OWN):
        told["message"] = submission.without_values(str(told["message"]))
    return told


def _kind(error: Exception, machine: Machine) -> str:
    """`language`: a kernel is not in the kernel language, though it may be legal in Triton; `not_triton`: nor is it.
    `forged`: no recording of ours gives such a program. `compile`, `unsupported`: of the machine."""
    if isinstance(error, ForgedError):
        return "forged"
    if isinstance(error, NotInLanguageError):
        return "language" if error.in_triton else "not_triton"
    if isinstance(error, WrongOutputError | WrongValueError):
        return "wrong_output"
    if isinstance(error, UndecidedError):
        return "undecided"
    return machine.kind_of(error)


def _place(error: Exception) -> dict[str, Json]:
    """The line of the submission, where the error knows it better than its traceback."""
    return {"line": error.line} if isinstance(error, NotInLanguageError | CompilerError) else {}


def _check_outputs(program: Program, outputs: Sequence[Json]) -> None:
    if len(program.outputs) != len(outputs):
        raise WrongOutputError(f"forward returned {len(program.outputs)} tensors, the reference returns {len(outputs)}")
    for window, (dtype, shape) in zip(program.outputs, outputs, strict=True):
        if list(window.size) != list(shape):
            raise WrongOutputError(f"the output has shape {window.size}, the reference has {tuple(shape)}")
        if window.dtype != dtype:
            raise WrongOutputError(f"the output has dtype {window.dtype}, the reference has {dtype}")


def _weights(
    program: Program,
    names: Sequence[Json],
    weights: Mapping[str, Json],
    blobs: Sequence[memoryview],
    whole: bool,
    starts: Sequence[str],
    initial: Sequence[str],
) -> dict[int, torch.Tensor] | None:
    """Number of a parameter, or of a buffer after those -> the values that it is to hold, found by name, or parameters
    by what they start with; None where neither fits. A parameter of the reference's is one here, too: buffers are not
    trained.

    starts, initial: digests of the parameters at the start, here and in the reference.

    whole: all parameters must be there under those names, not only the ones that are set.
    """
    if not weights:
        return {}
    given = [name for name, _ in names]
    windows = (*program.params, *program.buffers)
    named = [(number, name) for number, (name, _) in enumerate(windows)]
    own = {name: number for number, name in reversed(named) if number < len(program.params) or name not in given}
    sizes = [list(window.size) for _, window in windows]
    wanted = {name: shape for name, shape in names if whole or name in weights}
    wanted |= {name: entry["shape"] for name, entry in weights.items()}
    by_name = all(name in own and sizes[own[name]] == shape for name, shape in wanted.items())
    found = own if by_name else dict(zip(given, _like(starts, initial), strict=False))
    if not weights.keys() <= found.keys():
        return None
    chosen = {found[name]: entry for name, entry in weights.items()}
    return dict(zip(chosen, tensors_of(list(chosen.values()), blobs, "cpu"), strict=True))


def _like(starts: Sequence[str], initial: Sequence[str]) -> list[int]:
    """The parameters that start as the reference's do, in its order; none where one of its has no like."""
    left, found = list(enumerate(starts)), list[int]()
    for digest_ in initial:
        pair = next((pair for pair in left if pair[1] == digest_), None)
        if pair is None:
            return []
        left.remove(pair)
        found.append(pair[0])
    return found


def _told(account: Account) -> dict[str, Json]:
    changed: dict[str, Json] = {"inputs_changed": list(account.inputs_changed)}
    changed |= {"params_changed": list(account.params_changed), "left": list(account.left)}
    return {**account.told, **changed, "unwritten": list(account.unwritten), "partly": list(account.partly)}


def _bytes(tensor: torch.Tensor) -> memoryview:
    dense = tensor.cpu().contiguous().flatten().view(torch.uint8) if tensor.numel() else tensor.new_empty(0)
    return memoryview(dense.numpy().tobytes())


def _all_ones(dtype: str, shape: Sequence[int]) -> memoryview:
    """An output of NaN, or of minus ones."""
    return memoryview(b"\xff" * (math.prod(shape) * getattr(torch, dtype).itemsize))
