"""`assay grade --list`, `--show` and `--starter`, Markdown around kernels, and what is missing said first."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay.cli.main import main
from assay.errors import MissingDependencyError
from assay.kernels.config import GraderConfig
from assay.kernels.sandboxes import require_packages
from assay.kernels.text.examining import examine
from support.kernelbench_data import HONEST, shipped

PROBLEMS = shipped()
SNAKE = HONEST / "snake.py"
RIGHT = SNAKE.read_text(encoding="utf-8")

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def assay(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `assay grade`; exit status, standard output and error."""

    def run(*words: str) -> tuple[int, str, str]:
        status = main(["grade", *words])
        return (status, *capsys.readouterr())

    return run


def test_the_list_has_every_problem_with_its_task(assay: Run) -> None:
    status, out, err = assay("--list")
    lines = out.splitlines()
    assert (status, err, len(lines)) == (0, "", len(PROBLEMS))
    assert lines[5].split(maxsplit=2) == ["1/6", "PrefixSum", "Inclusive prefix sum along the last dimension."]
    assert [line.split()[0] for line in assay("--list", "--level", "3", "--level=1")[1].splitlines()] == [
        key for key in PROBLEMS if key[0] in "13"
    ]
    entries = json.loads(assay("--list", "--json", "--level=2")[1])
    assert [entry["key"] for entry in entries] == [key for key in PROBLEMS if key[0] == "2"]
    assert entries[0]["hash"] == PROBLEMS["2/1"].hash


def test_the_list_of_problems_elsewhere(assay: Run, tmp_path: Path) -> None:
    code = PROBLEMS["1/1"].code.replace("Snake activation", "\x1b[31mSnake")
    rows = [{"code": code, "level": level, "name": f"{n}_row", "problem_id": n} for level, n in ((4, 2), (7, 1))]
    file = tmp_path / "problems.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    status, out, _ = assay("--list", "dataset_src=jsonl", f"problems_path={file}")
    assert status == 0 and [line.split()[:2] for line in out.splitlines()] == [["4/2", "row"], ["7/1", "row"]]
    assert "\x1b" not in out
    status, _, err = assay("--list", "--level=5", "dataset_src=jsonl", f"problems_path={file}")
    assert status == 1 and "no problem of level 5. Its levels are 4, 7." in err
    folder = tmp_path / "checkout" / "level3"
    folder.mkdir(parents=True)
    (folder / "2_Mine.py").write_text(code)
    status, out, _ = assay("--list", "dataset_src=local", f"problems_path={tmp_path / 'checkout'}")
    assert status == 0 and out.startswith("3/2    Mine  ")


def test_a_problem_is_shown_as_it_is_and_explained_on_a_terminal_alone(
    assay: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    status, out, err = assay("--show", "2/2")
    assert (status, out.rstrip("\n"), err) == (0, PROBLEMS["2/2"].code.rstrip("\n"), "")
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    file = tmp_path / "my problem.py"
    file.write_text(PROBLEMS["2/2"].code)
    monkeypatch.setattr(sys, "stdout", terminal)
    assert main(["grade", "--show", str(file)]) == 0
    said = terminal.getvalue()
    assert said.startswith(PROBLEMS["2/2"].code.rstrip()) and "defines class ModelNew" in said
    assert f"--starter '{file}' --output kernel.py" in said


def test_a_starter_is_written_once_and_names_itself(assay: Run, tmp_path: Path) -> None:
    file = tmp_path / "my kernel.py"
    status, out, _ = assay("--starter", "2/2", "--output", str(file))
    assert status == 0 and out == f"wrote {file}. Grade it: assay grade --problem 2/2 --kernel '{file}'\n"
    text = file.read_text()
    assert f"--kernel '{file}'" in text and "THIS_FILE" not in text and "def forward(self, x" in text
    file.write_text("mine")
    status, out, err = assay("--starter", "2/2", f"--output={file}")
    assert (status, out) == (1, "") and "exists" in err and file.read_text() == "mine"
    status, _, err = assay("--starter", "2/2", "--output", str(tmp_path / "no" / "k.py"))
    assert status == 1 and "No such file" in err
    status, out, _ = assay("--starter=1/3", "--backend=cuda")
    assert status == 0 and "load_inline" in out and examine(out, "cuda").findings == ()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "grading needs --problem and --kernel"),
        (("--kernel", "x.py"), "grading needs --problem, which is missing here"),
        (("--problem", "1/1"), "--problem needs --kernel FILE"),
        (("--list", "--kernel", "x.py"), "--kernel goes with --problem"),
        (("--show", "1/1", "--level", "1"), "--level goes with --list"),
        (("--list", "--output", "x.py"), "--output goes with --starter"),
        (("--show", "1/1", "--json"), "--json goes with --problem or --list"),
        (("--list", "dataset_scr=local"), "Did you mean dataset_src?"),
    ],
)
def test_options_that_would_do_nothing(assay: Run, words: tuple[str, ...], said: str) -> None:
    status, out, err = assay(*words)
    assert (status, out) == (2, "") and said in err and err.count("\n") == 1


