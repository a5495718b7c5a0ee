"""CUDA and C++ text inside a Python source: what is given to `load_inline`, followed through names and joins.

    load_inline(name=..., cpp_sources=[decl], cuda_sources=cuda_text, functions=[...])

Text that only running the source would give (an f-string with values, a file) is reported as unresolved, not guessed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from assay.kernels.static.findings import Finding
from assay.kernels.static.names import Source, read_source
from assay.kernels.static.trees import walk

_LOADERS = ("load_inline", "load")
_LANGUAGES: tuple[Literal["cpp", "cuda"], ...] = ("cpp", "cuda")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"", re.DOTALL)
_LIBRARY = re.compile(
    r"\b(?:at::(?:native::|_ops::)?|torch::(?:nn::functional::)?)"
    r"(?:_?(?:mm|bmm|matmul|addmm|baddbmm|mv|linear|einsum|tensordot|conv\w*|convolution|softmax|log_softmax|layer_norm|"
    r"batch_norm|group_norm|instance_norm|native_\w+|max_pool\w*|avg_pool\w*|adaptive_\w+|cumsum|cumprod|sort|topk|"
    r"embedding|cross_entropy\w*|mse_loss|relu|gelu|silu|sigmoid|tanh|elu|selu|hardtanh|softplus|sum|mean|var|norm|"
    r"logsumexp|scaled_dot_product_attention))\s*\("
    r"|\b(?:cublas|cublasLt|cudnn|cusparse|cufft|cusolver|cutensor)\w*\s*\("
    r"|\.(?:mm|bmm|matmul|softmax|addmm)\s*\("
)
_HOST_DANGER = re.compile(
    r"\b(?:system|popen|fork|vfork|execv\w*|execl\w*|dlopen|dlsym|mprotect|ptrace|pthread_create|std::thread|std::async|"
    r"cudaStreamCreate\w*|cudaStreamBeginCapture\w*|cudaGraphLaunch|Py_\w+|PyRun_\w+|PyObject_\w+|py::exec|py::eval|"
    r"py::module_::import|fopen|std::ofstream|std::ifstream|socket)\s*(?:\(|\b)|#\s*include\s*[<\"](?:dlfcn|sys/|unistd)"
)
_STREAMS = re.compile(r"cudaStreamCreate|cudaGraph|StreamBeginCapture")
_TIMING = re.compile(r"\b(?:cudaDeviceSetLimit|cudaStreamSetAttribute|accessPolicyWindow|cudaEventElapsedTime)\b")
_THREADS = re.compile(r"pthread|std::thread|std::async")


@dataclass(frozen=True, slots=True)
class NativeSource:
    """Text that a candidate hands to a compiler. `text` is empty where it is not `resolved`."""

    language: Literal["cuda", "cpp"]
    line: int
    text: str
    resolved: bool = True


@dataclass(frozen=True, slots=True)
class Extension:
    """One call of `load_inline`: its texts joined as PyTorch joins them."""

    line: int
    cpp: str
    cuda: str
    functions: tuple[str, ...] = ()
    """Names of the functions to bind."""
    flags: tuple[str, ...] = ()
    """`extra_cuda_cflags`."""
    unread: tuple[str, ...] = ()
    """What of it cannot be read without running it; empty where everything could."""


def native_sources(source: Source) -> Iterator[NativeSource]:
    """CUDA and C++ sources that a Python source hands to a compiler, in the order in which they stand."""
    for line, given in _loader_calls(source):
        for language in _LANGUAGES:
            if (value := given.get(f"{language}_sources")) is not None:
                yield from _texts(value, language, source)
        if "sources" in given:
            yield NativeSource("cuda", line, "", resolved=False)


def _loader_calls(source: Source) -> Iterator[tuple[int, dict[str, ast.expr]]]:
    """Line and named arguments of every call that builds an extension."""
    for node in walk(source.tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        dotted = source.dotted(node.func) or ""
        if name not in _LOADERS and not dotted.startswith("torch.utils.cpp_extension.load"):
            continue
        given = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
        for place, argument in zip(("name", "cpp_sources", "cuda_sources", "functions"), node.args, strict=False):
            given.setdefault(place, argument)
        yield node.lineno, given


def extract_extensions(code: str) -> tuple[Extension, ...]:
    """The extensions that a Python source builds, in the order in which they stand.

    Raises:
        SyntaxError: `code` is not valid Python.
    """
    source = read_source(ast.parse(code))
    return tuple(_extension(line, given, source) for line, given in _loader_calls(source))


def _extension(line: int, given: dict[str, ast.expr], source: Source) -> Extension:
    texts: dict[str, list[NativeSource]] = {
        language: list(_texts(given[f"{language}_sources"], language, source))
        for language in _LANGUAGES
        if f"{language}_sources" in given
    }
    unread = [
        *(
            f"{native.language}_sources (line {native.line})"
            for part in texts.values()
            for native in part
            if not native.resolved
        ),
        *(f"files (line {line})" for _ in ("sources",) if "sources" in given),
        *(f"further arguments (line {line})" for _ in (None,) if not texts and "sources" not in given),
    ]
    joined = {language: "\n".join(native.text for native in part) for language, part in texts.items()}
    return Extension(
        line,
        joined.get("cpp", ""),
        joined.get("cuda", ""),
        _words(given.get("functions"), source),
        _words(given.get("extra_cuda_cflags"), source),
        tuple(unread),
    )


def _words(value: ast.expr | None, source: Source) -> tuple[str, ...]:
    """A string, a list of strings or the keys of a dictionary; what cannot be read is left out."""
    if isinstance(value, ast.Name):
        bound = _assigned(value.id, source)
        value = bound[0] if len(bound) == 1 else None
    if isinstance(value, ast.List | ast.Tuple):
        parts: list[ast.expr | None] = list(value.elts)
    elif isinstance(value, ast.Dict):
        parts = list(value.keys)
    else:
        parts = [value]
    texts = [_text(part, source, 0) for part in parts if part is not None]
    return tuple(text for text in texts if text is not None)


def _texts(value: ast.expr, language: Literal["cuda", "cpp"], source: Source) -> Iterator[NativeSource]:
    if isinstance(value, ast.List | ast.Tuple):
        for element in value.elts:
            yield from _texts(element, language, source)
        return
    text = _text(value, source, 0)
    if text is None and isinstance(value, ast.Name):
        bound = _assigned(value.id, source)
        if len(bound) == 1 and isinstance(bound[0], ast.List | ast.Tuple):
            yield from _texts(bound[0], language, source)
            return
    yield NativeSource(language, value.lineno, text or "", resolved=text is not None)


def _assigned(name: str, source: Source) -> list[ast.expr]:
    return [
        node.value
        for node in walk(source.tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id == name
    ]


def _text(node: ast.expr, source: Source, depth: int) -> str | None:
    """The string that an expression is, without running it."""
    if depth > 20:
        return None
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.Name):
        bound = _assigned(node.id, source)
        return _text(bound[0], source, depth + 1) if len(bound) == 1 else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _text(node.left, source, depth + 1), _text(node.right, source, depth + 1)
        return None if left is None or right is None else left + right
    if isinstance(node, ast.JoinedStr):
        parts = [_text(part, source, depth + 1) for part in node.values]
        known = [part for part in parts if part is not None]
        return "".join(known) if len(known) == len(parts) else None
    if isinstance(node, ast.FormattedValue):
        return _text(node.value, source, depth + 1) if node.format_spec is None else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("strip", "lstrip"):
        text = _text(node.func.value, source, depth + 1)
        return None if text is None or node.args else text.strip()
    return None


def find_native_faults(source: Source) -> Iterator[Finding]:
    """Cheats in the native text: library calls in host code, processes, threads, streams; and no kernel at all."""
    sources = list(native_sources(source))
    if not sources:
        yield Finding("no_kernel", 1, "no source given to load_inline, so no kernel of the candidate's own", "cheat")
        return
    for native in sources:
        if not native.resolved:
            yield Finding("obfuscation", native.line, "native source that cannot be read without running it", "suspect")
        text = _COMMENT.sub(lambda match: " " * len(match[0]) if match[0][0] == "/" else match[0], native.text)
        for match in _LIBRARY.finditer(text):
            yield Finding("library_call", _line(native, text, match), match[0].strip("( "), "cheat")
        for match in _TIMING.finditer(text):
            yield Finding("timing", _line(native, text, match), match[0], "cheat")
        for match in _HOST_DANGER.finditer(text):
            if _STREAMS.search(match[0]):
                yield Finding("side_stream", _line(native, text, match), match[0], "cheat")
            elif _THREADS.search(match[0]):
                yield Finding("threads", _line(native, text, match), match[0], "cheat")
            else:
                yield Finding("native_code", _line(native, text, match), match[0], "cheat")
    if all(native.resolved for native in sources) and not any("__global__" in native.text for native in sources):
        yield Finding("no_kernel", sources[0].line, "the native source defines no __global__ function", "cheat")


def _line(native: NativeSource, text: str, match: re.Match[str]) -> int:
    """Line of a match, counted from the line on which the text is used or starts."""
    return native.line + text.count("\n", 0, match.start())
