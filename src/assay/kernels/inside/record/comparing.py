"""Whether calls of forward did the same, storages told apart by what they are for; and what only the first one did.

Names of parameters are the candidate's own: what a part of a step means is decided by its place, never by its name.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from assay.kernels.operators import normal_name
from assay.kernels.program.operations import RANDOM
from assay.types import Json

Call = tuple[Sequence[Json], Sequence[Json], Sequence[Json]]
"""Windows of the inputs, steps, windows of the outputs."""
_ZEROS = frozenset({"zeros", "zeros_like", "new_zeros", "zero_"})
"""A workspace that is made of zeros by the first call may be cleared by the later ones."""


@dataclass(frozen=True, slots=True)
class Compared:
    """What later calls did otherwise than the first."""

    differs: str
    """Empty where all launched the same kernels in the same way, and no later one ran another operation."""
    kept: list[int]
    """Storages that the first call made and later ones used."""
    once: list[int]
    """Places of operations in the first call that later ones left out."""
    unchanged: list[int]
    """Places of those that a call left out before which no weight had changed."""


def compare(
    calls: Sequence[Call], repeated: Call, before: int, constants: Mapping[int, str], kernels: Sequence[str]
) -> Compared:
    """Hold later calls against the first.

    Args:
        calls: At least one. Before each but the first the parameters have changed.
        repeated: One more, before which they have not: it may leave out what only a change asks for.
        before: Storages with lower numbers were there before the first call.
        constants: Storage -> its literal content.
        kernels: Names of the kernels.
    """
    first, *others = calls
    fixed, shared = _fixed(first, [*others, repeated], before, constants)
    named = [_Named(call, fixed) for call in calls]
    once: list[int] | None = None
    for number, other in enumerate(named[1:], 2):
        said = _difference(named[0], other, number, kernels)
        if said:
            return Compared(said, [], [], [])
        left_out = _left_out(named[0], other, number)
        if isinstance(left_out, str) or (once is not None and once != left_out):
            text = left_out if isinstance(left_out, str) else f"calls 2 and {number} of forward run other operations"
            return Compared(text, [], [], [])
        once = left_out
    last, number = _Named(repeated, fixed), len(calls) + 1
    if said := _difference(named[0], last, number, kernels):
        return Compared(said, [], [], [])
    if isinstance(left_out := _left_out(named[0], last, number), str):
        return Compared(left_out, [], [], [])
    # What the first call makes stands for what the last one made of the same, which the next one finds.
    kept = shared.union(*({out[0] for out in first[1][place]["outs"]} for place in left_out))
    return Compared("", sorted(place for place in kept if place >= before), once or [], left_out)


def remade(calls: Sequence[Call], other: Call, before: int, constants: Sequence[tuple[int, str]]) -> set[int]:
    """Places of the operations in the first call that another one left out, and the second call did not, before which
    everything had changed; none where calls did something else, or left out a launch."""
    left_out: list[set[int]] = []
    for later in (calls[1], other):
        fixed, _ = _fixed(calls[0], [later], before, dict(constants))
        found = _left_out(_Named(calls[0], fixed), _Named(later, fixed), 0)
        left_out.append(set() if isinstance(found, str) else set(found))
    places = left_out[1] - left_out[0]
    return set() if any("launch" in calls[0][1][place] for place in places) else places


def settled(call: Call, best: int) -> Call:
    """A call as it is once tuners have chosen: each launch in its configuration of that number alone."""
    inputs, steps, outputs = call
    left = [
        {**step, "variants": [step["variants"][best % len(step["variants"])]]} if "launch" in step else step
        for step in steps
    ]
    return inputs, left, outputs


def _fixed(
    first: Call, others: Sequence[Call], before: int, constants: Mapping[int, str]
) -> tuple[dict[int, str], set[int]]:
    """Storages that stand for themselves in all calls, with what they are called, and those that the first call made
    for the others."""
    made = _storages(first) - {window[0] for call in (first, *others) for window in call[0]}
    shared = {storage for call in others for storage in _storages(call) & made}
    fixed = {place: f"constant {content}" for place, content in constants.items()}
    fixed |= {place: f"storage {place}" for place in (*shared, *range(before)) if place not in constants}
    # A call has names of its own for its inputs; those of another call, as the caller made them, it still holds.
    fixed |= {window[0]: f"input {window[0]} of another call" for call in (first, others[0]) for window in call[0]}
    return fixed, shared


def made_of(call: Call, storage: int, places: Collection[int]) -> bool:
    """Whether any of some operations of a call makes something of a storage, or of what was made of it."""
    reached = {storage}
    for place, step in enumerate(call[1]):
        read = _read_by(step)
        if read & reached:
            if place in places:
                return True
            reached |= {window[0] for window in (_windows_of(step) if "launch" in step else step["outs"])}
    return False


def _read_by(step: Json) -> set[int]:
    """Storages whose elements a step may read."""
    if "launch" in step:
        return {window[0] for window in _windows_of(step)}
    name = normal_name(step["op"])
    if name in _ZEROS or name.endswith("_like") or name.startswith(("new_", "empty")):
        return set()
    return {window[0] for window in _windows_in((*step["args"], *step["kwargs"].values()))}


def _difference(one: _Named, two: _Named, number: int, kernels: Sequence[str]) -> str:
    if len(one.launches) != len(two.launches):
        return f"the first call of forward makes {len(one.launches)} launches, call {number} makes {len(two.launches)}"
    for place, (left, right) in enumerate(zip(one.launches, two.launches, strict=True)):
        if left.text != right.text or right.tuning not in ("", left.tuning):
            return (
                f"launch {place + 1} ({kernels[left.kernel]}, line {left.line}) differs between the first call of "
                f"forward and call {number}"
            )
    if one.outputs != two.outputs:
        return f"the first call of forward and call {number} return different tensors of theirs"
    return ""


def _left_out(first: _Named, other: _Named, number: int) -> list[int] | str:
    """Places of steps in the first call that the other left out, the others in the same order; or what it did more."""
    found, at = [], 0
    alike: dict[int, int] = {}
    for place, step in enumerate(first.steps):
        if at < len(other.steps) and step.is_like(other.steps[at], alike):
            at += 1
        else:
            found.append(place)
    if at == len(other.steps):
        return found
    step = other.steps[at]
    what = f"launches in another order (line {step.line})" if step.kernel >= 0 else f"{step.name} (line {step.line})"
    return f"call {number} of forward runs what the first one does not: {what}"


@dataclass(frozen=True, slots=True)
class _Step:
    """A step as a text that is the same for the same doing. `1`, `1.0` and `True` are not, nor are `0.0` and `-0.0`."""

    text: str
    line: int
    kernel: int
    name: str
    unnamed: tuple[int, ...] = ()
    """Storages that no launch and no output names, as they come in it."""
    tuning: str = ""
    """What a tuner does around those launches that it tries first; empty where it has tuned."""

    def is_like(self, other: _Step, alike: dict[int, int]) -> bool:
        """Whether another call's step does the same. `alike`: storages of this call -> those of the other, as far as
        steps before have shown; it is added to."""
        if self.text != other.text or len(self.unnamed) != len(other.unnamed):
            return False
        found = dict(alike)
        for one, two in zip(self.unnamed, other.unnamed, strict=True):
            if found.setdefault(one, two) != two:
                return False
        if len(set(found.values())) < len(found):
            return False
        alike |= found
        return True


class _Named:
    """A call with storages by their roles: an input by its number, what lasts by itself, anything else in the order in
    which launches use it."""

    def __init__(self, call: Call, fixed: Mapping[int, str]) -> None:
        inputs, steps, outputs = call
        self._roles = dict(fixed) | {window[0]: f"input {place}" for place, window in enumerate(inputs)}
        used = [window[0] for step in steps if "launch" in step for window in _windows_of(step)]
        own = [storage for storage in (*used, *(window[0] for window in outputs)) if storage not in self._roles]
        self._roles |= {storage: f"own {place}" for place, storage in enumerate(dict.fromkeys(own))}
        self.steps = [self._step(step) for step in steps]
        self.launches = [step for step in self.steps if step.kernel >= 0]
        self.outputs = [self._window(window) for window in outputs]

    def _step(self, step: Json) -> _Step:
        if "launch" in step:
            named = [step["launch"], [self._variant(variant) for variant in step["variants"]]]
            named.append(step.get("allocator", False))
            return _Step(_text(named), step["line"], step["launch"], "", tuning=self._tuning(step))
        unnamed = tuple(window[0] for window in _windows_of(step) if window[0] not in self._roles)
        return _Step(_text(self._operation(step)), step["line"], -1, step["op"], unnamed)

    def _tuning(self, step: Json) -> str:
        hooks = step.get("tuning")
        return "" if hooks is None else _text([[self._operation(one) for one in hook] for hook in hooks])

    def _variant(self, variant: Json) -> Json:
        before = [self._operation(operation) for operation in variant["before"]]
        arguments = {name: self._value(value) for name, value in variant["args"].items()}
        return [variant["grid"], arguments, variant["options"], before]

    def _operation(self, operation: Json) -> Json:
        outs = [self._window(window) for window in operation["outs"]]
        if operation["op"].partition(".")[0] in _ZEROS:
            return ["zeros", outs]
        arguments = [self._value(value) for value in operation["args"]]
        return [operation["op"], arguments, {key: self._value(v) for key, v in operation["kwargs"].items()}, outs]

    def _value(self, value: Json) -> Json:
        """An argument, which is a list, a tagged value or plain."""
        if isinstance(value, list):
            return [self._value(part) for part in value]
        if isinstance(value, dict) and "window" in value:
            return {"window": self._window(value["window"])}
        if isinstance(value, dict) and "descriptor" in value:
            base, *rest = value["descriptor"]
            return {"descriptor": [self._window(base), *rest]}
        return value

    def _window(self, window: Json) -> Json:
        storage, *rest = window
        return [self._roles.get(storage, "own"), *rest]


def _text(named: Json) -> str:
    return json.dumps(named, sort_keys=True)


def _storages(call: Call) -> set[int]:
    inputs, steps, outputs = call
    return {window[0] for window in (*inputs, *outputs, *(w for step in steps for w in _windows_of(step)))}


def _windows_of(step: Json) -> Iterator[Json]:
    if "launch" in step:
        for variant in step["variants"]:
            yield from _windows_in(variant["args"].values())
            for operation in variant["before"]:
                yield from _windows_of(operation)
        return
    yield from step["outs"]
    yield from _windows_in((*step["args"], *step["kwargs"].values()))


def _windows_in(values: Collection[Json]) -> Iterator[Json]:
    for value in values:
        if isinstance(value, list):
            yield from _windows_in(value)
        elif isinstance(value, dict) and "window" in value:
            yield value["window"]
        elif isinstance(value, dict) and "descriptor" in value:
            yield value["descriptor"][0]


PAIRS, MORE = 12, 4
"""How many pairs of weights, and larger groups of them, change at once."""


def groups_of(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Which of some weights change at once in a call: each alone, then two of them, and more, by chance."""
    chance = random.SystemRandom()
    pairs = list(itertools.combinations(names, 2)) if len(names) > 2 else []
    larger = [tuple(chance.sample(names, chance.randrange(3, len(names)))) for _ in range(MORE) if len(names) > 3]
    return [*((name,) for name in names), *chance.sample(pairs, min(PAIRS, len(pairs))), *larger]


