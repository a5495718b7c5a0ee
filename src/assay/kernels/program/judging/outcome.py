"""What came of recording a submission, and of a trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from assay.kernels.program.form import Program
from assay.kernels.program.judging.findings import Finding
from assay.kernels.text.examined import Examined
from assay.types import Json

EMPTY = Examined()

End = Literal[
    "ok",
    "wrong",
    "undecided",
    "cheat",
    "host_read",
    "refused",
    "unsupported",
    "not_triton",
    "text",
    "crash",
    "timeout",
    "infra",
]
"""`text`: the text alone decides (`Outcome.examined`). `host_read`: host code reads a value. `refused`: the program is
larger than any that is taken, or forged. `undecided`: the inputs drawn have values too near to each other for a kernel
that compares them, or so large that exponentials make much of a last bit, which is wrong where other draws have them
too. `not_triton`: a kernel is written in what Triton does not take, or refused by its compiler."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A recorded submission that broke no rule so far."""

    program: Program
    text: str
    findings: tuple[Finding, ...]
    """What is told and does not decide."""
    host_share: float
    """Arithmetic that PyTorch does in forward as a share of what it does for the reference."""
    cpu_s: float
    examined: Examined = EMPTY
    """What the text shows."""


NARROW = "narrow"
"""Among the facts, until launches are compiled: what accesses allow a thread to move at once (`jobs.narrow`)."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a trial showed."""

    end: End
    message: str = ""
    line: int = 0
    findings: tuple[Finding, ...] = ()
    """Those that are told and do not decide, too; the one that decided is the first that is `refused`."""
    stage: Literal["parse", "record", "rules", "numerics"] = "numerics"
    passed: int = 0
    """Ordinary calls with the right outputs."""
    total: int = 0
    cpu_s: float = 0.0
    """Of all processes."""
    facts: Mapping[str, Json] = field(default_factory=dict)
    examined: Examined = EMPTY
    """What the text shows."""


def first_refused(findings: Sequence[Finding]) -> Finding | None:
    """The finding that decides."""
    return next((finding for finding in findings if finding.refused), None)
