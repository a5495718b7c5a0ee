"""What a submission would do at the size that its problem is published with, where it is graded at smaller ones.

    attempt = await record(sandbox, code, shapes, limits, precision, sizes=UNALLOCATED)
    outcome = at_published_size(first_program, attempt)

Only what its host code does is seen there: nothing is allocated and no kernel is run.
"""

from __future__ import annotations

import math
from collections import Counter

from assay.kernels.program.form import Launch, Program
from assay.kernels.program.rules import Finding
from assay.kernels.program.trial import Attempt, Outcome, first_refused

_Named = tuple[str, str]
"""Name and text of a kernel: its number may be another one at another size."""


def at_published_size(first: Program, attempt: Attempt) -> Outcome:
    """What the program recorded at the published size shows, beside the one that was graded: `ok` or a `cheat`.

    Args:
        first: The program of the size graded first, every kernel of which changed the output.
        attempt: What was recorded at the published size, and breaks no rule that a program alone can break.
    """
    findings = (*attempt.findings, *launched_alike(first, attempt.program))
    examined, cpu_s = attempt.examined, attempt.cpu_s
    if (decided := first_refused(findings)) is None:
        return Outcome("ok", findings=findings, stage="rules", cpu_s=cpu_s, examined=examined)
    return Outcome("cheat", decided.message, decided.line, findings, "rules", cpu_s=cpu_s, examined=examined)


def launched_alike(first: Program, published: Program) -> list[Finding]:
    """Every kernel that was graded must be launched at the published size. Other kernels there, and fewer programs of
    one than at the smaller size, are told: a reduction in two passes may need the one, a larger block has the other."""
    before, after = programs_of(first), programs_of(published)
    found = []
    for kernel, count in before.items():
        name = kernel[0]
        if kernel not in after:
            said = f"forward does not launch the kernel {name}, which was graded. Launch the same kernels at every size"
            found.append(Finding("kernels", said))
        elif after[kernel] < count:
            said = f"forward launches {after[kernel]} programs of {name}, fewer than the {count} at the smaller size"
            found.append(Finding("kernels", said, refused=False))
    for name, _ in after.keys() - before.keys():
        found.append(
            Finding("kernels", f"forward launches {name}, which is not graded at smaller sizes", refused=False)
        )
    return found


def programs_of(program: Program) -> Counter[_Named]:
    """Kernel -> programs of all its launches in forward, each in the configuration that has most."""
    counts: Counter[_Named] = Counter()
    for step in program.forward:
        if isinstance(step, Launch):
            kernel = program.kernels[step.kernel]
            counts[kernel.name, kernel.source] += max(math.prod(variant.grid) for variant in step.variants)
    return counts
