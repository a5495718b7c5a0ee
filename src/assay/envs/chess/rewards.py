"""Scores of answers to chess tasks: pure functions from (truth, parsed answer) to a `Score` with named parts.

Values of moves are from the mover's point of view, so the same position with colours swapped gives the same rewards.
Where the truth is unknown, the score is `errored` and has no value. No shortcut earns a reward: a list of candidates
must be complete, distinct and legal, evaluations are compared move by move, and a copied board loses points for its
squares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import chess
import chz

from assay.config import Above, AtLeast, Settings, UsedWhen
from assay.envs.chess.arbiter import Ruling
from assay.envs.chess.engine.stockfish import MATE_CP
from assay.envs.chess.grammar import MAX_CANDIDATES, AnswerForm, ParsedArbiter, ParsedPolicy, expand_board
from assay.types import Json, Score

ARBITER_PARTS = ("format", "fen", "exact", "exact4", "legal_fen", "reward_field", "flags", "legal_flag")
"""Parts of the score of an A: answer."""
Outlook = Literal["won", "drawn", "lost"]
_ORDER: dict[Outlook, int] = {"lost": 0, "drawn": 1, "won": 2}


@chz.chz
class PolicyWeights(Settings):
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
    """Multiplied by 1 minus the share of the other legal moves that are better."""
    best: float = 0.3
    """Earned when no legal move is better."""
    candidates: Annotated[float, UsedWhen("answer", "full")] = 0.2
    """Long form: multiplied by the share of the engine's top moves among the listed ones, minus wrong entries."""
    evals: Annotated[float, UsedWhen("answer", "full")] = 0.1
    """Long form: multiplied by the accuracy of the evaluations of the listed legal moves."""
    margin_cp: Annotated[int, AtLeast(0)] = 50
    """Centipawns by which a move must lead to count as better: smaller differences are noise of an engine at a few
    thousand nodes. Forced mates are always distinguished."""
    win_cp: Annotated[int, Above(0)] = 300
    """Centipawns above which a position counts as won (and below the negative of which as lost)."""
    eval_tolerance: Annotated[float, Above(0), UsedWhen("answer", "full")] = 0.5
    """An evaluation earns nothing if its error is `eval_tolerance * (1 + |truth|)` pawns or more."""


@chz.chz
class ArbiterWeights(Settings):
    """Rewards of A: answers. A perfect answer earns the sum of all parts (1 by default)."""

    malformed: float = -0.2
    """Value of an answer that cannot be read."""
    format: float = 0.1
    """Earned by any readable answer."""
    fen: float = 0.3
    """Multiplied by the share of the move's changes that the new position shows, minus the unchanged parts that it gets
    wrong (from -1 to 1)."""
    exact: float = 0.4
    """Earned by the exact new position."""
    reward_field: float = 0.1
    """Earned by the right reward field."""
    flags: float = 0.1
    """Earned when both flags are right."""


@dataclass(frozen=True, slots=True)
class PolicyTruth:
    """The value of every legal move, in centipawns from the mover's point of view (mates beyond any centipawns)."""

    values: Mapping[str, int]
    fingerprint: str
    cached: bool = False

    @property
    def best_value(self) -> int:
        """Value of the position: that of its best move."""
        return max(self.values.values())

    def best_moves(self, margin_cp: int) -> tuple[str, ...]:
        """All moves that no other move beats, in alphabetical order."""
        # A move that any move beats is beaten by the best one.
        top = self.best_value
        return tuple(sorted(uci for uci, value in self.values.items() if not beats(top, value, margin_cp)))

    def rank_share(self, uci: str, margin_cp: int) -> float:
        """Share of the other legal moves that beat `uci`: 0 for the best, ties share a rank."""
        value = self.values[uci]
        return sum(beats(other, value, margin_cp) for other in self.values.values()) / max(1, len(self.values) - 1)


def beats(value: int, other: int, margin_cp: int) -> bool:
    """Whether `value` is better than `other` by more than the margin; between forced mates any difference counts."""
    mates = min(abs(value), abs(other)) > MATE_CP // 2
    return value - other > (0 if mates else margin_cp)


