"""The text of the two chess tasks: writing samples and reading answers. Pure; no engine, no rules of chess.

    P: <FEN>   ->   M: <moves> E: <evaluations in pawns> B: <best move>      (long form)
    P: <FEN>   ->   B: <best move>                                           (short form)
    A: <FEN>+<uci>+<history>+   ->   <new FEN>+<reward>+<terminated>+<truncated>

The prompt ends where the arrow stands. Writers separate by single spaces; readers take any run of whitespace and never
raise, whatever the text: what is wrong with an answer is listed in its `problems`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

AnswerForm = Literal["best", "full"]
"""`best` is the short form of a P: answer, `full` the long one."""

MAX_CANDIDATES = 5
"""A long answer lists this many moves, or all legal ones where there are fewer."""
HISTORY_PLIES = 10
"""An A: prompt shows at most so many half-moves; the last of them is the move being made."""
POLICY_PROMPT = "P: {fen}"
"""Default prompt of the P: task."""

_UCI = re.compile(r"[a-h][1-8][a-h][1-8][qrbn]?")
_NUMBER = re.compile(r"[+-]?[0-9]{1,6}(?:\.[0-9]{1,6})?")
_BOARD_CODES = frozenset("PNBRQKpnbrqk")
_FLAGS = {"0": False, "1": True, "false": False, "true": True}


@dataclass(frozen=True, slots=True)
class ParsedPolicy:
    """A P: answer as read. `problems` is empty exactly when the answer has the demanded form."""

    moves: tuple[str, ...]
    evals: tuple[float, ...]
    """Pawns, from the mover's point of view, in the order of `moves`."""
    best: str | None
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ParsedArbiter:
    """An A: answer as read; fields that cannot be read are None. `problems` is empty exactly when all can."""

    fen: str | None
    reward: float | None
    terminated: bool | None
    truncated: bool | None
    problems: tuple[str, ...]


def final_line(reply: str) -> str:
    """The answer in a chat model's reply: its last line, without Markdown (fences, code marks, asterisks) round it."""
    lines = (line.strip().strip("`*").strip() for line in reply.splitlines())
    return next((line for line in reversed(list(lines)) if line), "")


def policy_prompt(fen: str, template: str = POLICY_PROMPT) -> str:
    """The prompt of a P: task."""
    return template.format(fen=fen)


def given_label(template: str) -> str:
    """The answer label (`M:` or `B:`) that a prompt template already ends with, or the empty string."""
    tail = template.rstrip()[-2:]
    return tail if tail in ("M:", "B:") else ""


def policy_answer(
    best: str, moves: Sequence[str] = (), evals: Sequence[float] = (), *, form: AnswerForm = "best", given: str = ""
) -> str:
    """A P: completion; `given` is the label that the prompt already shows (see `given_label`)."""
    text = f"B: {best}"
    if form == "full":
        numbers = " ".join(f"{value:.2f}" for value in evals)
        text = f"M: {' '.join(moves)} E: {numbers} {text}"
    return " " + text.removeprefix(given).lstrip()


def arbiter_prompt(fen: str, uci: str, history: Sequence[str]) -> str:
    """The prompt of an A: task. `history` runs from old to new and ends with `uci`."""
    return f"A: {fen}+{uci}+{' '.join(history)}+"


def arbiter_answer(fen: str, reward: float, terminated: bool, truncated: bool) -> str:
    """An A: completion. Rewards are printed as 0.001, 0.5, 1.0 and -1.0, flags as 0 and 1."""
    return f"{fen}+{reward}+{int(terminated)}+{int(truncated)}"


def parse_policy(text: str, form: AnswerForm = "best", given: str = "") -> ParsedPolicy:
    """Read a P: completion. Never raises. A leading `M:` may be absent; nothing may follow the best move."""
    words = f"{given} {text}".split()
    return _parse_short(words) if form == "best" else _parse_full(words)