def in_use(steps: Sequence[Json], windows: Sequence[Json], later: Sequence[Json]) -> list[Json]:
    """Steps without those of the constructor's or the module's that write only what nothing reads afterwards, as what
    host code made for itself to read. Draws stay, since later ones go on where they left the generator; a step is empty
    where a move was none, since nothing uses what it left behind.

    Args:
        steps: Of one phase, in their order.
        windows: What a caller has.
        later: Steps after them.
    """
    live = {window[0] for window in (*windows, *(each for step in later for each in _all_windows(step)))}
    (kept,) = _used([steps], live, lambda step: not step or ("op" in step and not _draws(step)))
    return kept


def used_in_calls(calls: Sequence[Call], known: Collection[int], windows: Sequence[Json]) -> list[Call]:
    """Calls, in their order, without steps whose values follow from the program alone and that nothing uses: host code
    made them for itself to read, and Python's own numbers could stand for them.

    Args:
        calls: All of a recording.
        known: Such steps, by `id`.
        windows: What stays between calls.
    """
    live = {window[0] for window in (*windows, *(each for call in calls for each in (*call[0], *call[2])))}
    kept = _used([steps for _, steps, _ in calls], live, lambda step: id(step) in known)
    return [(given, steps, made) for (given, _, made), steps in zip(calls, kept, strict=True)]


def _used(phases: Sequence[Sequence[Json]], live: set[int], may_go: Callable[[Json], bool]) -> list[list[Json]]:
    """Phases without steps that may go and write no storage that is read afterwards. `live`: those read in the end."""
    kept: list[list[Json]] = []
    for steps in reversed(phases):
        used = []
        for step in reversed(steps):
            if not may_go(step) or any(out[0] in live for out in step.get("outs", ())):
                live |= {window[0] for window in _all_windows(step)}
                used.append(step)
        kept.append(used[::-1])
    return kept[::-1]


def _draws(step: Json) -> bool:
    return normal_name(step["op"].partition(".")[0]) in RANDOM


def _all_windows(step: Json) -> Iterator[Json]:
    """Those of a step, and of what a tuner does around it."""
    if step:
        yield from _windows_of(step)
        yield from (window for steps in step.get("tuning", ()) for each in steps for window in _windows_of(each))
