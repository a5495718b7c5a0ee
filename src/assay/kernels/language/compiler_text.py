"""The form as source for Triton's compiler: one module of `@triton.jit` functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from assay.kernels.language.form import (
    Arguments,
    Assign,
    Attribute,
    Binary,
    Call,
    Choice,
    Compare,
    Do,
    Expression,
    Fix,
    For,
    Function,
    Helper,
    If,
    Index,
    Invoke,
    Items,
    Kernels,
    Literal,
    Local,
    Logic,
    Method,
    Named,
    Pass,
    Return,
    Statement,
    Text,
    Unary,
    While,
    Whole,
)
from assay.kernels.language.writing import Lines, function_names, number, target, variable

HEAD = ("import triton", "import triton.language as tl", "from triton.language.extra import libdevice")


@dataclass(frozen=True, slots=True)
class CompilerText:
    """What the compiler is given.

    source: a module; its first line is 1.
    names: the name of each function in it, by key.
    parameters: those of each function in it, by key: the submission's name -> the name in the module.
    origins: for each line of `source`, the line of the submission.
    """

    source: str
    names: Mapping[str, str]
    parameters: Mapping[str, Mapping[str, str]]
    origins: tuple[int, ...]


def text(kernels: Kernels) -> CompilerText:
    """The source of all functions for the compiler."""
    functions = dict(kernels.functions)
    names = function_names(functions)
    lines = Lines()
    for line in HEAD:
        lines.add(1, line)
    for function in functions.values():
        _function(lines, function, names)
    parameters = {key: {each.name: variable(each.name) for each in one.parameters} for key, one in functions.items()}
    return CompilerText(lines.text(), names, parameters, tuple(lines.origins))


def _function(lines: Lines, function: Function, names: Mapping[str, str]) -> None:
    parameters = []
    for each in function.parameters:
        annotation = ": tl.constexpr" if each.constexpr else f": tl.{each.type}" if each.type else ""
        default = "" if each.default is None else f" = {expression(each.default, names)}"
        parameters.append(variable(each.name) + annotation + default)
    fixed = [variable(each.name) for each in function.parameters if not each.specialized]
    options = ["noinline=True"] * function.noinline + [f"do_not_specialize={fixed!r}"] * bool(fixed)
    lines.add(function.line, f"@triton.jit({', '.join(options)})" if options else "@triton.jit")
    lines.add(function.line, f"def {names[function.key]}({', '.join(parameters)}):")
    _block(lines, function.body, names, function.line)


def _block(lines: Lines, body: tuple[Statement, ...], names: Mapping[str, str], first: int) -> None:
    with lines.indented():
        for each in body:
            _statement(lines, each, names, first)
        if not body:
            lines.add(first, "pass")


def _statement(lines: Lines, each: Statement, names: Mapping[str, str], first: int) -> None:
    origin = first + each.line - 1
    match each:
        case Assign():
            lines.add(origin, f"{target(each.target)} = {expression(each.value, names)}")
        case Fix():
            lines.add(origin, f"{variable(each.name)}: tl.constexpr = {expression(each.value, names)}")
        case Do():
            lines.add(origin, expression(each.value, names))
        case If():
            lines.add(origin, f"if {expression(each.condition, names)}:")
            _block(lines, each.yes, names, first)
            if each.no:
                lines.add(origin, "else:")
                _block(lines, each.no, names, first)
        case For():
            head = f"for {variable(each.name)} in {each.function}({_arguments(each.arguments, names)}):"
            lines.add(origin, head)
            _block(lines, each.body, names, first)
        case While():
            lines.add(origin, f"while {expression(each.condition, names)}:")
            _block(lines, each.body, names, first)
        case Return():
            lines.add(origin, "return" if each.value is None else f"return {expression(each.value, names)}")
        case Pass():
            lines.add(origin, "pass")


def expression(each: Expression, names: Mapping[str, str]) -> str:
    """An expression as source. Everything that could bind differently stands in parentheses."""

    def inner(part: Expression) -> str:
        return expression(part, names)

    match each:
        case Literal(value):
            return number(value)
        case Text(value):
            return ascii(value)
        case Local(name):
            return variable(name)
        case Named(name):
            return name
        case Helper(key):
            return names[key]
        case Items(items):
            return f"({''.join(inner(item) + ', ' for item in items)})"
        case Unary(operator, operand):
            return f"({operator} {inner(operand)})"
        case Binary(operator, left, right) | Compare(operator, left, right):
            return f"({inner(left)} {operator} {inner(right)})"
        case Logic(operator, values):
            return f"({f' {operator} '.join(map(inner, values))})"
        case Choice(condition, yes, no):
            return f"({inner(yes)} if {inner(condition)} else {inner(no)})"
        case Index(value, places):
            return f"{_subject(value, names)}[{_places(places, names)}]"
        case Attribute(value, name):
            return f"{_subject(value, names)}.{name}"
        case Call(function, arguments):
            return f"{function}({_arguments(arguments, names)})"
        case Method(value, name, arguments):
            return f"{_subject(value, names)}.{name}({_arguments(arguments, names)})"
        case Invoke(key, arguments):
            renamed = tuple((variable(name), value) for name, value in arguments.named)
            return f"{names[key]}({_arguments(Arguments(arguments.positional, renamed), names)})"


def _subject(value: Expression, names: Mapping[str, str]) -> str:
    """What stands before a dot or a bracket; a number needs parentheses there."""
    return f"({expression(value, names)})" if isinstance(value, Literal) else expression(value, names)


def _places(places: tuple[Expression | Whole, ...], names: Mapping[str, str]) -> str:
    parts = [":" if isinstance(place, Whole) else expression(place, names) for place in places]
    return ", ".join(parts)


def _arguments(arguments: Arguments, names: Mapping[str, str]) -> str:
    named = [f"{name}={expression(value, names)}" for name, value in arguments.named]
    return ", ".join([*(expression(value, names) for value in arguments.positional), *named])
