"""Examines a text in a process of its own, behind the walls of the sandbox: a parser may take any time for it.

found = await examined(sandbox, code, "cuda")
if isinstance(found, JobResult): verdict = unread(found, LIMITS)
"""

from __future__ import annotations

import json

from assay.kernels.base import Language
from assay.kernels.text.examined import Examined
from assay.kernels.verdicts import Verdict, plain_text
from assay.sandbox.base import Job, JobResult, Limits, Round, Sandbox

HARNESS = "assay.kernels.inside.examine"
LIMITS = Limits(wall_s=5.0, cpu_s=5.0, memory_mb=1024, tmp_mb=1)
"""The longest source takes half a second at worst that is known."""
ROOM = 1 << 21
"""Bytes for what was found: a length (8 bytes, little endian) and JSON. A character takes 6 at most."""


async def examined(sandbox: Sandbox, code: str, backend: Language, limits: Limits = LIMITS) -> Examined | JobResult:
    """What the text of a submission shows, or how the job ended that was to find out.

    Raises:
        SandboxError: no job can be run here.
    """
    job = Job(code, HARNESS, (Round((), (ROOM,)),), {"backend": backend}, limits)
    result = await sandbox.run(job)
    if result.end != "ok" or not result.outputs:
        return result
    data = result.outputs[0][0]
    size = int.from_bytes(data[:8], "little")
    try:
        return Examined.from_json(json.loads(data[8 : 8 + size]))
    except (ValueError, RecursionError):
        return result


def unread(result: JobResult, limits: Limits = LIMITS) -> Verdict:
    """The verdict on a text that could not be examined, by how the job ended."""
    cpu_s = result.cpu_s
    match result.end:
        case "timeout":
            said = f"Python's parser took more than {limits.wall_s:g} s for the source: simplify it"
            return Verdict("timeout", "parse", said, cpu_s=cpu_s)
        case "memory" | "crash":
            said = f"Python's parser did not survive the source: {plain_text(result.message)}"
            return Verdict("crash", "parse", said, cpu_s=cpu_s)
        case _:
            said = f"the source could not be examined: {plain_text(result.message)}"
            return Verdict("infra_error", "parse", said, cpu_s=cpu_s)


def of_text(found: Examined) -> Verdict | None:
    """The verdict that the text alone decides, if it does."""
    if found.fault is not None:
        return Verdict("compile_error", "parse", found.fault)
    if not found.cheats:
        return None
    first, findings = found.cheats[0], [finding.to_json() for finding in found.findings]
    return Verdict("cheat", "parse", f"line {first.line}: {first.evidence}", first.kind, {"findings": findings})
