"""All kernels of a submission, from source to form: the boundary past which nothing of the source goes.

    {"add": {"source": "@triton.jit\\ndef add(x, y, n, BLOCK: tl.constexpr): ...", "line": 7,
             "names": {"tl": {"module": "triton.language"}, "gelu": {"function": "gelu"}}}}

`source` is one function as `inspect.getsource` gives it, `line` the line of the submission that it starts in (1 where
left out), `names` what its names stand for (see `bindings`). Reading takes time linear in the source and raises
nothing, whatever it is given.
"""

from __future__ import annotations

import ast
import textwrap
import warnings
from collections.abc import Mapping

from assay.kernels.language import bindings
from assay.kernels.language.flow.walking import is_barrier, statements
from assay.kernels.language.form import Arguments, Function, Kernels
from assay.kernels.language.limits import (
    MAX_ALL_NODES,
    MAX_EXPANDED,
    MAX_FUNCTIONS,
    MAX_NAME,
    MAX_SOURCE,
    MAX_SOURCES,
    measure,
)
from assay.kernels.language.naming import Names
from assay.kernels.language.refusals import MAX_REFUSALS, Refusal, Refusals, Refused, shown
from assay.kernels.language.scopes import scope_of
from assay.kernels.language.statements import FunctionReader, check_returns
from assay.kernels.source_text import lines_of

_MOST_LINES = 10**6


def parse(kernels: object) -> Kernels | Refusals:
    """Read the kernels of a submission, given as plain data: key -> {source, names, line}.

    Never raises. Helpers are functions like any other: they are in the same table, and called by key.
    """
    try:
        table = _table(kernels)
    except Refused as refused:
        return Refusals((_refusal(refused, "", 1),))
    functions: dict[str, Function] = {}
    uses: dict[str, Names] = {}
    refusals: list[Refusal] = []
    for key, entry in table.items():
        line = entry.get("line", 1)
        line = line if type(line) is int and 1 <= line <= _MOST_LINES else 1
        found = _function(key, entry, line)
        if isinstance(found, tuple):
            functions[key], uses[key] = found
        else:
            refusals.extend(found)
        if sum(function.nodes for function in functions.values()) > MAX_ALL_NODES:
            return Refusals((_refusal(_too_much(), functions[key].name, line),))
    if not refusals:
        try:
            return _linked(functions, uses)
        except Refused as refused:
            function = functions[refused.args[1]]
            refusals = [_refusal(refused, function.name, function.line)]
    return Refusals(tuple(refusals[:MAX_REFUSALS]))


def _table(kernels: object) -> dict[str, Mapping[str, object]]:
    if not isinstance(kernels, Mapping) or len(kernels) > MAX_FUNCTIONS:
        raise Refused(
            1,
            f"a submission with more than {MAX_FUNCTIONS} kernels and helpers",
            "all of them are read before any is run",
            "Give one kernel parameters in place of writing many",
        )
    total = 0
    for key, entry in kernels.items():
        source = entry.get("source") if isinstance(entry, Mapping) else None
        if not isinstance(key, str) or not 0 < len(key) <= 2 * MAX_NAME or not isinstance(source, str):
            raise Refused(
                1,
                f"the kernel {shown(key)!r} without a source",
                "kernels are read as text",
                "Write it in the submission with `def`, under @triton.jit",
            )
        # A character has at least a byte, so that the length alone bounds what is encoded next.
        size = len(source) if len(source) > MAX_SOURCE else len(source.encode("utf-8", "replace"))
        total += size
        if size > MAX_SOURCE or total > MAX_SOURCES:
            raise Refused(
                1,
                f"the kernel {shown(key)!r} of {size} bytes",
                f"a kernel has at most {MAX_SOURCE} bytes, all of them at most {MAX_SOURCES}",
                "Write a loop or a helper for what is repeated",
            )
    return dict(kernels)


def _refusal(refused: Refused, name: str, line: int) -> Refusal:
    return Refusal(
        shown(name), line + refused.offset - 1, refused.what, refused.why, refused.instead, refused.in_triton
    )


def _function(key: str, entry: Mapping[str, object], line: int) -> tuple[Function, Names] | list[Refusal]:
    """One function and what it uses, or why it is refused."""
    name = key
    try:
        source = textwrap.dedent(str(entry["source"]))
        tree = _definition(source)
        name = tree.name
        nodes = measure(tree)
        names = bindings.read(entry.get("names"))
        reader = FunctionReader(scope_of(tree), names, lines_of(source))
        if not bindings.is_identifier(name):
            raise Refused(1, f"the name {shown(name)!r} of a kernel", "names are plain ASCII", "Rename it")
        noinline, unspecialized = reader.options(tree.decorator_list)
        parameters = reader.parameters(tree.args, unspecialized)
        body = reader.block(tree.body)
        if reader.refused:
            return [_refusal(each, name, line) for each in reader.refused]
        check_returns(body)
    except Refused as refused:
        return [_refusal(refused, name, line)]
    except RecursionError:  # the caller's own stack is nearly full: the depth of the source was measured
        return [_refusal(_unreadable("it is nested too deeply"), name, line)]
    calls = tuple(called for called, _, _ in reader.calls)
    function = Function(key, name, line, parameters, body, noinline, calls, reader.literal_bytes, nodes)
    return function, reader


