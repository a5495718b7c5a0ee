"""How the text of the family is cut into tokens: boilerplate whole, computation word by word.

A module has six hundred characters, most of them the same in every module. The tokenizer makes those one token each, so
that a small policy decides loads, computation and stores, and nothing else.
"""

from __future__ import annotations

import re

from assay.envs.kernelbench.family.modules import CALL, CLASS, GRID, IMPORTS, INDICES, PROBLEM, SHAPES

_HEAD, _REST = PROBLEM.split("{arguments}")
_START, _TAIL = _REST.split("{body}")
_RETURNED, _END = _TAIL.split("{inputs}")
_BOILERPLATE = (IMPORTS, INDICES, CLASS, SHAPES, GRID, CALL, _HEAD, _START, _RETURNED, _END)

PIECES = "|".join(
    (
        *(re.escape(text) for text in sorted(_BOILERPLATE, key=len, reverse=True)),
        r"# [a-z ]+(?=\n)",  # what was wrong with the kernel that follows
        r"\n    t = x(?=\n)|\n *\w+ = |\n    (?=tl\.)",  # the start of a statement
        r"tl\.where\(m, t, |(?:nn\.functional|torch|tl)\.\w+\(",
        r"\.\w+\(dim=-1(?:, keepdim=True)?\)",
        r", mask=m(?:, other=0\.0)?\)|, axis=0\)",
        r"\w+_ptr(?: \+ |, )?",
        r"r \* (?:C|BLOCK) \+ c",
        r"-?float\(\"inf\"\)",
        r"[A-Za-z_]+|\d+(?:\.\d+|e-\d+)?",
        r" ?[-+*/<>]=? |, ",
    )
)
"""Regular expression whose matches become pre-tokens; other characters stand alone."""
ALPHABET = "".join(chr(code) for code in range(32, 127)) + "\n"
"""Printable ASCII."""
