"""What a newcomer to a problem needs: its task in a line, what a solution has to define, and a file to begin with.

A starter is a module that runs: the problem's own constructor, so that weights are the same, `forward` with the
problem's arguments, and a kernel that copies its input, which is graded `wrong` until somebody writes the right one.
For problem 1/1 of those that Assay ships it is a whole solution, so that a first grade can be `ok`. Nothing here runs
the problem's module: its text is read.
"""

from __future__ import annotations

import ast
import re
import shlex
import textwrap
from collections.abc import Iterator
from importlib import resources

from assay.kernels.base import Language
from assay.kernels.problems.sources import SHIPPED, Problem
from assay.kernels.verdicts import plain_text
from assay.syntax import parsed

SUMMARY_CHARACTERS = 110
_COMPLETE = "starters"
"""Folder of whole solutions, beside the shipped problems: like those, candidates do not see it."""
_ALWAYS = ("import torch", "import torch.nn as nn")

_TRITON = """\
{imports}
import triton
import triton.language as tl
{helpers}

@triton.jit
def kernel(source_ptr, result_ptr, n_elements, BLOCK: tl.constexpr):
    # TODO: this copies its input. Compute the problem here: add pointers to other inputs and weights, sizes, strides.
    # One program handles BLOCK elements; the mask keeps the last one inside the tensors.
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n_elements
    value = tl.load(source_ptr + offsets, mask=mask)
    tl.store(result_ptr + offsets, value, mask=mask)


class ModelNew({bases}):
{members}    {forward}
{task}
        source = {first}.contiguous()
        result = torch.empty_like(source)  # TODO: the shape and dtype of the problem's output
        n_elements = source.numel()
        grid = (triton.cdiv(n_elements, 512),)
        kernel[grid](source, result, n_elements, BLOCK=512)
        return result
"""

_CUDA = '''\
{imports}
from torch.utils.cpp_extension import load_inline
{helpers}
CUDA = r"""
#include <torch/extension.h>

__global__ void kernel(const float* source, float* result, int n_elements) {{
    // TODO: this copies its input. Compute the problem here: add pointers to other inputs and weights, sizes, strides.
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n_elements) result[i] = source[i];
}}

torch::Tensor run(torch::Tensor source) {{
    auto result = torch::empty_like(source);  // TODO: the shape and dtype of the problem's output
    int n_elements = source.numel();
    kernel<<<(n_elements + 255) / 256, 256>>>(source.data_ptr<float>(), result.data_ptr<float>(), n_elements);
    return result;
}}
"""

extension = load_inline(
    name="starter", cpp_sources="torch::Tensor run(torch::Tensor source);", cuda_sources=CUDA, functions=["run"]
)


class ModelNew({bases}):
{members}    {forward}
{task}
        return extension.run({first}.contiguous())
'''


def summary(problem: Problem) -> str:
    """The problem in one line: the beginning of the first docstring of its model, of `forward` or of its module."""
    model = _model(problem)
    texts = (ast.get_docstring(node) for node in (model, _method(model, "forward"), parsed(problem.code)) if node)
    first = next((text for text in texts if text and text.strip()), "")
    return textwrap.shorten(plain_text(first.strip().splitlines()[0] if first else ""), SUMMARY_CHARACTERS)


def requirements(problem: Problem, backend: Language = "triton") -> str:
    """What a solution has to define, in words."""
    model = _model(problem)
    init, forward = _method(model, "__init__"), _method(model, "forward")
    kernels = "Triton kernels of its own" if backend == "triton" else "CUDA kernels of its own, given to load_inline"
    given = ", ".join(_parameters(init)[1:]) if init else ""
    taken = ", ".join(_parameters(forward)[1:]) if forward else "..."
    text = (
        f"A solution is a Python module that defines class ModelNew(nn.Module). ModelNew({given}) is built from what "
        "get_init_inputs() returns and has the parameters of Model, created in the same order: the same random seed "
        f"then gives the same values. Its forward({taken}) returns what Model.forward returns, computed by {kernels}; "
        "PyTorch may make and reshape tensors, but not do the work."
    )
    return textwrap.fill(text, 110)


def starter(problem: Problem, backend: Language = "triton", name: str | None = None) -> str:
    """The text of a module to begin with.

    Args:
        problem: What it is to solve.
        backend: The language of its kernel.
        name: The problem as the command line names it; by default its `level/id`.
    """
    named = shlex.quote(name or problem.key)
    if problem.source == SHIPPED and (whole := _whole(problem, backend)) is not None:
        return whole
    model = _model(problem)
    forward = _method(model, "forward")
    parameters = _parameters(forward) if forward else []
    first = parameters[1] if len(parameters) > 1 else "x"
    imports, helpers = _needed(problem, model, forward)
    body = (_TRITON if backend == "triton" else _CUDA).format(
        imports="\n".join(imports),
        helpers="".join(f"\n{text}\n" for text in helpers),
        bases=", ".join(map(ast.unparse, model.bases)) or "nn.Module",
        members="".join(f"{text}\n\n" for text in _members(problem, model)),
        forward=_signature(forward),
        task=_task(problem, forward),
        first=f"{first[1:]}[0]" if first.startswith("*") else first,
    )
    return f"{_head(problem, backend, named)}\n{body}"