def test_all_settings_are_listed(assay: Run) -> None:
    status, out, _ = assay("--settings")
    assert status == 0
    for name in ("dataset_src=shipped", "num_correct_trials=6", "timing.device", "modal.modal_gpu_type"):
        assert name in out


@pytest.mark.parametrize(
    ("around", "first"),
    [
        ("Here it is:\n\n```python\n{}```\nIt is fast.\n", 4),
        ("```\n{}", 2),
        ("```python\nimport os\n```\nrather:\n```py\n{}```\n", 6),
    ],
)
def test_markdown_around_a_kernel_is_left_out_and_that_is_said(
    around: str, first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, assay: Run
) -> None:
    seen: list[str] = []

    def grade(candidates: Any, config: Any) -> list[Any]:
        from assay.kernels.verdicts import Verdict

        seen.extend(code for _, code in candidates)
        return [Verdict("ok", "numerics")]

    monkeypatch.setattr("assay.cli.tasks.grade.grade_many", grade)
    kernel = tmp_path / "kernel.py"
    kernel.write_text(around.format(RIGHT))
    status, _, err = assay("--problem", "1/1", "--kernel", str(kernel))
    assert status == 0 and seen == [RIGHT]
    assert err.startswith(
        f"{kernel}: the file is Markdown; only the code block in lines {first} to {first + RIGHT.count(chr(10)) - 1} "
    )
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(around.format(RIGHT).encode())))
    status, _, err = assay("--problem", "1/1", "--kernel", "-")
    assert status == 0 and seen == [RIGHT, RIGHT] and err.startswith("standard input: the file is Markdown")


@pytest.mark.parametrize("package", ["torch", "triton"])
def test_a_missing_package_is_said_before_anything_is_looked_for(
    assay: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setenv("PATH", str(tmp_path))  # no bubblewrap either
    status, out, err = assay("--problem", "9/9", "--kernel", "nowhere.py")
    assert (status, out) == (1, "") and err.count("\n") == 1
    assert f"{package} is not installed: pip install '.[torch,kernelbench]' in a checkout of Assay." in err
    assert assay("--list", "--level=1")[0] == 0, "no problem is run to be listed"
    require_packages(GraderConfig(backend="cuda"))  # compiles only
    with pytest.raises(MissingDependencyError, match=package):
        from assay.kernels.grader import Grader

        Grader(GraderConfig())


def test_a_missing_sandbox_is_said_before_files_are_looked_for(
    assay: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    status, out, err = assay("--problem", "9/9", "--kernel", "nowhere.py", "--no-cache")
    assert (status, out) == (1, "") and "apt-get install bubblewrap" in err and "level 9" not in err
