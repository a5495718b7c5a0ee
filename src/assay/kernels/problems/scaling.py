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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from assay.kernels.problems.integers import Integer, integers_of
from assay.kernels.problems.sources import SHIPPED, Problem
from assay.syntax import parsed
from assay.types import Json

Rule = Literal["none", "capped", "ranges", "proportional", "uniform", "other", "apart", "stretched"]

LADDER = (32, 64, 128, 256, 512, 1024)
"""Caps to try, from the smallest: the first with which the reference runs and the problem is worth solving is used."""
LOWER = (16, 8)
"""Caps for problems that are too large even at the smallest of `LADDER`."""
SMALL = 16
"""Integers up to this stay as they are under rule `proportional`: kernel sizes, strides, numbers of heads."""
BATCH_CAP = 2


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
    """How a problem was made smaller. With rule `none` nothing was; with `other` it was given sizes beside others, and
    with `apart` those at which differ what are equal ones there; with `stretched` one size alone is larger."""

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
        if self.rule in ("other", "apart", "stretched"):
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
    return ScaledProblem(problem, edited(problem.code, edits), Scaling(rule, cap, batch_cap, tuple(changes)))


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


def halved(value: int, cap: int, round_up: bool = False) -> int:
    """`value` divided by two until it is at most `cap`; `round_up` keeps a batch of several from becoming one."""
    while value > max(cap, 1):
        value = (value + round_up) // 2
    return value


def edited(code: str, edits: Sequence[tuple[Integer, str]]) -> str:
    """`code` with each integer's text replaced, from the last to the first so that offsets stay true."""
    lines = [line.encode() for line in code.split("\n")]
    for integer, text in sorted(edits, key=lambda edit: (edit[0].line, edit[0].start), reverse=True):
        first, last = integer.line - 1, integer.end_line - 1
        joined = lines[first][: integer.start] + text.encode() + lines[last][integer.end :]
        lines[first : last + 1] = [joined]
    return b"\n".join(lines).decode()
