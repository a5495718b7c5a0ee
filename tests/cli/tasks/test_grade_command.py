"""`assay grade` as a user types it: where problems and kernels come from, what is printed, and the exit status."""

from __future__ import annotations

import importlib.util
import io
import json
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from assay.cli.main import main
from assay.cli.tasks.grade import describe, read_grading
from assay.errors import ConfigError
from assay.kernels.config import GraderConfig
from assay.kernels.grader import VERSION
from assay.kernels.pool import Candidate
from assay.kernels.problems.scaling import task_key
from assay.kernels.verdict_cache import VerdictCache, cache_key
from assay.kernels.verdicts import Verdict
from support.kernelbench_data import HONEST, SOLUTIONS, shipped
from support.sandboxes import needs_walls

pytestmark = needs_walls

PROBLEM = shipped()["1/1"]
SNAKE = HONEST / "snake.py"
RIGHT = SNAKE.read_text(encoding="utf-8")

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def assay(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Run `assay grade` with a cache of the test's own; exit status, standard output and error."""

    def run(*words: str, problem: str = "1/1", kernel: str | Path = SNAKE) -> tuple[int, str, str]:
        given = ["--problem", problem, "--kernel", str(kernel), f"cache_path={tmp_path / 'kernels.sqlite'}"]
        status = main(["grade", *given, "compile_check=off", *words])
        out, err = capsys.readouterr()
        return status, out, err

    return run


@pytest.fixture
def known(tmp_path: Path) -> Callable[..., None]:
    """Put a verdict on `RIGHT` into the cache, so that a test of the command need not wait for a sandbox."""

    def put(verdict: Verdict, *words: str, code: str = RIGHT) -> None:
        config = read_grading(dict(word.split("=") for word in ("compile_check=off", *words)))
        cache = VerdictCache(tmp_path / "kernels.sqlite", 16)
        cache.put(cache_key(task_key(PROBLEM, config.scale), code, config, VERSION), verdict)
        cache.close()

    return put


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no triton here")
def test_a_grade_from_each_place_that_problems_come_from(assay: Run, tmp_path: Path) -> None:
    status, out, _ = assay()
    assert status == 0 and out.startswith("ok: problem 1/1 1_Snake\n"), out
    assert re.search(r" ([1-9][0-9]*) of \1 calls right", out) and "CPU seconds" in out and "cached" not in out

    file = tmp_path / "level2" / "7_Mine.py"
    file.parent.mkdir()
    file.write_text(PROBLEM.code)
    status, out, _ = assay(problem=str(file))
    assert status == 0 and out.startswith("ok: problem 2/7 7_Mine\n"), out
    assert "from the cache" not in out and "scaled down" in out, "as a file it is graded at other sizes"

    rows = tmp_path / "problems.jsonl"
    row = {"code": PROBLEM.code, "level": 1, "name": "from_rows", "problem_id": 9}
    rows.write_text("\n".join(json.dumps(row | {"problem_id": n, "name": f"row_{n}"}) for n in (9, 10)))
    status, out, _ = assay("dataset_src=jsonl", f"problems_path={rows}", problem="1/10")
    assert status == 0 and out.startswith("ok: problem 1/10 row_10\n") and "from the cache" in out


def test_a_kernel_from_standard_input(assay: Run, known: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    known(Verdict("wrong", "numerics", "an element is wrong", tests_passed=2, tests_total=5), code=RIGHT + "\n# mine\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((RIGHT + "\n# mine\n").encode())))
    status, out, _ = assay(kernel="-")
    assert status == 3 and "wrong: problem 1/1" in out and "2 of 5 calls right" in out and "an element is wrong" in out


def test_json_has_the_whole_verdict(assay: Run, known: Any) -> None:
    known(Verdict("cheat", "numerics", "does nothing", "kernels", {"call": 3}, 5, 5, True))
    status, out, err = assay("--json")
    assert status == 3 and out.count("\n") == 1 and err == ""
    said = json.loads(out)
    assert {field.name for field in fields(Verdict)} | {"name", "key"} == set(said)
    assert (said["name"], said["key"], said["kind"], said["cheat"]) == ("1_Snake", "1/1", "cheat", "kernels")
    assert said["evidence"] == {"call": 3} and said["cached"] is True and said["compiled"] is True


def test_a_cheat_seen_in_the_text_and_no_cache(assay: Run, tmp_path: Path) -> None:
    kernel = tmp_path / "kernel.py"
    kernel.write_text("class ModelNew:\n    pass\n")
    status, out, _ = assay("--no-cache", kernel=kernel)
    assert status == 3 and "decided at" in out and not (tmp_path / "kernels.sqlite").exists()


@pytest.mark.parametrize(
    ("data", "json_too"),
    [(b"\x00\xff" * 50, ()), (b"\x80abc", ("--json",)), ("y = '\ud800'".encode("utf-8", "surrogatepass"), ())],
)
def test_a_file_that_is_no_kernel(assay: Run, tmp_path: Path, data: bytes, json_too: tuple[str, ...]) -> None:
    kernel = tmp_path / "kernel.py"
    kernel.write_bytes(data)
    status, out, err = assay(*json_too, kernel=kernel)
    assert status == 3 and "compile_error" in out and err == ""
    out.encode()


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("polcy=partial",), 2, "polcy (command line): this setting does not exist"),
        (("polcy=partial",), 2, "Did you mean policy?"),
        (("quite_other=1",), 2, "`assay grade --settings` lists all settings"),
        (("workers=many",), 2, "workers=many (command line): expected"),
        (("num_correct_trials=0",), 2, "must be at least 1"),
        (("precision=float8",), 2, "float8"),
        (("policy=lax",), 2, "lax"),
        (("sandbox=none",), 2, "none"),
        (("scale=small",), 2, "small"),
        (("arch=sm_12",), 2, "sm_12"),
        (("wall_s=inf",), 2, "expected a number"),
        (("wall_s=0",), 2, "wall_s=0.0 must be above 0"),
        (("workers=-1",), 2, "workers=-1 must be at least 0"),
        (("dataset_src=web",), 2, "web"),
        (("dataset_src=jsonl",), 2, "needs the path"),
        (("dataset_src=local", "problems_path=/nowhere"), 1, "/nowhere is not a checkout"),
        (("--colour",), 2, "'--colour' is not an option of `assay grade`"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be(assay: Run, words: tuple[str, ...], status: int, said: str) -> None:
    found, out, err = assay(*words)
    assert (found, out) == (status, "") and err.startswith("error: ") and said in err, err


@pytest.mark.parametrize(
    ("problem", "kernel", "said"),
    [
        ("1/99", SNAKE, "problem 1/99 does not exist: level 1 has 1-"),
        ("11", SNAKE, "Give both, as in --problem 1/11."),
        ("9/1", SNAKE, "has no problem of level 9. Its levels are 1-3."),
        ("nowhere.py", SNAKE, "cannot read the problem file nowhere.py: No such file"),
        (str(SNAKE), SNAKE, "does not define Model"),
        ("1/1", "nowhere.py", "cannot read the kernel nowhere.py: No such file"),
        ("1/1", SOLUTIONS, "cannot read the kernel"),
        ("1/1", "/dev/zero", "more than 20,000,000 bytes"),
    ],
)
def test_files_that_are_not_there(assay: Run, problem: str, kernel: str | Path, said: str) -> None:
    status, out, err = assay(problem=problem, kernel=kernel)
    assert (status, out) == (1, "") and said in err, err


def test_a_machine_without_walls(assay: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    status, out, err = assay()
    assert (status, out) == (1, "") and "apt-get install bubblewrap" in err and "sandbox=unsafe" in err


def test_a_cache_that_cannot_be(assay: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    status, out, err = assay(f"cache_path={tmp_path}/file/kernels.sqlite")
    assert (status, out) == (1, "") and "--no-cache" in err


def test_the_options_that_stand_for_settings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Any] = []

    def grade(candidates: Iterable[Candidate], config: Any) -> list[Verdict]:
        seen.append((config, list(candidates)))
        return [Verdict("compiled_not_run", "compile", "no GPU here", compiled=True)]

    monkeypatch.setattr("assay.cli.tasks.grade.grade_many", grade)
    words = [
        "grade",
        "--problem=1/1",
        f"--kernel={SNAKE}",
        "--backend=cuda",
        "--no-cache",
        "arch=sm_80",
        "--sandbox=unsafe",
    ]
    assert main(words) == 3 and "compiled_not_run: problem 1/1" in capsys.readouterr().out
    [(config, [(problem, code)])] = seen
    assert (config.backend, config.cache, config.arch, config.sandbox) == ("cuda", False, "sm_80", "unsafe")
    assert problem == PROBLEM and code == RIGHT


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--backend=cuda", "wall_s=5"), "wall_s=5.0 is set, but it is read only when kernels are run"),
        (("arch=sm_80", "compile_check=off"), "arch=sm_80 is set, but it is read only when kernels are compiled"),
        (("timing.samples=30",), "timing.* is set, but it is read only when measure_performance is true"),
        (("modal.modal_gpu_type=T4",), "modal.* is set, but it is read only when run_on is modal"),
        (("cache=false", "cache_mb=3"), "cache_mb=3 is set, but it is read only when cache is true"),
        (("revision=main",), "revision=main is set, but it is read only when dataset_src is huggingface"),
    ],
)
def test_settings_that_would_do_nothing(words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["grade", "--problem=1/1", f"--kernel={SNAKE}", *words]) == 2 and said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--list", "wall_s=5"), "wall_s would have no effect: nothing is graded"),
        (("--show=1/1", "num_correct_trials=9"), "num_correct_trials would have no effect: nothing is graded"),
        (("--settings", "wall_s=5"), "wall_s would have no effect: --settings lists settings"),
        (("--problem=p.py", "--kernel=k.py", "dataset_src=huggingface"), "the problem is in a file"),
    ],
)
def test_settings_of_grading_where_nothing_reads_them(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["grade", *words]) == 2 and said in capsys.readouterr().err


