"""What Triton itself reads in the kernels of a submission, where they are launched.

A program is replayed and compiled from the text of its kernels, as the kernel language reads it. Triton goes by the
objects that the submission's decorators made: their defaults, signatures, globals and helpers may be others than the
text says. So Triton's front end reads these objects too, for the very launches of the program. What it makes of them
has to be what it makes of the text (`compile_program`), and its caches must not take one launch for another.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from triton.compiler.errors import CompilationError, CompileTimeAssertionFailure
from triton.errors import TritonError
from triton.runtime.jit import JITFunction

from assay.kernels.compile.stage import LAUNCHES_TOLD
from assay.kernels.inside.record.reads import RAISED
from assay.kernels.inside.triton import front_end, stand_ins
from assay.kernels.program.form import Launch, Program, Variant
from assay.types import Json

MOST_CHARACTERS = 2000
_DEEPEST = 16
_REPR = re.compile(r"(\w+)\([\"'](.+)[\"']\)", re.DOTALL)
_MERGED = (
    "Triton's cache takes this launch for the one in line {0}, since their compile-time arguments are equal (1 and "
    "True, say) or their kernels have one hash: a GPU runs the kernel that was compiled for the other one. Give "
    "compile-time arguments of one type, and each kernel a name of its own"
)


class OwnTexts:
    """Digests of what Triton reads, launch by launch, and what it has against it."""

    def __init__(self, kernels: Sequence[JITFunction[Any]], capability: int) -> None:
        """`kernels`: the submission's own, by number. `capability`: of the GPU that they are compiled for."""
        self._kernels, self._capability = kernels, capability
        self._by_key: dict[tuple[int, Any], tuple[str, int]] = {}
        self._by_hash: dict[str, tuple[str, int]] = {}
        self._known: dict[str, str] = {}
        self._asserted: dict[str, CompilationError] = {}
        """What a tuner passes over, by what Triton specialises it for."""

    def of(self, program: Program) -> dict[str, Json]:
        """`texts`: the digest of each launch, as many as are compared; or `refused` or `merged`: `kernel`, `line`,
        `text`."""
        texts: list[Json] = []
        for step in program.steps:
            if not isinstance(step, Launch):
                continue
            found = []
            for variant in step.variants:
                try:
                    digest = self._read(step, variant)
                except (TritonError, *RAISED) as error:
                    return {"refused": self._told(step, error)}
                if digest != front_end.PASSED_OVER and (merged := self._merged(step, variant, digest)):
                    return {"merged": {"kernel": self._name(step), "line": step.line, "text": merged}}
                found.append(digest)
            if all(digest == front_end.PASSED_OVER for digest in found):
                return {"refused": self._told(step, self._asserted[self._place(step, step.variants[0])])}
            texts.append(front_end.joined(found))
        return {"texts": texts[:LAUNCHES_TOLD]}

    def _function(self, number: int | str) -> JITFunction[Any]:
        return self._kernels[int(number)]

    def _name(self, launch: Launch) -> str:
        return str(self._function(launch.kernel).__name__)

    def _launch(self, launch: Launch, variant: Variant) -> front_end.Launch:
        arguments = {name: stand_ins.argument(value, self._function) for name, value in variant.args}
        return front_end.Launch(self._function(launch.kernel), arguments, dict(variant.options), self._capability)

    def _read(self, launch: Launch, variant: Variant) -> str:
        """The digest of a variant, or that a tuner passes over it. What Triton specialises alike is read once."""
        place = self._place(launch, variant)
        if place not in self._known:
            try:
                self._known[place] = front_end.digest(self._launch(launch, variant).text())
            except CompileTimeAssertionFailure as error:
                self._known[place], self._asserted[place] = front_end.PASSED_OVER, error
        return self._known[place]

    def _place(self, launch: Launch, variant: Variant) -> str:
        """What Triton specialises a variant for."""
        return f"{launch.kernel} {self._launch(launch, variant).key!r}"

    def _merged(self, launch: Launch, variant: Variant, digest: str) -> str:
        """What Triton runs in place of a launch; empty where it runs that."""
        made = self._launch(launch, variant)
        own = digest, launch.line
        before = self._by_key.setdefault((launch.kernel, made.key), own)
        before = before if before[0] != digest else self._by_hash.setdefault(made.hash, own)
        return "" if before[0] == digest else _MERGED.format(before[1])

    def _told(self, launch: Launch, error: Exception) -> Json:
        """The innermost line of the submission's, and the innermost reason."""
        line, reason = launch.line, type(error).__name__
        found: BaseException | None = error
        for _ in range(_DEEPEST):
            if found is None:
                break
            if isinstance(found, CompilationError):
                line, reason = self._line(found) or line, _reason(found) or reason
            else:
                reason = f"{type(found).__name__}: {found}"
            found = found.__cause__
        return {"kernel": self._name(launch), "line": line, "text": reason[:MOST_CHARACTERS]}

    def _line(self, error: CompilationError) -> int:
        place = getattr(error.node, "lineno", 0)
        for function in self._kernels:
            if function.src == error.src:
                return int(function.starting_line_number + _lines_before_def(function) + place - 1)
        return 0


def _reason(error: CompilationError) -> str:
    """What the compiler says, without the text around it: often the repr of another error."""
    said = error.error_message or " ".join(str(error).split())
    found = _REPR.fullmatch(said)
    return f"{found[1]}: {found[2]}" if found else said


def _lines_before_def(function: JITFunction[Any]) -> int:
    """Lines of decorators, which are no part of what Triton reads."""
    return int("".join(function.raw_src).count("\n") - function.src.count("\n"))
