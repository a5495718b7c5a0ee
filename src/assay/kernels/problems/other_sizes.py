"""Sizes beside those that a problem is graded at, to tell a kernel that is right at one size only.

Where the problem was made smaller: all integers twice as large, and those that differ as published apart, in their
order (`apart`): halved until they are at most a cap, they are equal, and then a kernel may take one for the other.
Where that is too much work, all others than they are, since a kernel may lean on any of them: one and those of a batch
a little larger, the others a little smaller, so that few blocks more are needed. Then each alone, those of a batch
last. Where it was not, and last in any case: all smaller, those that are no powers of two to a random odd size, then
all half as large. A larger size is a multiple of no block of which the published one is none (`uneven`); where such
sizes do not fit together, plainly doubled ones follow. Numbers without a name that several tensors of `get_inputs` have
alike (`integers.alike`) change alike.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from assay.kernels.problems.integers import Group, Integer, alike, integers_of
from assay.kernels.problems.scaling import SMALL, Change, Rule, ScaledProblem, Scaling, edited, halved, unscaled
from assay.kernels.problems.sources import Problem
from assay.syntax import parsed

BATCH_SMALL = 4
"""Integers of a batch are halved down to this; others down to `SMALL`."""
RATIOS = (4, 2)
"""How many times one size is another, at most, where the published one is: a sequence and its window or its chunks."""
MOST_GROWTH = 8
"""Times by which the product of all sizes grows at most, where some can shrink for that."""
MOST_GROWN = 128
"""The same of sizes of which none shrinks."""
PARTS = (8, 4, 2)
"""By which parts of them integers change a little; by a larger part where sizes do not fit together."""
_NEARLY = 0.9
"""Of a ratio: sizes that are no powers of two are halved and rounded."""
MOST_ALONE = 16
"""Integers that are changed alone for another size."""


def other_sizes(scaled: ScaledProblem, rng: random.Random | None = None) -> Iterator[ScaledProblem]:
    """The sizes to try, one after the other: they may not fit together, or be too large. `rng` draws what is random."""
    known = _Integers.of(scaled)
    seen = {scaled.code}
    larger = known.resized(known.larger)
    for changed in known.apart():
        found = known.resized(changed, "apart")
        if found.code not in seen and found.code != larger.code:
            seen.add(found.code)
            yield found
    for changed in (
        known.larger,
        known.doubled,
        *known.a_little(rng),
        *islice(known.one_by_one(), MOST_ALONE),
        known.odd(rng),
        known.smaller,
    ):
        found = known.resized(changed)
        if found.code not in seen:
            seen.add(found.code)
            yield found


def grown(scaled: ScaledProblem) -> ScaledProblem | None:
    """All integers larger than graded first, and apart, however much work it is: blocks that fit a published size fit
    no size that is smaller than they are. None for a problem that was not made smaller."""
    known = _Integers.of(scaled)
    if not known.larger:
        return None
    ways = [_apart(known.published, ratio, ()) for ratio in RATIOS]
    chosen = next((way for way in ways if _growth(way, known.published) <= MOST_GROWN), ways[-1])
    return known.resized({**known.larger, **known.by_value(chosen)}, "apart")


def stretchable(scaled: ScaledProblem) -> list[tuple[int, int]]:
    """Published sizes that were made smaller, and how many times they can be doubled at most; those of a batch last."""
    known = _Integers.of(scaled)
    of_batch = known.of_batch
    powers: dict[int, int] = {}
    for each, now in known.now.items():
        most = next(power for power in itertools.count() if _times(each.value, now, 2**power) == each.value)
        powers[each.value] = max(most, powers.get(each.value, 0))
    return sorted(((v, most) for v, most in powers.items() if most), key=lambda pair: (pair[0] in of_batch, -pair[0]))


def sizes_of_batch(scaled: ScaledProblem) -> frozenset[int]:
    """Published sizes of a batch that were made smaller."""
    return _Integers.of(scaled).of_batch


def largest_of(value: int, first: ScaledProblem, scaled: ScaledProblem) -> int:
    """What a published size is at another size of its problem, at most; of a batch only where no other size is alike.

    Args:
        value: A published size that was made smaller.
        first: The size graded first.
        scaled: The other size.
    """
    own = [each for each in _Integers.of(first).now if each.value == value]
    own = [each for each in own if not each.of_batch] or own
    new = {change.start_of: change.new for change in scaled.scaling.changes}
    return max(new.get(each.start_of, value) for each in own)


def stretched(scaled: ScaledProblem, powers: Mapping[int, int]) -> ScaledProblem:
    """Sizes graded first, but for the integers of some published sizes: doubled so many times."""
    known = _Integers.of(scaled)
    chosen = {each: now for each, now in known.now.items() if each.value in powers}
    sizes = {each: _times(each.value, now, 2 ** powers[each.value]) for each, now in chosen.items()}
    return known.resized(sizes, "stretched")


def any_smaller(other: ScaledProblem, first: ScaledProblem) -> bool:
    """Whether any integer is smaller than at the size graded first."""
    now = {change.start_of: change.new for change in first.scaling.changes}
    return any(change.new < now.get(change.start_of, change.old) for change in other.scaling.changes)


@dataclass(frozen=True)
class _Integers:
    """The integers of a problem that may change, those that were changed for the size graded first, and to what they
    were."""

    problem: Problem
    integers: tuple[Integer, ...]
    now: Mapping[Integer, int]
    groups: Mapping[Integer, Group]

    @classmethod
    def of(cls, scaled: ScaledProblem) -> _Integers:
        """Of a problem at the sizes graded first."""
        new = {change.start_of: change.new for change in scaled.scaling.changes}
        keeps_ranges = scaled.scaling.rule == "ranges"
        found = [each for each in integers_of(parsed(scaled.problem.code)) if each.value > 1]
        found = [each for each in found if not (keeps_ranges and each.bounds)]
        now = {each: new[each.start_of] for each in found if each.start_of in new}
        return cls(scaled.problem, tuple(found), now, alike(found))

    def resized(self, changed: Mapping[Integer, int], rule: Rule = "other") -> ScaledProblem:
        """The problem with other integers, and those graded first where none is given."""
        sizes = {each: changed.get(each, self.now.get(each, each.value)) for each in self.integers}
        new = {each: value for each, value in sizes.items() if value != each.value}
        if not new:
            return unscaled(self.problem)
        changes = tuple(Change(each.place, each.name, each.line, each.value, v, each.start) for each, v in new.items())
        edits = [(each, str(value)) for each, value in new.items()]
        return ScaledProblem(self.problem, edited(self.problem.code, edits), Scaling(rule, changes=changes))

    @property
    def of_batch(self) -> frozenset[int]:
        """Published sizes of a batch."""
        return frozenset(each.value for each in self.now if each.of_batch)

    @property
    def doubled(self) -> dict[Integer, int]:
        """Each that was changed twice as large."""
        return {each: halved(each.value, 2 * now + 1, each.of_batch) for each, now in self.now.items()}

    @property
    def larger(self) -> dict[Integer, int]:
        """The same, fitting no blocks that do not fit as published."""
        return {each: uneven(value, each.value, self.now[each]) for each, value in self.doubled.items()}

    @property
    def published(self) -> dict[int, int]:
        """Published sizes that were changed, those of a batch aside, and those graded first."""
        return {each.value: now for each, now in self.now.items() if not each.of_batch}

    def by_value(self, sizes: Mapping[int, int]) -> dict[Integer, int]:
        """The integers of some published sizes, with other ones."""
        return {each: sizes[each.value] for each in self.now if not each.of_batch}

    def apart(self) -> Iterator[dict[Integer, int]]:
        """All larger, or as few smaller as possible, so that those that differ as published differ."""
        larger = self.larger
        kept = {each.value for each in self.integers if each not in self.now}
        growth = MOST_GROWTH / math.prod(size / self.now[each] for each, size in larger.items() if each.of_batch)
        for ratio, stay in (*((ratio, kept) for ratio in RATIOS), (RATIOS[-1], set[int]())):
            yield {**larger, **self.by_value(apart(self.published, ratio, stay, growth))}

    def a_little(self, rng: random.Random | None) -> Iterator[dict[Integer, int]]:
        """One group and those of a batch a little larger, the others a little smaller: smaller ones more of it."""
        own = list(dict.fromkeys(self.groups[each] for each in self.now))
        own = [group for group in own if not any(each.of_batch for each in self.now if self.groups[each] == group)]
        grows = rng.choice(own) if rng is not None and own else next(iter(own), None)
        ranks = {value: rank for rank, value in enumerate(sorted(self.published, reverse=True))}
        for part in PARTS:
            yield {
                each: nearby(
                    *(now, each.value, part),
                    larger=each.of_batch or self.groups[each] == grows,
                    times=1 + ranks.get(each.value, 0),
                )
                for each, now in self.now.items()
            }

    def one_by_one(self) -> list[dict[Integer, int]]:
        """Each group alone twice as large, those of a batch last."""
        together: dict[Group, dict[Integer, int]] = {}
        for each, value in self.larger.items():
            together.setdefault(self.groups[each], {})[each] = value
        return sorted(together.values(), key=lambda group: any(each.of_batch for each in group))

    @property
    def _shrinkable(self) -> dict[Integer, int]:
        now = {each: self.now.get(each, each.value) for each in self.integers}
        return {each: size for each, size in now.items() if size > (BATCH_SMALL if each.of_batch else SMALL)}

    @property
    def smaller(self) -> dict[Integer, int]:
        """All half as large, but for small ones."""
        return {each: size // 2 for each, size in self._shrinkable.items()}

    def odd(self, rng: random.Random | None) -> dict[Integer, int]:
        """All smaller, but for small ones, and odd where they are no powers of two."""
        drawn = {
            group: rng.randrange(size // 2, size - 1) | 1 if rng is not None and size & (size - 1) else size // 2
            for group, size in {self.groups[each]: size for each, size in self._shrinkable.items()}.items()
        }
        return {each: drawn[self.groups[each]] for each in self._shrinkable}


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
    return next((way for way in ways if _growth(way, now) <= growth), ways[0])


def _growth(sizes: Mapping[int, int], now: Mapping[int, int]) -> float:
    return math.prod(size / now[value] for value, size in sizes.items())


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
        factors = [0.5] * (value in shrinking) + [2**power for power in range(1, 8)]
        sizes = [_times(value, now[value], factor) for factor in factors]
        before, size = value, next((each for each in sizes if each >= least), sizes[-1])
        found[value] = size
    return found


def _times(published: int, now: int, factor: float) -> int:
    """A published size, halved until it is no more than so many times the one graded first."""
    return uneven(halved(published, int(now * factor + max(factor - 1, 0))), published, now)


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
