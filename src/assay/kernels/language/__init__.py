"""The closed kernel language: what of Python and Triton a kernel may be written in.

    found = parse({"add": {"source": "...", "names": {"tl": {"module": "triton.language"}}}})
    Kernels                      -> text(found) for the compiler, interpreted(found) for the interpreter
    Refusals                     -> one line each for whoever wrote the kernel

A kernel's source is never executed. It is parsed with Python's `ast` into a form of our own (`form`) in which only what
is listed here has a place (`vocabulary`), and both what the interpreter runs and what the compiler compiles are fresh
text generated from that one form. `assay.kernels.inside.triton.rebuilt` makes callables of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.kernels.language.compiler_text import CompilerText, text
    from assay.kernels.language.form import Function, Kernels
    from assay.kernels.language.interpreter_text import InterpreterText, interpreted
    from assay.kernels.language.parsing import parse
    from assay.kernels.language.refusals import Refusal, Refusals
else:
    from assay.exports import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)

__all__ = [
    "CompilerText",
    "Function",
    "InterpreterText",
    "Kernels",
    "Refusal",
    "Refusals",
    "interpreted",
    "parse",
    "text",
]
