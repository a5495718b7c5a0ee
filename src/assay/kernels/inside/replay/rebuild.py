"""Kernels of a program as functions that the interpreter runs.

`rebuild` is the one place where a submission's text becomes something that runs beside real values: by way of
`assay.kernels.language`, so that what runs is text of ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import triton.language as tl

from assay.kernels import language
from assay.kernels.inside.triton import rebuilt
from assay.kernels.inside.triton.rebuilt import Rebuilt
from assay.kernels.program.form import Function, Name, Program, Value, table_of


class NotInLanguageError(Exception):
    """A kernel is not in the kernel language. The message says where, why, and what to write instead."""

    def __init__(self, refusals: language.Refusals) -> None:
        super().__init__(str(refusals))
        self.line = refusals.refusals[0].line
        self.in_triton = refusals.refusals[0].in_triton


def rebuild(program: Program) -> list[Rebuilt]:
    """The kernels of a program, each able to call those that it names.

    Raises:
        NotInLanguageError: one of them is not in the language.
    """
    kernels = language.parse(table_of(program))
    if isinstance(kernels, language.Refusals):
        raise NotInLanguageError(kernels)
    built = rebuilt.rebuild(kernels)
    return [built[str(number)] for number in range(len(program.kernels))]


def plain(value: Value, built: Sequence[Any]) -> Any:
    """A constant that a kernel is given."""
    if isinstance(value, tuple):
        return tuple(plain(part, built) for part in value)
    if isinstance(value, Function):
        return built[value.kernel]
    if isinstance(value, Name):
        return getattr(tl, value.text)
    return value
