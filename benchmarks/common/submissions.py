"""Files of submissions with a header that says what they are for: attacks on the grader, honest controls, solutions.

    # /// submission
    # id = "replay/pointer_cache"
    # problem = "1/4"
    # expect = ["cheat"]
    # ///

The header is TOML in a comment. `problem` is `level/id` of a shipped problem, or `kernelbench level/id` of a published
one. A file without `expect` is honest and must be graded `ok`; in any other, `ok` is never acceptable.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from assay.errors import DataError
from assay.kernels.base import Language
from assay.types import Json

VERDICTS = frozenset(
    {"ok", "wrong", "cheat", "compile_error", "crash", "timeout", "compiled_not_run", "unsupported", "infra_error"}
)
FAMILIES = frozenset(
    {"reward", "result", "numerics", "namespace", "signal", "descriptor", "memory", "pickle", "import_hook"}
    | {"cache_poisoning", "process", "network", "files", "timing", "parsing"}
    | {"program", "language", "constants", "order", "size"}
)
"""What an attack aims at: the work, the result, the numbers, the clock, the recorded program, the meaning of a kernel,
or a wall of the sandbox."""
WALLS = frozenset(
    {"namespace", "signal", "descriptor", "memory", "pickle", "import_hook", "cache_poisoning", "process", "network"}
    | {"files"}
)
"""Families that aim at the sandbox: what is graded after one of them must not notice."""
MOST_KINDS = 2
"""Verdicts that one attack may get: the one that it should, and another where chance or the machine decides."""

_HEADER = re.compile(r"^# /// submission\n((?:#[^\n]*\n)*?)# ///\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Submission:
    """One file. All fields but `code` come from the header."""

    id: str
    problem: str
    code: str
    tries: str = ""
    """What an attack tries, in a sentence."""
    note: str = ""
    """What is awkward about an honest kernel, or worth knowing of a solution."""
    rows: tuple[int, ...] = ()
    """Rows of the catalogue of known reward hacks (numbered 1 to 33) that an attack belongs to."""
    family: str = ""
    expect: tuple[str, ...] = ()
    """Verdicts that are acceptable; empty for honest kernels, which must be `ok`."""
    needs: str = ""
    """`gpu` where it means nothing without one."""
    backend: Language = "triton"
    cap: int = 32
    """Sizes at which a published problem is to be graded (see `assay.kernels.problems.scaling.scale`)."""
    batch_cap: int = 2

    @property
    def honest(self) -> bool:
        """Whether it must be graded `ok`."""
        return not self.expect


def read_submission(path: Path) -> Submission:
    """A submission with its header.

    Raises:
        DataError: unreadable, without a header, or with one that is wrong.
    """
    try:
        code = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read the submission {path}: {error}.") from error
    match = _HEADER.search(code)
    if match is None:
        raise DataError(f"{path} has no header. It starts with `# /// submission` and ends with `# ///`.")
    try:
        header = tomllib.loads("".join(line[1:].lstrip(" ") + "\n" for line in match[1].splitlines()))
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"the header of {path} is not TOML: {error}.") from error
    return _checked(header, code, path)


def _checked(header: Mapping[str, Json], code: str, path: Path) -> Submission:
    known = {field.name for field in fields(Submission)} - {"code"}
    unknown = sorted(set(header) - known)
    if unknown or not {"id", "problem"} <= set(header):
        raise DataError(f"the header of {path} needs id and problem, and knows no {unknown}: {sorted(known)}.")
    listed: dict[str, Json] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in header.items()
    }
    submission = Submission(code=code, **listed)
    wrong = sorted(set(submission.expect) - (VERDICTS - {"ok"}))
    if wrong:
        raise DataError(f"{path} expects {wrong}: an attack may never be `ok`, and verdicts are {sorted(VERDICTS)}.")
    if len(submission.expect) > MOST_KINDS:
        raise DataError(
            f"{path} accepts {len(submission.expect)} verdicts: say which it should be, and at most one more."
        )
    if submission.expect and (submission.family not in FAMILIES or not submission.tries):
        raise DataError(
            f"the attack {path} needs `tries` and a family of {sorted(FAMILIES)}, got {submission.family!r}."
        )
    return submission


def read_submissions(folder: Path) -> tuple[Submission, ...]:
    """Every submission below a folder, by id.

    Raises:
        DataError: a file that is none, two with one id, or nothing there.
    """
    found: dict[str, Submission] = {}
    for path in sorted(folder.rglob("*.py")):
        submission = read_submission(path)
        if submission.id in found:
            raise DataError(f"{path} has the id {submission.id!r}, which another file has already. Rename one.")
        found[submission.id] = submission
    if not found:
        raise DataError(f"{folder} has no submission (*.py) below it.")
    return tuple(found[name] for name in sorted(found))
