"""Every setting is documented, and read by code other than its own checks."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import chz
import pytest

from assay.cli.tasks.grade import GradeConfig
from assay.config.help import nodes
from assay.config.loader import TYPE_KEY
from assay.config.schema import settings
from assay.envs.base import DatasetBuilder
from assay.envs.environment import Environment
from assay.envs.named import ENVIRONMENT
from assay.integrations.common.settings import HostConfig
from assay.kernels.timing.config import TimingConfig
from assay.plugins import find
from assay.sandbox.modal.config import ModalConfig
from assay.training.config import TrainingConfig
from assay.training.endpoint.config import EndpointConfig

SRC = Path(__file__).parents[2] / "src" / "assay"

STANDALONE = (GradeConfig, TimingConfig, ModalConfig, HostConfig, EndpointConfig)
"""Settings of commands and parts that are used without a run, and so are no node of its config."""
IN_A_RUN = [node.cls for node in nodes(TrainingConfig) if node.cls is not None]
CLASSES = sorted({*IN_A_RUN, *STANDALONE}, key=lambda cls: cls.__name__)
FIELDS = [(cls, name) for cls in CLASSES for name in sorted(settings(cls))]
IDS = [f"{cls.__name__}.{name}" for cls, name in FIELDS]


def is_validator(function: ast.AST) -> bool:
    return isinstance(function, ast.FunctionDef) and any(
        ast.unparse(d).partition("(")[0] == "chz.validate" for d in function.decorator_list
    )


def called_names(node: ast.AST) -> set[str]:
    return {n.func.id for n in ast.walk(node) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}


def reads(tree: ast.Module) -> Iterator[str]:
    """Attribute names that a module reads, except in validators and in functions that serve validators alone."""
    functions = {f.name: f for f in tree.body if isinstance(f, ast.FunctionDef)}
    validators = [f for f in ast.walk(tree) if is_validator(f)]
    checks: list[ast.AST] = list(validators)
    for check in checks:
        checks += [
            functions[name] for name in called_names(check) if name in functions and functions[name] not in checks
        ]
    skipped = {id(n) for check in checks for n in ast.walk(check)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and id(node) not in skipped:
            yield node.attr


@cache
def all_reads() -> Counter[str]:
    files = [path for path in SRC.rglob("*.py") if path != SRC / "training" / "plan.py"]  # saying is not doing
    return Counter(name for path in files for name in reads(ast.parse(path.read_text(encoding="utf-8"))))


def test_a_check_is_no_read() -> None:
    source = (
        "class C:\n  @chz.validate\n  def _v(self): helper(self.a)\n"
        "def helper(c): return deeper(c.b)\ndef deeper(c): return c.d\n"
        "def use(c): c.f = c.e"
    )
    assert set(reads(ast.parse(source))) - {"validate"} == {"e"}


@pytest.mark.parametrize(("cls", "name"), FIELDS, ids=IDS)
def test_setting_is_read(cls: type, name: str) -> None:
    assert all_reads()[name], f"{cls.__name__}.{name} is never read, so setting it would do nothing"


@pytest.mark.parametrize(("cls", "name"), FIELDS, ids=IDS)
def test_setting_is_documented(cls: type, name: str) -> None:
    doc = settings(cls)[name].doc
    assert doc.endswith("."), f"{cls.__name__}.{name} needs a sentence in a string literal right under it, not {doc!r}"


@pytest.mark.parametrize("cls", CLASSES)
def test_config_class_is_documented(cls: type) -> None:
    assert cls.__doc__


def builder_classes(cls: type[DatasetBuilder]) -> set[type[DatasetBuilder]]:
    return {
        s for sub in cls.__subclasses__() if sub.__module__.startswith("assay.") for s in {sub, *builder_classes(sub)}
    }


def test_every_builder_has_a_name_on_the_command_line() -> None:
    named = {find(name, ENVIRONMENT, "dataset_builder") for name in ENVIRONMENT.known}
    assert builder_classes(DatasetBuilder) - {Environment} == named, "all but the one that is only derived from"


def test_no_setting_hides_the_key_that_names_a_class() -> None:
    assert not [cls for cls in IN_A_RUN if TYPE_KEY in settings(cls)]


def test_config_classes_are_frozen() -> None:
    assert all(chz.is_chz(cls) for cls in CLASSES)
