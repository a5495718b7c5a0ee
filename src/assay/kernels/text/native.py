"""CUDA and C++ text inside a Python source: what is given to `load_inline`, followed through names and joins.

    load_inline(name=..., cpp_sources=[decl], cuda_sources=cuda_text, functions=[...])

Text that only running the source would give (an f-string with values, a file) is reported as unread, not guessed.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator

from assay.kernels.text.examined import (
    EVIDENCE_CHARACTERS,
    MOST_FINDINGS,
    MOST_NATIVE_CHARACTERS,
    MOST_WORDS,
    WORD_CHARACTERS,
    Extension,
    Finding,
    Kind,
    bounded,
)
from assay.kernels.text.tree import Tree

_MOST_STEPS = 20_000
"""Expressions that are looked at for the texts of one source. A text may name others, and they others again."""

_SKIPPED = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)|\"(?:\\.|[^\"\\\n])*\"?", re.DOTALL)
"""Comments and strings; what is never closed goes on to its end, so that no place is looked at twice."""
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
_THREADS = re.compile(r"pthread|std::thread|std::async")
_TIMING = re.compile(r"\b(?:cudaDeviceSetLimit|cudaStreamSetAttribute|accessPolicyWindow|cudaEventElapsedTime)\b")


def read_extensions(tree: Tree) -> tuple[Extension, ...]:
    """The extensions that a source builds, in the order in which they stand."""
    reader = _Reader(tree)
    calls = [call for call in tree.calls if _is_loader(call, tree)]
    return bounded([reader.extension(call) for call in sorted(calls, key=lambda call: call.lineno)])


def _is_loader(call: ast.Call, tree: Tree) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name == "load_inline" or tree.dotted(call.func).startswith("torch.utils.cpp_extension.load")


class _Reader:
    """Reads texts that stand in a source, with one allowance for all of them."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._steps = _MOST_STEPS
        self._characters = 2 * MOST_NATIVE_CHARACTERS

    def extension(self, call: ast.Call) -> Extension:
        """What one call builds."""
        given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        for place, argument in zip(("name", "cpp_sources", "cuda_sources", "functions"), call.args, strict=False):
            given.setdefault(place, argument)
        texts: dict[str, list[str]] = {"cpp": [], "cuda": []}
        unread = []
        for language, parts in texts.items():
            for part in self._elements(given.get(f"{language}_sources")):
                text = self._text(part)
                parts.append(text or "")
                if text is None:
                    unread.append(f"{language}_sources (line {part.lineno})")
        if "sources" in given:
            unread.append(f"files (line {call.lineno})")
        elif not any(f"{language}_sources" in given for language in texts):
            unread.append(f"further arguments (line {call.lineno})")
        cpp, cuda = ("\n".join(parts) for parts in texts.values())
        functions, flags = (self._words(given.get(name)) for name in ("functions", "extra_cuda_cflags"))
        return Extension(call.lineno, cpp, cuda, functions, flags, tuple(unread[:MOST_WORDS]))

    def _elements(self, value: ast.expr | None) -> list[ast.expr]:
        """The parts of a list, also of one inside it or behind a name; a value as the only part of itself."""
        found: list[ast.expr] = []
        waiting = [value] if value is not None else []
        while waiting and self._allowed():
            part = waiting.pop()
            bound = self._tree.assigned[part.id] if isinstance(part, ast.Name) else []
            if len(bound) == 1 and isinstance(bound[0], ast.List | ast.Tuple):
                part = bound[0]
            if isinstance(part, ast.List | ast.Tuple):
                waiting.extend(reversed(part.elts))
            else:
                found.append(part)
        return found + waiting[:1]  # one that is not allowed any more is unread

    def _words(self, value: ast.expr | None) -> tuple[str, ...]:
        """A string, a list of strings or the keys of a dictionary; what cannot be read is left out."""
        bound = self._tree.assigned[value.id] if isinstance(value, ast.Name) else []
        value = bound[0] if len(bound) == 1 else value
        keys = [key for key in value.keys if key is not None] if isinstance(value, ast.Dict) else self._elements(value)
        texts = (self._text(key) for key in keys[:MOST_WORDS])
        return tuple(text[:WORD_CHARACTERS] for text in texts if text is not None)

    def _text(self, value: ast.expr) -> str | None:
        """The string that an expression is, without running it; None where only that would tell."""
        parts: list[str] = []
        waiting: list[ast.expr | tuple[Callable[[str], str], int]] = [value]
        while waiting:
            node = waiting.pop()
            if isinstance(node, tuple):
                strip, start = node
                whole = "".join(parts[start:])
                if not self._allowed(len(whole)):
                    return None
                parts[start:] = [strip(whole)]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                if not self._allowed(len(node.value)):
                    return None
                parts.append(node.value)
            else:
                inner = self._inner(node, len(parts))
                if inner is None or not self._allowed():
                    return None
                waiting.extend(reversed(inner))
        return "".join(parts)

    def _inner(self, node: ast.expr, place: int) -> list[ast.expr | tuple[Callable[[str], str], int]] | None:
        """What an expression joins, in its order, and what is done to it then; None where that is not known."""
        match node:
            case ast.Name():
                bound = self._tree.assigned[node.id]
                return [bound[0]] if len(bound) == 1 else None
            case ast.BinOp(op=ast.Add()):
                return [node.left, node.right]
            case ast.JoinedStr():
                return [*node.values]
            case ast.FormattedValue(conversion=-1, format_spec=None):
                return [node.value]
            case ast.Call(func=ast.Attribute(value=owner, attr="strip" | "lstrip" as name), args=[], keywords=[]):
                return [owner, (str.strip if name == "strip" else str.lstrip, place)]
            case _:
                return None

    def _allowed(self, characters: int = 0) -> bool:
        self._steps -= 1
        self._characters -= characters
        return self._steps >= 0 and self._characters >= 0