@pytest.mark.parametrize(
    "setting", [{"scale": "small"}, {"sandbox": "no"}, {"arch": "sm_12"}, {"backend": "hip"}, {"compile_check": "yes"}]
)
def test_settings_that_python_gives_are_checked_as_well(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(setting.values()))):
        GraderConfig(**setting)


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["grade", "--help"], ["grade", "-h"]):
        with pytest.raises(SystemExit, match="0"):
            main(words)
        text = capsys.readouterr().out
        for word in ("--problem", "--kernel", "--backend", "--json", "--no-cache", "key=value", "exit status", "stdin"):
            assert word in text
        for word in ("--list", "--show", "--starter", "--settings", "  0  ", "  1  ", "  2  ", "  3  "):
            assert word in text
        assert len(text.splitlines()) < 60


def test_the_verdict_in_words() -> None:
    verdict = Verdict(
        "wrong",
        "numerics",
        "long words " * 30,
        evidence={"scaling": {"changes": ["N"], "cap": 64}},
        tests_passed=1,
        tests_total=5,
        compiled=False,
        cpu_s=0.25,
    )
    lines = describe(PROBLEM, verdict).splitlines()
    assert lines[0] == "wrong: problem 1/1 1_Snake"
    assert all(len(line) <= 110 and line.startswith("  ") for line in lines[1:-1])
    facts = ["decided at numerics", "1 of 5 calls right", "not compiled for a GPU", "sizes scaled down (cap 64)"]
    assert lines[-1] == "  " + "; ".join([*facts, "0.25 CPU seconds"])
    assert describe(PROBLEM, Verdict("ok", "numerics", cached=True)).endswith("decided at numerics; from the cache")
