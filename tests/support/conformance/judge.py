"""Cells, one comparison on one batch each, and the verdict on each: equal, or explained by which conventions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from support.conformance import assay_side
from support.conformance.assay_side import Found
from support.conformance.cases import SEEDS, SPREADS, Case, make_case
from support.conformance.changes import Numbers, Ours
from support.conformance.comparisons import COMPARISONS, Comparison, Peer

TOLERANCE = 1e-6
"""Largest difference that counts as equal, relative to the largest number: Assay hands advantages over in float32."""


@dataclass(frozen=True, eq=False)
class Cell:
    """One comparison on one batch."""

    comparison: Comparison
    spread: float
    seed: int

    @property
    def case(self) -> Case:
        """Its batch."""
        return make_case(self.seed, self.spread, **self.comparison.batch)


def cells_of(peer: Peer, spreads: Sequence[float] = SPREADS, seeds: Sequence[int] = SEEDS) -> list[Cell]:
    """Every comparison with a peer on every batch; advantages do not depend on the spread."""
    return [
        Cell(comparison, spread, seed)
        for comparison in COMPARISONS[peer]
        for spread in (spreads[:1] if comparison.advantages else spreads)
        for seed in seeds
    ]


Question = tuple[Case, dict[str, Any], Tensor | None]
"""A batch, what to call, and the advantages of a loss: `verl_side.answer`'s arguments."""


@dataclass(frozen=True)
class Attempt:
    """A cell with some of its conventions put in: Assay's numbers, and what to ask the peer."""

    conventions: tuple[str, ...]
    ours: Numbers
    question: Question


def attempts(cell: Cell) -> list[Attempt]:
    """The cell as it is, then with each convention of its comparison, then with several."""
    comparison = cell.comparison
    names = list(comparison.changes)
    subsets = (s for count in range(len(names) + 1) for s in itertools.combinations(names, count))
    return [_attempt(cell, subset) for subset in subsets]


def _attempt(cell: Cell, conventions: tuple[str, ...]) -> Attempt:
    comparison, case = cell.comparison, cell.case
    ours: Ours = comparison.ours
    theirs = dict(comparison.theirs)
    changes = [comparison.changes[name] for name in conventions]
    for change in changes:
        ours = _over(ours, change.ours)
        theirs |= change.theirs
        case = change.case(case)
    mine = case
    for change in changes:
        mine = change.our_case(mine)
    found = _ours(comparison, ours, mine)
    for change in changes:
        found = change.found(found, mine)
    given = None if comparison.advantages else assay_side.advantages_of(case, comparison.ours)
    return Attempt(conventions, found, (case, theirs, given))


def _over(ours: Ours, change: Ours | None) -> Ours:
    if change is None:
        return ours
    if isinstance(ours, Mapping) and isinstance(change, Mapping):
        return {name: value for name, value in {**ours, **change}.items() if value is not None}
    return change


def _ours(comparison: Comparison, ours: Ours, case: Case) -> Numbers:
    if comparison.advantages:
        assert isinstance(ours, Mapping)
        return assay_side.advantages_of(case, ours)
    if isinstance(ours, Mapping):
        return assay_side.loss_of(case, ours)
    first, *others = [assay_side.loss_of(case, settings).times(factor) for factor, settings in ours]
    for other in others:
        first = first + other
    return first


def difference(ours: Numbers, theirs: Numbers, values: bool = True) -> float:
    """The largest difference of loss and gradients, or of advantages, relative to the largest number."""
    if isinstance(ours, Tensor):
        assert isinstance(theirs, Tensor)
        return float((ours - theirs).abs().max() / theirs.abs().max())
    assert isinstance(theirs, Found)
    size = float(theirs.logprobs.abs().max())
    pairs = [(ours.logprobs, theirs.logprobs), (ours.entropies, theirs.entropies)]
    gaps = [float((a - b).abs().max()) / size for a, b in pairs]
    if values:
        # A loss is a sum over tokens whose parts may cancel, so its scale is theirs.
        scale = max(abs(float(theirs.loss)), float(theirs.logprobs.abs().sum()))
        gaps.append(abs(float(ours.loss - theirs.loss)) / scale)
    return max(gaps)


@dataclass(frozen=True)
class Verdict:
    """What became of a cell."""

    cell: Cell
    difference: float
    """As the settings are, without any convention."""
    named: tuple[str, ...] | None
    """The fewest conventions with which the numbers are equal: none where they agree, None where none explain it."""


def judge(
    cells: Sequence[Cell], answer: Callable[[Sequence[tuple[Cell, Question]]], Sequence[Numbers]]
) -> list[Verdict]:
    """A verdict for each cell.

    Args:
        answer: what the peer makes of each question.
    """
    tried = [(cell, attempt) for cell in cells for attempt in attempts(cell)]
    answers = answer([(cell, attempt.question) for cell, attempt in tried])
    gaps: dict[Cell, dict[tuple[str, ...], float]] = {}
    for (cell, attempt), theirs in zip(tried, answers, strict=True):
        gap = difference(attempt.ours, theirs, cell.comparison.values)
        gaps.setdefault(cell, {})[attempt.conventions] = gap
    return [
        Verdict(cell, found[()], next((names for names, gap in found.items() if gap <= TOLERANCE), None))
        for cell, found in gaps.items()
    ]


def trl_answers(asked: Sequence[tuple[Cell, Question]]) -> list[Numbers]:
    """TRL's, computed here."""
    from support.conformance import trl_side

    return [
        trl_side.advantages_of(case, call, cell.comparison.rloo)
        if given is None
        else trl_side.loss_of(case, call, given, cell.comparison.rloo)
        for cell, (case, call, given) in asked
    ]


def numbers_of(answer: Mapping[str, Tensor]) -> Numbers:
    """An answer of `verl_side`."""
    return answer["advantages"] if "advantages" in answer else Found(**answer)
