"""`assay eval` of policies that no run trained: the real grader, a real endpoint on loopback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from assay.cli.main import main
from assay.cli.runs.measured import pass_at
from assay.envs.kernelbench.evaluation.outcomes import KernelEvaluation
from assay.envs.kernelbench.evaluation.published import kernel_name
from support.kernel_policies import BROKEN, RIGHT, WRONG, reply
from support.recorded_run import group
from support.sandboxes import needs_walls
from support.scripted_judge import Asked, Said, scripted_judge
from support.tensorboard import scalars

GRADED_HERE = (
    *("dataset_builder.dataset_src=shipped", "dataset_builder.use_modal=false", "dataset_builder.end_problem=2"),
    *("dataset_builder.num_correct_trials=1", "dataset_builder.grader.compile_check=off"),
    *("dataset_builder.grader.draws=1", "dataset_builder.grader.workers=1"),
)
ANSWERS = (reply(RIGHT), reply(WRONG), reply(BROKEN), "I cannot.")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Verdicts are shared by the tests: each kernel is graded once."""
    return f"cache_dir={tmp_path_factory.mktemp('cache')}"


def evaluated(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert main(["eval", *map(str, arguments)]) == 0, capsys.readouterr().err
    found: dict[str, Any] = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    return found


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["eval", *map(str, arguments)]) != 0
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    return err


@needs_walls
def test_an_endpoint_is_measured_and_asked_once(
    tmp_path: Path, cache: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    own = f"endpoint.cache_path={tmp_path / 'replies.sqlite'}"
    settings = [*GRADED_HERE, cache, own, "endpoint.api_key_env=", "eval.samples_per_task=4", "max_tokens=77"]
    bodies = []

    def answer(asked: Asked) -> Said | str | int:
        bodies.append(asked.body)
        if asked.number == 0:
            return 503
        return ANSWERS[asked.number % 4] if "Snake" in asked.text or "sin" in asked.text else "I cannot."

    with scripted_judge(answer) as judge:
        policy = ["--policy", f"endpoint:{judge.base_url}#some/model", "--tasks", "all", "--k", "1,4"]
        out, board, kernels = tmp_path / "new" / "e.json", tmp_path / "tb", tmp_path / "kernels"
        places = ["--output", out, "--tensorboard", board, "--step", 3, "--kernels", kernels]
        found = evaluated(capsys, *policy, *places, *settings)
        asked = len(bodies)
        assert "earlier evaluation" not in caplog.text
        again = evaluated(capsys, *policy, *settings)
        assert "8 replies are those of an earlier evaluation" in caplog.text
        assert "holds kernels already" in refused(capsys, *policy, "--kernels", kernels, *settings)
    assert asked == 9 and len(bodies) == 9, "a refused call is tried again; a repeated evaluation asks nothing"
    assert again["figures"] == found["figures"] and again["calls"]["cache_hits"] == 8
    assert {body["max_tokens"] for body in bodies} == {77} and bodies[0]["model"] == "some/model"
    assert [message["role"] for message in bodies[0]["messages"]] == ["system", "user"]
    figures = found["figures"]["all"]
    assert found["policy"] == f"endpoint:{judge.base_url}#some/model" and found["tasks"] == 2
    assert (figures["problems"], figures["samples"], list(figures["pass_at"])) == (2, 8, ["1", "4"])
    file = json.loads(out.read_text())
    assert file["config"]["max_tokens"] == 77 and file["figures"] == found["figures"]
    kept = KernelEvaluation.from_json(file, "e.json")
    kinds = sorted(sample[0].kind for problem in kept.problems for sample in problem.samples)
    assert kinds.count("ok") >= 1 and "wrong" in kinds and "format_error" in kinds
    assert figures["pass_at"]["1"]["mean"] == pytest.approx(kinds.count("ok") / 8)
    assert figures["fast_p"]["eager"]["1"] is None and "null" in found["notes"][0]
    events = {tag: value for _, tag, value in scalars(next(board.iterdir()))}
    assert events["Eval/Level1/Pass@1"] == pytest.approx(figures["pass_at"]["1"]["mean"])
    # The kernels that were written are a run in KernelBench's layout, and get the same verdicts.
    regraded = evaluated(capsys, "--policy", f"folder:{kernels}", *GRADED_HERE, cache)
    right = regraded["figures"]["all"]
    assert right["pass_at"]["1"]["mean"] > 0 and right["problems"] == 2
    assert {name.name for name in kernels.iterdir()} <= {kernel_name(1, n, s) for n in (1, 2) for s in range(4)}


@needs_walls
def test_a_folder_of_kernels_is_graded(tmp_path: Path, cache: str, capsys: pytest.CaptureFixture[str]) -> None:
    for sample, kernel in enumerate((RIGHT, WRONG)):
        (tmp_path / kernel_name(1, 1, sample)).write_text(kernel)
    (tmp_path / kernel_name(3, 1, 0)).write_text(RIGHT)
    found = evaluated(capsys, "--policy", f"folder:{tmp_path}", *GRADED_HERE, cache)
    assert (found["without_kernel"], found["not_chosen"]) == (1, 1)
    figures = found["figures"]["all"]
    assert {k: (v["mean"], v["n"]) for k, v in figures["pass_at"].items()} == {"1": (0.25, 2), "2": (0.5, 2)}


def test_results_of_others_are_taken_at_their_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"sample_id": 0, "compiled": True, "correctness": True, "runtime": 2.0, "runtime_stats": {}, "metadata": {}}
    (tmp_path / "eval_results.json").write_text(json.dumps({"1": [row]}))
    times = tmp_path / "times.json"
    times.write_text(json.dumps({"level1": {"1_Snake.py": {"mean": 3.0}, "2_T.py": {"mean": 1.0}}}))
    problems = ["dataset_builder.dataset_src=shipped", "dataset_builder.end_problem=2"]
    found = evaluated(capsys, "--policy", f"results:{tmp_path}", "--compile-times", times, *problems)
    fast = found["figures"]["level1"]["fast_p"]
    assert [fast["compile"][p]["mean"] for p in ("0", "1", "1.2", "2")] == [0.5, 0.5, 0.5, 0.0]
    assert fast["eager"]["1"] is None


