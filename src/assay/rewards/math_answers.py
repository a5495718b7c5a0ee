"""The reward `math`: is the final answer of a completion mathematically equal to the reference answer?

math-verify reads both (LaTeX, boxed answers, plain numbers, sets, intervals, matrices, equations) and compares them
with SymPy. Either may never end, so the function runs in worker processes that are killed at a deadline: an answer such
as 9^{9^{9}} earns 0, as any other that cannot be read does.
"""

from __future__ import annotations

import logging
import re
from importlib.metadata import version

from math_verify import parse, verify

from assay.rewards.functions.options import reward
from assay.rewards.functions.returned import errored
from assay.types import Json, Score

# Its own timeouts are alarms of the main thread; the warning that they are off says nothing here.
logging.getLogger("math_verify").setLevel(logging.ERROR)

TIMEOUT_S = 10.0
"""Longest time for one completion; `options.timeout_s` sets another."""
_DELIMITED = re.compile(r"\$|\\\(|\\\[|\\boxed|\\begin")
_SHOWN = 200


@reward(name="math", timeout_s=TIMEOUT_S, on_timeout=0.0, version=version("math-verify"))
def math(completion: str, ground_truth: Json) -> Score:
    """1 where the answers are equal, else 0; `invalid` with 0 where the completion has no answer that can be read.

    Args:
        ground_truth: a number or text: LaTeX with or without delimiters, or a solution that ends in `#### answer`, as
            in GSM8K. One that cannot be read makes the sample errored: the model is not at fault.
    """
    expected = parse(_delimited(str(ground_truth)), parsing_timeout=None)
    if not _is_read(expected):
        shown = repr(str(ground_truth)[:_SHOWN])
        return errored("reward", f"the ground truth {shown} is not an answer that math-verify can read")
    found = parse(completion, parsing_timeout=None)
    if not _is_read(found):
        return Score("invalid", 0.0, evidence={"answer": None, "expected": _shown(expected)})
    equal = verify(expected, found, timeout_seconds=None)
    return Score("scored", float(equal), evidence={"answer": _shown(found), "expected": _shown(expected)})


def _delimited(truth: str) -> str:
    """A reference answer as math-verify looks for one: between dollars, unless it is marked already."""
    truth = truth.rpartition("####")[2].strip()
    return truth if _DELIMITED.search(truth) or not truth else f"${truth}$"


def _is_read(parsed: list[object]) -> bool:
    """Whether there is an expression: what could not be parsed is given back as text."""
    return any(not isinstance(value, str) for value in parsed)


def _shown(parsed: list[object]) -> str:
    """What was read, as it was written: printing an expression can take as long as comparing it."""
    texts = [value for value in parsed if isinstance(value, str)]
    return texts[-1][:_SHOWN] if texts else type(parsed[0]).__name__
