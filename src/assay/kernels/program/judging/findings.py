"""What a rule has to say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Rule = Literal[
    "arithmetic",
    "moves",
    "constants",
    "constructor",
    "operators",
    "outputs",
    "kernels",
    "races",
    "calls",
    "state",
    "turns",
]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one rule has to say, for the author of the kernel."""

    rule: Rule
    message: str
    line: int = 0
    """Of the submission; 0 where no line is to blame."""
    refused: bool = True