def test_a_spent_budget_ends_it_before_the_next_call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [*GRADED_HERE, f"cache_dir={tmp_path}", "endpoint.api_key_env=", "endpoint.max_in_flight=1"]
    with scripted_judge(lambda _: Said("I cannot.", tokens=(900, 500))) as judge:
        policy = f"endpoint:{judge.base_url}#m"
        budget = ["max_tokens=500", "endpoint.budget_tokens=5000", "eval.samples_per_task=8"]
        said = refused(capsys, "--policy", policy, *settings, *budget)
        assert "the budget is spent" in said and "cached" in said
        assert 1 <= len(judge.asked) <= 5000 // 1400


def test_calls_without_an_answer_are_errored_and_not_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [*GRADED_HERE, f"cache_dir={tmp_path}", "endpoint.api_key_env=", "eval.samples_per_task=4"]
    with scripted_judge(lambda asked: 400 if asked.number % 2 else "I cannot.") as judge:
        policy = ["--policy", f"endpoint:{judge.base_url}#m"]
        assert "2 of 4 rollouts of the evaluation could not be scored" in refused(capsys, *policy, *settings)
        found = evaluated(capsys, *policy, *settings, "max_errored_fraction=0.6")
    assert found["figures"]["all"]["errored_samples"] in (1, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "model:x"], "is none that can be measured: write endpoint:URL#MODEL"),
        (["--policy", "endpoint:http://localhost:1/v1"], "names no endpoint"),
        (["--policy", "endpoint:http://me:pw@localhost/v1#m"], "has a user, a password"),
        (["--policy", "endpoint:http://localhost:1/v1#m", "local.device=cpu"], "local.device would have no effect"),
        (["--policy", "endpoint:http://localhost:1/v1#m", "endpoint.budget_usd=1"], "prices are unknown"),
        (["--policy", "endpoint:http://localhost:1/v1#m", "--eager-times", "x"], "it is for --policy results:"),
        (["--policy", "results:x", "temperature=2"], "What it reads is max_errored_fraction, cache_dir and other"),
        (
            ["--policy", "endpoint:http://localhost:1/v1#m", "endpoint.api_key_env=NONE", *GRADED_HERE],
            "set endpoint.api",
        ),
        (["--policy", "results:.", "dataset_builder.dataset_src=shipped"], "eval_results.json cannot be read"),
        (["--policy", "folder:x", "--config", "chess"], "holds kernels"),
        (["--policy", "folder:x", "--batch", "3"], "--batch would have no effect here"),
        (["--policy", "folder:x", "--step", "3"], "without --tensorboard"),
        (["--policy", "folder:x", "--output", "."], "--output . is a folder"),
        (["--policy", "folder:x", "--output", "/dev/null/x.json"], "could not be written to"),
        (["--policy", "folder:none", *GRADED_HERE], "none is not a folder"),
    ],
)
def test_what_cannot_be_measured_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    said = refused(capsys, *arguments)
    assert message in said and "pw" not in said


def test_pass_at_k_is_given_of_any_metric_that_is_0_or_1() -> None:
    found = pass_at([group("a", 1, 0, None), group("b", 0.0, 0.0), group("c", 1, 1)])
    assert found["reward"]["1"]["mean"] == pytest.approx(0.5) and found["reward"]["2"]["mean"] == pytest.approx(2 / 3)
    assert "reward" not in pass_at([group("a", 0.5, 1)]) and "legal" in pass_at([group("a", 0.5, 1)])