def _definition(source: str) -> ast.FunctionDef:
    """The one function in a source.

    Raises:
        Refused: it is not Python, or not one function.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Python warns of in a submission is not for the reader of a log
            tree = ast.parse(source)
    except SyntaxError as error:
        raise _unreadable(f"{shown(error.msg)} (line {error.lineno or 1})", error.lineno or 1) from None
    except (ValueError, OverflowError):  # null bytes, halves of surrogate pairs, numbers of thousands of digits
        raise _unreadable("it holds characters or numbers that Python does not read") from None
    except (RecursionError, MemoryError):
        raise _unreadable("it is nested too deeply") from None
    if len(tree.body) != 1 or not isinstance(tree.body[0], ast.FunctionDef):
        raise Refused(
            1,
            "a source that is not one function",
            "a kernel is one `def`",
            "Write it with `def` in the submission, under @triton.jit",
        )
    if getattr(tree.body[0], "type_params", None):
        raise Refused(1, "a function with type parameters", "Triton has none", "Leave them out")
    return tree.body[0]


def _too_much() -> Refused:
    return Refused(
        1,
        f"kernels of more than {MAX_ALL_NODES} pieces in all",
        "all of them are read before any is run",
        "Write loops and helpers for what is repeated",
    )


def _unreadable(why: str, line: int = 1) -> Refused:
    return Refused(line, "a source that is not valid Python", why, "Correct the syntax", in_triton=False)


def _linked(functions: dict[str, Function], uses: dict[str, Names]) -> Kernels:
    """All functions, helpers first.

    Raises:
        Refused: a call of a helper that is not there or does not fit, a circle of calls, or too much in all. The
            exception's second argument is the key of the function.
    """
    for key, names in uses.items():
        for called, arguments, line in names.calls:
            _check_call(key, functions.get(called), called, arguments, line)
    waiting = {key: set(function.calls) for key, function in functions.items()}
    callers: dict[str, set[str]] = {key: set() for key in functions}
    for key, needs in waiting.items():
        for called in needs:
            callers[called].add(key)
    ready = [key for key, needs in waiting.items() if not needs]
    ordered: dict[str, Function] = {}
    expanded: dict[str, int] = {}
    waits: dict[str, bool] = {}
    while ready:
        key = ready.pop()
        ordered[key] = functions[key]
        expanded[key] = functions[key].nodes + sum(expanded[called] for called in functions[key].calls)
        if expanded[key] > MAX_EXPANDED:
            raise _named(
                key,
                1,
                f"a kernel of {expanded[key]} pieces once its helpers stand in the places of their calls",
                f"the compiler does just that; {MAX_EXPANDED} are allowed",
                "Call helpers in a loop",
            )
        waits[key] = any(map(is_barrier, statements(functions[key].body)))
        waits[key] |= any(waits[called] for called in functions[key].calls)
        if functions[key].noinline and waits[key] and callers[key]:
            raise _named(
                key,
                1,
                "a helper with noinline=True that has tl.debug_barrier()",
                "Triton pipelines loops around it as if there was no barrier",
                "Leave noinline out",
            )
        for caller in callers[key]:
            waiting[caller].discard(key)
            if not waiting[caller]:
                ready.append(caller)
    circle = next((key for key in functions if key not in ordered), None)
    if circle is not None:
        raise _named(circle, 1, "a function that calls itself", "Triton has no recursion", "Write a loop")
    return Kernels(ordered)


def _check_call(key: str, helper: Function | None, called: str, arguments: Arguments | None, line: int) -> None:
    """Whether a helper is there and takes these arguments. None: it is what a reduction combines with."""
    if helper is None:
        raise _named(
            key,
            line,
            f"the helper `{shown(called)}`",
            "it is not among the functions of this submission",
            "Define it under @triton.jit",
        )
    if arguments is None:
        return
    names = [parameter.name for parameter in helper.parameters]
    given = names[: len(arguments.positional)] + [name for name, _ in arguments.named]
    needed = {parameter.name for parameter in helper.parameters if parameter.default is None}
    fits = len(arguments.positional) <= len(names) and len(set(given)) == len(given) and set(given) <= set(names)
    if not fits or not needed <= set(given):
        raise _named(
            key,
            line,
            f"the call of {helper.name} with these arguments",
            f"it takes ({', '.join(map(shown, names))})",
            "Call it with those",
        )


def _named(key: str, *parts: object) -> Refused:
    refused = Refused(*parts)  # type: ignore[arg-type]
    refused.args = (refused.what, key)
    return refused
