"""The kernels of a program in the kernel language: the one way from a submission's text to what runs on real values."""

from __future__ import annotations

from assay.kernels import language
from assay.kernels.program.form import Program, table_of


class NotInLanguageError(Exception):
    """A kernel is not in the kernel language. The message says where, why, and what to write instead."""

    def __init__(self, refusals: language.Refusals) -> None:
        super().__init__(str(refusals))
        self.line = refusals.refusals[0].line
        self.in_triton = refusals.refusals[0].in_triton


def kernels_of(program: Program) -> language.Kernels:
    """The kernels, keys being their numbers as text.

    Raises:
        NotInLanguageError: one of them is not in the language.
    """
    found = language.parse(table_of(program))
    if isinstance(found, language.Refusals):
        raise NotInLanguageError(found)
    return found
