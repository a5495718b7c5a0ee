"""Rules for what outlives a call of forward: parameters, buffers, inputs, and what a call keeps for the next one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from assay.kernels.program.form import Program
from assay.kernels.program.judging.findings import Finding
from assay.kernels.program.operations import base_name
from assay.kernels.program.weight_work import once_on_weights


def kept_by_first_call(program: Program) -> list[Finding]:
    """What the first call of forward makes of the parameters and later ones use is stale once the parameters change."""
    step = once_on_weights(program)
    if step is None:
        return []
    said = (
        f"only the first call of forward runs PyTorch's {base_name(step)} on parameters, and later ones use what it "
        "made: it is stale after a step of an optimizer. Run it in every call, or whenever a parameter has another "
        "_version, or read the parameters in a kernel."
    )
    return [Finding("state", said, step.line)]


def tensors_left_alone(inputs: Collection[int], params: Collection[str]) -> list[Finding]:
    """Forward must leave parameters as they are, and inputs that the reference does not change: whoever calls it still
    needs them, and so does the next call.

    Args:
        inputs: Numbers of those that held other bytes after a call.
        params: Names of those, and of those in which kernels wrote.
    """
    found = [f"forward changes input {number}, which the reference leaves as it is" for number in sorted(inputs)]
    found += [f"forward writes into the parameter {name}" for name in sorted(params)]
    return [Finding("state", f"{said}: write into a tensor of your own") for said in found]


def trained(program: Program, weights: Sequence[tuple[str, tuple[int, ...]]]) -> list[Finding]:
    """A parameter of the reference's must not be a buffer under its name, which no optimizer trains.

    Args:
        program: What was recorded.
        weights: Name and shape of each parameter of the reference.
    """
    own = {name for name, _ in program.params}
    found = sorted({name for name, _ in weights} & {name for name, _ in program.buffers} - own)
    said = "the reference's parameter {0} is a buffer here, which no optimizer trains: make it a torch.nn.Parameter"
    return [Finding("state", said.format(name)) for name in found]


def left_as_found(left: Sequence[Mapping[str, int]]) -> list[Finding]:
    """A call must leave what it reads of earlier calls as it found it, unless no output depends on it: nobody can tell
    what a kernel does that counts its calls.

    Args:
        left: Of each call, what it left otherwise: `elements`, and the `line` that writes them.
    """
    worst = {found["line"]: found["elements"] for found in sorted(left, key=lambda found: found["elements"])}
    return [
        Finding(
            "state",
            f"forward leaves other values in {elements} elements that the next call reads before it writes them, so "
            "that a later call may do something else. Set counters and locks back at the end of a call, or clear such "
            "memory before its use; statistics on which no output depends may be moved on by a launch of their own",
            line,
        )
        for line, elements in worst.items()
    ]
