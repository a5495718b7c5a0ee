"""Public names: importable from their room, the same for a type checker as for Python, loaded only when asked for."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src"

PROMISED = {
    "assay": "GRPOConfig GRPOTrainer HealthConfig Rollout RolloutBuffer RolloutGroup StepData "
    "TrainingConfig load_config reward train",
    "assay.backends": "Backend Capabilities LocalBackend LossSpec",
    "assay.envs": "DatasetBuilder Environment Env EnvData EnvGroupBuilder Message Score StepResult Task",
    "assay.grpo": "GRPOConfig GRPOTrainer HealthConfig RolloutBuffer",
    "assay.integrations.verl": "acompute_score compute_score",
    "assay.kernels": "Grader GraderConfig GradingPool Verdict grade_many load_problems",
    "assay.kernels.timing": "Stopwatch TimedProblem TimingConfig",
    "assay.rewards": "EngineConfig FunctionReward JudgeConfig JudgeReward RewardEngine Sample Score rewards_of",
    "assay.rollouts": "Renderer make_renderer",
    "assay.sandbox": "Job JobResult Limits LocalConfig LocalSandbox Round",
    "assay.sandbox.modal": "ModalConfig ModalSandbox",
    "assay.storage": "Contents KeyedStore",
    "assay.config": "Settings load resolved AtLeast UsedWhen",
    "assay.training": "TrainingConfig load_config open_rollouts read_rollouts train",
}
"""Names that users import, by room."""

HEAVY = {"torch", "transformers", "triton", "chess", "modal", "pyarrow"}
"""Packages that importing a room must not load."""

MOST_DOTS = 2
"""In the path of a module that documentation tells users to import from."""


def public_names(path: Path) -> list[str] | None:
    """`__all__` of a module, None where it has none."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
            return list(ast.literal_eval(node.value))
    return None


def path_of(module: str) -> Path | None:
    path = SRC.joinpath(*module.split("."))
    return next((file for file in (path / "__init__.py", path.with_suffix(".py")) if file.is_file()), None)


def modules_with_names() -> dict[str, list[str]]:
    found = {}
    for path in sorted(SRC.glob("assay/**/*.py")):
        if "shipped" not in path.parts and (names := public_names(path)) is not None:
            found[".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")] = names
    return found


NAMES = modules_with_names()


@pytest.mark.parametrize("module", NAMES)
def test_every_public_name_is_there(module: str) -> None:
    assert len(set(NAMES[module])) == len(NAMES[module])
    loaded = import_module(module)
    assert [name for name in NAMES[module] if not hasattr(loaded, name)] == []


@pytest.mark.parametrize("room", PROMISED)
def test_what_users_import_is_public_in_its_room(room: str) -> None:
    assert set(PROMISED[room].split()) <= set(NAMES[room])


def lazy_rooms() -> dict[str, ast.Module]:
    trees = {room: ast.parse(path.read_text()) for room in NAMES if (path := path_of(room)) is not None}
    return {room: tree for room, tree in trees.items() if "lazy_exports" in ast.unparse(tree)}


LAZY = lazy_rooms()


@pytest.mark.parametrize("room", LAZY)
def test_type_checkers_and_python_are_told_the_same(room: str) -> None:
    (choice,) = (node for node in LAZY[room].body if isinstance(node, ast.If))
    checked = {alias.name for node in choice.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert checked == set(NAMES[room])


@pytest.mark.parametrize("room", LAZY)
def test_public_names_can_be_listed_before_they_are_loaded(room: str) -> None:
    assert dir(import_module(room)) == sorted(NAMES[room])


def test_a_name_that_a_lazy_room_lacks_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"'assay\.kernels' has no attribute 'Gradr'"):
        _ = import_module("assay.kernels").Gradr
    with pytest.raises(ImportError, match="cannot import name 'Gradr'"):
        exec("from assay.kernels import Gradr")


def test_importing_a_room_loads_nothing_heavy() -> None:
    code = (
        f"import importlib, sys\nfor room in {list(PROMISED)!r}: importlib.import_module(room)\n"
        f"print(sorted({{m.partition('.')[0] for m in sys.modules}} & {HEAVY!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


STATEMENT = re.compile(r"^ *from (assay[\w.]*) import (\w+(?:, \w+)*)", re.MULTILINE)
DOCUMENTED = [
    (page.name, module, names.split(", "))
    for page in [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
    for module, names in STATEMENT.findall(page.read_text(encoding="utf-8"))
]


def test_the_statements_of_the_documentation_are_found() -> None:
    assert {"rewards.md", "kernels.md", "sandbox.md", "grpo.md"} <= {page for page, _, _ in DOCUMENTED}


@pytest.mark.parametrize(("page", "module", "names"), DOCUMENTED)
def test_documentation_imports_from_rooms(page: str, module: str, names: list[str]) -> None:
    """Read from the sources, because hosts that a page is about need not be installed here."""
    path = path_of(module)
    assert path is not None, f"docs/{page} imports from {module}, which is no module"
    assert module.count(".") <= MOST_DOTS, f"docs/{page}: {module} lies too deep to be remembered; export the name"
    public = public_names(path)
    if public is None:
        assert path.name != "__init__.py", f"docs/{page} imports from {module}, which has no public names"
        tree = ast.parse(path.read_text(encoding="utf-8"))
        kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        public = [node.name for node in tree.body if isinstance(node, kinds)]
    assert set(names) <= set(public)
