"""Losses by name with the thresholds of their recipes, and losses of a user's own in files."""

from __future__ import annotations

from pathlib import Path

from assay.backends.base import LossSpec
from assay.grpo.recipes import RECIPES

PPO = """
import torch
from assay import Recipe

def my_ppo(logprobs, behaviour, advantages, sequences, *, clip_low_threshold=0.8, clip_high_threshold=1.2):
    ratio = torch.exp(logprobs - behaviour)
    clipped = ratio.clamp(clip_low_threshold, clip_high_threshold)
    return -torch.minimum(ratio * advantages, clipped * advantages)

RECIPE = Recipe(my_ppo)
"""
"""A file with a loss that is ppo, written by a user."""

SQUARE = '''
import torch
from assay import Recipe

def square(logprobs, behaviour, advantages, sequences, *, pull, **more):
    """Not a clip but a spring between the policies."""
    gap = logprobs - behaviour
    return -torch.exp(gap) * advantages + pull * more.get("scale", 1.0) * gap.square()

RECIPE = Recipe(square, {"pull": 0.5, "scale": 2.0}, baseline="leave_one_out", aggregation="sequence")
'''
"""A file with a loss that is none of Assay's."""


def named_loss(name: str, temperature: float = 1.0, **thresholds: float) -> LossSpec:
    """A surrogate by its name, with the thresholds of the row of that name."""
    row = RECIPES.get(name)
    return LossSpec(name, temperature, {**(row.thresholds if row else {}), **thresholds})


def own_loss(folder: Path, text: str = PPO, name: str = "own_loss.py") -> str:
    """Writes a file with a `RECIPE`; returns the reference to it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")
    return f"{folder / name}:RECIPE"
