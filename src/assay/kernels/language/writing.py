"""Lines of generated Python, and which line of the submission each comes from."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from assay.kernels.language.form import Function, Scalar, Target

VARIABLE = "v_"
"""Before every name that a submission chose, so that none of them means anything else."""
FUNCTION = "k{}_"
"""Before the name of every function, with its number."""


@dataclass(slots=True)
class Lines:
    """Lines with their indentation. `origins`: for each, the line of the submission."""

    lines: list[str] = field(default_factory=list)
    origins: list[int] = field(default_factory=list)
    depth: int = 0

    def add(self, origin: int, line: str) -> None:
        """Append a line."""
        self.lines.append("    " * self.depth + line)
        self.origins.append(origin)

    @contextmanager
    def indented(self) -> Iterator[None]:
        """What is added meanwhile stands one level deeper."""
        self.depth += 1
        yield
        self.depth -= 1

    def text(self) -> str:
        """All of it."""
        return "".join(f"{line}\n" for line in self.lines)


def number(value: Scalar) -> str:
    """A literal as Python reads it back."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    text = repr(value)
    return f"({text})" if text.startswith("-") else text


def variable(name: str) -> str:
    """The name of a variable in generated text."""
    return VARIABLE + name


def target(found: Target) -> str:
    """The target of an assignment."""
    return variable(found) if isinstance(found, str) else f"({''.join(target(item) + ', ' for item in found.items)})"


def function_names(functions: dict[str, Function]) -> dict[str, str]:
    """The names of functions in generated text, by key."""
    return {key: FUNCTION.format(place) + each.name for place, (key, each) in enumerate(functions.items())}
