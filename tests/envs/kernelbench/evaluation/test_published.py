"""KernelBench's run layout: figures are those of its published definitions, and what is no such file is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.envs.kernelbench.evaluation.figures import summary
from assay.envs.kernelbench.evaluation.published import kernel_name, read_kernels, read_results
from assay.errors import DataError
from assay.kernels.problems.sources import Problem

N = 40
PROBLEMS = [Problem(2, number, f"{number}_Problem", f"# {number}", "test") for number in range(1, N + 1)]


def entry(sample: int, compiled: bool, correct: bool, runtime: float, **more: Any) -> dict[str, Any]:
    stats = {"mean": runtime, "std": 0.01, "min": runtime, "max": runtime, "num_trials": 100}
    return {
        "sample_id": sample,
        "compiled": compiled,
        "correctness": correct,
        "metadata": {"hardware": "NVIDIA H100 80GB HBM3", "device": "cuda:0"},
        "runtime": runtime if correct else -1.0,
        "runtime_stats": stats if correct else {},
        **more,
    }


def run_of(folder: Path, samples: int) -> tuple[Path, Path, dict[str, list[dict[str, Any]]]]:
    """A run with results as KernelBench writes them, of all problems but the last two, and its baseline times."""
    draw = np.random.default_rng(3)
    results = {
        str(number): [
            entry(s, bool(draw.random() < 0.8), False, 1.0)
            if draw.random() < 0.4
            else entry(s, True, True, float(draw.choice([0.5, 1.0, 2.0, 4.0])))
            for s in range(samples)
        ]
        for number in range(1, N - 1)
    }
    times = {
        "level2": {
            f"{n}_Problem.py": {"mean": float(draw.choice([1.0, 2.0, 2.4])), "std": 0.1} for n in range(1, N + 1)
        }
    }
    folder.mkdir()
    (folder / "eval_results.json").write_text(json.dumps(results, indent=4))
    baseline = folder / "baseline_time_torch.json"
    baseline.write_text(json.dumps(times))
    return folder, baseline, results


def published(results: dict[str, list[dict[str, Any]]], baseline: Path, p: float) -> tuple[float, float]:
    """fast_p and the geometric mean by their definitions (KernelBench, arXiv 2502.10517, 3.3): of N problems, those
    that are right with a speedup above p; the mean of the right ones. Problems without a result are not right."""
    mean = {int(name.split("_")[0]): row["mean"] for name, row in json.loads(baseline.read_text())["level2"].items()}
    first = {int(n): rows[0] for n, rows in results.items()}
    speedups = np.array([mean[n] / row["runtime"] for n, row in first.items() if row["correctness"]])
    return float(np.sum(speedups > p)) / N, float(np.prod(speedups) ** (1 / len(speedups)))


def test_fast_p_is_the_published_one(tmp_path: Path) -> None:
    folder, baseline, results = run_of(tmp_path / "run", 1)
    found = summary(read_results(folder, PROBLEMS, {"eager": baseline}))["all"]
    assert any(row[0]["runtime"] == 2.0 and row[0]["correctness"] for row in results.values())
    for p in (0.0, 1.0, 1.2, 2.0):
        fast, mean = published(results, baseline, p)
        assert found["fast_p"]["eager"][f"{p:g}"]["mean"] == pytest.approx(fast, abs=1e-12)
        assert found["speedup"]["eager"]["geometric_mean"]["mean"] == pytest.approx(mean)
    assert found["fast_p"]["eager"]["1.2"]["mean"] > found["fast_p"]["eager"]["2"]["mean"] > 0
    compiled = sum(rows[0]["compiled"] for rows in results.values())
    assert found["compile_rate"]["mean"] == pytest.approx(compiled / N)
    assert found["problems"] == N and found["fast_p"]["compile"]["1"] is None


def test_pass_at_k_is_the_published_one(tmp_path: Path) -> None:
    folder, _, results = run_of(tmp_path / "run", 6)
    done = [problem for problem in PROBLEMS if str(problem.id) in results]  # there, only these are averaged
    found = summary(read_results(folder, done, {}), (1, 3, 6))["all"]
    for k in (1, 3, 6):
        values = []
        for rows in results.values():
            n, c = len(rows), sum(row["correctness"] and row["compiled"] for row in rows)
            values.append(1.0 if n - c < k else 1.0 - np.prod(1.0 - k / np.arange(n - c + 1, n + 1)))
        assert found["pass_at"][str(k)]["mean"] == pytest.approx(float(np.mean(values)))


def test_problems_without_a_result_have_failed(tmp_path: Path) -> None:
    folder, baseline, _ = run_of(tmp_path / "run", 2)
    found = read_results(folder, PROBLEMS, {"eager": baseline})
    assert [len(problem.samples) for problem in found.problems[-2:]] == [2, 2]
    assert summary(found)["all"]["pass_at"]["2"]["n"] == N


def test_times_beside_newer_results_and_older_results_without_lists_are_read(tmp_path: Path) -> None:
    rows = {"1": entry(0, True, True, 2.0, ref_runtime=5.0), "2": entry(0, True, False, 1.0)}
    (tmp_path / "eval_results.json").write_text(json.dumps(rows))
    found = read_results(tmp_path, PROBLEMS[:2], {})
    assert found.timed == ("eager",) and found.problems[0].samples[0][0].speedups == {"eager": 2.5}
    (tmp_path / "eval_results.json").write_text(json.dumps({"1": entry(0, True, True, -1.0)}))
    found = read_results(tmp_path, PROBLEMS[:2], {})
    assert found.timed == () and found.problems[0].samples[0][0].correct


def test_kernels_are_found_by_their_names(tmp_path: Path) -> None:
    for name in (kernel_name(1, 19, 0), kernel_name(1, 19, 11), kernel_name(2, 3, 0), "notes.txt"):
        (tmp_path / name).write_text(name)
    assert kernel_name(1, 19, 0) == "level_1_problem_19_sample_0_kernel.py"
    assert {key: sorted(each) for key, each in read_kernels(tmp_path).items()} == {(1, 19): [0, 11], (2, 3): [0]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "holds a list, not an object"),
        ("{", "not valid JSON"),
        (
            '{"1": [{"sample_id": 0, "compiled": true}]}',
            "has no correctness that is a bool. It has sample_id, compiled",
        ),
        ('{"1": [7]}', "is a int, not a result"),
        ('{"99": []}', "has problem 99, which level 2"),
    ],
)
def test_what_is_no_file_of_results_is_said(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "eval_results.json").write_text(content)
    with pytest.raises(DataError, match=message.replace("(", r"\(").replace("[", r"\[")):
        read_results(tmp_path, PROBLEMS, {})


def test_other_things_that_are_not_there_are_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no file like level_1_problem_1_sample_0_kernel"):
        read_kernels(tmp_path)
    folder, baseline, _ = run_of(tmp_path / "run", 1)
    two = [*PROBLEMS, Problem(1, 1, "1_A", "", "test")]
    with pytest.raises(DataError, match="levels 1, 2 are chosen"):
        read_results(folder, two, {})
    baseline.write_text(json.dumps({"level1": {}}))
    with pytest.raises(DataError, match="has no level2; it has level1"):
        read_results(folder, PROBLEMS, {"eager": baseline})