def outlook(value: int, win_cp: int) -> Outlook:
    """The class of a value for the mover."""
    if value > win_cp:
        return "won"
    return "lost" if value < -win_cp else "drawn"


def keeps_class(truth: PolicyTruth, uci: str, win_cp: int) -> bool:
    """Whether the position is in no worse a class after `uci` than it was."""
    return _ORDER[outlook(truth.values[uci], win_cp)] >= _ORDER[outlook(truth.best_value, win_cp)]


def errored(message: str, fingerprint: str = "") -> Score:
    """The score of an answer whose truth is not known; `message` says why."""
    return Score(status="errored", value=None, evidence={"error": message}, fingerprint=fingerprint)


def score_policy(truth: PolicyTruth | None, answer: ParsedPolicy, weights: PolicyWeights, form: AnswerForm) -> Score:
    """Score of a P: answer. Parts lie in [0, 1]; malformed and illegal answers are `invalid`."""
    if truth is None or not truth.values:
        return errored("no engine analysis of the position: the answer cannot be ranked")
    best = answer.best if not answer.problems else None
    parts = {"format": float(not answer.problems), "legal": 0.0, "keeps": 0.0, "rank": 0.0, "best": 0.0}
    evidence: dict[str, Json] = {
        "best_moves": list(truth.best_moves(weights.margin_cp)),
        "best_value_cp": truth.best_value,
    }
    if form == "full":
        readable = not answer.problems
        parts["candidates"] = candidate_credit(truth, answer.moves) if readable else 0.0
        parts["evals"] = eval_credit(truth, answer.moves, answer.evals, weights.eval_tolerance) if readable else 0.0
    if best is not None and best in truth.values:
        parts["legal"] = 1.0
        parts["keeps"] = float(keeps_class(truth, best, weights.win_cp))
        parts["rank"] = 1.0 - truth.rank_share(best, weights.margin_cp)
        parts["best"] = float(parts["rank"] == 1.0)
        evidence |= {"move": best, "value_cp": truth.values[best]}
    elif best is not None:
        evidence |= {"move": best, "problems": [f"{best} is not a legal move"]}
    else:
        evidence |= {"problems": list(answer.problems)}
    return Score(
        status="scored" if parts["legal"] else "invalid",
        value=_policy_value(parts, weights, malformed=best is None),
        parts=parts,
        evidence=evidence,
        cached=truth.cached,
        fingerprint=truth.fingerprint,
    )


def _policy_value(parts: Mapping[str, float], weights: PolicyWeights, *, malformed: bool) -> float:
    if malformed:
        return weights.malformed
    if not parts["legal"]:
        # Nothing else in the answer counts: otherwise an illegal move could pay, because it gives another turn.
        return weights.illegal
    return (
        weights.candidates * parts.get("candidates", 0.0)
        + weights.evals * parts.get("evals", 0.0)
        + weights.legal
        + weights.keeps * parts["keeps"]
        + weights.rank * parts["rank"]
        + weights.best * parts["best"]
    )


def candidate_credit(truth: PolicyTruth, moves: Sequence[str]) -> float:
    """Credit, in [0, 1], of a list of candidates: k = min(5, number of legal moves) distinct legal moves are required.

    Each listed move of the k best (ties with the k-th count) adds 1/k; each duplicate, each illegal move, and each move
    too few or too many takes 1/k away. So one good move alone earns nothing where five are required.
    """
    due = min(MAX_CANDIDATES, len(truth.values))
    threshold = sorted(truth.values.values(), reverse=True)[due - 1]
    distinct = set(moves)
    hits = sum(truth.values[uci] >= threshold for uci in distinct if uci in truth.values)
    illegal = sum(uci not in truth.values for uci in moves)
    wrong = (len(moves) - len(distinct)) + illegal + abs(len(moves) - due)
    return max(0.0, min(hits, due) - wrong) / due


