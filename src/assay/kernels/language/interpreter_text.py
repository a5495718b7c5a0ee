"""The form as Python for Triton's interpreter.

    v_x = o_assigned(o_add(v_x, t_load(v_p, mask=o_lt(v_i, v_n))))

Every name in it is of ours: `v_` variables, `k0_` functions, `t_` functions of Triton, `o_` operators, which mean what
Triton's compiler means by them where Python would mean something else (`and` of blocks, the type of a loop variable).
No attribute is read, no builtin is named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from assay.kernels.language import vocabulary
from assay.kernels.language.flow.hints import HINTS, Hints, hints_of
from assay.kernels.language.flow.lowering import Lowering, lowered
from assay.kernels.language.flow.sites import of_form
from assay.kernels.language.flow.walking import names_of, statements
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

OPERATORS = {
    "+": "o_add",
    "-": "o_sub",
    "*": "o_mul",
    "/": "o_div",
    "//": "o_floordiv",
    "%": "o_mod",
    "**": "o_pow",
    "<<": "o_lshift",
    ">>": "o_rshift",
    "&": "o_bitand",
    "|": "o_bitor",
    "^": "o_bitxor",
    "==": "o_eq",
    "!=": "o_ne",
    "<": "o_lt",
    "<=": "o_le",
    ">": "o_gt",
    ">=": "o_ge",
    "is": "o_is",
    "is not": "o_isnot",
    "and": "o_and",
    "or": "o_or",
}
SIGNS = {"-": "o_neg", "+": "o_pos", "~": "o_invert", "not": "o_not"}
LOOPS = {"range": "o_range", "tl.range": "o_range", "tl.static_range": "o_static_range"}
OWN = {
    "min": "o_min",
    "max": "o_max",
    "float": "o_float",
    "int": "o_int",
    "len": "o_len",
    "triton.cdiv": "o_cdiv",
    "triton.next_power_of_2": "o_next_power_of_2",
    "tl.constexpr": "o_fixed",
    "tl.pointer_type": "o_pointer",
    "tl.assume": "o_assume",
    **{name: f"o_{name.removeprefix('tl.')}" for name in HINTS},
}
"""Functions that the operators' module gives a meaning; the others are Triton's own."""
MEANINGS = frozenset(
    {*OPERATORS.values(), *SIGNS.values(), *LOOPS.values(), *OWN.values()}
    | {"o_assigned", "o_again", "o_fixed", "o_dynamic", "o_truth", "o_pick", "o_returned", "o_index", "o_all"}
    | {"o_static", "o_attribute", "o_method", "o_combine", "o_nan", "o_inf", "o_unconditional", "o_early", "o_unused"}
    | {"o_site", "o_pick_outside"}
    | {f"{OWN[name]}_late" for name in HINTS}
)
"""Every operator that generated text may name."""


@dataclass(frozen=True, slots=True)
class InterpreterText:
    """What the interpreter executes.

    source: a module of functions; it names nothing but them, `MEANINGS` and the keys of `triton`.
    names: the name of each function in it, by key.
    triton: name in the text -> full name of the function or constant of Triton.
    origins: for each line of `source`, the line of the submission.
    lowering: what the compiler makes of them.
    """

    source: str
    names: Mapping[str, str]
    triton: Mapping[str, str]
    origins: tuple[int, ...]
    lowering: Lowering


def interpreted(kernels: Kernels) -> InterpreterText:
    """The Python of all functions for the interpreter."""
    functions = dict(kernels.functions)
    names = function_names(functions)
    lines = Lines()
    used: dict[str, str] = {}
    found = lowered(functions)
    numbers = of_form(functions.values())
    hints = hints_of(functions)
    for key, function in functions.items():
        _Writer(function, names, lines, used, hints[key], found, numbers).function()
    return InterpreterText(lines.text(), names, used, tuple(lines.origins), found)


@dataclass(slots=True)
class _Writer:
    """Writes one function.

    sites: numbers of calls, by `id` (`flow.sites`).
    regions: for each region around the statement that may run or not, or more than once: how the text says so.
    again: names that are bound more than once.
    """

    one: Function
    names: Mapping[str, str]
    lines: Lines
    used: dict[str, str]
    hints: Hints
    lowering: Lowering
    sites: Mapping[int, int]
    regions: list[str] = field(default_factory=list)
    again: frozenset[str] = frozenset()
    several_returns: bool = False
    conditions: int = 0

    def function(self) -> None:
        """Write all of it."""
        everything = list(statements(self.one.body))
        bound = Counter(name for each in everything if isinstance(each, Assign) for name in names_of(each.target))
        bound.update(parameter.name for parameter in self.one.parameters)
        self.again = frozenset(name for name, times in bound.items() if times > 1)
        self.several_returns = sum(isinstance(each, Return) for each in everything) > 1
        parameters = [
            variable(each.name) + ("" if each.default is None else f"={self.expression(each.default)}")
            for each in self.one.parameters
        ]
        self.lines.add(self.one.line, f"def {self.names[self.one.key]}({', '.join(parameters)}):")
        self.block(self.one.body)

    def block(self, body: Sequence[Statement], region: str = "") -> None:
        """Write statements one level deeper."""
        if region:
            self.regions.append(region)
        with self.lines.indented():
            for each in body:
                self.statement(each)
            if not body:
                self.lines.add(self.one.line, "pass")
        if region:
            self.regions.pop()

    def statement(self, each: Statement) -> None:
        """Write one statement."""
        origin = self.one.line + each.line - 1
        add = self.lines.add
        match each:
            case Assign():
                add(origin, f"{target(each.target)} = {self.assigned(each)}")
            case Fix():
                add(origin, f"{variable(each.name)} = o_fixed({self.expression(each.value)})")
            case Do():
                add(origin, self.expression(each.value))
            case If():
                self.conditions += 1
                condition, region = f"c_{self.conditions}", f"d_{self.conditions}"
                add(origin, f"{condition} = {self.expression(each.condition)}")
                add(origin, f"{region} = o_dynamic({condition})")
                self.unconditional(each, origin, region)
                add(origin, f"if o_truth({condition}):")
                self.block(each.yes, region)
                if each.no:
                    add(origin, "else:")
                    self.block(each.no, region)
            case For():
                loop = self.checked(each.function, (vocabulary.LOOPS[each.function],), each.arguments)
                loop += ", ahead=True" * (id(each) in self.lowering.pipelined)
                loop = f"{LOOPS[each.function]}({loop})"
                self.unconditional(each, origin, str(each.function != "tl.static_range"))
                add(origin, f"for {variable(each.name)} in {loop}:")
                self.block(each.body, "" if each.function == "tl.static_range" else "True")
            case While():
                self.unconditional(each, origin, "True")
                add(origin, f"while o_truth({self.expression(each.condition)}):")
                self.block(each.body, "True")
            case Return():
                value = "" if each.value is None else self.expression(each.value)
                add(origin, f"return o_returned({value})" if value and self.several_returns else f"return {value}")
            case Pass():
                add(origin, "pass")

    def unconditional(self, each: Statement, origin: int, region: str) -> None:
        """Look whether a branch or loop is one of run time, where it makes promises that hold without it, too."""
        if id(each) in self.hints.outside:
            self.lines.add(origin, f"o_unconditional({region})")

    def assigned(self, each: Assign) -> str:
        """The value of an assignment; where it may replace another at run time, with a look at that."""
        value = f"o_assigned({self.expression(each.value)})"
        changed = sorted(set(names_of(each.target)) & self.again)
        if not changed or not self.regions:
            return value
        region = "True" if "True" in self.regions else " or ".join(self.regions)
        before = "".join(f"lambda: {variable(name)}, " for name in changed)
        places = "" if isinstance(each.target, str) else ", whole=False"
        return f"o_again({value}, ({region}), ({before}){places})"

    def expression(self, each: Expression) -> str:
        """An expression as calls."""
        inner = self.expression
        match each:
            case Literal(value):
                return (
                    number(value)
                    .replace("float('nan')", "o_nan")
                    .replace("float('inf')", "o_inf")
                    .replace("float('-inf')", "o_neg(o_inf)")
                )
            case Text(value):
                return ascii(value)
            case Local(name):
                return variable(name)
            case Named(name):
                return self.triton(name)
            case Helper(key):
                return f"o_combine({self.names[key]})"
            case Items(items):
                return f"({''.join(inner(item) + ', ' for item in items)})"
            case Unary(operator, operand):
                return f"{SIGNS[operator]}({inner(operand)})"
            case Binary(operator, left, right) | Compare(operator, left, right):
                return f"{OPERATORS[operator]}({inner(left)}, {inner(right)})"
            case Logic(operator, values):
                return f"{OPERATORS[operator]}({', '.join(f'lambda: {inner(value)}' for value in values)})"
            case Choice(condition, yes, no):
                pick = "o_pick_outside" if id(each) in self.hints.outside else "o_pick"
                return f"{pick}({inner(condition)}, lambda: {inner(yes)}, lambda: {inner(no)})"
            case Index(value, places):
                parts = "".join(f"{'o_all' if isinstance(each, Whole) else inner(each)}, " for each in places)
                return f"o_index({inner(value)}, ({parts}))"
            case Attribute(value, name):
                return f"o_attribute({inner(value)}, {name!r})"
            case Call(function, arguments):
                name = OWN.get(function) or self.triton(function)
                name = self.lowered(each, name + ("_late" if id(each) in self.hints.late else ""))
                return f"{name}({self.checked(function, (vocabulary.FUNCTIONS[function],), arguments)})"
            case Method(value, name, arguments):
                arguments_of = self.checked(f"tl.{name}", vocabulary.METHODS[name], arguments)
                return f"{self.lowered(each, f'o_method({inner(value)}, {name!r})')}({arguments_of})"
            case Invoke(key, arguments):
                named = [f"{variable(name)}={inner(value)}" for name, value in arguments.named]
                name = self.lowered(each, self.names[key])
                return f"{name}({', '.join([*map(inner, arguments.positional), *named])})"

    def lowered(self, each: Expression, function: str) -> str:
        """A function as it is called here: where that is, whether the compiler may start the call early, and whether
        nobody uses its result."""
        if (number := self.sites.get(id(each))) is not None:
            function = f"o_site({function}, {number})"
        if id(each) in self.lowering.unused:
            return f"o_unused({function})"
        return f"o_early({function})" if id(each) in self.lowering.early else function

    def triton(self, name: str) -> str:
        """The name under which a function of Triton stands in the text."""
        own = "t_" + name.removeprefix("tl.").replace(".", "_")
        self.used[own] = name
        return own

    def checked(self, function: str, choices: Sequence[str], arguments: Arguments) -> str:
        """What a function is called with; what must be known when compiled is looked at."""
        names = [name for name, _ in arguments.named]
        found = (vocabulary.slots(each.split(), len(arguments.positional), [*names]) for each in choices)
        slots = next(each for each in found if each is not None)
        static = vocabulary.STATIC | ({"shape"} if function in vocabulary.STATIC_SHAPES else set())

        def written(slot: str, value: Expression) -> str:
            text = self.expression(value)
            free = slot not in static or isinstance(value, Literal | Text | Named)
            return text if free else f"o_static({text})"

        positional = [written(slot, value) for slot, value in zip(slots, arguments.positional, strict=True)]
        return ", ".join([*positional, *(f"{name}={written(name, value)}" for name, value in arguments.named)])
