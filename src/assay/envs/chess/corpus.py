"""What a tokenizer for chess text is trained on, and how the text is cut before merges.

A rank of a board (`4k3`) is one piece, so that equal ranks are equal tokens. A square of a move is two (file, rank), so
that the policy can share what it knows of a file. The two look alike (`b4` is both), so a rank is recognised by the
slash beside it, which no move ever has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from assay.envs.base import Example, TokenizerCorpus
from assay.envs.tasks import ExampleTexts

PIECES = "|".join(
    (
        r"(?<=/)[1-8PNBRQKpnbrqk]{1,8}",  # a rank after a slash
        r"[1-8PNBRQKpnbrqk]{1,8}(?=/)",  # the first rank
        r" ?[PAMEB]: ?",  # a label with the spaces around it
        r" [wb] (?=[KQkq-])",  # the side to move, between the board and the castling rights
        r"(?<= [wb] )[KQkq]{1,4}",  # castling rights
        r" (?:-|[a-h][36]) \d+ \d+",  # en passant square and counters
        r"0\.001|-?\d+\.\d+",  # a reward or an evaluation
    )
)
"""Regular expression whose matches become pre-tokens; all other characters stand alone."""

ALPHABET = "".join(chr(code) for code in range(32, 127)) + "\n"
"""Printable ASCII: the grammar itself and the sentences that a retry is asked with."""


def corpus_of(make: Callable[[], Sequence[Example]]) -> TokenizerCorpus:
    """The corpus of the supervised examples that `make` returns."""
    return TokenizerCorpus(ExampleTexts(make), PIECES, ALPHABET)
