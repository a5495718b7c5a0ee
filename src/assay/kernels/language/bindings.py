"""What the names of a kernel stand for: said by whoever recorded it, read as hostile data.

    {"module": "triton.language"}          the name is a module
    {"member": "triton.language.exp"}      it is a function, a type or a constant of one
    {"constant": 128}                      it is a number, a string, None, or a list of those
    {"function": "gelu"}                   it is another function of this submission, by its key
    {"other": "list"}                      it is something else, of this type: named in the message

A dotted name is resolved as text against the vocabulary. Nothing is imported and no attribute is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from assay.kernels.language import vocabulary
from assay.kernels.language.form import Expression, Items, Literal, Named, Text
from assay.kernels.language.limits import INT_BITS, MAX_NAME, MAX_NAMES, is_plain
from assay.kernels.language.refusals import Refused, shown


@dataclass(frozen=True, slots=True)
class Module:
    """A module by its path; its members are resolved."""

    path: str


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the language by full name."""

    name: str


@dataclass(frozen=True, slots=True)
class HelperName:
    """Another function of the submission."""

    key: str


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that is written out wherever the name stands."""

    value: Expression


@dataclass(frozen=True, slots=True)
class Unknown:
    """Something that is not in the language; `what` says what it is."""

    what: str


@dataclass(frozen=True, slots=True)
class Forbidden:
    """A name of Triton that is refused, with the reason."""

    name: str
    why: str
    instead: str
    in_triton: bool = True


Binding = Module | Function | HelperName | Constant | Unknown | Forbidden

_LANGUAGE = "triton.language"
_MODULES = frozenset({_LANGUAGE, f"{_LANGUAGE}.math", f"{_LANGUAGE}.core", f"{_LANGUAGE}.standard"})
_LIBDEVICE = frozenset({f"{_LANGUAGE}.extra.libdevice", f"{_LANGUAGE}.extra.cuda.libdevice"})
_ON_THE_WAY = frozenset({"triton", f"{_LANGUAGE}.extra", f"{_LANGUAGE}.extra.cuda", f"{_LANGUAGE}.PropagateNan"})
_ELEMENTS = 64


def read(names: object) -> dict[str, Binding]:
    """The bindings of one function.

    Raises:
        Refused: they are not in the form that the module describes.
    """
    if not isinstance(names, Mapping) or len(names) > MAX_NAMES:
        raise _malformed(f"names that are not a table of at most {MAX_NAMES}")
    found: dict[str, Binding] = {}
    for name, entry in names.items():
        if not isinstance(name, str) or not is_identifier(name):
            raise _malformed(f"the name {shown(name)!r}")
        if not isinstance(entry, Mapping) or len(entry) != 1:
            raise _malformed(f"what {name} stands for")
        found[name] = _binding(name, *next(iter(entry.items())))
    return found


def is_identifier(name: str) -> bool:
    """Whether a name may stand in a kernel: plain ASCII, not too long."""
    return name.isascii() and name.isidentifier() and len(name) <= MAX_NAME


def _binding(name: str, kind: object, value: object) -> Binding:
    if kind == "constant":
        constant = _constant(value)
        return Unknown("a value that has no place in a kernel") if constant is None else Constant(constant)
    if not isinstance(value, str) or len(value) > 2 * MAX_NAME:
        raise _malformed(f"what {name} stands for")
    if kind == "module":
        return Module(value)
    if kind == "member":
        return resolve(value)
    if kind == "function":
        return HelperName(value)
    if kind == "other":
        return Unknown(f"a value of type {shown(value)}")
    raise _malformed(f"what {name} stands for")


def _malformed(what: str) -> Refused:
    return Refused(
        1,
        what,
        "the record of the kernel does not have the form that it must have",
        "Grade the submission again; if it stays so, this is an error of the recorder",
    )


def _constant(value: object, depth: int = 0) -> Expression | None:
    """A global constant as an expression, where it is one."""
    if value is None or isinstance(value, bool | float):
        return Literal(value)
    if isinstance(value, int):
        return Literal(value) if value.bit_length() <= INT_BITS else None
    if isinstance(value, str):
        return Text(value) if is_plain(value) else None
    if isinstance(value, list | tuple) and len(value) <= _ELEMENTS and depth < 2:
        items = [_constant(item, depth + 1) for item in value]
        return None if any(item is None for item in items) else Items(tuple(item for item in items if item is not None))
    return None


def resolve(path: str) -> Binding:
    """What a dotted name of Triton or of `math` stands for."""
    home, _, name = path.rpartition(".")
    if path in _MODULES | _LIBDEVICE | _ON_THE_WAY or path == "math":
        return Module(path)
    if home in _MODULES:
        return _of_language(name)
    if home == f"{_LANGUAGE}.PropagateNan" and f"PropagateNan.{name}" in vocabulary.CONSTANTS:
        return Constant(Named(f"tl.PropagateNan.{name}"))
    if home in _LIBDEVICE:
        return _of_libdevice(name)
    if home == "triton" and f"triton.{name}" in vocabulary.HOST:
        return Function(f"triton.{name}")
    if home == "math" and name in vocabulary.MATH:
        return Constant(Literal(vocabulary.MATH[name]))
    if home == "math":
        return Forbidden(
            f"math.{shown(name)}",
            "it works on Python's numbers, not on blocks, and a kernel's host functions are not run",
            "Use the function of tl or of libdevice, or compute the number before the launch and pass it in",
        )
    return Unknown(f"`{shown(path)}`")


def _of_language(name: str) -> Binding:
    full = f"tl.{name}"
    if name in vocabulary.TL or full in vocabulary.LOOPS:
        return Function(full)
    if name in vocabulary.TYPES:
        return Constant(Named(full))
    for group in vocabulary.REFUSED_TL:
        if name in group.names:
            return Forbidden(full, group.why, group.instead)
    return Forbidden(
        f"tl.{shown(name)}",
        "triton.language has no public function of this name",
        "Use a function of triton.language, or one of libdevice",
        in_triton=False,
    )


def _of_libdevice(name: str) -> Binding:
    if name in vocabulary.LIBDEVICE:
        return Function(f"libdevice.{name}")
    return Forbidden(
        f"libdevice.{shown(name)}",
        "the interpreter that checks kernels does not have this function",
        "Write it with functions of triton.language, or with one of libdevice's more common functions",
    )
