"""Chess as a chat model sees it: told what to do and how to answer, and judged by the last line of its reply."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from assay.envs.base import BuildContext, iter_builders
from assay.envs.chess.arbiter import ruling_on
from assay.envs.chess.dataset import ChessDatasetBuilder
from assay.envs.chess.env import read_arbiter, read_policy
from assay.envs.chess.grammar import final_line, parse_arbiter, parse_policy
from assay.envs.chess.instructions import ARBITER, POLICY
from assay.types import Message, Task


def first(tmp_path: Path, chat: bool, **settings: Any) -> tuple[Task, Any]:
    """The first task, and the supervised data."""
    builder = ChessDatasetBuilder(num_train=2, num_heldout=1, **settings)
    data = builder.build(BuildContext(0, 1, tmp_path, chat))
    asyncio.run(data.close())
    return next(iter_builders(data.train)).task, data.sft


@pytest.mark.parametrize("settings", [{"task": "arbiter"}, {"answer": "full"}, {"prompt_template": "P: {fen} B:"}])
def test_only_a_chat_model_is_told_what_to_do(tmp_path: Path, settings: dict[str, Any]) -> None:
    bare, _ = first(tmp_path, False, **settings)
    told, _ = first(tmp_path, True, **settings)
    assert [m.role for m in bare.prompt] == ["user"] and "chat" not in bare.payload
    own = ARBITER if settings.get("task") == "arbiter" else POLICY[settings.get("answer", "best")]
    assert told.prompt == (Message("system", own), *bare.prompt)
    assert told.id == bare.id
    assert first(tmp_path, True, instructions="none", **settings)[0].prompt == bare.prompt
    mine, _ = first(tmp_path, True, instructions="Play.", **settings)
    assert mine.prompt == (Message("system", "Play."), *bare.prompt)


def test_the_examples_in_the_instructions_are_answers_in_the_demanded_form() -> None:
    assert parse_policy(final_line(POLICY["best"])).best == "e2e4"
    full = parse_policy(final_line(POLICY["full"]), "full")
    assert not full.problems and len(full.moves) == 5
    answer = parse_arbiter(final_line(ARBITER))
    assert not answer.problems
    truth = ruling_on("8/8/8/8/8/4k3/R7/4K3 w - - 0 1", "a2a1")
    assert (answer.fen, answer.reward, answer.terminated) == (truth.fen, truth.reward, truth.terminated)


@pytest.mark.parametrize(
    "reply",
    ["B: e2e4", "It is open.\n\nB: e2e4\n", "**B: e2e4**", "`B: e2e4`", "So:\n```\nB: e2e4\n```\n", " B:  e2e4 "],
)
def test_a_chat_models_answer_is_the_last_line_of_its_reply(tmp_path: Path, reply: str) -> None:
    told, _ = first(tmp_path, True, prompt_template="P: {fen} B:")
    assert read_policy(told, reply).best == "e2e4" and not read_policy(told, reply).problems
    bare, _ = first(tmp_path, False)
    assert bool(read_policy(bare, reply).problems) is (reply.strip()[:2] != "B:")


@pytest.mark.parametrize("reply", ["", "B: e2e4\nis best", "e2e4", "B: e2e4 or so"])
def test_anything_else_on_the_last_line_is_no_answer(tmp_path: Path, reply: str) -> None:
    told, _ = first(tmp_path, True)
    assert read_policy(told, reply).problems


@pytest.mark.parametrize("settings", [{"task": "arbiter"}, {"answer": "full"}, {"prompt_template": "P: {fen} B:"}])
def test_supervised_answers_are_replies_in_that_form(tmp_path: Path, settings: dict[str, Any]) -> None:
    task, examples = first(tmp_path, True, **settings)
    read = read_arbiter if settings.get("task") == "arbiter" else read_policy
    for example in examples.batch(0, 8):
        assert example.prompt[0].role == "system"
        assert example.completion == example.completion.strip()
        assert not read(task, example.completion).problems
