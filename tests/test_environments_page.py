"""The page on environments says what is so: its listings run, and its table counts them as they are."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from assay.envs import Environment, Task

PAGE = (Path(__file__).parents[1] / "docs" / "environments.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def listing(words: str) -> str:
    """The listing that has these words."""
    (found,) = [block for block in BLOCKS if words in block]
    return found


LISTINGS = {
    "Assay, a reward on rows": "def correct(completion, answer)",
    "Assay, an environment": 'f"{n:02}=", answer=max(f"{n:02}")) for n in range(100)]\n\n',
    "TRL, a reward on a data set": "GRPOTrainer(",
    "verifiers, a task set": "import verifiers",
}


def library_names(source: str) -> set[str]:
    """What a listing takes from a library: imported names, or attributes of an imported module."""
    tree = ast.parse(source)
    names = {a.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for a in node.names}
    modules = {a.asname or a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    reached = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name))
    return names | {node.attr for node in reached if node.value.id in modules}  # type: ignore[attr-defined]


@pytest.mark.parametrize("row", LISTINGS)
def test_the_table_counts_lines_and_names_as_they_are(row: str) -> None:
    source = listing(LISTINGS[row])
    cells = re.search(rf"^\| {re.escape(row)} \| (\d+) \| (\d+) \| (.*) \|$", PAGE, re.MULTILINE)
    assert cells is not None
    assert int(cells[1]) == len([line for line in source.splitlines() if line.strip()])
    names = library_names(source)
    assert int(cells[2]) == len(names)
    assert set(re.findall(r"`(\w+)`", cells[3])) == names


def executed(words: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(listing(words), str(PAGE[:0]) or "environments.md", "exec"), names)
    return names


def test_the_shortest_form_and_the_game_run() -> None:
    shortest = executed(LISTINGS["Assay, an environment"])["LargestDigit"]()
    splits = shortest.splits()
    assert (len(splits.train), len(splits.test)) == (90, 10)
    task: Task = splits.train[0]
    assert shortest.score(task, task.answer) is True and shortest.score(task, "x") is False
    game: Environment = executed("class GuessTheDigit")["GuessTheDigit"]()
    assert game.turns(1) == 3 and len(game.splits().train) > 100


def test_a_reward_of_the_page_is_one() -> None:
    correct = executed(LISTINGS["Assay, a reward on rows"])["correct"]
    assert correct(" 4\n", "4") and not correct("5", "4")
