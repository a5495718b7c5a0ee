"""What a harness reports of the end of its job, read with the care that a child's word needs."""

from __future__ import annotations

from assay.sandbox.base import JobResult
from assay.types import Json


def fault_of(result: JobResult) -> dict[str, Json]:
    """The fault that a job reported (`kind`, `stage`, `type`, `message`); empty where it reported none."""
    fault = result.report.get("fault") if isinstance(result.report, dict) else None
    return fault if isinstance(fault, dict) else {}


def explain(result: JobResult) -> str:
    """How a job ended, with what is known of the reason."""
    fault = fault_of(result)
    said = (
        f"{fault.get('stage')}: {fault.get('type')}: {fault.get('message')}" if fault else result.stderr[-500:].strip()
    )
    return f"{result.message} ({said})" if said else result.message
