"""Kernels to imitate and problems to train on, from files in the columns that data sets were published with."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from assay.envs.base import BuildContext
from assay.envs.kernelbench.imitation import read_examples
from assay.envs.kernelbench.prompts import PromptStyle, prompt_of
from assay.envs.kernelbench.reply import read_reply
from assay.errors import DataError
from assay.kernels.problems.sources import load_problems
from assay.training.config import SFTConfig
from support.kernel_policies import RIGHT, reply
from support.kernel_run import builder, kernels
from support.sandboxes import needs_walls
from support.tiny_run import read_lines
from support.tiny_run import run as train

MOST = 20_000
STYLE = PromptStyle("one_shot", "triton", thinks=True)
PROBLEMS = load_problems("shipped", (1,))
SNAKE, SOFTMAX = PROBLEMS[0], PROBLEMS[1]
KERNELBOOK = {
    "entry_point": "Snake",
    "module_name": "Snake",
    "python_code": SNAKE.code,
    "triton_code": RIGHT,
    "uuid": 7,
    "licenses": ["MIT"],
}
COLDSTART = {
    "messages": [
        {"role": "user", "content": "Optimize Model."},
        {"role": "assistant", "content": "```python\nclass ModelNew: a = 1\n```"},
        {"role": "user", "content": "Faster."},
        {"role": "assistant", "content": f"Now:\n```python\n{RIGHT}```\n"},
    ],
    "uuid": 12,
    "entry_point": "Model",
    "module_name": "Snake",
    "final_speedup": 1.75,
    "num_rounds": 2,
    "original_python_code": SNAKE.code,
    "best_round": 2,
}
RL = {
    "data_source": "cuda_llm",
    "prompt": [{"role": "user", "content": "You write custom Triton kernels."}],
    "ability": "kernel_optimization",
    "reward_model": {"ground_truth": SNAKE.code, "style": "rule"},
    "extra_info": {"entry_point": "Model", "module_name": "Snake", "uuid": "9"},
}
OPS = {"ops": ["torch.sin"], "data_source": "torch#2", "code": SNAKE.code}


@dataclass
class Retrieved:
    """An entry of an index."""

    torch_code: str
    kernel_code: str


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(("form", "row"), [("kernelbook", KERNELBOOK), ("drkernel-coldstart", COLDSTART)])
def test_published_kernels_become_answers_in_our_form(tmp_path: Path, form: str, row: dict[str, Any]) -> None:
    file = write(tmp_path / "d.jsonl", row)
    for path in (str(file), f"{form}:{file}"):
        (example,) = read_examples(path, STYLE, [], MOST)
        assert read_reply(example.completion).kernel.strip() == RIGHT.strip()
        assert SNAKE.code.strip() in example.prompt[-1].content
        assert "<think>" not in example.completion + example.prompt[-1].content, "no thought is known, none is asked"


def test_solutions_of_held_out_problems_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = {**KERNELBOOK, "python_code": SOFTMAX.code, "entry_point": "Softmax", "module_name": "Softmax"}
    file = write(tmp_path / "d.jsonl", KERNELBOOK, kept)
    with caplog.at_level(logging.INFO):
        (example,) = read_examples(str(file), STYLE, [SNAKE], MOST)
    assert SOFTMAX.code.strip() in example.prompt[-1].content
    assert "left out: 1 solves a held-out problem (hash)" in caplog.text
    with pytest.raises(DataError, match="Nothing in it can be imitated: 2 in triton"):
        read_examples(str(file), PromptStyle("one_shot", "cuda", True), [], MOST)


@pytest.mark.parametrize(
    ("shown", "reason"),
    [
        (Retrieved(SNAKE.code.replace("\n\n", "\n# as it is\n"), RIGHT), "hash"),
        (
            Retrieved(re.sub(r"\bx\b", "value", SNAKE.code).replace("class Model(", "class Wave("), RIGHT),
            "near duplicate",
        ),
        (Retrieved("class Snake(nn.Module):\n    pass\n", RIGHT), "name"),
        (Retrieved(PROBLEMS[2].code, RIGHT), None),
    ],
)
def test_an_answer_to_a_prompt_that_shows_a_held_out_problem_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, shown: Retrieved, reason: str | None
) -> None:
    posed = prompt_of(SOFTMAX, replace(STYLE, option="raicl"), [shown])
    row = {
        **{"name": "level_1/Softmax", "language": "triton", "torch_code": SOFTMAX.code, "kernel_code": RIGHT},
        "correct": True,
    }
    said = {"prompt": [asdict(one) for one in posed], "completion": [{"role": "assistant", "content": reply(RIGHT)}]}
    file = write(tmp_path / "d.jsonl", {**row, **said}, row)
    with caplog.at_level(logging.INFO):
        found = read_examples(str(file), STYLE, [SNAKE], MOST)
    assert [example.prompt == posed for example in found] == ([True, False] if reason is None else [False])
    assert (f"left out: 1 its prompt shows a held-out problem ({reason})" in caplog.text) == (reason is not None)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"python_code": "x", "code": "y"}], "columns of no known data set: python_code, code"),
        ([KERNELBOOK, {"python_code": "x"}], r"line 2 lacks a column .* It has python_code"),
        ([RL], "holds problems without solutions"),
        ([OPS], "holds problems without solutions"),
    ],
)
def test_files_without_kernels_or_with_other_columns_are_refused(
    tmp_path: Path, rows: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        read_examples(str(write(tmp_path / "d.jsonl", *rows)), STYLE, [], MOST)


@pytest.mark.parametrize(("form", "row", "column"), [("drkernel-rl", RL, None), ("cuda-agent-ops", OPS, "code")])
def test_published_problems_can_be_trained_on(
    tmp_path: Path, form: str, row: dict[str, Any], column: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    def with_code(code: str) -> dict[str, Any]:
        return {**row, column: code} if column else {**row, "reward_model": {"ground_truth": code}}

    file = write(tmp_path / "d.jsonl", *map(with_code, (SNAKE.code, "x = 1", SOFTMAX.code, SNAKE.code)))
    made = builder(dataset_src="corpus", problems_path=Path(f"{form}:{file}"), end_problem=None)
    assert [(p.key, p.code) for p in made.problems()] == [("1/1", SNAKE.code), ("1/2", SOFTMAX.code)]
    assert "1 does not define Model, get_inputs, get_init_inputs at module level; 1 is there already" in caplog.text
    data = made.build(BuildContext(0, 1, tmp_path))
    assert len(data.train) and len(data.heldout)
    with pytest.raises(DataError, match="No row holds a problem"):
        load_problems("corpus", (1,), write(tmp_path / "e.jsonl", with_code("x = 1")))


@needs_walls
def test_a_run_imitates_a_file_of_kernels(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    long = {**KERNELBOOK, "triton_code": RIGHT + "# " + "x y z " * 4000}
    file = write(tmp_path / "d.jsonl", KERNELBOOK, long)
    both = builder(sft_path=str(file), end_problem=3)
    sft = SFTConfig(num_steps=3, batch_size=2, lr_warmup_steps=1)
    with caplog.at_level(logging.INFO):
        train(kernels(tmp_path / "run", dataset_builder=both, sft=sft, max_batches=0, eval_every=0))
    assert "Kernels to imitate: 1." in caplog.text and "left out: 1 over 20,000 characters" in caplog.text
    steps = [line for line in read_lines(tmp_path / "run/metrics.jsonl") if line["phase"] == "sft"]
    assert len(steps) == 3 and steps[2]["sft/loss"] < steps[0]["sft/loss"]
