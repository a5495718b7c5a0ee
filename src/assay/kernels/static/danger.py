"""What reaches outside a kernel: the process, its files and threads, the interpreter, other people's functions, time.

Everything here is looked for in code that can run, in kernels too: in interpreter mode their bodies are plain Python.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from assay.kernels.static.findings import Finding, found
from assay.kernels.static.names import Source, literal_getattr
from assay.kernels.static.tables import (
    ALLOWED_MODULES,
    ATTRIBUTES,
    COMPUTE_PREFIXES,
    MODULES,
    NAMES,
    NUMPY_HARMLESS,
    SETTABLE,
    SUSPECT_MODULES,
)
from assay.kernels.static.trees import walk

_REFLECTION = frozenset({"builtins.getattr", "builtins.setattr", "builtins.delattr", "builtins.vars", "builtins.dir"})
_STAR_OK = ("triton", "triton.language", "math", "typing")
_BORROWED = frozenset(
    {"torch", "numpy", "np", "os", "sys", "builtins", "subprocess", "threading", "ctypes", "inspect", "importlib"}
    | {"gc", "weakref", "io"}
)
"""Modules that others import for themselves, and that no honest source takes from them."""
_PRIVATE_OK = (
    "torch._assert",
    "torch.nn.init._calculate_",
    "torch.nn.modules.utils.",
    "torch.utils._triton.has_triton",
)
"""Private names that authors use for what they say."""
_TELLTALE_VARIABLES = ("TRITON", "LD_", "PYTHON", "TORCHINDUCTOR", "TORCH_EXTENSIONS", "CUDA_LAUNCH", "NVIDIA")


def find_dangers(source: Source, native: bool) -> Iterator[Finding]:
    """Everything that no kernel needs. `native` allows compiled extensions (`torch.utils.cpp_extension`)."""
    nodes = [*source.host_nodes(), *_kernel_nodes(source)]
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from _import(node, source, native)
        elif isinstance(node, ast.Attribute):
            yield from _attribute(node, source)
        elif isinstance(node, ast.Call):
            yield from _reflection(node, source)
        elif isinstance(node, ast.ClassDef):
            yield from _class(node, source)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _definition(node)
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Delete | ast.For | ast.withitem):
            yield from _store(node, source)
    yield from _names(source, native)
    yield from _host_code_in_kernels(source)


def _kernel_nodes(source: Source) -> Iterator[ast.AST]:
    for kernel in source.kernels.values():
        for statement in kernel.body:
            yield from walk(statement)


def _import(node: ast.Import | ast.ImportFrom, source: Source, native: bool) -> Iterator[Finding]:
    if source.inside_kernel(node):
        yield found("host_code_in_kernel", node)
    if isinstance(node, ast.ImportFrom):
        if node.level:
            yield found("imports_reference", node, note="a submission is one module; it cannot import files beside it")
            return
        modules = [node.module or ""]
        if node.names[0].name == "*" and modules[0] not in _STAR_OK:
            yield found("obfuscation", node, note="a star import hides what is used")
    else:
        modules = [alias.name for alias in node.names]
    for module in modules:
        top = module.partition(".")[0]
        if top in MODULES:
            yield found(MODULES[top], node, "suspect" if top in SUSPECT_MODULES else "cheat")
        elif top not in ALLOWED_MODULES:
            yield found("foreign_library", node, "suspect")
        elif module.startswith("torch.utils.cpp_extension") and not native:
            yield found("native_code", node, note="no part of the Triton backend")


def _names(source: Source, native: bool) -> Iterator[Finding]:
    for node, dotted in source.loaded_names():
        if dotted.startswith("numpy."):
            if dotted.split(".")[1] not in NUMPY_HARMLESS:
                yield found("library_call", node)
            continue
        if dotted.startswith("torch.utils.cpp_extension") and not native:
            yield found("native_code", node, note="no part of the Triton backend")
        if "." not in dotted and _is_passed_on(node, source):
            yield found("obfuscation", source.parents.get(node, node), note="a module passed on as a value")
            continue
        if (note := _behind_the_scenes(dotted)) and not dotted.startswith(tuple(COMPUTE_PREFIXES)):
            yield found("introspection", node, note=note)
        entry = next((NAMES[prefix] for prefix in _prefixes(dotted) if prefix in NAMES), None)
        if entry is not None:
            yield found(entry[0], node, entry[1])
        elif (top := dotted.partition(".")[0]) in MODULES and top != "builtins":
            yield found(MODULES[top], node, "suspect" if top in SUSPECT_MODULES else "cheat")


def _behind_the_scenes(dotted: str) -> str:
    """What is odd about a name of PyTorch's or Triton's: it is private, or another module that they import."""
    top, *parts = dotted.split(".")
    if top not in ("torch", "triton") or dotted.startswith(_PRIVATE_OK):
        return ""
    if any(part.startswith("_") and not part.startswith("__") for part in parts):
        return f"a private name of {top}"
    return "a module reached through another" if _BORROWED.intersection(parts) else ""


def _is_passed_on(node: ast.expr, source: Source) -> bool:
    """Whether a module is handed to a call (other than a plain `hasattr` or `getattr`) or put into a container."""
    parent = source.parents.get(node)
    if isinstance(parent, ast.Call):
        plain = source.dotted(parent.func) in ("builtins.hasattr", "builtins.getattr")
        return node in parent.args and not plain
    return isinstance(parent, ast.Dict | ast.List | ast.Tuple | ast.Set | ast.Return | ast.keyword | ast.Starred)


def _prefixes(dotted: str) -> Iterator[str]:
    """The name itself, then ever shorter prefixes."""
    while dotted:
        yield dotted
        dotted = dotted.rpartition(".")[0]


def _attribute(node: ast.Attribute, source: Source) -> Iterator[Finding]:
    if node.attr == "__class__" and isinstance(node.ctx, ast.Store | ast.Del):
        yield found("tensor_subclass", node)
        return
    entry = ATTRIBUTES.get(node.attr)
    if entry is None:
        return
    on_module = source.dotted(node.value) is not None
    yield found(entry[0], node, "cheat" if on_module and node.attr == "__dict__" else entry[1])


def _reflection(node: ast.Call, source: Source) -> Iterator[Finding]:
    """`getattr` and its kin: with a literal name they are an attribute access, otherwise they hide one."""
    attribute = literal_getattr(node, source)
    if attribute is not None:
        if attribute in ATTRIBUTES:
            yield found(*ATTRIBUTES[attribute][:1], node, ATTRIBUTES[attribute][1])
        return
    called = source.dotted(node.func)
    if called in _REFLECTION and node.args:
        on = source.dotted(node.args[0])
        if called in ("builtins.setattr", "builtins.delattr"):
            if on is not None or _name(node.args[0]) in source.kernels or _name(node.args[0]) in source.definitions:
                yield found("monkeypatch", node)
        elif on is not None or called == "builtins.getattr":
            mine = _name(node.args[0]) == "self"
            yield found("obfuscation", node, "suspect" if mine else "cheat")
    for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
        if source.dotted(argument) in _REFLECTION:
            yield found("obfuscation", node, note="a reflection function passed on")


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _class(node: ast.ClassDef, source: Source) -> Iterator[Finding]:
    for base in node.bases:
        dotted = source.dotted(base) or ""
        if dotted in ("torch.Tensor", "torch.nn.Parameter", "torch.nn.Buffer") or dotted.startswith("torch.overrides"):
            yield found("tensor_subclass", base)
        if dotted == "builtins.type":
            yield found("obfuscation", base, "suspect", note="a metaclass")
    for keyword in node.keywords:
        yield found("obfuscation", keyword.value, "suspect", note="a class keyword")


def _definition(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Finding]:
    entry = ATTRIBUTES.get(node.name)
    if entry is not None or node.name in ("__del__", "__init_subclass__", "__set_name__"):
        kind, severity = entry or ("obfuscation", "suspect")
        yield Finding(kind, node.lineno, f"def {node.name}", severity)


def _store(
    node: ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Delete | ast.For | ast.withitem, source: Source
) -> Iterator[Finding]:
    if isinstance(node, ast.Assign | ast.Delete):
        targets: list[ast.expr] = list(node.targets)
    elif isinstance(node, ast.withitem):
        targets = [node.optional_vars] if node.optional_vars is not None else []
    else:
        targets = [node.target]
    while targets:
        target = targets.pop()
        if isinstance(target, ast.Tuple | ast.List):
            targets += target.elts
        elif isinstance(target, ast.Attribute | ast.Subscript):
            yield from _store_to(target, source)


def _store_to(target: ast.Attribute | ast.Subscript, source: Source) -> Iterator[Finding]:
    owner = target.value
    dotted = source.dotted(owner)
    if dotted is None:
        patched_kernel = isinstance(target, ast.Attribute) and _name(owner) in source.kernels
        by_type = isinstance(owner, ast.Call) and source.dotted(owner.func) == "builtins.type"
        foreign_class = isinstance(owner, ast.Attribute) and owner.attr == "__class__"
        if patched_kernel or (isinstance(target, ast.Attribute) and (by_type or foreign_class)):
            yield found("monkeypatch", target)
        return
    if dotted.startswith("os.environ"):
        key = target.slice if isinstance(target, ast.Subscript) else None
        text = key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else ""
        yield found("environment", target, "cheat" if text.startswith(_TELLTALE_VARIABLES) or not text else "suspect")
    elif dotted.startswith(SETTABLE):
        yield found("global_state", target, "suspect")
    elif "." in dotted or isinstance(target, ast.Attribute):
        yield found("monkeypatch", target)


def _is_of_the_interpreter(attribute: str) -> bool:
    """Whether an attribute belongs to what stands behind a tensor, compiled or interpreted, not to the language."""
    return attribute == "handle" or (attribute.startswith("_") and attribute != "__name__")


def _host_code_in_kernels(source: Source) -> Iterator[Finding]:
    for kernel in source.kernels.values():
        for statement in kernel.body:
            for node in walk(statement):
                if isinstance(node, ast.Attribute) and _is_of_the_interpreter(node.attr):
                    yield found("host_code_in_kernel", node)
                if not isinstance(node, ast.Name) or source.in_annotation(node):
                    continue
                dotted = source.dotted(node) or ""
                top = dotted.partition(".")[0]
                outside = top in ("torch", "numpy", "os", "sys") or (top in MODULES and top != "builtins")
                if outside or dotted in NAMES:
                    yield found("host_code_in_kernel", source.parents.get(node, node))
