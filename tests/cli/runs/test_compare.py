import json
import re
from pathlib import Path

import pytest

from assay.cli.main import main
from assay.envs.kernelbench.evaluation.outcomes import KernelEvaluation, Outcome, ProblemOutcomes
from assay.estimates import estimate, sign_flip_p
from assay.training.metrics.intervals import paired_difference_ci95
from support.recorded_run import group, record

NAMES = [f"task {i}" for i in range(12)]


def run_of(path: Path, *evaluations: list[float], names: list[str] = NAMES) -> Path:
    """A run with an evaluation after each step: one reward per task."""
    batches = [
        (step, "eval", [group(name, reward) for name, reward in zip(names, rewards, strict=False)])
        for step, rewards in enumerate(evaluations)
    ]
    return record(path, *batches)


def compare(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["compare", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def figures(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, object]:
    found: dict[str, object] = json.loads(compare(capsys, *arguments, "--json"))
    return found


LOW = [0.1 * i for i in range(12)]
HIGH = [value + 0.3 + 0.01 * (i % 3) for i, value in enumerate(LOW)]
NOISY = [value + (0.4 if i % 2 else -0.35) for i, value in enumerate(LOW)]


def test_a_gain_on_every_task_is_no_noise_however_different_the_tasks(tmp_path, capsys):
    a, b = run_of(tmp_path / "a", LOW), run_of(tmp_path / "b", HIGH)
    found = figures(capsys, a, b)
    reward, interval = found["metrics"]["reward"], paired_difference_ci95(LOW, HIGH)
    assert (reward["low"], reward["high"]) == pytest.approx((interval.low, interval.high))
    assert (reward["better"], reward["worse"], reward["equal"], reward["tasks"]) == (12, 0, 0, 12)
    assert found["verdict"].startswith("Not noise: reward rose by +0.310 ±")
    assert figures(capsys, b, a)["verdict"].startswith("Not noise, but a loss: reward fell by -0.310 ±")


def test_a_gain_within_its_interval_may_be_noise(tmp_path, capsys):
    text = compare(capsys, run_of(tmp_path / "a", LOW), run_of(tmp_path / "b", NOISY))
    assert "It may be noise: reward changed by +0.025 ±" in text
    assert "would need about" in text
    assert "Largest changes of reward:" in text and "task 1" in text


def test_a_few_tasks_that_all_turned_right_prove_nothing(tmp_path, capsys):
    found = figures(capsys, run_of(tmp_path / "a", [0.0] * 5), run_of(tmp_path / "b", [1.0] * 5))
    assert found["verdict"].startswith("5 tasks cannot tell a difference from noise: reward changed by +1.000")
    found = figures(capsys, run_of(tmp_path / "c", [0.0] * 6), run_of(tmp_path / "d", [1.0] * 6))
    assert found["verdict"].startswith("Not noise: reward rose by +1.000")


def test_equal_runs_do_not_differ(tmp_path, capsys):
    found = figures(capsys, run_of(tmp_path / "a", LOW), run_of(tmp_path / "b", LOW))
    assert found["verdict"] == "No difference: reward is equal on each of 12 tasks."
    assert found["metrics"]["reward"]["equal"] == 12 and found["largest_changes"] == []


def test_the_order_of_the_tasks_does_not_matter(tmp_path, capsys):
    a = run_of(tmp_path / "a", LOW)
    turned = run_of(tmp_path / "b", HIGH[::-1], names=NAMES[::-1])
    straight = run_of(tmp_path / "c", HIGH)
    one, other = figures(capsys, a, turned), figures(capsys, a, straight)
    assert one["metrics"] == other["metrics"]


def test_one_run_is_compared_before_and_after(tmp_path, capsys):
    a = run_of(tmp_path / "a", LOW, NOISY, HIGH)
    found = figures(capsys, a)
    assert ([found[side]["step"] for side in "ab"], found["a"]["label"]) == ([0, 2], "before")
    assert figures(capsys, a, "--step", "1")["b"]["step"] == 1
    b = run_of(tmp_path / "b", HIGH, LOW)
    both = figures(capsys, a, b, "--step", "1")
    assert [both[side]["step"] for side in "ab"] == [1, 1]
    assert [figures(capsys, a, b)[side]["step"] for side in "ab"] == [2, 1]


def test_runs_of_other_tasks_are_refused_with_the_overlap(tmp_path, capsys):
    a = run_of(tmp_path / "a", LOW)
    b = run_of(tmp_path / "b", LOW, names=[*NAMES[:3], *(f"other {i}" for i in range(9))])
    assert main(["compare", str(a), str(b)]) != 0
    assert "a and b were evaluated on different tasks: 3 of 12 and 12 are the same" in capsys.readouterr().err


def test_enough_common_tasks_are_compared(tmp_path, capsys):
    a = run_of(tmp_path / "a", LOW)
    b = run_of(tmp_path / "b", HIGH, names=[*NAMES[:8], *(f"other {i}" for i in range(4))])
    assert "Only the 8 tasks that both have are compared." in compare(capsys, a, b)


def test_answers_that_could_not_be_scored_are_in_no_pair(tmp_path, capsys):
    a = run_of(tmp_path / "a", LOW)
    b = run_of(tmp_path / "b", [None, *HIGH[1:]])
    assert figures(capsys, a, b)["metrics"]["reward"]["tasks"] == 11


def test_names_of_tasks_cannot_steer_the_terminal(tmp_path, capsys):
    names = [f"\x1b[31m{name}" for name in NAMES]
    text = compare(capsys, run_of(tmp_path / "a", LOW, names=names), run_of(tmp_path / "b", HIGH, names=names))
    assert "\x1b" not in text and "␛[31m" in text


@pytest.mark.parametrize(
    ("evaluations", "options", "message"),
    [
        ([LOW], [], "has been evaluated only once so far"),
        ([], [], "holds no evaluation"),
        ([LOW, HIGH], ["--step", "9"], "has no evaluation after step 9; it has those after steps 0, 1."),
        ([[None] * 12, [None] * 12], [], "No task has a reward in both"),
        ([LOW, HIGH], ["seed=1"], "`assay compare` has no settings"),
    ],
)
def test_what_cannot_be_compared_is_said(tmp_path, capsys, evaluations, options, message):
    a = run_of(tmp_path / "a", *evaluations)
    assert main(["compare", str(a), *options]) != 0
    out, err = capsys.readouterr()
    assert message in err and out == ""


def test_a_missing_run_is_one_line(tmp_path, capsys):
    assert main(["compare", str(tmp_path / "none"), str(tmp_path / "none")]) != 0
    assert "is not a run" in capsys.readouterr().err


def kernels_of(path: Path, rates: list[float], timed: bool = True, first: int = 1) -> Path:
    """An evaluation of 4 samples of each problem, of which so many are right; right ones are 1.5 times as fast."""
    speeds = {"eager": 1.5} if timed else {}
    right, wrong = Outcome("ok", True, speeds, speeds), Outcome("wrong", True)
    problems = [
        ProblemOutcomes(1, number, f"{number}_P", tuple((right if s < 4 * rate else wrong,) for s in range(4)))
        for number, rate in enumerate(rates, first)
    ]
    path.write_text(json.dumps(KernelEvaluation(tuple(problems), ("eager",) if timed else ()).to_json()))
    return path


def test_two_evaluations_of_kernels_are_compared_problem_by_problem(tmp_path, capsys):
    before = [0.0, 0.25, 0.25, 0.5, 0.5, 0.0, 0.75, 0.25, 0.0, 0.5]
    after = [0.5, 0.75, 0.5, 0.75, 0.5, 0.25, 1.0, 0.5, 0.25, 1.0]
    a, b = kernels_of(tmp_path / "a.json", before), kernels_of(tmp_path / "b.json", after)
    found = figures(capsys, a, b)
    row, gains = found["metrics"]["correct"], [y - x for x, y in zip(before, after, strict=True)]
    wanted = estimate(gains)
    assert (row["difference"], row["low"], row["high"]) == pytest.approx((wanted.mean, wanted.low, wanted.high))
    assert row["p"] == sign_flip_p(gains) < 0.01 and (row["better"], row["worse"], row["equal"]) == (9, 0, 1)
    assert found["verdict"].startswith("Not noise: correct rose by +0.300 [+0.")
    assert found["metrics"]["fast_1.2 (eager)"]["difference"] == pytest.approx(wanted.mean)
    assert found["metrics"]["fast_2 (eager)"]["p"] == 1.0 and "pass@4" in found["metrics"]
    text = compare(capsys, a, b)
    assert "a.json: evaluated with 4 samples on 10 tasks" in text and "Largest changes of correct:" in text


def test_what_was_not_timed_is_in_no_pair(tmp_path, capsys):
    a, b = kernels_of(tmp_path / "a.json", [0.5] * 8), kernels_of(tmp_path / "b.json", [0.5] * 8, timed=False)
    found = figures(capsys, a, b)
    assert not any("eager" in name for name in found["metrics"]) and found["verdict"].startswith("No difference")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a.json"], "is compared with another such file"),
        (["a.json", "run"], "is compared with another such file"),
        (["a.json", "a.json", "--step", "1"], "--step chooses an evaluation of a run"),
        (["a.json", "no.json"], "no.json does not exist"),
        (["a.json", "bad.json"], "not valid JSON"),
        (["a.json", "other.json"], "different tasks: 0 of 8 and 8"),
    ],
)
def test_files_that_cannot_be_compared_are_said(tmp_path, capsys, arguments, message):
    kernels_of(tmp_path / "a.json", [0.5] * 8)
    kernels_of(tmp_path / "other.json", [0.5] * 8, first=50)
    (tmp_path / "bad.json").write_text("{")
    run_of(tmp_path / "run", LOW)
    assert main(["compare", *(str(tmp_path / a) if "json" in a or a == "run" else a for a in arguments)]) != 0
    out, err = capsys.readouterr()
    assert message in err and out == ""


def test_evaluations_that_were_graded_otherwise_are_said_to_be(tmp_path, capsys):
    paths = []
    for name, trials, tokens in (("a", 5, 512), ("b", 1, 512)):
        path = kernels_of(tmp_path / f"{name}.json", [0.25, 0.5] * 4)
        builder = {"num_correct_trials": trials, "batch_size": trials, "grader": {"policy": "strict"}}
        config = {"max_tokens": tokens, "log_path": name, "dataset_builder": builder}
        path.write_text(json.dumps({**json.loads(path.read_text()), "config": config}))
        paths.append(path)
    assert figures(capsys, *paths)["measured_otherwise"] == ["dataset_builder.num_correct_trials: 5 -> 1"]
    told = compare(capsys, *paths)
    assert "Measured otherwise: dataset_builder.num_correct_trials: 5 -> 1" in told
    assert re.search(r"^  correct  .* 1\.000$", told, re.MULTILINE), "no p is cut off where there is no terminal"
    assert figures(capsys, paths[0], paths[0])["measured_otherwise"] == []
