"""`assay grade --list`, `--show` and `--starter`: the problems there are, one problem's text, a file to begin with."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from assay.errors import DataError
from assay.kernels.base import Language
from assay.kernels.problems.sources import Problem
from assay.kernels.problems.starter import requirements, starter, summary


def listing(problems: Sequence[Problem], as_json: bool = False) -> str:
    """Problems, one a line: level/id, name, description. As JSON: one array of objects with these."""
    if as_json:
        return json.dumps(
            [
                {"key": p.key, "level": p.level, "id": p.id, "name": p.name, "description": summary(p), "hash": p.hash}
                for p in problems
            ]
        )
    names = [problem.name.removeprefix(f"{problem.id}_") for problem in problems]
    wide = max(map(len, names), default=0)
    return "\n".join(f"{p.key:6} {name:{wide}}  {summary(p)}".rstrip() for p, name in zip(problems, names, strict=True))


def show(problem: Problem, name: str, backend: Language) -> str:
    """A problem's text; on a terminal with what a solution has to define, which a file of problems should not hold."""
    if not sys.stdout.isatty():
        return problem.code.rstrip("\n")
    words = f"assay grade --starter {shlex.quote(name)} --output kernel.py"
    return f"{problem.code.rstrip()}\n\n{requirements(problem, backend)}\nTo begin: {words}"


def write_starter(problem: Problem, name: str, backend: Language, output: Path | None) -> str:
    """What to print: the starter, or once it is written to `output` what to do with it.

    Raises:
        DataError: the file exists, or cannot be written.
    """
    text = starter(problem, backend, name)
    if output is None:
        return text.rstrip("\n")
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(text.replace("THIS_FILE", shlex.quote(str(output))))
    except FileExistsError as error:
        raise DataError(f"{output} exists and is not overwritten. Give another --output.") from error
    except OSError as error:
        raise DataError(f"cannot write {output}: {error.strerror}. Check the path.") from error
    language = " --backend cuda" if backend == "cuda" else ""
    words = f"assay grade --problem {shlex.quote(name)} --kernel {shlex.quote(str(output))}{language}"
    return f"wrote {output}. Grade it: {words}"
