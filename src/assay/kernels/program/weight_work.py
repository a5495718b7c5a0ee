"""What a constructor computes of the weights, before forward is called. Pure functions of steps.

A storage is tainted once a random operator wrote it, once an input of the constructor is in it, or once a step with a
tainted operand wrote it. What a step computes of tainted storages is work on the weights; masks and tables of
positions are computed of nothing random, and cost nothing here. Moves (`cat`, `stack`, transposes, casts, gathers at
fixed places) carry taint and are no arithmetic. Only what forward uses in the end is counted.

    found = weight_work(program)
    found.amount            arithmetic operations, as `operations.arithmetic_of` counts them
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass

from assay.kernels.operators import Draw, kind_of
from assay.kernels.program.form import Launch, Operation, Program, Step, Value, Window, operations_in, windows_in
from assay.kernels.program.operations import arithmetic_of, base_name, role_of


@dataclass(frozen=True, slots=True)
class WeightWork:
    """What a constructor computes of tainted storages, as far as forward uses it."""

    amount: int
    """Arithmetic operations of PyTorch's."""
    worst: Operation | None
    """The operator with most of them."""
    launches: tuple[Launch, ...]
    """Launches with a tainted operand; nobody counts what they compute."""


def weight_work(program: Program, replaced: Set[int] = frozenset(), draws: Sequence[Draw] | None = None) -> WeightWork:
    """What a program computes of the weights when it is imported and built.

    Args:
        program: What was recorded.
        replaced: Storages whose content is another one when forward is called (`replaced_storages`).
        draws: What the reference's constructor draws from. Numbers of other distributions count as computed: those of
            an eight times wider one are eight times as large, and no kernel has to multiply them. None for any.
    """
    costs, _ = _costs(program, draws)
    used = _used(program) - replaced
    amount = most = 0
    worst: Operation | None = None
    launches: list[Launch] = []
    for step, cost in reversed(costs):
        if isinstance(step, Launch):
            if (touched := _touched(step)) & used:
                used |= touched
                launches += [step] if cost else []
        elif used & {out.storage for out in step.outs}:
            used |= storages_read(step)
            amount += cost
            worst, most = (step, cost) if cost >= max(most, 1) else (worst, most)
    return WeightWork(amount, worst, tuple(reversed(launches)))


def draw_of(operation: Operation) -> Draw:
    """What a random operator draws from."""
    name = base_name(operation)
    if name in ("rand", "randn", "rand_like", "randn_like"):
        return ("normal" if name.startswith("randn") else "uniform"), (0.0, 1.0)
    if name not in _STANDARD:
        return name, _numbers(operation.values)
    named, (first, second) = dict(operation.kwargs), _STANDARD[name]
    given = _numbers(operation.args)
    one = given[:1] or _numbers([named.get(first, 0.0)])
    return name, one + (given[1:2] or _numbers([named.get(second, 1.0)]))


_STANDARD = {"uniform": ("from", "to"), "normal": ("mean", "std")}
"""Names of the two numbers of a distribution, which are 0 and 1 where they are not given."""


def _numbers(values: Iterable[Value]) -> tuple[float, ...]:
    """The numbers among some values; one that is larger than any size or seed is NaN, which is no other's number."""
    found = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    return tuple(float(value) if -_MOST <= value <= _MOST else math.nan for value in found)


_MOST = 2.0**64


def _is_among(draw: Draw, draws: Sequence[Draw]) -> bool:
    return any(
        draw[0] == name
        and len(draw[1]) == len(numbers)
        and all(math.isclose(*pair, rel_tol=_ALIKE) for pair in zip(draw[1], numbers, strict=True))
        for name, numbers in draws
    )


_ALIKE = 1e-6
"""Numbers of distributions may be computed in another way: 1 / sqrt(n), sqrt(6 / (6 * n))."""


def _costs(program: Program, draws: Sequence[Draw] | None = None) -> tuple[list[tuple[Step, int]], set[int]]:
    """Each step of the import and the constructor with what it does on the weights, and the storages tainted then."""
    tainted = {window.storage for window in program.init_inputs}
    costs: list[tuple[Step, int]] = []
    for step in _flat((*program.module, *program.init)):
        if isinstance(step, Operation):
            other = draws is not None and role_of(step) == "random" and not _is_among(draw_of(step), draws)
            own = sum(out.elements for out in step.outs) if other else 0
            costs.append((step, work_on(step, tainted) or own))
            tainted |= tainted_by(step, tainted)
        else:
            touched = _touched(step)
            costs.append((step, int(bool(touched & tainted))))
            tainted |= touched if touched & tainted else set()
    return costs, tainted


