"""What a harness reports of the end of its job, read with the care that a child's word needs."""

from __future__ import annotations

import re
from collections.abc import Mapping

from assay.kernels.verdicts import plain_text
from assay.sandbox.base import JobResult
from assay.types import Json

_MOST_LINES = 1 << 24
_MOST_CHARACTERS = 2000
_NAME_CHARACTERS = 100
_LAST_CHARACTERS = 500
_FATAL = "Fatal Python error: "
"""With which `faulthandler` begins."""
_HOST_PLACE = re.compile(r'\s*(File "/|#\d+ 0x)')
"""A line of a traceback, Python's or a library's, in a file of the machine: a submission is in none."""


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
    if fault:
        said = ": ".join(filter(None, (plain_text(fault.get(name)) for name in ("stage", "type", "message"))))
    else:
        said = own_words(result)[-_LAST_CHARACTERS:].strip()
    return f"{result.message} ({said})" if said else result.message


def own_words(result: JobResult) -> str:
    """What a job wrote to standard error, without what is not its author's: the stack of a native fault, and places in
    files of this machine."""
    before, fatal, _ = result.stderr.partition(_FATAL)
    if result.signal and not fatal:  # what is left of a long stack has no beginning to know it by
        return ""
    return plain_text("\n".join(line for line in before.split("\n") if not _HOST_PLACE.match(line)))
