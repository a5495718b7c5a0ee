"""Figures of the documentation that are older than the code they describe say so."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
TEXT = "`python benchmarks/x.py`: **7 ms**, and\n9 MB.\n\n| a |\n| - |\n"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_figures", ROOT / "scripts" / "check_figures.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


check_figures = load()


def git(root: Path, *words: str) -> str:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", "-C", root, *who, *words], check=True, capture_output=True, text=True).stdout.strip()


def commit(root: Path, **files: str) -> str:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_py", ".py").replace("_md", ".md")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(root, "add", "-A")
    git(root, "commit", "-qm", "a change", "--allow-empty")
    return git(root, "rev-parse", "--short", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository whose page has one figure, measured at its first commit."""
    root = tmp_path / "repository"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    first = commit(
        root,
        benchmarks__x_py="run()\n",
        src__used_py='"""Used."""\nA = 1\n',
        src__other_py="B = 1\n",
        docs__results_md="",
    )
    mark = f"<!-- figure: benchmarks/x.py commit {first} sources: src/used.py -->"
    commit(root, docs__results_md=f"# Results\n\n## X\n\n{mark}\n\n{TEXT}\n## Y\n\nNo figure.\n")
    return root


def run(root: Path, *words: str) -> int:
    status: int = check_figures.main(words, root)
    return status


def page(root: Path) -> str:
    return (root / "docs/results.md").read_text()


def test_the_figures_of_this_repository_say_where_they_are_stale() -> None:
    try:
        found = list(check_figures.problems(ROOT))
    except check_figures.NoHistoryError as error:
        pytest.skip(f"needs the git history: {error}")
    assert found == []


def test_changes_elsewhere_and_in_comments_make_nothing_stale(repository: Path) -> None:
    commit(repository, src__other_py="B = 2\n")
    commit(repository, src__used_py='"""Used here."""\n# a comment\nA = (\n    1\n)\n"""What it is."""\n')
    assert run(repository) == 0
    assert list(check_figures.problems(repository)) == []


@pytest.mark.parametrize("file", ["src__used_py", "benchmarks__x_py"])
def test_a_change_of_a_source_must_be_said(repository: Path, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    commit(repository, **{file: "A = 2\n"})
    assert run(repository) == 1
    assert "changed since" in capsys.readouterr().err
    assert run(repository, "--say") == 0
    name = file.replace("__", "/").replace("_py", ".py")
    assert f"-->\n\nMeasured before later changes to `{name}`.\n\n{TEXT}\n## Y" in page(repository)
    said = page(repository)
    assert run(repository, "--say") == 0 and page(repository) == said
    assert f"benchmarks/x.py ({git(repository, 'rev-list', '--max-parents=0', 'HEAD')[:4]}" in capsys.readouterr().out


def test_what_a_benchmark_imports_counts_among_its_sources(repository: Path) -> None:
    first = commit(
        repository,
        benchmarks__x_py="from common.one import a\nfrom assay import b\n",
        benchmarks__common__one_py="import support.two as two\na = 1\n",
        tests__support__two_py="A = 1\n",
        tests__support__three_py="A = 1\n",
    )
    run(repository, "--stamp", "benchmarks/x.py")
    assert f"commit {first}" in page(repository)
    commit(repository, tests__support__three_py="A = 2\n")
    assert list(check_figures.problems(repository)) == []
    commit(repository, tests__support__two_py="A = 2\n")
    (problem,) = check_figures.problems(repository)
    assert "tests/support/two.py changed since" in problem


@pytest.mark.parametrize("file", ["src/used.py", "benchmarks/x.py"])
def test_figures_of_code_that_no_commit_has_are_not_stamped(
    repository: Path, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = page(repository)
    (repository / "src/other.py").write_text("B = 2\n")
    assert run(repository, "--stamp", "benchmarks/x.py") == 0
    (repository / "docs/results.md").write_text(before)
    (repository / file).write_text("A = 3\n")
    assert run(repository, "--stamp", "benchmarks/x.py") == 2
    assert f"{file} has changes that are not committed" in capsys.readouterr().err
    assert page(repository) == before


def test_figures_measured_again_are_stamped_and_say_nothing(repository: Path) -> None:
    before = page(repository)
    head = commit(repository, src__used_py="A = 2\n")
    run(repository, "--say")
    assert run(repository, "--stamp", "benchmarks/x.py") == 0
    first = git(repository, "rev-list", "--max-parents=0", "--abbrev-commit", "HEAD")
    assert page(repository) == before.replace(first, head)


def test_a_remark_that_is_no_longer_true_is_a_problem(repository: Path) -> None:
    commit(repository, src__used_py="A = 2\n")
    run(repository, "--say")
    commit(repository, src__used_py="A = 1\n")
    (problem,) = check_figures.problems(repository)
    assert "nothing changed since" in problem
    assert run(repository, "--say") == 0 and "Measured before" not in page(repository)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("commit ", "commit 1234567", "is not in the history of HEAD"),
        ("src/used.py", "src/gone.py", "source src/gone.py does not exist"),
        ("sources:", "source:", "is no mark"),
        (
            "<!-- figure: benchmarks/x.py",
            "<!-- figure: benchmarks/y.py",
            "gives figures of benchmarks/x.py, and no mark",
        ),
    ],
)
def test_marks_that_are_wrong(repository: Path, old: str, new: str, said: str) -> None:
    (repository / "docs/results.md").write_text(page(repository).replace(old, new))
    assert any(said in problem for problem in check_figures.problems(repository))


def test_a_benchmark_without_a_mark_cannot_be_stamped(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(repository, "--stamp", "benchmarks/z.py") == 2
    assert "has no mark of benchmarks/z.py" in capsys.readouterr().err


def test_without_history_nothing_is_checked(repository: Path, tmp_path: Path) -> None:
    git(repository, "clone", "-q", "--depth", "1", f"file://{repository}", str(tmp_path / "shallow"))
    for place in (tmp_path / "shallow", tmp_path):
        assert run(place) == 2