def find_native(extensions: tuple[Extension, ...], line: int, has_triton: bool) -> Iterator[Finding]:
    """Cheats in the native text: library calls in host code, processes, threads, streams; and no kernel at all."""
    if not extensions:
        told = "no source given to load_inline, so no kernel of the candidate's own"
        told += "; this is a Triton kernel: grade it with backend=triton" if has_triton else ""
        yield Finding("no_kernel", line, told, "cheat")
        return
    for extension in extensions:
        for part in extension.unread:
            told = f"native source that cannot be read without running it: {part}"
            yield Finding("obfuscation", extension.line, told, "hint")
        for part, text in (("cpp_sources", extension.cpp), ("cuda_sources", extension.cuda)):
            yield from _in_text(text, part, extension.line)
    read = not any(extension.unread for extension in extensions)
    if read and not any("__global__" in extension.cpp + extension.cuda for extension in extensions):
        yield Finding("no_kernel", extensions[0].line, "the native source defines no __global__ function", "cheat")


def _in_text(text: str, part: str, line: int) -> Iterator[Finding]:
    """What one text has that no kernel needs; its own lines are told as compilers tell them, `cuda_sources(3)`."""
    plain = _SKIPPED.sub(lambda match: _blank(match[0]) if match[0][0] == "/" else match[0], text)
    ends = [place for place, character in enumerate(plain) if character == "\n"]
    for pattern in (_LIBRARY, _TIMING, _HOST_DANGER):
        for number, match in enumerate(pattern.finditer(plain)):
            if number == MOST_FINDINGS:
                break
            told = f"{part}({bisect_left(ends, match.start()) + 1}): {match[0].strip('( ')}"
            yield Finding(_kind(pattern, match[0]), line, told[:EVIDENCE_CHARACTERS], "cheat")


def _blank(text: str) -> str:
    """Spaces in place of a text, with its lines."""
    return re.sub(r"[^\n]", " ", text)


def _kind(pattern: re.Pattern[str], found: str) -> Kind:
    if pattern is _LIBRARY:
        return "library_call"
    if pattern is _TIMING:
        return "timing"
    if _STREAMS.search(found):
        return "side_stream"
    return "threads" if _THREADS.search(found) else "native_code"
