"""What a harness reports of the end of its job, read with the care that a child's word needs."""

from __future__ import annotations

from collections.abc import Mapping

from assay.kernels.verdicts import plain_text
from assay.sandbox.base import JobResult
from assay.types import Json

_MOST_LINES = 1 << 24
_MOST_CHARACTERS = 2000
_NAME_CHARACTERS = 100


def fault_of(result: JobResult) -> dict[str, Json]:
    """The fault that a job reported (`kind`, `stage`, `type`, `message`); empty where it reported none."""
    fault = result.report.get("fault") if isinstance(result.report, dict) else None
    return fault if isinstance(fault, dict) else {}


def line_of(fault: Mapping[str, Json]) -> int:
    """The line of the submission that a fault names; 0 where it names none."""
    line = fault.get("line")
    return line if type(line) is int and 0 < line < _MOST_LINES else 0


def told(fault: Mapping[str, Json], crashed: bool) -> str:
    """A fault in words for the author of the kernel; an error of their own with its type and what it happened in."""
    message = plain_text(fault.get("message"))[:_MOST_CHARACTERS]
    if not crashed:
        return message
    doing = plain_text(fault.get("stage"))[:_NAME_CHARACTERS] or "running"
    return f"{plain_text(fault.get('type'))[:_NAME_CHARACTERS] or 'an error'} while {doing}: {message}"


def explain(result: JobResult) -> str:
    """How a job ended, with what is known of the reason."""
    fault = fault_of(result)
    said = (
        f"{fault.get('stage')}: {fault.get('type')}: {fault.get('message')}" if fault else result.stderr[-500:].strip()
    )
    return f"{result.message} ({said})" if said else result.message
