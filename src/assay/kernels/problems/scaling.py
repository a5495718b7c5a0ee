"""Smaller sizes for small machines: the integers of a problem's module, halved until they are at most a cap.

Touched are the integers assigned at module level, or in a class that only holds numbers, and those inside `get_inputs`
and `get_init_inputs`; never the model itself. A product or power of integers counts as one integer. Integers of a name
with `batch` in it have a lower cap of their own (rule `capped`), unless that breaks a problem whose sizes must agree
(`uniform`: one cap for all) or whose sizes must keep their ratios (`proportional`: one divisor for all). Integers that
bound random whole numbers stay as they are (`ranges`), unless they are sizes as well (of a table whose rows are asked
for). What was changed is data (`Scaling`), so that a verdict can say which problem was really solved.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from assay.kernels.problems.integers import Group, Integer, alike, integers_of
from assay.kernels.problems.sources import SHIPPED, Problem
from assay.syntax import parsed
from assay.types import Json

Rule = Literal["none", "capped", "ranges", "proportional", "uniform", "other"]

LADDER = (32, 64, 128, 256, 512, 1024)
"""Caps to try, from the smallest: the first with which the reference runs and the problem is worth solving is used."""
LOWER = (16, 8)
"""Caps for problems that are too large even at the smallest of `LADDER`."""
SMALL = 16
"""Integers up to this stay as they are under rule `proportional`: kernel sizes, strides, numbers of heads."""
BATCH_CAP = 2
BATCH_SMALL = 4
"""Those of a batch are halved down to this for another size; others down to `SMALL`."""

RATIOS = (4, 2)
"""How many times one size is another, at most, where the published one is: a sequence and its window or its chunks."""
MOST_GROWTH = 8
"""Times by which the product of all sizes grows at most, where some can shrink for that."""
PARTS = (8, 4, 2)
"""By which parts of them integers change a little; by a larger part where sizes do not fit together."""
_NEARLY = 0.9
"""Of a ratio: sizes that are no powers of two are halved and rounded."""
MOST_ALONE = 16
"""Integers that are changed alone for another size."""


@dataclass(frozen=True, slots=True)
class Change:
    """One integer that was replaced. `name` is what it was assigned to, or empty; `line` counts from 1."""

    place: str
    name: str
    line: int
    old: int
    new: int
    column: int = 0
    """Where it begins in its line, in bytes."""

    @property
    def start_of(self) -> tuple[int, int]:
        """Its place in the text."""
        return self.line, self.column


@dataclass(frozen=True, slots=True)
class Scaling:
    """How a problem was made smaller. With rule `none` nothing was; with `other` it was given sizes beside others."""

    rule: Rule = "none"
    cap: int = 0
    batch_cap: int = 0
    changes: tuple[Change, ...] = ()

    def to_json(self) -> dict[str, Json]:
        """Plain data for a verdict: rule, caps and `[name or place, line, old, new]` for each change."""
        return {
            "rule": self.rule,
            "cap": self.cap,
            "batch_cap": self.batch_cap,
            "changes": [[c.name or c.place, c.line, c.old, c.new] for c in self.changes],
        }

    def __str__(self) -> str:
        if not self.changes:
            return "as published"
        shown = ", ".join(f"{c.name or c.place} {c.old} -> {c.new}" for c in self.changes[:6])
        more = f" and {len(self.changes) - 6} more" if len(self.changes) > 6 else ""
        if self.rule == "other":
            return f"{shown}{more}"
        return f"scaled down (cap {self.cap}, batch {self.batch_cap}): {shown}{more}"


AS_PUBLISHED = Scaling()


@dataclass(frozen=True, slots=True)
class ScaledProblem:
    """A problem at the sizes it is graded at; `code` is its module with the new sizes."""

    problem: Problem
    code: str
    scaling: Scaling

    @property
    def hash(self) -> str:
        """SHA-256 (hex) of the module as it is run."""
        return hashlib.sha256(self.code.encode()).hexdigest()


def unscaled(problem: Problem) -> ScaledProblem:
    """The problem at its published sizes."""
    return ScaledProblem(problem, problem.code, AS_PUBLISHED)


def keeps_sizes(problem: Problem, setting: str) -> bool:
    """Whether a problem is graded at the sizes of its text: where the setting `scale` says so, and those that come with
    Assay, which are small as they are."""
    return setting == "none" or problem.source == SHIPPED


def task_key(problem: Problem | ScaledProblem, setting: str) -> str:
    """What tells a problem from others by its text and by the sizes it is graded at. One text from two sources is two
    tasks where its sizes are kept in one of them."""
    if isinstance(problem, ScaledProblem):
        return f"as it is: {problem.hash}"
    return f"{'published' if keeps_sizes(problem, setting) else setting}: {problem.hash}"


def scale(problem: Problem, cap: int, batch_cap: int = BATCH_CAP, rule: Rule = "capped") -> ScaledProblem:
    """The problem with every integer above its cap halved until it is not.

    Args:
        problem: A checked problem.
        cap: Largest integer that stays as it is.
        batch_cap: The same for names with `batch` in them; with rule `uniform` it is `cap`.
        rule: `capped`; `ranges`, the same but for integers that bound random whole numbers; `uniform`; `proportional`,
            which divides all by the power of two that brings the largest down to `cap`; or `none` for no change.

    Raises:
        ValueError: a cap below 1.
    """
    if cap < 1 or batch_cap < 1:
        raise ValueError(f"caps must be at least 1, got cap={cap} and batch_cap={batch_cap}")
    if rule == "none":
        return unscaled(problem)
    batch_cap = cap if rule == "uniform" else min(batch_cap, cap)
    changes, edits = [], []
    integers = list(integers_of(parsed(problem.code)))
    largest = max((i.value for i in integers if not i.of_batch), default=1)
    divisor = -(-largest // cap)
    for integer in integers:
        if rule == "ranges" and integer.bounds:
            continue
        if rule == "proportional" and not integer.of_batch:
            new = (
                integer.value if integer.value <= SMALL else max(1, integer.value // (1 << (divisor - 1).bit_length()))
            )
        else:
            new = halved(integer.value, batch_cap if integer.of_batch else cap, round_up=integer.of_batch)
        if new != integer.value:
            changes.append(Change(integer.place, integer.name, integer.line, integer.value, new, integer.start))
            edits.append((integer, str(new)))
    if not changes:
        return unscaled(problem)
    return ScaledProblem(problem, _edited(problem.code, edits), Scaling(rule, cap, batch_cap, tuple(changes)))


def ladder(problem: Problem) -> Iterator[ScaledProblem]:
    """The sizes to try, rule by rule, each from the smallest; those of `LOWER` from the largest.

    Sizes that differ from none before are left out; a problem without large integers comes once, as published. So does
    one last that runs at no other sizes. Sizes of which one became 1 are left out: elements of a row of one are in any
    order.
    """
    seen = set()
    ranges: tuple[tuple[Rule, tuple[int, ...]], ...] = (("ranges", LADDER), ("ranges", LOWER))
    rules: tuple[tuple[Rule, tuple[int, ...]], ...] = (
        *(ranges if any(each.bounds for each in integers_of(parsed(problem.code))) else ()),
        ("capped", LADDER),
        ("capped", LOWER),
        ("proportional", LADDER[1:4]),
        ("uniform", LADDER),
        ("proportional", LOWER),
        ("none", LADDER[:1]),
    )
    for rule, caps in rules:
        for cap in caps:
            scaled = scale(problem, cap, BATCH_CAP, rule)
            if scaled.code not in seen and not any(each.new == 1 for each in scaled.scaling.changes):
                seen.add(scaled.code)
                yield scaled


def other_sizes(scaled: ScaledProblem, rng: random.Random | None = None) -> Iterator[ScaledProblem]:
    """Sizes beside those that a problem is graded at, to tell a kernel that is right at one size only.

    Where it was made smaller: all integers twice as large, and those that differ as published apart, in their order
    (`apart`): halved until they are at most a cap, they are equal, and then a kernel may take one for the other. Where
    that is too much work, all others than they are, since a kernel may lean on any of them: one (`rng`) and those of a
    batch a little larger, the others a little smaller, so that few blocks more are needed. Then each alone, those of a
    batch last. Where it was not, and last in any case: all smaller, those that are no powers of two to a random odd
    size (`rng`), then all half as large. A larger size is a multiple of no block of which the published one is none
    (`uneven`); where such sizes do not fit together, plainly doubled ones follow. Numbers without a name that several
    tensors of `get_inputs` have alike (`alike`) change alike.
    Sizes may not fit together or be too large; whoever asks tries one after the other.
    """
    problem = scaled.problem
    now = {change.start_of: change.new for change in scaled.scaling.changes}
    keeps_ranges = scaled.scaling.rule == "ranges"
    integers = [each for each in integers_of(parsed(problem.code)) if each.value > 1]
    integers = [each for each in integers if not (keeps_ranges and each.bounds)]
    doubled = {
        each: halved(each.value, 2 * now[each.start_of] + 1, each.of_batch) for each in integers if each.start_of in now
    }
    larger = {each: uneven(value, each.value, now[each.start_of]) for each, value in doubled.items()}
    shrinkable = {
        each: current
        for each in integers
        if (current := now.get(each.start_of, each.value)) > (BATCH_SMALL if each.of_batch else SMALL)
    }
    smaller = {each: current // 2 for each, current in shrinkable.items()}
    groups = alike(integers)
    drawn = {
        group: rng.randrange(current // 2, current - 1) | 1
        if rng is not None and current & (current - 1)
        else current // 2
        for group, current in {groups[each]: current for each, current in shrinkable.items()}.items()
    }
    odd = {each: drawn[groups[each]] for each in shrinkable}
    together: dict[Group, dict[Integer, int]] = {}
    for each, value in larger.items():
        together.setdefault(groups[each], {})[each] = value
    one_by_one = islice(sorted(together.values(), key=lambda group: any(each.of_batch for each in group)), MOST_ALONE)
    own = [group for group, members in together.items() if not any(each.of_batch for each in members)]
    grows = rng.choice(own) if rng is not None and own else next(iter(own), None)
    published = {each.value: now[each.start_of] for each in doubled if not each.of_batch}
    kept = {each.value for each in integers if each not in doubled}
    ways = [*((ratio, kept) for ratio in RATIOS), (RATIOS[-1], set[int]())]
    growth = MOST_GROWTH / math.prod(value / now[each.start_of] for each, value in larger.items() if each.of_batch)
    all_apart = [{**larger, **_by_value(doubled, apart(published, *way, growth))} for way in ways]
    ranks = {value: rank for rank, value in enumerate(sorted(published, reverse=True))}
    a_little = [
        {
            each: nearby(
                *(now[each.start_of], each.value, part),
                larger=each.of_batch or groups[each] == grows,
                times=1 + ranks.get(each.value, 0),
            )
            for each in doubled
        }
        for part in PARTS
    ]
    seen = {scaled.code}
    for changed in (*all_apart, larger, doubled, *a_little, *one_by_one, odd, smaller):
        sizes = {each: changed.get(each, now.get(each.start_of, each.value)) for each in integers}
        found = _resized(problem, sizes)
        if found.code not in seen:
            seen.add(found.code)
            yield found


def _resized(problem: Problem, sizes: Mapping[Integer, int]) -> ScaledProblem:
    """The problem with other integers."""
    new = {each: value for each, value in sizes.items() if value != each.value}
    if not new:
        return unscaled(problem)
    changes = tuple(Change(each.place, each.name, each.line, each.value, v, each.start) for each, v in new.items())
    edits = [(each, str(value)) for each, value in new.items()]
    return ScaledProblem(problem, _edited(problem.code, edits), Scaling("other", changes=changes))


def apart(
    now: Mapping[int, int], ratio: int, kept: Collection[int] = (), growth: float = MOST_GROWTH
) -> dict[int, int]:
    """Other sizes for published ones, each larger than that of the next smaller published one.

    As few of them as possible are smaller than the ones graded first, so that their product does not grow too much.

    Args:
        now: Published sizes, and those graded first.
        ratio: How many times the next smaller one a size is at least, where the published one is.
        kept: Sizes that stay as they are: none comes to be larger than one that it is smaller than as published.
        growth: Times by which the product of all sizes may grow.
    """
    shrinking = [value for value in sorted(now) if _may_shrink(value, now[value], kept)]
    ways = [_apart(now, ratio, shrinking[:count]) for count in range(len(shrinking) + 1)]
    grown = (way for way in ways if math.prod(size / now[value] for value, size in way.items()) <= growth)
    return next(grown, ways[0])


def _may_shrink(published: int, now: int, kept: Collection[int]) -> bool:
    """Whether half of a size can be graded: a power of two may be a block as a whole, and products need `SMALL`."""
    least = SMALL // 2 if published & (published - 1) else SMALL
    return now // 2 >= least and not any(now // 2 <= size < published for size in kept)


def _apart(now: Mapping[int, int], ratio: int, shrinking: Collection[int]) -> dict[int, int]:
    """Each published size at a power of two times the one graded first, the least that is far enough from the one
    before: from a half of it on where it is `shrinking`."""
    found: dict[int, int] = {}
    before, size = 0, 0
    for value in sorted(now):
        least = size * min(ratio, value / before) * _NEARLY if before else 0
        factors = [0.5] * (value in shrinking) + [2, 4, 8, 16]
        sizes = [_times(value, now[value], factor) for factor in factors]
        before, size = value, next((each for each in sizes if each >= least), _times(value, now[value], 2))
        found[value] = size
    return found


def _times(published: int, now: int, factor: float) -> int:
    """A published size, halved until it is no more than so many times the one graded first."""
    return uneven(halved(published, int(now * factor + max(factor - 1, 0))), published, now)


def _by_value(integers: Iterable[Integer], sizes: Mapping[int, int]) -> dict[Integer, int]:
    return {each: sizes[each.value] for each in integers if not each.of_batch}


def uneven(value: int, published: int, now: int) -> int:
    """`value`, or a little less, so that it is a multiple of no power of two of which the published size is none, nor
    of a part of the size graded `now` of which it is none. A kernel without a mask is right where blocks fit, and only
    there."""
    fits = published & -published
    step = min(value & -value, fits)
    for smaller in range(value, max(value // 2, 1), -step):
        if smaller & -smaller <= fits and published % math.gcd(smaller, now) == 0:
            return smaller
    return value


def nearby(value: int, published: int, part: int, *, larger: bool, times: int = 1) -> int:
    """`value` with its `part`-th part, rounded up, or without so many of them (half of it is left); at most the
    published size, and `uneven` like it."""
    change = -(-value // part)
    smaller = max(value - change * times, min(value - change, value // 2), 1)
    return uneven(min(value + change, published) if larger else smaller, published, value)


def halved(value: int, cap: int, round_up: bool = False) -> int:
    """`value` divided by two until it is at most `cap`; `round_up` keeps a batch of several from becoming one."""
    while value > max(cap, 1):
        value = (value + round_up) // 2
    return value


def _edited(code: str, edits: list[tuple[Integer, str]]) -> str:
    """`code` with each integer's text replaced, from the last to the first so that offsets stay true."""
    lines = [line.encode() for line in code.split("\n")]
    for integer, text in sorted(edits, key=lambda edit: (edit[0].line, edit[0].start), reverse=True):
        first, last = integer.line - 1, integer.end_line - 1
        joined = lines[first][: integer.start] + text.encode() + lines[last][integer.end :]
        lines[first : last + 1] = [joined]
    return b"\n".join(lines).decode()
