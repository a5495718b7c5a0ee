"""The examples of rewards, run as their first lines say: by the command line, in TRL, in verl's `compute_score`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.cli.main import main
from assay.integrations.common.scoring import close_all
from assay.integrations.trl import reward_func
from assay.integrations.verl import acompute_score, compute_score
from support.scripted_judge import Asked, scripted_judge

EXAMPLES = Path(__file__).parents[2] / "examples"
FUNCTIONS = EXAMPLES / "reward_function.py"
SAID = ["6 * 12 = 72, so the answer is 72.", "It is 71.", "No idea."]


@pytest.fixture(autouse=True)
def engines_end() -> Iterator[None]:
    yield
    close_all()


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_function_scores_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "said.jsonl", [{"response": text, "answer": "72"} for text in SAID])
    names = f"--reward={FUNCTIONS}:right,{FUNCTIONS}:brief*0.2"
    assert main(["score", f"--input={source}", names, "options.brief.words=4"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "said.scores.jsonl").read_text().splitlines()]
    assert [row["parts"] for row in rows] == [
        {"right": 1.0, "brief": 0.4},
        {"right": 0.0, "brief": 1.0},
        {"right": 0.0, "brief": 1.0},
    ]


def test_the_same_file_in_trl_and_verl() -> None:
    right = reward_func(f"{FUNCTIONS}:right")
    assert asyncio.run(right(prompts=["q"] * 3, completions=SAID, answer=["72"] * 3)) == [1.0, 0.0, 0.0]
    assert asyncio.run(right(prompts=["q"], completions=["4"], answer=["not a number"])) == [None]
    named = f"{FUNCTIONS}:right"
    assert [compute_score(text, "72", "gsm8k", {}, reward=named) for text in SAID] == [1.0, 0.0, 0.0]
    rows = compute_score(solution_strs=SAID, ground_truths=["72"] * 3, reward=named)
    assert isinstance(rows, list) and [row["score"] for row in rows] == [1.0, 0.0, 0.0]
    looped = acompute_score(data_source="gsm8k", solution_str=SAID[0], ground_truth="72", extra_info={}, reward=named)
    assert asyncio.run(looped)["score"] == 1.0


def test_the_judge_is_asked_with_the_rubric(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[str] = []

    def grade(request: Asked) -> str:
        asked.append(request.text)
        return f"It is right. <score>{9 if '72' in request.text else 3}</score>"

    rows = [{"response": text, "prompt": "How many eggs are 6 dozen?"} for text in SAID[:2]]
    source = write(tmp_path / "said.jsonl", rows)
    with scripted_judge(grade) as judge:
        command = ["score", f"--input={source}", f"--reward={EXAMPLES / 'judge_reward.py'}:rubric"]
        own = [f"judge.base_url={judge.base_url}", "judge.api_key_env=", "engine.cache=false"]
        assert main([*command, *own]) == 0
    assert json.loads(capsys.readouterr().out)["calls"] == 2
    scores = [json.loads(line) for line in (tmp_path / "said.scores.jsonl").read_text().splitlines()]
    assert [row["score"] for row in scores] == [0.9, 0.3] and "rubric" in scores[0]["parts"]
    assert all("a beginner could follow it" in text and "6 dozen" in text for text in asked)
