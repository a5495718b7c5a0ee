"""What is computed of the weights before forward is called. Pure functions of steps.

A storage is tainted once a random operator wrote it, once an input of the constructor is in it, or once a step with a
tainted operand wrote it. What a step computes of tainted storages is work on the weights; masks and tables of
positions are computed of nothing random, and cost nothing here. Moves (`cat`, `stack`, transposes, casts, gathers at
fixed places) carry taint and are no arithmetic.

    found = weight_work((*program.module, *program.init), [window.storage for window in program.init_inputs])
    found.amount            arithmetic operations, as `operations.arithmetic_of` counts them
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass

from assay.kernels.operators import kind_of
from assay.kernels.program.form import Launch, Operation, Step, Value, windows_in
from assay.kernels.program.operations import arithmetic_of, base_name, role_of


@dataclass(frozen=True, slots=True)
class WeightWork:
    """What some steps compute of tainted storages."""

    amount: int
    """Arithmetic operations of PyTorch's."""
    worst: Operation | None
    """The operator with most of them."""
    launches: tuple[Launch, ...]
    """Launches with a tainted operand; nobody counts what they compute."""


def weight_work(steps: Iterable[Step], sources: Iterable[int]) -> WeightWork:
    """What steps compute of random numbers and of the storages `sources`, in the order in which they happen."""
    tainted, launches = set(sources), []
    amount = most = 0
    worst: Operation | None = None
    for step in steps:
        for operation in [step] if isinstance(step, Operation) else _hooks(step):
            cost = work_on(operation, tainted)
            amount += cost
            if cost > most:
                most, worst = cost, operation
            tainted |= tainted_by(operation, tainted)
        if isinstance(step, Launch) and (touched := _touched(step)) & tainted:
            launches.append(step)
            tainted |= touched
    return WeightWork(amount, worst, tuple(launches))


def tainted_by(operation: Operation, tainted: Set[int]) -> frozenset[int]:
    """The storages that are tainted after an operation because of it."""
    if role_of(operation) == "random" or _storages(_read_by(operation)) & tainted:
        return frozenset(out.storage for out in operation.outs)
    return frozenset()


def work_on(operation: Operation, tainted: Set[int]) -> int:
    """Arithmetic operations that an operation does on tainted storages; 0 where it has no tainted operand."""
    read = _read_by(operation)
    if not _storages(read) & tainted:
        return 0
    role, name = role_of(operation), base_name(operation)
    if role in ("fill", "random"):
        # What is overwritten is no operand. Others shift and scale what is drawn (`normal`) or filled in (`linspace`).
        own = {out.storage for out in operation.outs}
        given = name != "fill" and _storages(read) & tainted - own
        return sum(out.elements for out in operation.outs) if given else 0
    if kind_of(name) == "index" and not _storages((*operation.args[1:], *(v for _, v in operation.kwargs))) & tainted:
        return 0
    return arithmetic_of(operation)


def _read_by(operation: Operation) -> tuple[Value, ...]:
    """The arguments whose elements matter; `zeros_like` and its kin take no more than a shape from theirs."""
    name = base_name(operation)
    return () if name == "zero" or name.endswith("_like") or name.startswith(("new_", "empty")) else operation.values


def _storages(values: Iterable[Value]) -> set[int]:
    return {window.storage for value in values for window in windows_in(value)}


def _hooks(launch: Launch) -> list[Operation]:
    return [operation for variant in launch.variants for operation in variant.before]


def _touched(launch: Launch) -> set[int]:
    return _storages(value for variant in launch.variants for _, value in variant.args)
