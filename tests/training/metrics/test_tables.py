import re
from html import unescape

import numpy as np

from assay.grpo.group_data import TurnTraining
from assay.terminal import inert
from assay.training.metrics.tables import MAX_TEXT, ROWS, Table, completion_table, markdown
from support.recorded_run import TURNS, group

EVIL = "<script>alert(1)</script> | a | b |\n[x](javascript:1) **bold** `code` \x1b[31m \u202e &lt;"


def test_a_row_has_what_was_asked_said_and_earned():
    table = completion_table([group("a", 0.0, 1.0), group("b", 0.5, None)], TURNS)
    assert table.columns == ("group", "sample", "task", "prompt", "answer", "reward", "advantage", "right")
    assert table.rows == [
        (0, 0, "a", "say a", "a 0.0", 0.0, -0.5, 0.0),
        (0, 1, "a", "say a", "a 1.0", 1.0, 0.5, 1.0),
        (1, 0, "b", "say b", "b 0.5", 0.5, None, 0.5),
        (1, 1, "b", "say b", "b None", None, None, None),
    ]


def test_an_advantage_that_differs_by_token_is_its_mean():
    turns = {(0, 0, 0): TurnTraining(None, np.array([0.25, 0.75], np.float32), np.zeros(2, np.float32))}
    assert completion_table([group("a", 0.0)], turns).rows[0][6] == 0.5


def test_a_table_is_bounded():
    table = completion_table([group("a", *([0.5] * 20), text="x" * 99_999)] * 5, {})
    assert len(table.rows) == ROWS
    assert max(len(str(cell)) for row in table.rows for cell in row) == MAX_TEXT


def test_what_a_model_said_is_neither_markup_nor_another_cell():
    text = markdown(Table(("task", "answer"), [("a", inert(EVIL))]))
    head, rule, row = text.split("\n")
    assert (head, rule) == ("| task | answer |", "| --- | --- |")
    assert not set(row.removeprefix("| ").removesuffix(" |").replace(" | ", "").replace("<br>", "")) & set(
        "<>|[]()*`_\\"
    )
    assert unescape(row) == f"| a | {inert(EVIL)} |".replace("\n", "<br>")


def test_control_characters_are_shown():
    (row,) = completion_table([group("a", 0.5, text=EVIL, prompt=EVIL)], {}).rows
    assert not re.search("[\x1b\u202e]", f"{row[3]}{row[4]}") and "\u241b[31m" in str(row[4])
