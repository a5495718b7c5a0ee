"""What an answer to a chess task is worth: pure functions from (truth, parsed answer) to a `Score` with named parts."""

from __future__ import annotations

import chz


@chz.chz
class PolicyWeights:
    """Rewards of P: answers. A perfect short answer earns legal + keeps + rank + best (1 by default)."""

    malformed: float = -0.2
    """Value of an answer that cannot be read."""
    illegal: float = 0.0
    """Value of a readable answer whose best move is illegal."""
    legal: float = 0.2
    """Earned by any legal best move."""
    keeps: float = 0.2
    """Earned when the move keeps the class of the position: a win stays a win, a draw is not lost."""
    rank: float = 0.3
    """Times 1 minus the share of legal moves that are strictly better."""
    best: float = 0.3
    """Earned when no legal move is strictly better."""
    candidates: float = 0.2
    """Long form: times the share of the engine's top moves among the listed ones, less wrong entries."""
    evals: float = 0.1
    """Long form: times the accuracy of the evaluations of listed legal moves."""
    win_cp: int = 500
    """Centipawns from which a position counts as won (and, negated, as lost)."""
    eval_tolerance: float = 0.5
    """An evaluation earns nothing from an error of `eval_tolerance * (1 + |truth|)` pawns."""


@chz.chz
class ArbiterWeights:
    """Rewards of A: answers. A perfect answer earns the sum of all parts (1 by default)."""

    malformed: float = -0.2
    """Value of an answer that cannot be read."""
    format: float = 0.1
    """Earned by any readable answer."""
    fen: float = 0.3
    """Times the part of the move's changes that the new position shows, less squares it spoils (-1 to 1)."""
    exact: float = 0.4
    """Earned by the exact new position."""
    reward: float = 0.1
    """Earned by the right reward field."""
    flags: float = 0.1
    """Earned when both flags are right."""
