"""What the probe says of a server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from assay.errors import ServiceError
from assay.types import Check, Json

Verdict = Literal["ok", "lacks", "wrong"]
"""`lacks`: what is missing makes no training wrong. `wrong`: a run that uses the feature would train wrongly."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One property of a server."""

    point: str
    """Letter of the group that it belongs to."""
    name: str
    verdict: Verdict
    found: str
    figure: float | None = None
    """What was measured, in the unit that `found` says."""
    cure: str = ""
    feature: str = ""
    """Who needs it: empty for every run, `custom`, the name of a loss, or a setting."""

    def check(self) -> Check:
        """As a row of `assay doctor`."""
        return Check(f"{self.point} {self.name}", self.verdict == "ok", f"{self.verdict}: {self.found}", self.cure)

    def record(self) -> dict[str, Json]:
        """As plain data."""
        return asdict(self)


def judged(
    point: str, name: str, ok: bool, found: str, cure: str, *, figure: float | None = None, feature: str = ""
) -> Finding:
    """A property that is right or wrong."""
    return Finding(point, name, "ok" if ok else "wrong", found, figure, "" if ok else cure, feature)


def wanting(point: str, name: str, ok: bool, found: str, cure: str, *, figure: float | None = None) -> Finding:
    """A property that a server may lack."""
    return Finding(point, name, "ok" if ok else "lacks", found, figure, "" if ok else cure)


Look = Callable[[], Awaitable[list[Finding]]]


async def tried(point: str, name: str, look: Look, *, feature: str = "") -> list[Finding]:
    """What a look finds; a request that fails is a finding too."""
    try:
        return await look()
    except ServiceError as error:
        cure = "ask whoever keeps the server; a run that needs this would stop, or train wrongly"
        return [Finding(point, name, "wrong", str(error), None, cure, feature)]


def wrong_for_all(findings: Sequence[Finding]) -> list[Finding]:
    """What no run may start with."""
    return [finding for finding in findings if finding.verdict == "wrong" and not finding.feature]
