"""The walls between packages, read from the source: who may import whom, what stays optional, what is never caught."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"

LAYERS = [
    ["assay.syntax"],
    ["assay.errors", "assay.types", "assay.presets", "assay.exports", "assay.terminal"],
    ["assay.plugins", "assay.estimates"],
    ["assay.config"],
    ["assay.storage", "assay.transport", "assay.backends.base", "assay.backends.seeds"],
    ["assay.sandbox", "assay.retrieval"],
    ["assay.rewards", "assay.kernels"],
    ["assay.envs", "assay.backends.config"],
    ["assay.rollouts", "assay.backends"],
    ["assay.grpo"],
    ["assay.training"],
    ["assay.server", "assay.viewer", "assay.integrations"],
    ["assay.cli"],
    ["assay.__main__"],
]
"""Lowest first. The longest matching prefix places a module; rooms of one layer do not import each other."""

HOMES = {
    "torch": ("assay.backends.local", "assay.grpo", "assay.kernels.inside"),
    "transformers": ("assay.backends.local", "assay.grpo"),
    "peft": ("assay.backends.local", "assay.grpo"),
    "huggingface_hub": ("assay.backends.local",),
    "tinker": (
        "assay.backends.tinker",
        "assay.server",
        "assay.integrations.tinker_cookbook",
        "assay.integrations.cookbook_environment",
    ),
    "openenv": ("assay.integrations.openenv",),
    "verl": ("assay.integrations",),
    "trl": ("assay.integrations",),
    "modal": ("assay.sandbox",),
    "wandb": ("assay.training",),
    "ray": ("assay.integrations",),
    "hydra": ("assay.integrations",),
    "omegaconf": ("assay.integrations",),
    "verifiers": ("assay.integrations",),
    "tinker_cookbook": ("assay.integrations",),
    "datasets": ("assay.storage", "assay.kernels", "assay.envs", "assay.integrations"),
    "pyarrow": ("assay.storage", "assay.envs", "assay.kernels"),
    "bm25s": ("assay.retrieval",),
    "faiss": ("assay.retrieval",),
    "sentence_transformers": ("assay.retrieval",),
    "math_verify": ("assay.rewards.math_answers",),
    "starlette": ("assay.server.tinker",),
    "uvicorn": ("assay.server.tinker",),
    "pydantic": ("assay.server.tinker", "assay.integrations.openenv"),
}
"""Optional package -> the only modules that may import it."""

RUN_APART = "assay.kernels.inside"
"""The package of what is only ever run in processes of its own."""

WITH_MODAL = ("assay.sandbox.modal.app", "assay.sandbox.modal.service")
"""Modules that import the package modal at once; whoever loads them says what is missing."""

WITHOUT_TORCH = (
    "assay.rewards",
    "assay.sandbox",
    "assay.retrieval",
    "assay.kernels",
    "assay.envs",
    "assay.config",
    "assay.training.config",
    "assay.cli.main",
    "assay.integrations.common.scoring",
    "assay.integrations.trl",
    "assay.integrations.trl_environment",
    "assay.integrations.environments",
    "assay.integrations.verl.check",
)

COMMAND_LINES = ("assay.cli", "assay.integrations.verl.__main__")
"""Modules that may print."""

BROAD = {"Exception", "BaseException"}
BOUNDARIES = {
    "assay.plugins",
    "assay.envs.checks.plays",
    "assay.rollouts.play",
    "assay.rollouts.runner",
    "assay.rewards.scoring",
    "assay.rewards.functions.worker",
    "assay.rewards.functions.processes",
    "assay.training.report.report",
    "assay.sandbox.inside.child",
    "assay.sandbox.inside.worker",
    "assay.kernels.grader",
    "assay.kernels.inside.compile_program",
    "assay.kernels.inside.numerics_gpu",
    "assay.kernels.inside.record.harness",
    "assay.kernels.inside.reference_worker",
    "assay.kernels.inside.replay.calls",
    "assay.kernels.inside.replay.device_harness",
    "assay.kernels.inside.replay.reruns",
    "assay.kernels.inside.rounds",
    "assay.kernels.inside.submission",
    "assay.kernels.inside.triton.running.turns",
    "assay.kernels.inside.timing.harness",
    "assay.server.tinker.app",
    "assay.server.tinker.host",
    "assay.server.tinker.lanes",
    "assay.server.tinker.sampling_calls",
}
"""Modules where any failure becomes data: a user's file, an environment that a report could do
without, a rollout, a reward's code, a sandboxed job, a kernel, a grade, a request of one of many clients."""


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")


