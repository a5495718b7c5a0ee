import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.envs.chess.grammar import (
    arbiter_answer,
    arbiter_prompt,
    expand_board,
    given_label,
    is_fen_like,
    parse_arbiter,
    parse_policy,
    policy_answer,
    policy_prompt,
)

START = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
LONG = " M: a4a3 c8f5 h7f6 h7g5 h7f8 E: -3.06 -2.82 -3.21 -3.16 -2.3 B: h7f8"

words = st.sampled_from(
    [
        "M:",
        "E:",
        "B:",
        "e2e4",
        "a7a8q",
        "e9e4",
        "0.1",
        "-3",
        "nan",
        "1e9",
        "+",
        START,
        "0.001",
        "0",
        "1",
        "true",
        "x",
        "٣",
    ]
)
texts = st.text() | st.lists(words | st.text(max_size=3), max_size=14).map(" ".join) | st.lists(words).map("+".join)


@given(texts, st.sampled_from(["best", "full"]), st.sampled_from(["", "M:", "B:"]))
def test_no_text_makes_the_policy_parser_raise_or_return_unusable_values(text, form, label):
    answer = parse_policy(text, form, label)
    assert all(math.isfinite(value) for value in answer.evals)
    if not answer.problems:
        assert answer.best is not None
        assert len(answer.moves) == len(answer.evals)
        assert bool(answer.moves) == (form == "full")


@given(texts)
def test_no_text_makes_the_arbiter_parser_raise_or_return_unusable_values(text):
    answer = parse_arbiter(text)
    complete = None not in (answer.fen, answer.reward, answer.terminated, answer.truncated)
    assert complete == (not answer.problems)
    assert answer.reward is None or math.isfinite(answer.reward)
    assert answer.fen is None or is_fen_like(answer.fen)


def test_prompts_and_answers_have_the_published_spelling():
    assert policy_prompt(START) == f"P: {START}"
    assert policy_answer("e2e4") == " B: e2e4"
    moves, evals = ["a4a3", "c8f5"], [-3.06, 999.9]
    assert policy_answer("a4a3", moves, evals, form="full") == " M: a4a3 c8f5 E: -3.06 999.90 B: a4a3"
    assert arbiter_prompt(START, "e7e5", ["e2e4", "e7e5"]) == f"A: {START}+e7e5+e2e4 e7e5+"
    assert arbiter_answer(START, 0.001, False, False) == f"{START}+0.001+0+0"
    assert arbiter_answer(START, -1.0, False, True).endswith("+-1.0+0+1")
    assert arbiter_answer(START, 1.0, True, False).endswith("+1.0+1+0")


@pytest.mark.parametrize("spacing", [" ", "   ", "\n", "\t \n"])
def test_any_run_of_whitespace_separates(spacing):
    answer = parse_policy(LONG.replace(" ", spacing), "full")
    assert answer.problems == ()
    assert answer.moves == ("a4a3", "c8f5", "h7f6", "h7g5", "h7f8")
    assert answer.evals == (-3.06, -2.82, -3.21, -3.16, -2.3)
    assert answer.best == "h7f8"
    assert parse_policy(f"{spacing}B:{spacing}e2e4{spacing}").best == "e2e4"


def test_a_leading_m_may_be_absent_and_a_label_may_stand_in_the_prompt():
    assert parse_policy(LONG.removeprefix(" M:"), "full").problems == ()
    template = "P: {fen} B:"
    completion = policy_answer("e2e4", given=given_label(template))
    assert completion == " e2e4"
    assert parse_policy(completion, "best", given_label(template)).best == "e2e4"
    assert parse_policy(completion, "best").problems
    assert given_label("P: {fen}    M: ") == "M:"
    assert given_label("P: {fen}") == ""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "B:",
        "e2e4",
        "B: e2",
        "B: e2e9",
        "B: e2e4e5",
        "B: e7e8k",
        "B: E2E4",
        "B: e2e4 e2e4",
        "B: e2e4 B: e2e4",
        "M: B: e2e4",
    ],
)
def test_a_short_answer_is_a_label_one_move_and_nothing_else(text):
    assert parse_policy(text).problems


@pytest.mark.parametrize(
    "text",
    [
        "B: e2e4",
        "M: e2e4 E: 0.1",
        "M: e2e4 B: e2e4",
        "M: e2e4 E: 0.1 B:",
        "M: E: B: e2e4",
        "M: e2e4 d2d4 E: 0.1 B: e2e4",
        "M: e2e4 E: 0.1 0.2 B: e2e4",
        "M: e2e4 E: nan B: e2e4",
        "M: e2e4 E: inf B: e2e4",
        "M: e2e4 E: 1e3 B: e2e4",
        "M: e2e4 E: 99999999 B: e2e4",
        "M: Nf3 E: 0.1 B: g1f3",
        "E: 0.1 M: e2e4 B: e2e4",
        "B: e2e4 E: 0.1 M: e2e4",
        "M: e2e4 E: 0.1 B: e2e4 and more",
        "M: e2e4 E: 0.1 B: e2e4 B: d2d4",
    ],
)
def test_a_long_answer_has_every_section_once_in_order_and_nothing_after_it(text):
    assert parse_policy(text, "full").problems


@pytest.mark.parametrize("flags", ["0+1", "false+true", "False+TRUE", " 0 + 1 "])
def test_flags_are_read_in_any_spelling(flags):
    answer = parse_arbiter(f"{START}+-1.0+{flags}")
    assert (answer.problems, answer.fen, answer.reward) == ((), START, -1.0)
    assert (answer.terminated, answer.truncated) == (False, True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        START,
        f"{START}+0.001+0",
        f"{START}+0.001+0+0+",
        f"{START}+0.001+0+0 and more",
        f"{START}+0.001+0+2",
        f"{START}+good+0+0",
        f"{START[:-4]}+0.001+0+0",
        "9/8/8/8/8/8/8/8 w - - 0 1+0.001+0+0",
        f"x{START}+0.001+0+0",
    ],
)
def test_an_arbiter_answer_has_exactly_four_readable_fields(text):
    assert parse_arbiter(text).problems


def test_boards_expand_to_64_squares_or_not_at_all():
    assert expand_board("8/8/8/8/8/8/8/K6k") == "." * 56 + "K......k"
    for bad in ("8/8/8/8/8/8/8", "8/8/8/8/8/8/8/9", "8/8/8/8/8/8/8/44", "8/8/8/8/8/8/8/7", "8/8/8/8/8/8/8/7x", ""):
        assert expand_board(bad) is None


@pytest.mark.parametrize("field", ["w - - 0", "x - - 0 1", "w kQ - 0 1", "w - e4 0 1", "w - - -1 1", "w - - 0 1 2"])
def test_a_fen_needs_six_well_formed_fields(field):
    assert is_fen_like("8/8/8/8/8/8/8/K6k w - - 0 1")
    assert not is_fen_like(f"8/8/8/8/8/8/8/K6k {field}")
