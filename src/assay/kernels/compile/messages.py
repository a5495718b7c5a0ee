"""What the words of nvcc, ptxas and g++ mean: whose fault an error is, what a kernel needs, what a model should read.

The light headers know a part of PyTorch. An error that comes of a name of PyTorch they lack says nothing about the
candidate; the first error decides, since later ones may follow from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Fault = Literal["candidate", "unknown_api", "tool", "time", "crash"]

_ERROR = re.compile(
    r"^(?P<gnu>[^\s():]+:\d+(?::\d+)?: (?:fatal )?error: .*)$"
    r"|^(?P<edg>[^\s()]+\(\d+\): (?:catastrophic )?error[^:]*: .*)$"
    r"|^(?P<ptxas>ptxas [^\n]*(?:error|fatal)\s*:.*)$|^(?P<driver>(?:nvcc|g\+\+|gcc|cc1plus)\S* (?:fatal|error)\s*:.*)$"
    r"|^(?P<other>(?:g\+\+|gcc): (?:fatal )?error: .*|ptxas: .*|nvlink error.*)$",
    re.MULTILINE,
)
_LIBRARY = r"(?:torch|at|c10|caffe2|pybind11|py|ATen)"
_HEADER = r"(?:(?:torch|ATen|c10|caffe2|pybind11|cutlass|cute|cub|thrust|cuda|nvtx3|THC)/|cu\w+\.h|nv\w+\.h)[\w/.+-]*"
_UNKNOWN = re.compile(
    rf"namespace \"{_LIBRARY}[\w:]*\" has no member|class \"(?:const )?{_LIBRARY}::[^\"]*\" has no member"
    rf"|class template \"{_LIBRARY}::"
    rf"|no instance of (?:overloaded |constructor |function )*(?:template )?\"{_LIBRARY}::"
    rf"|no (?:operator|instance of overloaded) .*\"{_LIBRARY}::Tensor|incomplete type \"{_LIBRARY}::"
    r"|identifier \"(?:AT|TORCH|C10|PYBIND11|GPU|STD_TORCH)_\w+\" is undefined"
    rf"|fatal error: {_HEADER}: No such file|cannot open source file \"{_HEADER}\""
    rf"|is not a member of '(?:{_LIBRARY})\b|'(?:class |struct |const )*{_LIBRARY}::[\w:<>, ]+' has no member"
    rf"|name followed by \"::\" must be a class or namespace name\n[^\n]*\b{_LIBRARY}::\w+::"
    rf"|too (?:many|few) arguments in function call\n(?![^\n]*<<<)[^\n]*\b{_LIBRARY}::\w+\("
    rf"|no suitable [^\n]* to \"(?:const )?{_LIBRARY}::[^\n]*\n(?![^\n]*<<<)"
    rf"|no matching function for call to '{_LIBRARY}::|'{_LIBRARY}::\w+' has not been declared"
    r"|'(?:AT|TORCH|C10|PYBIND11|GPU)_\w+' was not declared|light_\w+\.h"
)
_MACRO = re.compile(r"\b(?:AT|TORCH|C10|PYBIND11|STD_TORCH)_[A-Z0-9_]+\b")
_DIED = re.compile(r"died due to signal (\d+)|Killed signal|signal terminated program")
_TOOL = re.compile(r"No space left|cannot execute|Cannot find compiler|command not found|Permission denied")
_ENTRY = re.compile(r"Compiling entry function '([^']{1,1000})'")
_SPILLS = re.compile(r"\b(\d{1,9}) bytes spill stores")
_REGISTERS = re.compile(r"\bUsed (\d{1,9}) registers")
_SMEM = re.compile(r"\b(\d{1,9}) bytes smem")
_ATTRIBUTE = re.compile(r"__attribute__\(\((global|device|host|shared|constant|managed)\)\)")
"""How the compiler shows `__global__` and its like."""
_BINDING = re.compile(r"functions[(:]")
SIGNAL_CPU, SIGNAL_KILL = 24, 9
ERRORS_SHOWN = 3
LINES_SHOWN = 4
LINE_CHARACTERS = 1000
"""A compiler shows lines of the candidate's, which may be of any length."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What ptxas says of one kernel."""

    name: str
    shared_bytes: int
    registers: int
    spill_bytes: int


def usages(said: str) -> tuple[Usage, ...]:
    """The kernels in the account of `ptxas -v`."""
    found = []
    name, spills = "", 0
    for line in said.splitlines():
        if entry := _ENTRY.search(line):
            name, spills = entry[1], 0
        elif stores := _SPILLS.search(line):
            spills = int(stores[1])
        elif name and (used := _REGISTERS.search(line)):
            shared = _SMEM.search(line)
            found.append(Usage(plain_name(name), int(shared[1]) if shared else 0, int(used[1]), spills))
            name = ""
    return tuple(found)


def plain_name(mangled: str) -> str:
    """The function's own name in a mangled one; the whole where it has another form."""
    rest = mangled.removeprefix("_Z")
    name = ""
    rest = rest.removeprefix("N")
    rest = re.sub(r"^12_GLOBAL__N__\w{8}_\d+_\w+?_\w{8}_\d*", "", rest)
    while match := re.match(r"(\d{1,4})", rest):
        length, start = int(match[1]), match.end()
        name, rest = rest[start : start + length], rest[start + length :]
        if not mangled.startswith("_ZN"):
            break
    return name or mangled


def fault_of(said: str, sources: str, known_macros: Iterable[str]) -> tuple[Fault, str]:
    """Whose fault a failed compilation is, and the errors worth reading.

    Args:
        said: What the compilers wrote.
        sources: The candidate's text.
        known_macros: Names that the light headers define.
    """
    if died := _DIED.search(said):
        number = int(died[1]) if died[1] else SIGNAL_KILL
        return ("time" if number in (SIGNAL_CPU, SIGNAL_KILL) else "crash"), died[0]
    errors = list(_ERROR.finditer(said))
    if not errors:
        return ("tool" if _TOOL.search(said) or not said.strip() else "candidate"), said.strip()
    shown = "\n".join(_block(said, error) for error in errors[:ERRORS_SHOWN])
    first = errors[0][0][:LINE_CHARACTERS]
    if errors[0]["driver"] or _TOOL.search(first):
        return "tool", first
    if _BINDING.match(first):
        return "candidate", f"a name in functions= has no declaration, or its definition differs from it:\n{shown}"
    strange = sorted(set(_MACRO.findall(sources)) - set(known_macros) - _defined(sources))
    if strange and not errors[0]["ptxas"]:
        return "unknown_api", f"{shown}\n({', '.join(strange)} is not known to the light headers)"
    return ("unknown_api" if _UNKNOWN.search(_block(said, errors[0])) else "candidate"), shown


def _block(said: str, error: re.Match[str]) -> str:
    """An error with the lines that show where it is."""
    lines = [line[:LINE_CHARACTERS] for line in said[error.start() :].split("\n")[:LINES_SHOWN]]
    kept = [lines[0]]
    for line in lines[1:]:
        if not line.strip() or line.startswith("ptxas info") or _ERROR.match(line):
            break
        kept.append(line)
    return _ATTRIBUTE.sub(r"__\1__", "\n".join(kept))


def _defined(sources: str) -> set[str]:
    return set(re.findall(r"#\s*define\s+(\w+)", sources))
