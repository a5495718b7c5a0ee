"""What is said to whoever wrote a kernel that is not in the language: what, where, why, and what to write instead."""

from __future__ import annotations

from dataclasses import dataclass

MAX_REFUSALS = 10
"""Of one submission; the first is the one that counts."""
SNIPPET = 60
"""Characters of the source that a message shows at most."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One thing that is not in the language.

    function: name of the kernel or helper, as far as it is known.
    line: of the submission, counted from 1.
    in_triton: whether it may be legal in Triton all the same, so that it cannot be judged rather than is wrong.
    """

    function: str
    line: int
    what: str
    why: str
    instead: str
    in_triton: bool = True

    def __str__(self) -> str:
        where = f"kernel {self.function}, line {self.line}" if self.function else f"line {self.line}"
        return f"{where}: the kernel language does not take {self.what}: {self.why}. {self.instead}."


@dataclass(frozen=True, slots=True)
class Refusals:
    """Why kernels were refused; never empty."""

    refusals: tuple[Refusal, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, self.refusals))


class Refused(Exception):
    """Something is not in the language. `offset` counts lines from the first of the function's source, from 1."""

    def __init__(self, offset: int, what: str, why: str, instead: str, in_triton: bool = True) -> None:
        super().__init__(what)
        self.offset, self.what, self.why, self.instead, self.in_triton = offset, what, why, instead, in_triton


def shown(text: object) -> str:
    """Text from outside, short and inert."""
    line = " ".join(str(text)[: 4 * SNIPPET].split())
    line = "".join(letter if letter.isprintable() and letter.isascii() else "?" for letter in line)
    return line if len(line) <= SNIPPET else line[: SNIPPET - 3] + "..."
