"""A kernel in a form of our own: what is left of its source once everything was understood, and nothing else.

Every name is resolved: a local variable, a function of `triton.language` by its full name, a helper by its key. Python
that runs is generated from these values, never from the source.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Scalar = bool | int | float | None


@dataclass(frozen=True, slots=True)
class Literal:
    """A number, a truth value or None."""

    value: Scalar


@dataclass(frozen=True, slots=True)
class Text:
    """A string: an option of a function, a message, or what a compile-time string is compared with."""

    value: str


@dataclass(frozen=True, slots=True)
class Local:
    """A parameter or a variable."""

    name: str


@dataclass(frozen=True, slots=True)
class Named:
    """A constant of Triton: a type (`tl.float32`), or `tl.PropagateNan.ALL`."""

    name: str


@dataclass(frozen=True, slots=True)
class Helper:
    """A helper function handed to a reduction or a scan, by its key."""

    key: str


@dataclass(frozen=True, slots=True)
class Items:
    """A tuple or a list; Triton makes no difference."""

    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Unary:
    """`-x`, `+x`, `~x`, `not x`."""

    operator: str
    operand: Expression


@dataclass(frozen=True, slots=True)
class Binary:
    """Arithmetic and bits."""

    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Compare:
    """One comparison. `is` and `is not` have None on the right."""

    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Logic:
    """`and` or `or` of two values or more."""

    operator: str
    values: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """`yes if condition else no`."""

    condition: Expression
    yes: Expression
    no: Expression


@dataclass(frozen=True, slots=True)
class Whole:
    """The `:` in `x[:, None]`."""


@dataclass(frozen=True, slots=True)
class Index:
    """`x[:, None]` of a tensor, `t[0]` of a tuple."""

    value: Expression
    places: tuple[Expression | Whole, ...]


@dataclass(frozen=True, slots=True)
class Attribute:
    """One of the attributes of tensors, descriptors and types that are part of the language."""

    value: Expression
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a call hands over."""

    positional: tuple[Expression, ...]
    named: tuple[tuple[str, Expression], ...]

    def values(self) -> Iterable[Expression]:
        """All of them."""
        return (*self.positional, *(value for _, value in self.named))


@dataclass(frozen=True, slots=True)
class Call:
    """A function of the language by its full name: `tl.load`, `libdevice.tanh`, `float`."""

    function: str
    arguments: Arguments


@dataclass(frozen=True, slots=True)
class Method:
    """A method of a tensor, a descriptor or a type."""

    value: Expression
    name: str
    arguments: Arguments


@dataclass(frozen=True, slots=True)
class Invoke:
    """The call of a helper, by its key."""

    key: str
    arguments: Arguments


Expression = (
    Literal
    | Text
    | Local
    | Named
    | Helper
    | Items
    | Unary
    | Binary
    | Compare
    | Logic
    | Choice
    | Index
    | Attribute
    | Call
    | Method
    | Invoke
)


@dataclass(frozen=True, slots=True)
class Targets:
    """What an assignment to a tuple assigns to."""

    items: tuple[Target, ...]


Target = str | Targets


@dataclass(frozen=True, slots=True)
class Assign:
    """`x = value`: a number becomes a tensor, as in Triton."""

    line: int
    target: Target
    value: Expression


@dataclass(frozen=True, slots=True)
class Fix:
    """`x: tl.constexpr = value`: stays a compile-time value."""

    line: int
    name: str
    value: Expression


@dataclass(frozen=True, slots=True)
class Do:
    """A call for its effect."""

    line: int
    value: Expression


@dataclass(frozen=True, slots=True)
class If:
    """Two branches."""

    line: int
    condition: Expression
    yes: tuple[Statement, ...]
    no: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class For:
    """A loop over `range`, `tl.range` or `tl.static_range`."""

    line: int
    name: str
    function: str
    arguments: Arguments
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class While:
    """A loop with a condition."""

    line: int
    condition: Expression
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Return:
    """The end of a function."""

    line: int
    value: Expression | None


@dataclass(frozen=True, slots=True)
class Pass:
    """Nothing."""

    line: int


Statement = Assign | Fix | Do | If | For | While | Return | Pass


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a function.

    constexpr: known when compiled.
    type: what its annotation asks for (`int64`), or empty.
    specialized: whether the compiler takes a whole number that is 1 for a compile-time value.
    """

    name: str
    constexpr: bool
    type: str
    default: Expression | None
    specialized: bool = True


@dataclass(frozen=True, slots=True)
class Function:
    """A kernel or a helper.

    line: of its first line in the submission, counted from 1, where that was told; else 1.
    noinline: whether the compiler may not inline it.
    calls: each call of a helper, by key, as often as it is written.
    literal_bytes: of all numbers and strings in it; small whole numbers count one byte.
    """

    key: str
    name: str
    line: int
    parameters: tuple[Parameter, ...]
    body: tuple[Statement, ...]
    noinline: bool
    calls: tuple[str, ...]
    literal_bytes: int
    nodes: int


@dataclass(frozen=True, slots=True)
class Kernels:
    """All functions of a submission by key, each after those that it calls."""

    functions: Mapping[str, Function]

    @property
    def literal_bytes(self) -> int:
        """Bytes of numbers and strings in all of them."""
        return sum(function.literal_bytes for function in self.functions.values())
