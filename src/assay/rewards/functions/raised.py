"""An exception of a user's code in one line: what it is, and which line of which of their files it came from."""

from __future__ import annotations

import traceback
from pathlib import Path

_OWN = str(Path(__file__).parents[2])
_MOST = 400


def in_words(error: BaseException) -> str:
    """`ZeroDivisionError: division by zero (rewards.py, line 12, in correct)`.

    The line is the last one in the file that Assay called, where code outside Assay is what raised.
    """
    text = " ".join("".join(traceback.format_exception_only(error)).split())
    text = text if len(text) <= _MOST else f"{text[: _MOST - 3]}..."
    frames = traceback.extract_tb(error.__traceback__)
    called = next((frame.filename for frame in frames if not _is_ours(frame.filename)), None)
    where = next((frame for frame in reversed(frames) if called is None or frame.filename == called), None)
    return f"{text} ({Path(where.filename).name}, line {where.lineno}, in {where.name})" if where is not None else text


def _is_ours(file: str) -> bool:
    """Whether a file is Assay's, or the standard library's between Assay and the code that it calls."""
    return file.startswith(_OWN) or "/asyncio/" in file or "/concurrent/futures/" in file or file.startswith("<")
