"""`assay export --samples`: only right kernels of training, each once, as examples that an SFT stage reads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from assay.cli.main import main
from assay.config import resolved
from assay.envs.base import BuildContext
from assay.envs.kernelbench.dataset import ENV_NAME, payload_of
from assay.envs.kernelbench.generated import GeneratedKernelsBuilder
from assay.envs.kernelbench.prompts import PromptStyle, prompt_of
from assay.envs.kernelbench.rewards import evaluation
from assay.kernels.problems.sources import Problem, load_problems
from assay.kernels.verdicts import Verdict
from assay.retrieval.corpora import Reading, corpus_of
from assay.types import Completion, Score, Task, Trajectory, TrajectoryGroup, Transition
from support.kernel_policies import CHEAT, RIGHT, WRONG, reply
from support.kernel_run import builder, kernels
from support.recorded_run import record

OK = Verdict("ok", "numerics", tests_passed=1, tests_total=1)
BAD = Verdict("wrong", "numerics", "an element is off", tests_total=1)
HIDDEN = Verdict("cheat", "rules", "PyTorch did the work", cheat="operators")
SPACED = RIGHT.replace("import torch\n", "import torch  # the same kernel\n\n", 1)
STYLE = PromptStyle("zero_shot", "triton", thinks=True)


def turn(problem: Problem, kernel: str, verdict: Verdict, thought: str = "one program per block") -> Transition:
    told = {"eval_result": evaluation(verdict, kernel), "kernel": kernel}
    said = Completion((1, 2), (-0.5, -0.5), "stop", 3)
    score = Score("scored", float(verdict.ok), {}, told)
    return Transition((1,), said, reply(kernel, thought), score, messages=prompt_of(problem, STYLE))


def group(problem: Problem, *rollouts: list[Transition]) -> TrajectoryGroup:
    task = Task(ENV_NAME, f"{problem.key}:{problem.name}", prompt_of(problem, STYLE), payload_of(problem, {}))
    return TrajectoryGroup(task, tuple(Trajectory(task, tuple(turns), "done", 0) for turns in rollouts))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two turns of which the second is right, a copy of it, a cheat; and a right kernel in an evaluation."""
    one, two = load_problems("shipped", (1,))[:2]
    trained = group(one, [turn(one, WRONG, BAD), turn(one, RIGHT, OK)], [turn(one, SPACED, OK, "copied")])
    other = group(one, [turn(one, CHEAT, HIDDEN)], [turn(one, RIGHT.replace("BLOCK", "SIZE"), OK)])
    measured = group(two, [turn(two, RIGHT, OK)])
    path = record(tmp_path / "run", (0, "train", [trained, other]), (0, "eval", [measured]))
    (path / "config.json").write_text(json.dumps(resolved(kernels(path, backend="local"))))
    return path


def exported(run: Path, *more: object) -> list[dict[str, Any]]:
    target = run.parent / "samples.jsonl"
    assert main(["export", str(run), str(target), "--samples", *map(str, more)]) == 0
    return [json.loads(line) for line in target.read_text().splitlines()]


def test_right_kernels_of_training_are_kept_once(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = exported(run)
    said = capsys.readouterr().out
    assert "2 right kernels of 1 problem; passed over: 1 wrong, 1 the same kernel again, 1 cheat." in said
    assert (first["kernel_code"], second["kernel_code"]) == (RIGHT, RIGHT.replace("BLOCK", "SIZE"))
    assert first["completion"] == [{"role": "assistant", "content": reply(RIGHT)}]
    assert [message["role"] for message in first["prompt"]] == ["system", "user"]
    assert first["problem"]["problem_id"] == 1 and first["verdict"]["metadata"]["kind"] == "ok"
    assert (first["run"], first["group"], first["sample"], first["turn"], second["group"]) == ("r", 0, 0, 1, 1)
    assert len(exported(run, "--per-problem", 1)) == 1


def test_samples_are_a_corpus_and_examples_of_an_sft_stage(run: Path, tmp_path: Path) -> None:
    rows = exported(run)
    file = tmp_path / "samples.jsonl"
    pairs = list(Reading(corpus_of(str(file))))
    assert [pair.solution for pair in pairs] == [row["kernel_code"] for row in rows]
    data = builder(sft_path=str(file), end_problem=None).build(BuildContext(0, 1, tmp_path, chat=True))
    assert data.sft is not None
    batch = data.sft.batch(0, 4)
    assert sorted(example.completion for example in batch[:2]) == sorted(
        row["completion"][0]["content"] for row in rows
    ), "each once in a pass, as it was sampled"
    assert batch[0].prompt == prompt_of(load_problems("shipped", (1,))[0], STYLE)
    assert data.sft.batch(0, 4) == batch and data.sft.batch(1, 2) == data.sft.batch(0, 4)[2:]


def test_right_kernels_for_generated_problems_are_taken_and_can_be_imitated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = GeneratedKernelsBuilder(num_train=3, num_heldout=3, hidden=True)
    config = kernels(tmp_path / "run", backend="local", dataset_builder=made)
    problem, task = made.training_problems(config.seed)[1]
    assert task.prompt[-1].content != problem.code, "the prompt hides an operation"
    answer = replace(turn(problem, RIGHT, OK), text=RIGHT, messages=task.prompt)
    path = record(tmp_path / "run", (0, "train", [TrajectoryGroup(task, (Trajectory(task, (answer,), "done", 0),))]))
    (path / "config.json").write_text(json.dumps(resolved(config)))
    (row,) = exported(path)
    assert (row["torch_code"], row["kernel_code"], row["problem"]["name"]) == (problem.code, RIGHT, "train_2")
    data = builder(sft_path=str(tmp_path / "samples.jsonl"), end_problem=None).build(BuildContext(0, 1, tmp_path))
    assert data.sft is not None
    (example,) = data.sft.batch(0, 1)
    assert problem.code.strip() in example.prompt[-1].content and RIGHT.strip() in example.completion
    assert main(["export", str(path), str(tmp_path / "x.jsonl"), "--samples", "seed=1"]) != 0
    assert "Give the data set of the run (seed, dataset_builder.num_train, hidden)." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--samples", "{run}/traces.jsonl"], "belongs to the run"),
        (["--samples", "x.jsonl", "--merge"], "--merge would have no effect"),
        (["--samples", "x.jsonl", "--per-problem", "0"], "must be at least 1"),
        (["--per-problem", "2", "{run}/model"], "without --samples"),
        (["--samples", "x.jsonl", "dataset_builder.start_problem=2"], "is another one now, or gone"),
    ],
)
def test_what_cannot_be_exported_is_one_line(
    run: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(run), *(one.format(run=run) for one in arguments)]) != 0
    out, err = capsys.readouterr()
    assert message in err and out == "" and err.count("\n") == 1