def _whole(problem: Problem, backend: Language) -> str | None:
    """The whole solution that is shipped for a problem, if one is."""
    folder = resources.files("assay.kernels.problems").joinpath(SHIPPED, _COMPLETE)
    file = folder.joinpath(f"level{problem.level}_{problem.id}_{backend}.py")
    return file.read_text(encoding="utf-8") if file.is_file() else None


def _model(problem: Problem) -> ast.ClassDef:
    """The class `Model`, which `make_problem` has seen."""
    classes = (node for node in parsed(problem.code).body if isinstance(node, ast.ClassDef))
    return [node for node in classes if node.name == "Model"][-1]


def _method(model: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    return next((node for node in model.body if isinstance(node, ast.FunctionDef) and node.name == name), None)


def _parameters(function: ast.FunctionDef) -> list[str]:
    """Names of a function's parameters as a caller sees them, `self` first."""
    given = function.args
    names = [argument.arg for argument in (*given.posonlyargs, *given.args)]
    names += [f"*{given.vararg.arg}"] if given.vararg else []
    names += [argument.arg for argument in given.kwonlyargs]
    return names + ([f"**{given.kwarg.arg}"] if given.kwarg else [])


def _lines(problem: Problem, node: ast.stmt) -> str:
    """The text of a statement, with its indentation and decorators."""
    decorators = getattr(node, "decorator_list", [])
    start = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    return "\n".join(problem.code.splitlines()[start - 1 : node.end_lineno])


def _members(problem: Problem, model: ast.ClassDef) -> Iterator[str]:
    """The text of what the class has besides `forward` and its docstring."""
    for node in model.body:
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not is_text and not (isinstance(node, ast.FunctionDef) and node.name == "forward"):
            yield re.sub(r"\bModel\b", "ModelNew", _lines(problem, node))


def _needed(problem: Problem, model: ast.ClassDef, forward: ast.FunctionDef | None) -> tuple[list[str], list[str]]:
    """Imports, and other statements of the problem's module, that the copied parts refer to."""
    copied: list[ast.AST] = [*model.bases, *(node for node in model.body if node != forward)]
    if forward is not None:
        copied.append(parsed(f"{_signature(forward)} ...").body[0])
    wanted = set().union(*map(_free, copied))
    kept: dict[int, ast.stmt] = {}
    statements = [node for node in parsed(problem.code).body if _defined(node) - {"Model"}]
    found = True
    while found:
        found = False
        for place, node in enumerate(statements):
            if place not in kept and _defined(node) & wanted:
                kept[place], found = node, True
                wanted |= _free(node)
    chosen = [kept[place] for place in sorted(kept)]
    imports = [ast.unparse(node) for node in chosen if isinstance(node, ast.Import | ast.ImportFrom)]
    others = [_lines(problem, node) for node in chosen if not isinstance(node, ast.Import | ast.ImportFrom)]
    return list(dict.fromkeys((*_ALWAYS, *imports))), others


def _free(node: ast.AST) -> set[str]:
    """Names that a statement reads and does not bind itself."""
    parts = list(ast.walk(node))
    read = {part.id for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)}
    bound = {part.id for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    return read - bound - {part.arg for part in parts if isinstance(part, ast.arg)}


def _defined(node: ast.stmt) -> set[str]:
    """Names that a statement at module level defines."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    targets = (part for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store))
    return {part.id for part in targets}


def _signature(forward: ast.FunctionDef | None) -> str:
    if forward is None:
        return "def forward(self, x):"
    bare = ast.FunctionDef("forward", forward.args, [ast.Pass()], [], forward.returns, lineno=1)
    return ast.unparse(bare).rpartition("\n")[0].strip()


def _task(problem: Problem, forward: ast.FunctionDef | None) -> str:
    """The body of the problem's `forward`, as comments."""
    if forward is None:
        return ""
    body = forward.body[1:] if ast.get_docstring(forward) is not None and len(forward.body) > 1 else forward.body
    text = "\n".join(problem.code.splitlines()[body[0].lineno - 1 : body[-1].end_lineno])
    said = f"{ast.get_docstring(forward) or ''}\n{textwrap.dedent(text)}".strip()
    lines = ["# What the problem computes here:", *(f"#     {line}".rstrip() for line in said.splitlines())]
    return textwrap.indent("\n".join(lines), " " * 8)


def _head(problem: Problem, backend: Language, named: str) -> str:
    told = f"\n{plain}" if (plain := summary(problem)) else ""
    if backend == "triton":
        outcome = "it runs and is graded `wrong`: its kernel copies the first input. Write yours where it says TODO"
    else:
        outcome = "it compiles, and its kernel copies the first input. Write yours where it says TODO"
    command = f"assay grade --problem {named} --kernel THIS_FILE{' --backend cuda' if backend == 'cuda' else ''}"
    text = f"""\
A starter for problem {named}, {plain_text(problem.name)}.{told}

As it stands {outcome}, then

    {command}

ModelNew keeps the problem's constructor, so that its parameters have the same names and values. Read them in
forward (self.NAME), but leave the work to the kernel: calling PyTorch's own operators for it is a `cheat`."""
    return "\n".join(f"# {line}".rstrip() for line in text.splitlines())
