"""What a reward function returned, as a `Score`: a number, True or False, None (could not be scored), or a `Score`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from assay.errors import RewardError
from assay.terminal import shown
from assay.types import MAX_REWARD, Score, is_usable_reward

_SHOWN = 60


def errored(kind: str, message: str) -> Score:
    """A sample that could not be scored, with the reason."""
    return Score("errored", None, evidence={"failure": kind, "message": message, "attempts": 0})


def score_of(returned: Any, said: str) -> Score:
    """The score that a function meant; errored if it is not a number.

    Args:
        said: names the function and its file.
    """
    if isinstance(returned, Score):
        return returned
    if returned is None:
        return errored("unscored", f"{said} returned None: this completion could not be scored")
    number = _number(returned)
    if number is None:
        text = f"{said} returned {shown(returned, _SHOWN)} ({type(returned).__name__})"
        return errored("reward", f"{text}. A reward is a float, an int, True or False, None, or a Score")
    if not is_usable_reward(number):
        wanted = f"A reward must be finite and at most {MAX_REWARD:g} in size"
        return errored("reward", f"{said} returned {number:g}. {wanted}; return None where there is no reward")
    return Score("scored", number)


def scores_of(returned: Any, count: int, said: str) -> list[Score]:
    """The scores that a batch function meant for `count` samples.

    Raises:
        RewardError: it returned no list, or one of another length: which reward is whose cannot be known.
    """
    if hasattr(returned, "tolist"):  # an array or a tensor
        returned = returned.tolist()
    if not isinstance(returned, Sequence) or isinstance(returned, str | bytes):
        raise RewardError(
            f"{said} takes `completions`, so it must return a list with one reward per completion. It returned "
            f"{shown(returned, _SHOWN)} ({type(returned).__name__})."
        )
    if len(returned) != count:
        raise RewardError(
            f"{said} was given {count} completions and returned {len(returned)} rewards. Return one per completion, in "
            "order, with None where there is no reward."
        )
    return [score_of(value, said) for value in returned]


def _number(value: Any) -> float | None:
    """A Python number of a number, a truth value, or a scalar of NumPy's or PyTorch's; None for anything else."""
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        value = value.item()
    if not isinstance(value, bool | int | float):
        return None
    try:
        return float(value)
    except OverflowError:  # an int beyond all floats
        return math.inf if value > 0 else -math.inf
