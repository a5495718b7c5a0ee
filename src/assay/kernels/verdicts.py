"""What the grader says of a candidate: one of nine kinds, the stage that decided, and the evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal, get_args

from assay.types import Json

VerdictKind = Literal[
    "ok", "wrong", "cheat", "compile_error", "crash", "timeout", "compiled_not_run", "unsupported", "infra_error"
]
"""ok: right, and by its own kernel. wrong: an output is not the reference's. cheat: right or not, its kernel did not do
the work (see `cheat`). compile_error: not valid Python, without ModelNew, or refused by a compiler. crash: raised,
died, or ran out of its memory. timeout: killed at its limit. compiled_not_run: legal CUDA, on a machine without a GPU.
unsupported: this machine, or the grader, cannot judge it. infra_error: the grader itself failed, which says nothing
about the candidate.
"""

Stage = Literal["problem", "parse", "record", "rules", "compile", "numerics", "timing"]

MOST_CHARACTERS = 4096
"""Longer texts of a candidate are cut."""

MOST_NESTED = 16
"""Levels of a verdict's evidence."""

MOST_COUNTED = 1e9
"""No verdict counts more calls, or CPU seconds."""

KINDS: tuple[VerdictKind, ...] = get_args(VerdictKind)
STAGES: tuple[Stage, ...] = get_args(Stage)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one candidate. Plain data: `to_json` and `from_json` are inverse.

    Every text in it is made plain here (`plain_text`), since most come from candidates, problems and compilers.
    """

    kind: VerdictKind
    stage: Stage
    """Which stage decided; the last one for `ok`."""
    message: str = ""
    """For the author of the kernel: what is wrong, where, and what was expected."""
    cheat: str = ""
    """Which cheat, for kind `cheat`."""
    evidence: Mapping[str, Json] = field(default_factory=dict)
    """What the verdict rests on: findings, comparisons, traces, sizes, screening."""
    tests_passed: int = 0
    """Calls of forward with the right outputs, until the first wrong one."""
    tests_total: int = 0
    compiled: bool | None = None
    """Whether a compiler for a GPU accepted it; None if none was asked."""
    timing: Mapping[str, Json] | None = None
    """Speedup and its interval, where it was timed."""
    problem: str = ""
    """SHA-256 of the problem's module as it was run."""
    cached: bool = False
    cpu_s: float = 0.0
    """CPU seconds of the candidate's processes."""

    def __post_init__(self) -> None:
        for name in ("message", "cheat", "problem", "evidence", "timing"):
            object.__setattr__(self, name, plain(getattr(self, name)))

    @property
    def ok(self) -> bool:
        """Whether the candidate is right, by its own kernel."""
        return self.kind == "ok"

    @property
    def errored(self) -> bool:
        """Whether the grader failed, so that there is nothing to reward and nothing to punish."""
        return self.kind == "infra_error"

    def to_json(self) -> dict[str, Json]:
        """Plain data."""
        return {item.name: _plain(getattr(self, item.name)) for item in fields(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> Verdict:
        """Inverse of `to_json`.

        Raises:
            ValueError, TypeError: `data` is something else.
        """
        if data.get("kind") not in KINDS:
            raise ValueError(f"no verdict: kind {data.get('kind')!r}")
        if data.get("stage") not in STAGES:
            raise ValueError(f"no verdict: stage {data.get('stage')!r}")
        verdict = cls(**data)
        for name, types in _TYPES.items():
            value = getattr(verdict, name)
            if type(value) not in types:
                raise TypeError(f"no verdict: {name} is a {type(value).__name__}")
            if type(value) in (int, float) and not 0 <= value <= MOST_COUNTED:
                raise ValueError(f"no verdict: {name} is out of range")
        return verdict


_TYPES: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("kind", "stage", "message", "cheat", "problem"), (str,)),
    **dict.fromkeys(("tests_passed", "tests_total"), (int,)),
    "evidence": (dict,),
    "compiled": (bool, type(None)),
    "timing": (dict, type(None)),
    "cached": (bool,),
    "cpu_s": (int, float),
}
"""What each field of a verdict is, as JSON gives it back."""


def plain_text(value: Json) -> str:
    """Text from a child, fit to be printed and stored: no terminal's commands, nothing that UTF-8 lacks."""
    if not isinstance(value, str):
        return ""
    cut = value[:MOST_CHARACTERS]
    if cut.isprintable():
        return cut
    return "".join(c if c in "\n\t" or c.isprintable() else "\ufffd" for c in cut)


def plain(value: Json, depth: int = 0) -> Json:
    """Data with every text in it made plain, names included; what is nested too deep is left out."""
    if isinstance(value, str):
        return plain_text(value)
    if isinstance(value, Mapping):
        return {plain_text(name): plain(part, depth + 1) for name, part in value.items() if depth < MOST_NESTED}
    if isinstance(value, list | tuple):
        return [plain(part, depth + 1) for part in value if depth < MOST_NESTED]
    return value


def _plain(value: Json) -> Json:
    return dict(value) if isinstance(value, Mapping) else value