def _parse_short(words: list[str]) -> ParsedPolicy:
    if not words or words[0] != "B:":
        return ParsedPolicy((), (), None, ("the answer must start with 'B:'",))
    best, problems = _read_best(words[1:])
    return ParsedPolicy((), (), best, problems)


def _parse_full(words: list[str]) -> ParsedPolicy:
    if words[:1] == ["M:"]:
        words = words[1:]
    if words.count("E:") != 1 or words.count("B:") != 1 or words.index("E:") > words.index("B:"):
        return ParsedPolicy((), (), None, ("the answer must have 'M:', 'E:' and 'B:', each once and in this order",))
    e, b = words.index("E:"), words.index("B:")
    moves, numbers = words[:e], words[e + 1 : b]
    best, problems = _read_best(words[b + 1 :])
    found = list(problems)
    found += [f"{_clip(word)} under 'M:' is not a move" for word in moves if not _UCI.fullmatch(word)]
    found += [f"{_clip(word)} under 'E:' is not a number" for word in numbers if not _NUMBER.fullmatch(word)]
    if not moves:
        found.append("no move under 'M:'")
    if len(numbers) != len(moves):
        found.append(f"{len(moves)} moves but {len(numbers)} evaluations")
    return ParsedPolicy(
        tuple(word for word in moves if _UCI.fullmatch(word)),
        tuple(float(word) for word in numbers if _NUMBER.fullmatch(word)),
        best,
        tuple(found),
    )


def _read_best(words: list[str]) -> tuple[str | None, tuple[str, ...]]:
    if not words or not _UCI.fullmatch(words[0]):
        return None, ("no move in UCI notation (such as e2e4 or a7a8q) after 'B:'",)
    if len(words) > 1:
        return words[0], (f"{_clip(' '.join(words[1:]))} follows the best move",)
    return words[0], ()


def parse_arbiter(text: str) -> ParsedArbiter:
    """Read an A: completion. Never raises. Flags may be 0, 1, true or false; whitespace around fields is free."""
    fields = [" ".join(field.split()) for field in text.split("+")]
    if len(fields) != 4:
        problem = f"the answer must have 4 fields separated by '+', not {len(fields)}"
        return ParsedArbiter(None, None, None, None, (problem,))
    fen = fields[0] if is_fen_like(fields[0]) else None
    reward = float(fields[1]) if _NUMBER.fullmatch(fields[1]) else None
    terminated, truncated = _FLAGS.get(fields[2].lower()), _FLAGS.get(fields[3].lower())
    readable = {"position": fen, "reward": reward, "terminated flag": terminated, "truncated flag": truncated}
    problems = tuple(
        f"the {name} {_clip(field)} cannot be read"
        for (name, value), field in zip(readable.items(), fields, strict=True)
        if value is None
    )
    return ParsedArbiter(fen, reward, terminated, truncated, problems)


def expand_board(board: str) -> str | None:
    """The 64 squares of a FEN board field, a8 first, `.` for empty; None when it does not describe 8 x 8 squares."""
    ranks = board.split("/")
    if len(ranks) != 8:
        return None
    squares = []
    for rank in ranks:
        after_digit = False
        row = ""
        for char in rank:
            if char in _BOARD_CODES:
                row, after_digit = row + char, False
            elif char in "12345678" and not after_digit:
                row, after_digit = row + "." * int(char), True
            else:
                return None
        if len(row) != 8:
            return None
        squares.append(row)
    return "".join(squares)


def is_fen_like(text: str) -> bool:
    """Whether `text` is written as a FEN with six fields; the position itself may be impossible."""
    fields = text.split(" ")
    return (
        len(fields) == 6
        and expand_board(fields[0]) is not None
        and fields[1] in ("w", "b")
        and re.fullmatch(r"-|(?!$)K?Q?k?q?", fields[2]) is not None
        and re.fullmatch(r"-|[a-h][36]", fields[3]) is not None
        and all(re.fullmatch(r"[0-9]{1,5}", number) is not None for number in fields[4:])
    )


def _clip(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
