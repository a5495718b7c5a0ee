"""Python's expressions read into the form; whatever has no place in it is refused."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from assay.kernels.language import bindings, vocabulary
from assay.kernels.language.form import (
    Arguments,
    Attribute,
    Binary,
    Call,
    Choice,
    Compare,
    Expression,
    Helper,
    Index,
    Invoke,
    Items,
    Literal,
    Local,
    Logic,
    Method,
    Text,
    Unary,
    Whole,
)
from assay.kernels.language.limits import INT_BITS, MAX_TEXT, is_plain
from assay.kernels.language.naming import Names
from assay.kernels.language.refusals import Refused, shown
from assay.kernels.language.why import refused_expression

BINARY: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.LShift: "<<",
    ast.RShift: ">>",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
}
UNARY: dict[type[ast.unaryop], str] = {ast.USub: "-", ast.UAdd: "+", ast.Invert: "~", ast.Not: "not"}
COMPARE: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Is: "is",
    ast.IsNot: "is not",
}


class Reader(Names):
    """Reads the expressions of one function."""

    def value(self, node: ast.expr) -> Expression:
        """An expression that is not a string.

        Raises:
            Refused: it is not in the language.
        """
        found = self.operand(node)
        if isinstance(found, Text):
            raise Refused(
                node.lineno,
                f"the string {shown(found.value)!r} here",
                "strings are options of some functions, messages of assertions, and what a compile-time string is "
                "compared with",
                "Use a number, a type such as tl.float32, or a constexpr",
            )
        return found

    def operand(self, node: ast.expr) -> Expression:
        """An expression or a string."""
        read = _READ.get(type(node))
        if read is None:
            raise refused_expression(node, self.snippet(node))
        return read(self, node)

    def constant(self, node: ast.Constant) -> Expression:
        """A number, a string, a truth value or None."""
        value = node.value
        if isinstance(value, str):
            self.count(node.lineno, value)
            if not is_plain(value):
                raise Refused(
                    node.lineno,
                    f"the string {shown(value)!r}",
                    f"strings are at most {MAX_TEXT} plain letters, digits, and `_.+-`, without `sq_` and `_sq`: the "
                    "compiler mixes others up when it names functions",
                    "Use another word",
                )
            return Text(value)
        if value is not None and not isinstance(value, bool | int | float):
            raise Refused(
                node.lineno,
                f"`{self.snippet(node)}`",
                "only whole numbers, floating-point numbers, True, False and None are",
                "Write the value with those",
            )
        if isinstance(value, int) and value.bit_length() > INT_BITS:
            raise _too_large(node.lineno, f"a number of {value.bit_length()} bits", f"{INT_BITS} bits")
        self.count(node.lineno, value)
        return Literal(value)

    def name(self, node: ast.expr) -> Expression:
        """A name or a dotted name as a value."""
        found = self.bound(node)
        if isinstance(found, bindings.Constant):
            for part in found.value.items if isinstance(found.value, Items) else (found.value,):
                if isinstance(part, Literal | Text):
                    self.count(node.lineno, part.value)
            return found.value
        if found is not None:
            raise self.no_value(node, found)
        if isinstance(node, ast.Attribute):
            return self.attribute(node)
        assert isinstance(node, ast.Name), "bound() knows names and attributes"
        if node.id in self.scope.loops and node.id not in self.loops:
            raise Refused(
                node.lineno,
                f"the loop variable {node.id} outside of its loop",
                "after the loop the compiler and Python would disagree about its value",
                "Keep what you need of it in a variable of its own",
            )
        return Local(node.id)

    def attribute(self, node: ast.Attribute) -> Expression:
        """An attribute of a tensor, a descriptor or a type."""
        if node.attr not in vocabulary.ATTRIBUTES:
            raise Refused(
                node.lineno,
                f"the attribute `.{shown(node.attr)}`",
                f"of tensors and types a kernel may read {', '.join(sorted(vocabulary.ATTRIBUTES))}",
                "Call a function of tl instead, or pass the value as an argument",
            )
        return Attribute(self.value(node.value), node.attr)

    def call(self, node: ast.Call) -> Expression:
        """A call of a function of the language, of a helper or of a method."""
        found = self.bound(node.func)
        if isinstance(found, bindings.Function):
            return self.call_of(node, found.name)
        if isinstance(found, bindings.HelperName):
            arguments = Arguments(
                tuple(self.operand(self.plain(each)) for each in node.args),
                tuple((self.keyword(each), self.operand(each.value)) for each in node.keywords),
            )
            self.calls.append((found.key, arguments, node.lineno))
            return Invoke(found.key, arguments)
        if found is not None and not isinstance(found, bindings.Constant):
            raise self.no_value(node.func, found)
        if isinstance(node.func, ast.Attribute) and node.func.attr in vocabulary.METHODS:
            name = node.func.attr
            value = self.value(node.func.value)
            return Method(value, name, self.arguments(node, f".{name}", vocabulary.METHODS[name]))
        raise Refused(
            node.lineno,
            f"the call `{self.snippet(node)}`",
            "what is called must be known before the kernel runs: a function of tl or libdevice, a helper with "
            "@triton.jit, or a method of tensors",
            "Name the function that you mean",
        )

    def call_of(self, node: ast.Call, name: str) -> Expression:
        """A call of a function of the language."""
        if name in vocabulary.LOOPS:
            raise Refused(
                node.lineno,
                f"`{self.snippet(node)}` outside of a for loop",
                "it has a meaning only as what a loop runs over",
                f"Write `for i in {name}(...)`",
            )
        if name == "float" and len(node.args) == 1 and isinstance(node.args[0], ast.Constant) and not node.keywords:
            word = node.args[0].value
            if isinstance(word, str) and word in vocabulary.FLOATS:
                self.count(node.lineno, 0.0)
                return Literal(float(word))
        return Call(name, self.arguments(node, name, (vocabulary.FUNCTIONS[name],)))

    def arguments(self, node: ast.Call, name: str, choices: Sequence[str]) -> Arguments:
        """What a call hands over, checked against the parameters that the function has."""
        slots = None
        for parameters in choices:
            slots = slots or vocabulary.slots(parameters.split(), len(node.args), [each.arg for each in node.keywords])
        if slots is None:
            given = ", ".join([f"{len(node.args)} in order", *(shown(each.arg) for each in node.keywords)])
            raise Refused(
                node.lineno,
                f"{name} with these arguments ({given})",
                f"it takes {' or '.join(f'({choice})' for choice in choices)}",
                "Call it with those",
            )
        values = [self.argument(name, slot, self.plain(each)) for slot, each in zip(slots, node.args, strict=False)]
        named = [(self.keyword(each), self.argument(name, str(each.arg), each.value)) for each in node.keywords]
        return Arguments(tuple(values), tuple(named))

    def argument(self, function: str, slot: str, node: ast.expr) -> Expression:
        """The argument for one parameter: only some take a string, only `combine_fn` takes a function."""
        if slot == "combine_fn":
            found = self.bound(node)
            if not isinstance(found, bindings.HelperName):
                raise Refused(
                    node.lineno,
                    f"`{self.snippet(node)}` as what {function} combines with",
                    "it must be a helper of this submission with @triton.jit",
                    "Write a helper that takes the two sides and returns their combination",
                )
            self.calls.append((found.key, None, node.lineno))
            return Helper(found.key)
        if slot in vocabulary.MESSAGES:
            return self.message(node)
        if slot not in vocabulary.OPTIONS:
            return self.value(node)
        found_option = self.operand(node)
        if isinstance(found_option, Text) and found_option.value not in vocabulary.OPTIONS[slot]:
            raise Refused(
                node.lineno,
                f"{slot}={shown(found_option.value)!r} of {function}",
                f"it is one of {', '.join(map(repr, sorted(vocabulary.OPTIONS[slot])))}",
                "Use one of them",
            )
        return found_option

    def message(self, node: ast.expr) -> Expression:
        """A message, as text. What an f-string would insert is left as it is written and never evaluated."""
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "{...}" for part in node.values]
            text = "".join(map(str, parts))[:MAX_TEXT]
            self.count(node.lineno, text)
            return Text(text)
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or len(node.value) > MAX_TEXT:
            raise Refused(
                node.lineno,
                f"the message `{self.snippet(node)}`",
                f"a message is a string written out, of at most {MAX_TEXT} characters",
                "Write it in quotes",
            )
        self.count(node.lineno, node.value)
        return Text(node.value)

    def plain(self, node: ast.expr) -> ast.expr:
        """An argument that is not unpacked."""
        if isinstance(node, ast.Starred):
            raise Refused(
                node.lineno,
                f"`{self.snippet(node)}`",
                "which argument goes where must be known before the kernel runs",
                "Write the arguments out",
            )
        return node

    def keyword(self, node: ast.keyword) -> str:
        """The name of a named argument."""
        if node.arg is None or not bindings.is_identifier(node.arg):
            raise Refused(
                node.value.lineno,
                "an argument with `**`, or with a name that is not plain ASCII",
                "which argument goes where must be known before the kernel runs",
                "Write the arguments out",
            )
        return node.arg

    def compare(self, node: ast.Compare) -> Expression:
        """One comparison."""
        if len(node.ops) != 1:
            raise Refused(
                node.lineno,
                f"the comparison `{self.snippet(node)}`",
                "Triton compares two values at a time",
                "Write (a < b) & (b < c)",
            )
        operator = COMPARE.get(type(node.ops[0]))
        if operator is None:
            raise Refused(
                node.lineno,
                f"`in` in `{self.snippet(node)}`",
                "Triton has no membership test",
                'Compare with each value: (A == "x") or (A == "y")',
            )
        left, right = self.operand(node.left), self.operand(node.comparators[0])
        if operator in ("is", "is not") and right != Literal(None):
            raise Refused(
                node.lineno,
                f"`{self.snippet(node)}`",
                "identity means something only for None",
                "Compare values with == or !=",
            )
        if operator not in ("==", "!=") and (isinstance(left, Text) or isinstance(right, Text)):
            raise Refused(
                node.lineno,
                f"`{self.snippet(node)}`",
                "strings are only compared with == and !=",
                "Compare with each value that you mean",
            )
        return Compare(operator, left, right)

    def binary(self, node: ast.BinOp) -> Expression:
        """Arithmetic and bits."""
        operator = BINARY.get(type(node.op))
        if operator is None:
            raise Refused(node.lineno, f"`{self.snippet(node)}`", "Triton has no operator @", "Use tl.dot")
        return Binary(operator, self.value(node.left), self.value(node.right))

    def index(self, node: ast.Subscript) -> Expression:
        """`x[:, None]` or `t[0]`."""
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        places: list[Expression | Whole] = []
        for part in parts:
            if not isinstance(part, ast.Slice):
                places.append(self.value(self.plain(part)))
            elif part.lower is part.upper is part.step is None:
                places.append(Whole())
            else:
                raise Refused(
                    node.lineno,
                    f"the slice `{self.snippet(node)}`",
                    "Triton's tensors cannot be cut; `:` and None only add dimensions",
                    "Load the part that you need with an offset and a mask",
                )
        if not places:
            raise Refused(node.lineno, f"`{self.snippet(node)}`", "nothing is indexed", "Leave the brackets out")
        return Index(self.value(node.value), tuple(places))

    def items(self, node: ast.Tuple | ast.List) -> Expression:
        """A tuple or a list."""
        return Items(tuple(self.value(self.plain(each)) for each in node.elts))

    def choice(self, node: ast.IfExp) -> Expression:
        """`a if c else b`."""
        return Choice(self.value(node.test), self.value(node.body), self.value(node.orelse))


def _too_large(line: int, what: str, most: str) -> Refused:
    return Refused(line, what, f"literals have at most {most}", "Compute the value, or pass it as an argument")


_READ: dict[type[ast.expr], Callable[[Reader, Any], Expression]] = {
    ast.Constant: Reader.constant,
    ast.Name: Reader.name,
    ast.Attribute: Reader.name,
    ast.Call: Reader.call,
    ast.Compare: Reader.compare,
    ast.BinOp: Reader.binary,
    ast.UnaryOp: lambda reader, node: Unary(UNARY[type(node.op)], reader.value(node.operand)),
    ast.BoolOp: lambda reader, node: Logic(
        "and" if isinstance(node.op, ast.And) else "or", tuple(map(reader.value, node.values))
    ),
    ast.Subscript: Reader.index,
    ast.Tuple: Reader.items,
    ast.List: Reader.items,
    ast.IfExp: Reader.choice,
}