DATA = SRC / "assay/kernels/problems/shipped"
"""Problems in the KernelBench format: data that happens to be Python, never imported."""


def modules() -> list[Path]:
    return [path for path in sorted(SRC.rglob("*.py")) if DATA not in path.parents]


MODULES = {module_of(path): path for path in modules()}


@functools.cache
def sources() -> dict[str, ast.Module]:
    """Parsed by the process that runs these tests; all of them collect them."""
    return {module: ast.parse(path.read_text(encoding="utf-8")) for module, path in MODULES.items()}


def room_of(module: str) -> tuple[int, str] | None:
    """Layer number and room (the prefix in LAYERS) of a module."""
    rooms = [(level, room) for level, names in enumerate(LAYERS) for room in names if is_within(module, room)]
    return max(rooms, key=lambda r: len(r[1]), default=None)


def is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def imports(tree: ast.AST, known: Container[str] = MODULES) -> Iterator[str]:
    """Every module that a source imports, also inside functions; `from assay import x` counts as assay.x."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in known else str(node.module)


def illegal_import(importer: str, imported: str) -> bool:
    """Whether `importer` reaches up, or sideways into another room."""
    here, there = room_of(importer), room_of(imported)
    assert here is not None, f"{importer} has no layer: add it to LAYERS"
    assert there is not None, f"{imported} has no layer: add it to LAYERS"
    return here[1] != there[1] and here[0] <= there[0]


def test_the_rules_tell_up_from_down() -> None:
    assert not illegal_import("assay.training.loop", "assay.grpo.trainer")
    assert not illegal_import("assay.backends.local.backend", "assay.backends.base")
    assert not illegal_import("assay.training.loop", "assay.training.config")
    assert illegal_import("assay.envs.base", "assay.rollouts.runner")
    assert illegal_import("assay.rewards.engine", "assay.kernels.grader")
    assert illegal_import("assay.kernels.grader", "assay.rewards.engine")
    assert illegal_import("assay.storage.keyed_store", "assay.rewards.base")
    assert illegal_import("assay.grpo.trainer", "assay.training.loop")
    assert illegal_import("assay.config.loader", "assay.training.config")


def test_imports_only_point_down() -> None:
    wrong = [
        f"{module} imports {name}"
        for module, tree in sources().items()
        if module != "assay"
        for name in imports(tree)
        if is_within(name, "assay") and name != "assay" and illegal_import(module, name)
    ]
    assert not wrong


def graph_of(sources: Mapping[str, ast.AST]) -> dict[str, set[str]]:
    """Module -> those of ours that it imports: at its top, inside functions, or for type checkers alone.

    A package is run before any module in it, so one that imports its own package ties the package to itself.
    """
    graph = {module: {name for name in imports(tree, sources) if name in sources} for module, tree in sources.items()}
    for module, names in graph.items():
        for package in names - {"assay"}:  # which holds nothing but lazy names, and says where the code lies
            if is_within(module, package):
                graph[package] = graph[package] | {module}
    return graph


def reached(graph: Mapping[str, set[str]], start: str) -> dict[str, list[str]]:
    """Everything that `start` imports, directly or not, each with a shortest way there."""
    ways: dict[str, list[str]] = {}
    queue = [[start]]
    for way in queue:
        for name in sorted(graph[way[-1]] - ways.keys()):
            ways[name] = [*way, name]
            queue.append(ways[name])
    return ways


def circles(graph: Mapping[str, set[str]]) -> list[str]:
    """A shortest way round (`a -> b -> a`) in each group of modules that reach each other."""
    below = {module: reached(graph, module) for module in graph}
    found: list[str] = []
    grouped: set[str] = set()
    for module in sorted(graph):
        if module in below[module] and module not in grouped:
            grouped |= {other for other in below[module] if module in below[other]}
            found.append(" -> ".join(below[module][module]))
    return found


def circles_in(**sources: str) -> list[str]:
    named = {name.replace("__", "."): ast.parse(text) for name, text in sources.items()}
    return circles(graph_of(named))


def test_circles_are_found() -> None:
    late, typing = "def f():\n    from c import x", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import a"
    assert circles_in(a="import b", b=late, c=typing, d="import a") == ["a -> b -> c -> a"]
    assert circles_in(a="import b", b=late, c="", d="import a, b") == []
    assert circles_in(p="", p__q="from p import x") == ["p -> p.q -> p"]
    assert circles_in(p="from p.q import x", p__q="from p import r", p__r="") == []


def test_no_modules_import_each_other() -> None:
    """Cut the circle: put what both need into a module of its own, below them (types and settings, most often)."""
    assert circles(graph_of(sources())) == []


MOST_MODULES = 15
"""In one folder. One that is fuller wants rooms."""


def test_no_folder_holds_more_modules_than_one_can_look_over() -> None:
    folders = Counter(path.parent.relative_to(SRC) for path in modules() if path.stem not in ("__init__", "__main__"))
    assert {str(folder): count for folder, count in folders.items() if count > MOST_MODULES} == {}


MOST_LINES = 400
"""In one file. One that is longer holds more than one thing."""


def test_no_file_is_longer_than_one_can_read_at_a_sitting() -> None:
    lines = {module_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in modules()}
    assert {module: count for module, count in lines.items() if count > MOST_LINES} == {}


APART = {"verl": "integrations/verl"}
"""Folders of tests that are run in another environment -> the room that they test."""


def test_tests_stand_where_their_subject_does() -> None:
    tests = Path(__file__).parent
    folders = {str(path.parent.relative_to(tests)) for path in tests.rglob("test_*.py")} - {"."}
    assert {folder for folder in folders if not (SRC / "assay" / APART.get(folder, folder)).is_dir()} == set()


def test_optional_packages_are_imported_only_at_home() -> None:
    wrong = [
        f"{module} imports {name}"
        for module, tree in sources().items()
        for name in imports(tree)
        for package, homes in HOMES.items()
        if is_within(name, package) and not any(is_within(module, home) for home in homes)
    ]
    assert not wrong


@pytest.mark.parametrize("module", [m for m in WITHOUT_TORCH if m in MODULES])
def test_imports_without_torch(module: str) -> None:
    apart = {*(m for m in MODULES if is_within(m, RUN_APART)), *(WITH_MODAL if find_spec("modal") is None else ())}
    below = [m for m in MODULES if is_within(m, module) and m not in apart]
    code = (
        f"import importlib, sys\nfor m in {below!r}: importlib.import_module(m)\n"
        "print(*{m.partition('.')[0] for m in sys.modules} & {'torch', 'transformers', 'tokenizers', 'peft'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def broad_handlers(tree: ast.AST) -> Iterator[int]:
    """Lines of `except:` and of handlers of Exception or BaseException that do not always raise again."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            caught = {n.id for n in ast.walk(node.type) if isinstance(n, ast.Name)} if node.type else BROAD
            last = node.body[-1]
            if caught & BROAD and not (isinstance(last, ast.Raise) and last.exc is None):
                yield node.lineno


def test_broad_handlers_are_found() -> None:
    source = "try: f()\nexcept Exception: pass\ntry: f()\nexcept (OSError, BaseException): g()\ntry: f()\nexcept: raise"
    assert list(broad_handlers(ast.parse(source))) == [2, 4]
    assert list(broad_handlers(ast.parse("try: f()\nexcept OSError: pass"))) == []


def test_nothing_catches_everything_outside_the_named_boundaries() -> None:
    wrong = [f"{m}:{line}" for m, tree in sources().items() if m not in BOUNDARIES for line in broad_handlers(tree)]
    assert not wrong


def test_only_the_command_line_prints() -> None:
    wrong = [
        f"{module}:{node.lineno}"
        for module, tree in sources().items()
        if not any(is_within(module, home) for home in COMMAND_LINES)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not wrong
