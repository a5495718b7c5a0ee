"""The reward `math`: answers that are equal however they are written, and what cannot be read."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.cli.main import main
from assay.rewards import EngineConfig, FunctionReward, JudgeConfig, RewardEngine, Sample
from assay.rewards.named import find_reward
from assay.types import Json, Score

pytest.importorskip("math_verify", reason="needs the extra math")


@pytest.fixture(scope="module")
def engine() -> Iterator[RewardEngine]:
    reward = find_reward("math", {"processes": 1}, JudgeConfig())
    with RewardEngine(reward, config=EngineConfig(max_failure_rate=1.0)) as made:
        yield made


def judged(engine: RewardEngine, truth: Json, *completions: str) -> list[Score]:
    return engine.score_many_sync([Sample(text, truth) for text in completions])


@pytest.mark.parametrize(
    ("truth", "right", "wrong"),
    [
        ("72", "So she sold \\boxed{72} clips.", "\\boxed{71}"),
        (72, "The answer is 72.", "The answer is 27."),
        ("They need 6*12=<<6*12=72>>72 eggs.\n#### 72", "#### 72", "#### 6"),
        ("\\frac{1}{2}", "$x = 0.5$", "$x = 2$"),
        ("\\boxed{x^2+1}", "we get $1 + x^2$", "we get $1 - x^2$"),
        ("(1,2)", "\\boxed{(1, 2)}", "\\boxed{(2, 1)}"),
        ("\\{1,2\\}", "$\\{2, 1\\}$", "$\\{2, 3\\}$"),
        ("1,000", "It costs 1000 dollars", "It costs 100 dollars"),
    ],
)
def test_equal_answers_are_right_however_they_are_written(
    truth: Json, right: str, wrong: str, engine: RewardEngine
) -> None:
    scores = judged(engine, truth, right, wrong)
    assert [(score.status, score.value) for score in scores] == [("scored", 1.0), ("scored", 0.0)]


def test_a_completion_without_an_answer_is_invalid_and_a_truth_without_one_is_our_fault(engine: RewardEngine) -> None:
    (silent,) = judged(engine, "4", "I would rather not say")
    assert (silent.status, silent.value) == ("invalid", 0.0)
    for truth in ("", "???", "\\frac{1}{"):
        (unknown,) = judged(engine, truth, "\\boxed{4}")
        assert unknown.status == "errored" and "the ground truth" in unknown.evidence["message"]


def test_evidence_says_what_was_read(engine: RewardEngine) -> None:
    (score,) = judged(engine, "\\frac{1}{2}", "first $3$, then \\boxed{7}")
    assert score.evidence == {"answer": "7", "expected": "\\frac{1}{2}"}


def test_what_takes_for_ever_is_killed_and_others_go_on() -> None:
    """SymPy computes the tower of powers digit by digit."""
    reward = find_reward("math", {"processes": 1, "timeout_s": 4.0}, JudgeConfig())
    assert isinstance(reward, FunctionReward) and reward.name == "math"
    with RewardEngine(reward, config=EngineConfig(max_failure_rate=1.0)) as engine:
        hostile, good = judged(engine, "4", "\\boxed{9^{9^{9^{9}}}}", "\\boxed{4}")
    assert good.value == 1.0
    assert (hostile.status, hostile.value, hostile.evidence["failure"]) == ("invalid", 0.0, "timeout")


def test_a_file_is_scored_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "said.jsonl"
    rows = [{"response": "\\boxed{4}", "answer": "4"}, {"response": "\\boxed{5}", "ground_truth": 4}]
    source.write_text("\n".join(map(json.dumps, rows)))
    assert main(["score", f"--input={source}", "--reward=math"]) == 0
    assert json.loads(capsys.readouterr().out)["mean"] == 0.5


def test_the_missing_package_is_named_with_its_cure(tmp_path: Path) -> None:
    (tmp_path / "said.jsonl").write_text('{"response": "4", "answer": "4"}\n')
    code = (
        "import sys\nsys.modules['math_verify'] = None\nfrom assay.cli.main import main\n"
        f"sys.exit(main(['score', '--input={tmp_path / 'said.jsonl'}', '--reward=math']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and "pip install '.[math]'" in done.stderr and "Traceback" not in done.stderr
