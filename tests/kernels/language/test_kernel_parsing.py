"""The kernel language: what honest kernels use is in it, everything else is refused with its reason, nothing raises."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import itertools
from collections.abc import Iterable
from typing import Any

import pytest
from benchmarks.common.submissions import read_submissions
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.kernels.language import Kernels, Refusals, interpreted, parse, text, vocabulary
from assay.kernels.language.form import Assign, Binary, Local
from assay.kernels.language.interpreter_text import MEANINGS
from assay.kernels.language.limits import MAX_DEPTH, MAX_FUNCTIONS, MAX_LITERAL_BYTES, MAX_SOURCE
from support.kernel_sources import TL, body, kernels_of, one
from support.kernelbench_data import ATTACKS, HONEST, ROOT, SOLUTIONS

STARTERS = ROOT / "src/assay/kernels/problems/shipped/starters"
HONEST_CODE = {each.id: each.code for each in [*read_submissions(HONEST), *read_submissions(SOLUTIONS)]}


def accepted(table: Any) -> Kernels:
    found = parse(table)
    assert isinstance(found, Kernels), str(found)
    return found


def refused(table: Any) -> Refusals:
    found = parse(table)
    assert isinstance(found, Refusals), "nothing was refused"
    assert found.refusals and all(len(str(each)) < 900 and str(each).isprintable() for each in found.refusals)
    return found


def names_in(source: str) -> Iterable[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.FunctionDef):
            yield node.name
            yield from (argument.arg for argument in node.args.args)


def closed(kernels: Kernels) -> None:
    """What generated text may hold: our own names, and a handful of kinds of syntax."""
    made = interpreted(kernels)
    allowed = {*MEANINGS, *made.triton, *made.names.values()}
    strange = {name for name in names_in(made.source) if name not in allowed and name[:2] not in ("v_", "c_", "d_")}
    assert not strange
    kinds = {type(node) for node in ast.walk(ast.parse(made.source))}
    assert kinds <= _KINDS, kinds - _KINDS
    assert len(made.source.splitlines()) == len(made.origins)
    compile(made.source, "generated", "exec")
    own = text(kernels)
    compile(own.source, "generated", "exec")
    assert len(own.source.splitlines()) == len(own.origins)


_KINDS = {
    *(
        ast.Module,
        ast.FunctionDef,
        ast.arguments,
        ast.arg,
        ast.Assign,
        ast.Expr,
        ast.If,
        ast.For,
        ast.While,
        ast.Return,
    ),
    *(ast.Pass, ast.Call, ast.keyword, ast.Name, ast.Constant, ast.Tuple, ast.Lambda, ast.BoolOp, ast.Or, ast.UnaryOp),
    *(ast.USub, ast.Load, ast.Store),
}
"""No attribute, no subscript, no operator, no import: whatever is done is a call of a name of ours."""


@pytest.mark.parametrize("name", HONEST_CODE)
def test_no_honest_kernel_is_refused(name: str) -> None:
    table = kernels_of(HONEST_CODE[name])
    assert table
    closed(accepted(table))


def test_the_starter_is_not_refused() -> None:
    closed(accepted(kernels_of((STARTERS / "level1_1_triton.py").read_text(encoding="utf-8"))))


def test_attacks_raise_nothing_and_what_is_accepted_is_closed() -> None:
    counts = {Kernels: 0, Refusals: 0}
    for each in read_submissions(ATTACKS):
        if each.backend == "triton":
            found = parse(kernels_of(each.code)) if _is_python(each.code) else Refusals(())
            counts[type(found)] += 1
            if isinstance(found, Kernels):
                closed(found)
    assert counts[Refusals] >= 5 and counts[Kernels] >= 50, counts


def _is_python(code: str) -> bool:
    try:
        ast.parse(code)
    except SyntaxError:
        return False
    return True


ESCAPES = {
    "import": "import os",
    "import_from": "from os import *",
    "dunder": "y = x.__class__",
    "dunder_name": "y = __builtins__",
    "dunder_own": "__x = 1",
    "handle": "y = x.handle.data",
    "eval": "y = eval('1')",
    "getattr": "y = getattr(x, 'handle')",
    "hasattr": "y = hasattr(x, 'handle')",
    "isinstance": "y = isinstance(BLOCK, tl.constexpr)",
    "type": "y = type(x)",
    "print": "print(x)",
    "format": "y = '{}'.format(x)",
    "string_method": "y = 'abc'.upper()",
    "string_times": "y = 'a' * 1000000000",
    "f_string": "y = f'{x}'",
    "lambda": "y = lambda: 1",
    "walrus": "y = (z := 1)",
    "comprehension": "y = [i for i in (1, 2)]",
    "generator": "y = (i for i in (1, 2))",
    "dict": "y = {'a': 1}",
    "set": "y = {1, 2}",
    "star": "y = tl.load(*x)",
    "double_star": "y = tl.load(**x)",
    "starred_target": "a, *b = x",
    "match": "match x:\n    case object(handle=h): pass",
    "class": "class A:\n    y = 1",
    "nested": "def f(): pass",
    "try": "try:\n    pass\nexcept ValueError:\n    pass",
    "with": "with x: pass",
    "raise": "raise ValueError",
    "global": "global y\ny = 1",
    "nonlocal": "nonlocal y",
    "del": "del x",
    "yield": "yield x",
    "await": "y = await x",
    "ellipsis": "y = ...",
    "bytes": "y = b'a'",
    "complex": "y = 1j",
    "huge": "y = " + "9" * 4000,
    "huge_hex": "y = 0x" + "f" * 20000,
    "item_target": "x[0] = 1",
    "attribute_target": "x.y = 1",
    "chain": "a = b = 1",
    "chained_comparison": "y = 0 < n < 3",
    "membership": "y = n in (1, 2)",
    "identity": "y = x is out",
    "matmul": "y = x @ out",
    "slice": "y = x[1:2]",
    "index_nothing": "y = x[()]",
    "inline_asm": "y = tl.inline_asm_elementwise('', '', [x], tl.float32, True, 1)",
    "device_print": "tl.device_print('x', x)",
    "static_print": "tl.static_print(x)",
    "extern": "y = tl.core.extern_elementwise('', '', [x], {}, True)",
    "dispatch": "y = tl.core.dispatch(x)",
    "private": "y = tl._experimental(x)",
    "builtin": "y = tl.core.builtin_max(x)",
    "core_module": "y = tl.core.builtins",
    "tensor": "y = tl.tensor(x, tl.float32)",
    "target": "y = tl.target_info.is_cuda()",
    "module_value": "y = tl",
    "function_value": "y = tl.load",
    "range_value": "y = range(3)",
    "loop_over": "for i in x: pass",
    "loop_twice": "for i in range(3):\n    for i in range(3): pass",
    "loop_var_after": "for i in range(3): pass\ny = i",
    "loop_var_assigned": "for i in range(3):\n    i = 2",
    "loop_var_promised_and_more": "for i in range(3):\n    i = tl.multiple_of(i + 1, 2)",
    "loop_var_by_another_name": "for i in range(3):\n    i = tl.multiple_of(n, 2)",
    "loop_else": "for i in range(3): pass\nelse: pass",
    "loop_tuple": "for i, j in range(3): pass",
    "loop_with_a_step_that_the_compiler_ignores": "for i in range(0, 9, step=3): pass",
    "loop_with_an_end_that_the_compiler_ignores": "for i in range(0, arg2=9): pass",
    "loop_without_end": "for i in tl.range(step=1): pass",
    "return_in_loop": "for i in range(3):\n    return",
    "break": "for i in range(3): break",
    "continue": "for i in range(3): continue",
    "call_of_parameter": "y = x(1)",
    "call_of_call": "y = tl.load(x)(1)",
    "no_effect": "x",
    "annotation_call": "y: print('a') = 1",
    "annotation_bare": "y: tl.constexpr",
    "constexpr_twice": "y: tl.constexpr = 1\ny = 2",
    "unknown_argument": "y = tl.load(x, msak=1)",
    "semantic": "y = tl.load(x, _semantic=1)",
    "too_many": "y = tl.program_id(0, 1)",
    "twice": "y = tl.load(x, pointer=x)",
    "option": "y = tl.load(x, eviction_policy='evict_never')",
    "option_in_place": "y = tl.load(x, None, None, (), 'ones')",
    "message_called": "tl.static_assert(BLOCK == 1, str(x))",
    "combine": "y = tl.reduce(x, 0, tl.maximum)",
    "combine_lambda": "y = tl.reduce(x, 0, lambda a, b: a)",
    "combine_local": "y = tl.reduce(x, 0, out)",
    "string_that_is_mixed_up": "y = 1 if n == 'a[' else 2",
    "string_with_a_quote_in_disguise": "y = 1 if n == 'a_sq_b' else 2",
    "item_of_type": "y = tl.float32.handle",
    "unbound": "y = something",
    "not_nfkc": "y = \uff45\uff56\uff41\uff4c('1')",
    "unicode": "\xdf = 1",
}


@pytest.mark.parametrize("name", ESCAPES)
def test_what_is_not_in_the_language_is_refused_with_its_line(name: str) -> None:
    found = refused(body("pass\n" + ESCAPES[name]))
    assert found.refusals[0].function == "kernel"
    assert found.refusals[0].line in (1, 3, 4, 5), found
    assert found.refusals[0].why and found.refusals[0].instead


@pytest.mark.parametrize(
    "source",
    [
        "def kernel(x=print('a')): pass",
        "def kernel(x=[].append(1)): pass",
        "def kernel(x, *rest): pass",
        "def kernel(x, **rest): pass",
        "def kernel(x, *, y): pass",
        "def kernel(x, /): pass",
        "def kernel(x, x): pass",
        "@print\ndef kernel(x): pass",
        "@(lambda f: f)\ndef kernel(x): pass",
        "async def kernel(x): pass",
        "class kernel: pass",
        "x = 1",
        "def kernel(x):\n  if x: return 1",
        "def kernel(x):\n  if x: return\n  return x",
        "@triton.jit(do_not_specialize=names)\ndef kernel(x): pass",
        "@triton.jit(do_not_specialize=['y'])\ndef kernel(x): pass",
        "def kernel(x): pass\nprint(1)",
        "def kernel(__class__): pass",
        "def kernel(x): return __class__",
        "def \uff4bernel_\xdf(x): pass",
        "def kernel(x):\n  y = '\ud800'",
        "def kernel(x):\n  y = 1\0",
        "def kernel(x):\n  y = '\\N{DIGIT",
        "def kernel(x): # type: (" + "int, " * 10 + ") -> None\n  y = ...",
        "",
        "(" * 10_000,
        "-" * 30_000 + "1",
        "def kernel(x):\n  y = " + "-" * 5_000 + "x",
        "def kernel(x):\n  y = x" + ".T" * 10_000,
        "def kernel(x):\n  y = " + "+".join(["x"] * 5_000),
        "def kernel(x):\n  y = " + "(" * (MAX_DEPTH + 1) + "x" + "+x)" * (MAX_DEPTH + 1),
        "def kernel(x):\n" + "".join(f"{' ' * (i + 1)}for i{i} in range(2):\n" for i in range(15)) + " " * 30 + "pass",
        "def kernel(x):\n" + "  y = x + x\n" * 3_000,
        "def kernel(x):\n" + "  pass\n" * 10_000,
        "def kernel(x):\n  # " + "a" * MAX_SOURCE,
    ],
)
def test_strange_sources_are_refused_and_raise_nothing(source: str) -> None:
    refused(one(source))


def test_text_in_comments_docstrings_and_annotations_is_not_in_what_is_generated() -> None:
    source = (
        '@triton.jit\ndef kernel(x: evil("a"), n: "tl.constexpr" = 3) -> evil("b"):\n'
        '    """evil"""\n    # evil\n    y = x + n  # type: evil\n    tl.store(x, y)\n'
    )
    kernels = accepted(one(source))
    assert "evil" not in text(kernels).source + interpreted(kernels).source
    assert kernels.functions["kernel"].parameters[1].constexpr


def test_names_cannot_shadow_what_generated_text_means_by_them() -> None:
    own = ["float", "v_x", "o_add", "t_load", "range", "k0_kernel", "c_1", "d_1"]
    lines = "\n".join([*(f"{name} = {place}" for place, name in enumerate(own)), f"y = {' + '.join(own)}"])
    kernels = accepted(body(lines))
    closed(kernels)
    assert set(own) - {"k0_kernel"} <= {name[2:] for name in names_in(interpreted(kernels).source)}


def test_forms_are_resolved() -> None:
    kernels = accepted(body("y = n + n\nz = tl.load(x)\ny += z\ntl.store(out, y)"))
    first, _, third, _ = kernels.functions["kernel"].body
    assert first == Assign(2, "y", Binary("+", Local("n"), Local("n")))
    assert third == Assign(4, "y", Binary("+", Local("y"), Local("z")))


HELPERS = {
    "a": {"source": "def f(x, y=1): return x + y", "names": TL},
    "k": {"source": "def k(x):\n  tl.store(x, f(x, y=2))", "names": {**TL, "f": {"function": "a"}}, "line": 11},
}


def test_a_loop_may_promise_something_of_its_counter() -> None:
    lines = "for i in range(3):\n    i = tl.max_contiguous(tl.multiple_of(i, 2), 1)\n    tl.store(out + i, i)"
    made = text(accepted(body(lines))).source
    assert "tl.max_contiguous(tl.multiple_of(v_i, 2), 1)" in made and "v_i =" not in made


def test_a_helper_that_reads_as_a_promise_is_refused() -> None:
    helper = {"source": "def multiple_of(x, y):\n    return x + y", "names": {}}
    names = {"multiple_of": {"function": "multiple_of"}}
    found = refused({"multiple_of": helper, **body("for i in range(3):\n    i = multiple_of(i, 2)", **names)})
    assert "reads as a promise" in str(found)


def test_helpers_come_before_their_callers() -> None:
    assert list(accepted(dict(reversed(HELPERS.items()))).functions) == ["a", "k"]


@pytest.mark.parametrize("call", ["f()", "f(x, x, x)", "f(x, z=1)", "f(x, x=1)", "f(y=1)", "g(x)"])
def test_calls_of_helpers_fit_them(call: str) -> None:
    caller = {"source": f"def k(x):\n  y = {call}", "names": {"f": {"function": "a"}, "g": {"function": "missing"}}}
    found = refused({**HELPERS, "k": {**caller, "line": 11}})
    assert found.refusals[0].line == 12 and found.refusals[0].function == "k"


def test_recursion_is_refused() -> None:
    table = {name: {"source": f"def {name}(x): return g(x)", "names": {"g": {"function": to}}} for name, to in _CIRCLE}
    assert "calls itself" in str(refused(table))


@pytest.mark.parametrize(("decorator", "said"), [("@triton.jit(noinline=True)", "noinline=True"), ("@triton.jit", "")])
def test_a_barrier_in_a_helper_that_is_not_inlined_is_refused(decorator: str, said: str) -> None:
    module = {"tl": {"module": "triton.language"}}
    table = {
        "w": {"source": "def w():\n  tl.debug_barrier()", "names": module},
        "h": {"source": f"{decorator}\ndef h():\n  w()", "names": {"w": {"function": "w"}}},
        "k": {"source": "def k():\n  h()", "names": {"h": {"function": "h"}}},
    }
    assert said in str(refused(table)) if said else accepted(table)


_CIRCLE = [("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")]


def test_calls_that_multiply_are_refused_in_linear_time() -> None:
    """Each of 30 helpers calls the next six times: 6 ** 30 calls."""
    calls = "  g(x)\n" * 6
    table = {
        f"f{i}": {"source": f"def f{i}(x):\n{calls}", "names": {"g": {"function": f"f{i + 1}"}}} for i in range(30)
    }
    table["f30"] = {"source": "def f30(x): pass", "names": {}}
    assert "in the places of their calls" in str(refused(table))


@pytest.mark.parametrize(
    "table",
    [
        None,
        [],
        {"k": None},
        {"k": {}},
        {"k": {"source": 3}},
        {3: {"source": "def k(): pass", "names": {}}},
        {"k": {"source": "def k(): pass"}},
        {"k": {"source": "def k(): pass", "names": []}},
        {"k": {"source": "def k(): pass", "names": {"a": {}}}},
        {"k": {"source": "def k(): pass", "names": {"a": {"module": 3}}}},
        {"k": {"source": "def k(): pass", "names": {"a": {"module": "m" * 1000}}}},
        {"k": {"source": "def k(): pass", "names": {"a b": {"module": "os"}}}},
        {"k": {"source": "def k(): pass", "names": {"a": {"pickle": "x"}}}},
        {"k": {"source": "def k(): pass", "names": {f"a{i}": {"module": "os"} for i in range(1000)}}},
        {f"k{i}": {"source": "def k(): pass", "names": {}} for i in range(MAX_FUNCTIONS + 1)},
        {"k": {"source": "def k(): " + " " * 10**6 + "pass", "names": {}}},
    ],
)
def test_records_of_a_wrong_form_are_refused(table: Any) -> None:
    refused(table)


@pytest.mark.parametrize(
    ("binding", "use"),
    [
        ({"module": "os"}, "g.system('ls')"),
        ({"module": "torch"}, "g.ones(3)"),
        ({"module": "math"}, "g.exp(n)"),
        ({"module": "triton"}, "g.testing.do_bench(x)"),
        ({"module": "triton.language.core"}, "g._unwrap_if_constexpr(x)"),
        ({"module": "triton.language.extra.libdevice"}, "g.fast_expf(x)"),
        ({"member": "triton.language.inline_asm_elementwise"}, "g(x)"),
        ({"member": "triton.language.core.tensor"}, "g(x, x)"),
        ({"member": "builtins.eval"}, "g('1')"),
        ({"other": "list"}, "g[0]"),
        ({"constant": "text"}, "g"),
        ({"constant": 2**70}, "g"),
        ({"constant": {"a": 1}}, "g"),
        ({"constant": 3}, "g(x)"),
        ({"constant": 3}, "g.real"),
    ],
)
def test_bindings_reach_only_the_vocabulary(binding: dict[str, Any], use: str) -> None:
    refused(body(f"y = {use}", g=binding))


@pytest.mark.parametrize(
    ("binding", "use", "made"),
    [
        ({"module": "math"}, "g.pi", "3.141592653589793"),
        ({"constant": -3}, "g", "(-3)"),
        ({"constant": float("-inf")}, "g", "float('-inf')"),
        ({"constant": [1, 2]}, "g[0]", "(1, 2, )[0]"),
        ({"member": "triton.language.float16"}, "x.to(g)", "v_x.to(tl.float16)"),
        ({"member": "triton.language.math.exp"}, "g(x)", "tl.exp(v_x)"),
        ({"member": "triton.language.standard.sum"}, "g(x, 0)", "tl.sum(v_x, 0)"),
        ({"member": "triton.language.extra.cuda.libdevice.tanh"}, "g(x)", "libdevice.tanh(v_x)"),
        ({"module": "triton.language"}, "g.extra.libdevice.tanh(x)", "libdevice.tanh(v_x)"),
        ({"module": "triton.language"}, "tl.maximum(x, 0.0, g.PropagateNan.ALL)", "tl.PropagateNan.ALL"),
        ({"module": "triton"}, "g.language.exp(x)", "tl.exp(v_x)"),
        ({"module": "triton"}, "g.next_power_of_2(BLOCK)", "triton.next_power_of_2(v_BLOCK)"),
    ],
)
def test_bindings_are_written_out(binding: dict[str, Any], use: str, made: str) -> None:
    assert made in text(accepted(body(f"y = {use}", g=binding))).source


def test_constants_are_counted_wherever_they_come_from() -> None:
    lines = "\n".join(f"y{i} = {i / 7!r} + x" for i in range(MAX_LITERAL_BYTES // 8 + 1))
    assert "does not carry it" in str(refused(body(lines)))
    table = [i / 7 for i in range(60)]
    assert "does not carry it" in str(refused(body("\n".join("y = g[0]" for _ in range(3)), g={"constant": table})))
    assert accepted(body("y = 1.5 + 3 + 70000")).literal_bytes == 8 + 1 + 3


def test_all_refusals_are_told_at_once_with_lines_of_the_submission() -> None:
    table = one("@triton.jit\ndef kernel(x):\n    y = x.handle\n    import os\n    z = eval('1')\n")
    table["kernel"]["line"] = 21
    assert [each.line for each in refused(table).refusals] == [23, 24, 25]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no triton here")
def test_the_vocabulary_is_that_of_the_installed_triton() -> None:
    import triton.language as tl
    from triton.language.extra.cuda import libdevice

    groups = set(itertools.chain(*(group.names for group in vocabulary.REFUSED_TL)))
    said = {*vocabulary.TL, *vocabulary.TYPES, *groups, "PropagateNan"}
    assert set(tl.__all__) <= said, "Triton has names that nobody decided about"
    assert not groups & set(vocabulary.TL)
    for home, table in ((tl, vocabulary.TL), (libdevice, vocabulary.LIBDEVICE), (tl.tensor, vocabulary.TENSOR_METHODS)):
        for name, parameters in table.items():
            if name != "constexpr" and name != "pointer_type":
                found = inspect.signature(getattr(getattr(home, name), "fn", getattr(home, name))).parameters.values()
                own = [("*" if p.kind is p.VAR_POSITIONAL else "") + p.name for p in found]
                own = [each for each in own if each not in ("_semantic", "_generator", "self")]
                assert home is tl.tensor or own == parameters.split(), name


SNIPPETS = st.sampled_from(
    [
        *("x", "n", "1", "0.5", "tl.load(x)", "tl.float32", "x[:, None]", "x.to(tl.int8)", "float('inf')", "None"),
        *("'a'", "x.handle", "BLOCK", "(n, 1)", "lambda: 1", "tl.exp", "x.shape[0]", "x.__class__", "[n]", "{}", "i"),
    ]
)
OPERATORS = st.sampled_from(["+", "*", "//", "<", "==", "&", "and", "or", "**", "<<", "if n else", "is", "@", "in"])


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    two = st.tuples(inner, OPERATORS, inner).map(lambda parts: f"({' '.join(parts)})")
    signs = st.tuples(st.sampled_from(["-", "not ", "~", "*", "await "]), inner).map(
        lambda parts: f"({''.join(parts)})"
    )
    calls = st.tuples(st.sampled_from(["tl.maximum", "min", "tl.sum", "f", "getattr", "tl.where"]), inner, inner)
    return two | signs | calls.map(lambda parts: f"{parts[0]}({parts[1]}, {parts[2]})")


EXPRESSIONS = st.recursive(SNIPPETS, _larger, max_leaves=6)
LINES = st.tuples(
    st.sampled_from(
        [
            *("y = {}", "tl.store(x, {})", "if {}: y = 1", "y: tl.constexpr = {}", "for i in range({}): y = i"),
            *("y += {}", "while {}: n = n + 1", "return {}", "x[0] = {}", "with {}: pass", "a, b = {}", "assert {}"),
        ]
    ),
    EXPRESSIONS,
).map(lambda parts: parts[0].format(parts[1]))


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.lists(LINES, min_size=1, max_size=5))
def test_what_is_accepted_is_closed_whatever_is_written(lines: list[str]) -> None:
    found = parse(body("\n".join(lines)))
    if isinstance(found, Kernels):
        closed(found)
    else:
        assert str(found)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.data())
def test_damaged_kernels_raise_nothing(data: st.DataObject) -> None:
    table = kernels_of(HONEST_CODE[data.draw(st.sampled_from(_LONG))])
    key = data.draw(st.sampled_from(sorted(table)))
    source = table[key]["source"]
    place = data.draw(st.integers(0, len(source)))
    end = data.draw(st.integers(place, min(len(source), place + 8)))
    insert = data.draw(st.text(max_size=6) | SNIPPETS)
    table[key]["source"] = source[:place] + insert + source[end:]
    found = parse(table)
    if isinstance(found, Kernels):
        closed(found)
    else:
        assert str(found)


_LONG = ["honest/matmul_grouped", "honest/snake_unrolled", "honest/causal_attention", "honest/prefix_sum_associative"]