def eval_credit(truth: PolicyTruth, moves: Sequence[str], evals: Sequence[float], tolerance: float) -> float:
    """Credit, in [0, 1], of the evaluations (pawns, the mover's view), each compared with the truth of its own move.

    The sum is divided by the number of moves that are required, or listed if that is more, so that neither a short list
    nor a long list of guesses can earn everything. A move counts once.
    """
    due = min(MAX_CANDIDATES, len(truth.values))
    if len(moves) != len(evals):
        return 0.0
    credit = 0.0
    seen: set[str] = set()
    for uci, claimed in zip(moves, evals, strict=True):
        if uci in truth.values and uci not in seen:
            true = truth.values[uci] / 100.0
            credit += max(0.0, 1.0 - abs(claimed - true) / (tolerance * (1.0 + abs(true))))
        seen.add(uci)
    return credit / max(due, len(moves))


def score_arbiter(truth: Ruling | None, answer: ParsedArbiter, weights: ArbiterWeights) -> Score:
    """Score of an A: answer. Parts lie in [0, 1], except `fen` in [-1, 1]; malformed answers are `invalid`.

    Three parts have no weight and are only logged: `exact4` (the position without its counters), `legal_fen`
    (some possible position) and `legal_flag` (the answer knows whether the move is legal).
    """
    if truth is None:
        return errored("the rules give no verdict on this move")
    evidence: dict[str, Json] = {
        "fen": truth.fen,
        "reward": truth.reward,
        "terminated": truth.terminated,
        "truncated": truth.truncated,
    }
    if answer.problems or answer.fen is None or answer.reward is None:
        evidence["problems"] = list(answer.problems)
        parts = dict.fromkeys(ARBITER_PARTS, 0.0)
        return Score("invalid", weights.malformed, parts, evidence, fingerprint=truth.fingerprint)
    fen = truth.normalise(answer.fen)
    parts = {
        "format": 1.0,
        "fen": fen_credit(truth, fen),
        "exact": float(fen == truth.fen),
        "exact4": float(fen.split()[:4] == truth.fen.split()[:4]),
        "legal_fen": float(is_possible(fen)),
        "reward_field": float(abs(answer.reward - truth.reward) < 1e-6),
        "flags": float((answer.terminated, answer.truncated) == (truth.terminated, truth.truncated)),
        "legal_flag": float(answer.truncated == truth.truncated),
    }
    value = (
        weights.format
        + weights.fen * parts["fen"]
        + weights.exact * parts["exact"]
        + weights.reward_field * parts["reward_field"]
        + weights.flags * parts["flags"]
    )
    return Score("scored", value, parts, evidence, fingerprint=truth.fingerprint)


def is_possible(fen: str) -> bool:
    """Whether a text in the form of a FEN describes a position that chess allows."""
    try:
        return chess.Board(fen).is_valid()
    except ValueError:
        return False


def fen_credit(truth: Ruling, fen: str) -> float:
    """Credit, in [-1, 1], of a predicted position, relative to a board on which only turn and counters have moved on.

    Squares and fields that the move changes beyond that count 1 each when right; every other one that is wrong takes
    1 away; the sum is divided by the number of changes. So the right position earns 1, that board 0, and a copy of
    the input less than 0. Where nothing changes (an illegal move), the unchanged position earns 1; all else loses.
    """
    wanted, baseline, found = _items(truth.fen), _items(truth.baseline), _items(fen)
    changed = [index for index, (a, b) in enumerate(zip(wanted, baseline, strict=True)) if a != b]
    fixed = sum(found[index] == wanted[index] for index in changed)
    spoiled = sum(a == b != c for a, b, c in zip(wanted, baseline, found, strict=True))
    if not changed:
        return 1.0 if not spoiled else max(-1.0, -spoiled / 4.0)
    return max(-1.0, (fixed - spoiled) / len(changed))


def _items(fen: str) -> list[str]:
    """The 64 squares and the five other fields of a FEN."""
    fields = fen.split()
    return [*(expand_board(fields[0]) or "." * 64), *fields[1:]]