def made_of_weights(program: Program) -> set[int]:
    """Storages of the parameters, and of what the import and the constructor drew or made of what was drawn."""
    return _costs(program)[1] | {window.storage for _, window in program.params}


def once_on_weights(program: Program) -> Operation | None:
    """The first operation that only the first call of forward runs and that reads what is made of the weights."""
    tainted = made_of_weights(program)
    alone = {id(program.forward[place]) for place in program.once}
    for step in _flat(program.forward):
        if isinstance(step, Launch):
            tainted |= touched if (touched := _touched(step)) & tainted else set()
        elif role_of(step) not in ("fill", "random") and storages_read(step) & tainted:
            if id(step) in alone:
                return step
            tainted |= {out.storage for out in step.outs}
    return None


def replaced_storages(
    program: Program, weights: Sequence[tuple[str, tuple[int, ...]]], initial: Sequence[str], starts: Sequence[str]
) -> frozenset[int]:
    """Storages that hold nothing but parameters that a replay sets, by the reference's names or else by their order,
    and that start as the reference's do: nothing was folded into them.

    Args:
        program: What was recorded, of which a replay said that its parameters could be set.
        weights: Name and shape of each parameter of the reference.
        initial: A digest of each at the start.
        starts: The same of the program's parameters.
    """
    own = dict(program.params)
    by_name = all(name in own and own[name].size == shape for name, shape in weights)
    names = [name for name, _ in weights] if by_name else list(own)
    found = dict(zip((name for name, _ in program.params), starts, strict=False))
    return frozenset(
        own[name].storage
        for name, digest in zip(names, initial, strict=False)
        if found.get(name) == digest
        and _is_dense(own[name])
        and own[name].nbytes == program.storages[own[name].storage]
    )


def _is_dense(window: Window) -> bool:
    """Whether a window shows each element of a block once."""
    expected = 1
    for stride, size in sorted(zip(window.stride, window.size, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def tainted_by(operation: Operation, tainted: Set[int]) -> frozenset[int]:
    """The storages that are tainted after an operation because of it."""
    if role_of(operation) == "random" or storages_read(operation) & tainted:
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
        given = name != "fill" and _storages(_not_overwritten(operation)) & tainted
        return sum(out.elements for out in operation.outs) if given else 0
    if kind_of(name) == "index" and not _storages((*operation.args[1:], *(v for _, v in operation.kwargs))) & tainted:
        return 0
    return arithmetic_of(operation)


def _not_overwritten(operation: Operation) -> tuple[Value, ...]:
    """The arguments but for the one that an operator writes."""
    in_place = operation.name.partition(".")[0].endswith("_")
    return (*operation.args[in_place:], *(value for name, value in operation.kwargs if name != "out"))


def _read_by(operation: Operation) -> tuple[Value, ...]:
    """The arguments whose elements matter; `zeros_like` and its kin take no more than a shape from theirs."""
    name = base_name(operation)
    return () if name == "zero" or name.endswith("_like") or name.startswith(("new_", "empty")) else operation.values


def storages_read(operation: Operation) -> set[int]:
    """The storages whose elements an operation reads."""
    return _storages(_read_by(operation))


def _storages(values: Iterable[Value]) -> set[int]:
    return {window.storage for value in values for window in windows_in(value)}


def _used(program: Program) -> set[int]:
    """The storages that forward takes something from."""
    found = {window.storage for window in program.outputs}
    for step in _flat(program.forward):
        found |= storages_read(step) if isinstance(step, Operation) else _touched(step)
    return found


def _flat(steps: Iterable[Step]) -> Iterator[Step]:
    """Steps in their order, the hooks of a launch and of its tuner before it."""
    for step in steps:
        if isinstance(step, Launch):
            yield from operations_in((step,), tuning=True)
        yield step


def _touched(launch: Launch) -> set[int]:
    return _storages(value for variant in launch.variants for _, value in variant.args)
