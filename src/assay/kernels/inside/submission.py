"""A submission as a module: executed once in the candidate's process, with its lines where Triton looks for them."""

from __future__ import annotations

import linecache
import os
import re
import sys
import traceback
from types import FrameType, ModuleType

from assay.kernels.source_text import encoding_fault, lines_of
from assay.types import Json

FILE = "submission.py"
LINE = "line_of_submission"
"""The attribute of an error that names the line at which it was made: what C code raises anew has lost it."""
MESSAGE_CHARACTERS = 2000
_NUMBER = re.compile(r"(?<![A-Za-z_0-9])[0-9]+(?:\.[0-9]+|[a-zA-Z_0-9]|(?<=[eE])[+-])*")
_DIGITS, _SMALL = 20, 1000
_lines: tuple[str, ...] = ()


def load(source: str) -> ModuleType:
    """Execute a submission's text and return its module.

    Raises:
        SyntaxError: a file with that text would be another module.
        Exception: whatever the text raises.
    """
    global _lines
    if said := encoding_fault(source):
        raise SyntaxError(said)
    _lines = tuple(lines_of(source))
    linecache.cache[FILE] = (len(source), None, list(_lines), FILE)
    module = ModuleType("submission")
    module.__file__ = FILE
    sys.modules["submission"] = module  # dataclasses and pickle look a class's module up there
    # Without the `__future__` imports of this module, which would turn a submission's annotations into text.
    exec(compile(source, FILE, "exec", dont_inherit=True), module.__dict__)
    return module


def lines(file: str) -> tuple[str, ...]:
    """The lines of the submission; none where a file is another one."""
    return _lines if file == FILE else ()


def line() -> int:
    """The line of the submission that is being run; 0 where it is not on the stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == FILE:
            return frame.f_lineno
        frame = frame.f_back
    return 0


def words(error: BaseException) -> str:
    """An error's own words; its class is a submission's, and may have none."""
    try:
        return str(error)
    except Exception as failure:  # noqa: BLE001 - whatever a candidate raises is data
        return f"its text cannot be made: {type(failure).__name__}"


def without_values(text: str) -> str:
    """Somebody else's words, with no number in them that may be a value: extents of blocks and small numbers stay."""
    return _NUMBER.sub(_as_told, text)


def _as_told(number: re.Match[str]) -> str:
    text = number[0]
    plain = text.isdecimal() and len(text) <= _DIGITS and (int(text) < _SMALL or int(text).bit_count() == 1)
    return text if plain else "(a number)"


def _text_of(line: int | None) -> str:
    """A line of the submission, where an error has no words: most often an assertion."""
    return _lines[line - 1].strip() if line is not None and 0 < line <= len(_lines) else ""


def cause_of(error: BaseException) -> BaseException:
    """An error, or what Triton's interpreter raised it for."""
    return error.__cause__ if type(error).__name__ == "InterpreterError" and error.__cause__ is not None else error


def raised_in(folder: str, error: BaseException) -> bool:
    """Whether an error was raised by a module that lies in a folder."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].filename.startswith(f"{folder}{os.sep}")


def fault(stage: str, error: BaseException, kind: str = "error") -> dict[str, Json]:
    """What went wrong, as plain data: stage, kind, the error's own words, and the line of the submission."""
    root = cause_of(error)
    frames = [*traceback.extract_tb(error.__traceback__), *traceback.extract_tb(root.__traceback__)]
    line = next((frame.lineno for frame in reversed(frames) if frame.filename.endswith(FILE)), None)
    return {
        "stage": stage,
        "kind": kind,
        "type": type(root).__name__,
        "message": words(root)[:MESSAGE_CHARACTERS] or _text_of(line),
        "line": vars(error).get(LINE) or None if line is None else line,
    }
