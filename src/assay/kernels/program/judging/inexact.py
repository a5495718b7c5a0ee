"""Error bounds held against what an output may be off on a GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence

from assay.kernels.program.form import Program
from assay.kernels.program.jobs import MOST_SHARE, Measured, Replay
from assay.kernels.program.judging.answers import Answers

MOST_INEXACT = {"float64": 128.0, "float32": 128.0, "float16": 16.0, "bfloat16": 16.0}
"""How many times the tolerance an output may be off on a GPU, as far as error bounds tell, by the working precision.
They add up what hardly ever comes together: of a norm or a steep function after a long sum they may be 60 tolerances,
of most honest kernels they are one. Narrow precisions have tolerances of a few last bits, so that fewer say as much."""
TIMES_OF_FAMILIES = {"large": 128.0, "sparse": 16.0}
"""How many times as far it may be off on inputs so large that exponentials make much of a last bit: of the scores of
attention between tokens that are projected first, say, which are thousands there. Inputs as given allow no more."""
TIMES_UNDER_OTHER_WEIGHTS = 4.0
"""The same once weights, which grow, have other values; the two are multiplied."""
TIMES_OF_NARROW = {"large": 16.0}
"""The same of narrow precisions, whatever the weights."""


def inexact(answers: Answers, seen: Sequence[Measured], program: Program) -> tuple[str, bool]:
    """Which output may be another one on a GPU, as far as its error bounds tell; empty for none. And whether that may
    be chance: on inputs alone that no problem draws, and in few elements. One score in thousands lies where an
    exponential is about to leave its type."""
    by_chance = ""
    for place, (call, account) in enumerate(zip(answers.calls, seen, strict=True)):
        if not account.inexact or not answers.counts(place, seen):
            continue
        limits = allowed(call, answers)
        if {len(account.inexact), len(account.mostly_inexact)} != {len(answers.draw.outputs) + len(answers.draw.after)}:
            return "the replay did not say how far each output may be off", False
        for output, (found, most) in enumerate(zip(account.inexact, limits, strict=False)):
            if found > most:
                said = f"{call.circumstances(program)}, {_said(output, found, most, account.undecided)}"
                if call.case.family not in TIMES_OF_FAMILIES or account.mostly_inexact[output] > most:
                    return said, False
                by_chance = by_chance or said
    return by_chance, bool(by_chance)


def allowed(call: Replay, answers: Answers) -> list[float]:
    """How far each output may be off on a GPU, as a part of its size."""
    family, most = call.case.family, MOST_INEXACT[answers.precision]
    if answers.precision in ("float16", "bfloat16"):
        most *= TIMES_OF_NARROW.get(family, 1.0)
    else:
        most *= TIMES_OF_FAMILIES.get(family, 1.0) * (TIMES_UNDER_OTHER_WEIGHTS if call.weights else 1.0)
    sides = zip(call.case.exact, call.case.tolerances(answers.precision), strict=True)
    found = [most * tolerance.share_of(exact) for exact, tolerance in sides]
    left = {each.place: each for each in call.case.after}
    for place, *_ in answers.draw.after:
        each = left.get(place)
        share = math.inf if each is None else each.tolerance(answers.precision).share_of(each.exact.array())
        found.append(most * share)
    return found


_TIMES = (2, 10, 100)
"""A short scale: a kernel may make its error of secret inputs."""


def _said(output: int, found: float, most: float, lines: Sequence[int]) -> str:
    times = next((step for step in _TIMES if found <= step * most), 0)
    far = f"up to {times} times" if times else f"more than {_TIMES[-1]} times"
    off = "anything" if found >= MOST_SHARE else f"off by {far} as much as is allowed ({most:.2g} of its size)"
    compared = f". Numbers that GPUs have in either order are compared in line {', '.join(map(str, lines))}"
    return (
        f"output {output} is right in the interpreter and may be {off}, on a GPU: it makes "
        "much of the last bits of inexact results (divisions, functions, sums), and each GPU has others"
        f"{compared if lines else ''}"
    )
