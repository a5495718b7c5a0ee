"""What the text of a submission shows, as plain data: it goes from the process that parsed it to one that never does.

`from_json` takes the data for what it is, the word of a process that a candidate may have been in: it never raises, and
everything it returns is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Literal, get_args

from assay.kernels.verdicts import plain_text
from assay.types import Json

Severity = Literal["cheat", "hint"]
"""`cheat`: it would fail in any case, and this says it better. `hint`: it may explain a verdict that is not ok."""

Kind = Literal[
    "compiler",
    "fallback",
    "inherits_reference",
    "library_call",
    "library_layer",
    "native_code",
    "no_kernel",
    "obfuscation",
    "side_stream",
    "threads",
    "timing",
]

MOST_FINDINGS = 32
MOST_EXTENSIONS = 16
MOST_NATIVE_CHARACTERS = 200_000
"""All texts of all extensions together. A text may name another one many times, so it can be longer than its source."""
MOST_WORDS = 64
"""Functions, flags and unread parts of one extension, each."""
WORD_CHARACTERS = 256
FAULT_CHARACTERS = 500
EVIDENCE_CHARACTERS = 200
_MOST_LINES = 1 << 24
_HINTS_TOLD = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found. `line` counts from 1; `evidence` says what it is, or shows the text."""

    kind: Kind
    line: int
    evidence: str
    severity: Severity

    def to_json(self) -> dict[str, Json]:
        """Plain data for a verdict."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Extension:
    """One call of `load_inline`: its texts joined as PyTorch joins them."""

    line: int
    cpp: str = ""
    cuda: str = ""
    functions: tuple[str, ...] = ()
    """Names of the functions to bind."""
    flags: tuple[str, ...] = ()
    """`extra_cuda_cflags`."""
    unread: tuple[str, ...] = ()
    """What of it cannot be read without running it; empty where everything could."""


@dataclass(frozen=True, slots=True)
class Examined:
    """What the text of a submission shows. `to_json` and `from_json` are inverse for what `examine` returns."""

    fault: str | None = None
    """Why it is no submission at all: a syntax error, no class ModelNew."""
    findings: tuple[Finding, ...] = ()
    tf32_dot_possible: bool = False
    """A `tl.dot` does not ask for `input_precision="ieee"`, so that a GPU rounds float32 operands to TF32; or Triton
    may make such a one of a sum of products."""
    extensions: tuple[Extension, ...] = ()
    """For CUDA, what is given to `load_inline`, in the order in which it stands."""

    @property
    def cheats(self) -> tuple[Finding, ...]:
        """Findings that decide by themselves."""
        return tuple(finding for finding in self.findings if finding.severity == "cheat")

    @property
    def hints(self) -> tuple[Finding, ...]:
        """Findings that may explain a verdict."""
        return tuple(finding for finding in self.findings if finding.severity == "hint")

    def told(self, message: str) -> str:
        """The message of a verdict that is not ok, with the hints that may explain it."""
        notes = [f"line {hint.line}: {hint.evidence}" for hint in self.hints[:_HINTS_TOLD]]
        return f"{message} (see also {'; '.join(notes)})" if notes else message

    def to_json(self) -> dict[str, Json]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Json) -> Examined:
        """What some data says, as far as it says anything; never raises."""
        entries = data if isinstance(data, Mapping) else {}
        fault = entries.get("fault")
        findings = (_finding(entry) for entry in _list(entries.get("findings"))[:MOST_FINDINGS])
        extensions = [_extension(entry) for entry in _list(entries.get("extensions"))[:MOST_EXTENSIONS]]
        return cls(
            plain_text(fault)[:FAULT_CHARACTERS] if isinstance(fault, str) else None,
            tuple(finding for finding in findings if finding is not None),
            entries.get("tf32_dot_possible") is True,
            bounded(extensions),
        )


def bounded(extensions: list[Extension]) -> tuple[Extension, ...]:
    """Extensions that have no more than what is allowed together; one that is too long says so and has no text."""
    room = MOST_NATIVE_CHARACTERS
    kept = []
    for extension in extensions[:MOST_EXTENSIONS]:
        room -= len(extension.cpp) + len(extension.cuda)
        if room < 0:
            said = f"more than {MOST_NATIVE_CHARACTERS} characters of source (line {extension.line})"
            extension = replace(extension, cpp="", cuda="", unread=(said, *extension.unread[: MOST_WORDS - 1]))
        kept.append(extension)
    if len(extensions) > MOST_EXTENSIONS:
        said = f"more than {MOST_EXTENSIONS} extensions (line {extensions[MOST_EXTENSIONS].line})"
        kept[-1] = replace(kept[-1], unread=(said, *kept[-1].unread[: MOST_WORDS - 1]))
    return tuple(kept)


def _finding(entry: Json) -> Finding | None:
    found = entry if isinstance(entry, Mapping) else {}
    kind: Kind | None = next((known for known in get_args(Kind) if known == found.get("kind")), None)
    severity: Severity | None = next((known for known in get_args(Severity) if known == found.get("severity")), None)
    if kind is None or severity is None:
        return None
    return Finding(kind, _line(found.get("line")), plain_text(found.get("evidence"))[:EVIDENCE_CHARACTERS], severity)


def _extension(entry: Json) -> Extension:
    found = entry if isinstance(entry, Mapping) else {}
    return Extension(
        _line(found.get("line")),
        _source(found.get("cpp")),
        _source(found.get("cuda")),
        *(tuple(_words(found.get(name))) for name in ("functions", "flags", "unread")),
    )


def _source(text: Json) -> str:
    """Text for a compiler: whatever characters, as long as a file can hold them."""
    cut = text[: MOST_NATIVE_CHARACTERS + 1] if isinstance(text, str) else ""
    return cut.encode("utf-8", "replace").decode()


def _words(found: Json) -> list[str]:
    return [plain_text(word)[:WORD_CHARACTERS] for word in _list(found)[:MOST_WORDS]]


def _line(found: Json) -> int:
    return found if type(found) is int and 0 <= found < _MOST_LINES else 0


def _list(found: Json) -> list[Json]:
    return list(found) if isinstance(found, list | tuple) else []
