"""Python's statements and functions read into the form."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from assay.kernels.language import bindings, vocabulary
from assay.kernels.language.expressions import BINARY, Reader
from assay.kernels.language.flow.hints import HINTS
from assay.kernels.language.form import (
    Arguments,
    Assign,
    Binary,
    Call,
    Do,
    Expression,
    Fix,
    For,
    If,
    Invoke,
    Literal,
    Local,
    Method,
    Named,
    Parameter,
    Pass,
    Return,
    Statement,
    Target,
    Targets,
    Text,
    While,
)
from assay.kernels.language.limits import MAX_LOOPS, MAX_PARAMETERS
from assay.kernels.language.refusals import MAX_REFUSALS, Refused
from assay.kernels.language.scopes import promises_of_itself
from assay.kernels.language.why import refused_statement

_DECORATORS = frozenset({"jit", "autotune", "heuristics"})
"""What may stand over a kernel. None of it is run: what it does shows in the launches."""


class FunctionReader(Reader):
    """Reads the statements of one function; keeps going after a refusal, so that all are told at once."""

    def block(self, nodes: Sequence[ast.stmt]) -> tuple[Statement, ...]:
        """Statements in order. What is refused is left out and remembered."""
        found = []
        for node in nodes:
            try:
                statement = self.statement(node)
            except Refused as refusal:
                self.refused.append(refusal)
                if len(self.refused) >= MAX_REFUSALS:
                    break
                continue
            if statement is not None:
                found.append(statement)
        return tuple(found)

    def statement(self, node: ast.stmt) -> Statement | None:
        """One statement; None for a docstring.

        Raises:
            Refused: it is not in the language.
        """
        read = _READ.get(type(node))
        if read is None:
            raise refused_statement(node, self.snippet(node))
        return read(self, node)

    def expression(self, node: ast.Expr) -> Statement | None:
        """A call for its effect, or a string, which says nothing."""
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return None
        value = self.value(node.value)
        if not isinstance(value, Call | Method | Invoke):
            raise Refused(
                node.lineno, f"`{self.snippet(node)}` as a statement", "it has no effect", "Leave it out, or assign it"
            )
        return Do(node.lineno, value)

    def assignment(self, node: ast.Assign) -> Statement:
        """`x = value`."""
        if len(node.targets) != 1:
            raise Refused(
                node.lineno,
                f"`{self.snippet(node)}`",
                "Triton assigns to one target at a time",
                "Write one line for each",
            )
        target, value = self.target(node.targets[0]), self.value(node.value)
        if promises_of_itself(node):
            return self.promise(node, value)
        return Assign(node.lineno, target, value)

    def promise(self, node: ast.Assign, value: Expression) -> Statement:
        """`x = tl.multiple_of(x, 16)` promises something of x and leaves it as it is, so that a loop may do it, too."""
        part = value
        while isinstance(part, Call) and part.function in HINTS:
            part = part.arguments.positional[0]
        if not isinstance(part, Local):
            raise Refused(
                node.lineno,
                f"`{self.snippet(node)}`",
                "it reads as a promise to the compiler, and is none",
                "Give the function another name",
            )
        return Do(node.lineno, value)

    def target(self, node: ast.expr) -> Target:
        """A name, or a tuple of names."""
        if isinstance(node, ast.Name):
            return node.id
        if isinstance(node, ast.Tuple | ast.List) and node.elts:
            return Targets(tuple(map(self.target, node.elts)))
        raise Refused(
            node.lineno,
            f"an assignment to `{self.snippet(node)}`",
            "values of Triton cannot be changed in place",
            "Assign to a name, select with tl.where, or store with tl.store",
        )

    def in_place(self, node: ast.AugAssign) -> Statement:
        """`x += value` is `x = x + value`."""
        operator = BINARY.get(type(node.op))
        if not isinstance(node.target, ast.Name) or operator is None:
            raise Refused(
                node.lineno,
                f"`{self.snippet(node)}`",
                "values of Triton cannot be changed in place, and there is no operator @",
                "Assign to a name; use tl.dot for products of matrices",
            )
        return Assign(node.lineno, node.target.id, Binary(operator, Local(node.target.id), self.value(node.value)))

    def annotated(self, node: ast.AnnAssign) -> Statement:
        """`x: tl.constexpr = value`."""
        if (
            not isinstance(node.target, ast.Name)
            or node.value is None
            or not vocabulary.names_constexpr(node.annotation)
        ):
            raise Refused(
                node.lineno,
                f"`{self.snippet(node)}`",
                "the only annotation of a variable is tl.constexpr, with a value",
                "Write `x = value`, or `x: tl.constexpr = value`",
            )
        return Fix(node.lineno, node.target.id, self.operand(node.value))

    def if_(self, node: ast.If) -> Statement:
        """Both branches are read, whichever is taken."""
        return If(node.lineno, self.value(node.test), self.block(node.body), self.block(node.orelse))

    def for_(self, node: ast.For) -> Statement:
        """A loop over a range."""
        found = self.bound(node.iter.func) if isinstance(node.iter, ast.Call) else None
        function = found.name if isinstance(found, bindings.Function) else ""
        if not isinstance(node.iter, ast.Call) or function not in vocabulary.LOOPS:
            raise Refused(
                node.iter.lineno,
                f"a loop over `{self.snippet(node.iter)}`",
                "Triton counts with range, tl.range or tl.static_range",
                "Loop over an index",
            )
        if not isinstance(node.target, ast.Name) or node.orelse:
            raise Refused(
                node.lineno, "a loop with several variables, or with `else`", "Triton has neither", "Loop over an index"
            )
        name = node.target.id
        arguments = self.arguments(node.iter, function, (vocabulary.LOOPS[function],))
        if not arguments.positional:
            raise Refused(node.lineno, f"{function} without an end", "a loop has an end", "Write range(n)")
        if function == "range" and arguments.named:
            raise Refused(
                node.lineno,
                "range with named arguments",
                "the compiler passes over them without a word",
                "Write range(start, end, step), or use tl.range",
            )
        if name in self.loops:
            raise Refused(
                node.lineno, f"a loop over {name} inside one over {name}", "they would share it", "Rename one of them"
            )
        self.loops.append(name)
        try:
            body = self.loop_body(node.body)
        finally:
            self.loops.pop()
        return For(node.lineno, name, function, arguments, body)

    def while_(self, node: ast.While) -> Statement:
        """A loop with a condition."""
        if node.orelse:
            raise Refused(node.lineno, "`else` of a loop", "Triton has none", "Write it after the loop")
        return While(node.lineno, self.value(node.test), self.loop_body(node.body))

    def loop_body(self, nodes: Sequence[ast.stmt]) -> tuple[Statement, ...]:
        """The statements of a loop, which cannot return."""
        returns = next((each for node in nodes for each in ast.walk(node) if isinstance(each, ast.Return)), None)
        if returns is not None:
            raise Refused(
                returns.lineno, "`return` in a loop", "Triton's loops run to their end", "Return after the loop"
            )
        self.loop_depth += 1
        if self.loop_depth > MAX_LOOPS:
            raise Refused(
                nodes[0].lineno, f"more than {MAX_LOOPS} loops in loops", "nesting is bounded", "Use a helper"
            )
        try:
            return self.block(nodes)
        finally:
            self.loop_depth -= 1

    def return_(self, node: ast.Return) -> Statement:
        """The end, with or without a value."""
        return Return(node.lineno, None if node.value is None else self.value(node.value))

    def assertion(self, node: ast.Assert) -> Statement:
        """`assert` is tl.device_assert."""
        message = Text("") if node.msg is None else self.message(node.msg)
        return Do(node.lineno, Call("tl.device_assert", Arguments((self.value(node.test), message), ())))

    def parameters(self, node: ast.arguments, unspecialized: frozenset[str]) -> tuple[Parameter, ...]:
        """The parameters of a function."""
        if node.posonlyargs or node.kwonlyargs or node.vararg or node.kwarg or len(node.args) > MAX_PARAMETERS:
            raise Refused(
                1,
                "a parameter with `*`, `**` or `/`",
                f"Triton's functions have plain parameters, at most {MAX_PARAMETERS}",
                "Name each parameter",
            )
        first = len(node.args) - len(node.defaults)
        found = []
        for place, argument in enumerate(node.args):
            default = node.defaults[place - first] if place >= first else None
            constexpr = vocabulary.names_constexpr(argument.annotation)
            special, kind = argument.arg not in unspecialized, vocabulary.type_named(argument.annotation)
            found.append(Parameter(argument.arg, constexpr, kind, self.default(default), special))
        return tuple(found)

    def default(self, node: ast.expr | None) -> Expression | None:
        """The default of a parameter: a constant."""
        if node is None:
            return None
        value = self.operand(node)
        if not isinstance(value, Literal | Text | Named) and not _is_negative(node):
            raise Refused(
                node.lineno,
                f"the default `{self.snippet(node)}`",
                "a default is a number, a string, None or a type",
                "Pass the value when you launch the kernel",
            )
        return value

    def options(self, decorators: Sequence[ast.expr]) -> tuple[bool, frozenset[str]]:
        """What the decorators, which are not run, tell the compiler.

        Returns whether it may not inline the function, and the parameters that it may not specialize.
        """
        noinline, unspecialized = False, frozenset[str]()
        for node in decorators:
            name = vocabulary.last_name(node.func if isinstance(node, ast.Call) else node)
            if name not in _DECORATORS:
                raise Refused(
                    node.lineno,
                    f"the decorator `@{self.snippet(node)}`",
                    "a kernel is decorated with triton.jit, triton.autotune and triton.heuristics only",
                    "Leave it out",
                )
            for keyword in node.keywords if isinstance(node, ast.Call) and name == "jit" else ():
                if keyword.arg == "noinline":
                    noinline = isinstance(keyword.value, ast.Constant) and keyword.value.value is True
                elif keyword.arg == "do_not_specialize":
                    unspecialized = self.listed(keyword.value)
        return noinline, unspecialized

    def listed(self, node: ast.expr) -> frozenset[str]:
        """Parameters in a list, by name or by place."""
        parts = node.elts if isinstance(node, ast.List | ast.Tuple) else []
        found = [part.value for part in parts if isinstance(part, ast.Constant)]
        names = [
            self.scope.parameters[each] if isinstance(each, int) and 0 <= each < len(self.scope.parameters) else each
            for each in found
        ]
        if len(found) != len(parts) or not parts or not all(each in self.scope.parameters for each in names):
            raise Refused(
                node.lineno,
                f"do_not_specialize={self.snippet(node)}",
                "which parameters it means must be written out",
                'List them by name: do_not_specialize=["n"]',
            )
        return frozenset(map(str, names))


def returns(body: Sequence[Statement]) -> bool:
    """Whether a body ends with the return of a value, whichever way it goes."""
    last = body[-1] if body else None
    if isinstance(last, If):
        return returns(last.yes) and returns(last.no)
    return isinstance(last, Return) and last.value is not None


def _all_returns(body: Sequence[Statement]) -> list[Return]:
    """Every return in a body, in order."""
    found: list[Return] = []
    for each in body:
        if isinstance(each, Return):
            found.append(each)
        elif isinstance(each, If):
            found += [*_all_returns(each.yes), *_all_returns(each.no)]
        elif isinstance(each, For | While):
            found += _all_returns(each.body)
    return found


def check_returns(body: Sequence[Statement]) -> None:
    """A function returns a value in every way through it, or in none.

    Raises:
        Refused: in some. The compiler gives the others a value, and Python gives them None.
    """
    found = _all_returns(body)
    if any(each.value is not None for each in found) and (
        any(each.value is None for each in found) or not returns(body)
    ):
        raise Refused(
            found[-1].line,
            "a function that returns a value in one way and ends without one in another",
            "the compiler and Python would disagree about what it returns there",
            "End every branch with `return`, or the function with one after all branches",
        )


def _is_negative(node: ast.expr) -> bool:
    if not isinstance(node, ast.UnaryOp) or not isinstance(node.op, ast.USub):
        return False
    return isinstance(node.operand, ast.Constant) and isinstance(node.operand.value, int | float)


_READ: dict[type[ast.stmt], Callable[[FunctionReader, Any], Statement | None]] = {
    ast.Expr: FunctionReader.expression,
    ast.Assign: FunctionReader.assignment,
    ast.AugAssign: FunctionReader.in_place,
    ast.AnnAssign: FunctionReader.annotated,
    ast.If: FunctionReader.if_,
    ast.For: FunctionReader.for_,
    ast.While: FunctionReader.while_,
    ast.Return: FunctionReader.return_,
    ast.Assert: FunctionReader.assertion,
    ast.Pass: lambda reader, node: Pass(node.lineno),
}
