"""Which problems a run uses, and which of them it holds out. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from assay.errors import ConfigError, DataError
from assay.kernels.problems.sources import Problem


def chosen(
    problems: Sequence[Problem], levels: Sequence[int], first: int | None, last: int | None
) -> tuple[Problem, ...]:
    """The problems of a range of ids in each level.

    Raises:
        DataError: a level has none in the range.
    """
    found = tuple(p for p in problems if (first is None or p.id >= first) and (last is None or p.id <= last))
    for level in levels:
        ids = [p.id for p in problems if p.level == level]
        if not any(p.level == level for p in found):
            raise DataError(
                f"no problem of level {level} has an id from {first or 1} to {last or 'the last'}: its ids go from "
                f"{min(ids)} to {max(ids)}. Change start_problem or end_problem."
            )
    return found


def split_problems(problems: Sequence[Problem], fraction: float) -> tuple[list[Problem], list[Problem]]:
    """Training and held-out problems.

    Each level gives its share, and at least one problem is held out. Which ones follows from their texts alone, so that
    it is the same for every seed, range of prompts and order; problems with one text are on one side.

    Raises:
        ConfigError: nothing would be left to train on.
    """
    drawn = {p.hash: _draw(p) for p in problems}
    wanted = {level: round(fraction * len(texts)) for level, texts in _texts(problems).items()}
    if fraction and not any(wanted.values()):
        wanted[
            problems[0].level if len(wanted) == 1 else max(wanted, key=lambda level: len(_texts(problems)[level]))
        ] = 1
    held: set[str] = set()
    for level, texts in _texts(problems).items():
        held.update(sorted(texts, key=drawn.__getitem__)[: wanted[level]])
    train, heldout = ([p for p in problems if (p.hash in held) == side] for side in (False, True))
    if not train:
        raise ConfigError(
            f"test_fraction={fraction:g} of {len(problems)} problem{'s' if len(problems) != 1 else ''} would leave "
            "none to train on. Choose more problems, or set test_fraction=0 for no held-out ones."
        )
    return train, heldout


def _texts(problems: Sequence[Problem]) -> dict[int, list[str]]:
    """Level -> the hashes of its texts; one that several levels have counts for the first."""
    found: dict[int, list[str]] = {}
    seen: set[str] = set()
    for problem in problems:
        found.setdefault(problem.level, [])
        if problem.hash not in seen:
            seen.add(problem.hash)
            found[problem.level].append(problem.hash)
    return found


def _draw(problem: Problem) -> str:
    """A place in an order that has nothing to do with the problem."""
    return hashlib.sha256(f"held out {problem.hash}".encode()).hexdigest()
