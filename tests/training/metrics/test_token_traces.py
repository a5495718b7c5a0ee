import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.grpo.group_data import TurnTraining
from assay.training.metrics.token_traces import mean_of, pieces, shortest, token_records
from assay.types import Completion, Message, Score, Task, Trajectory, TrajectoryGroup, Transition

TASK = Task("toy", "a", (Message("user", "?"),))
STOP = 256


def bytes_text(tokens):
    """A tokenizer of one token per byte, whose stop token is not text."""
    body = tokens[:-1] if tokens and tokens[-1] == STOP else tokens
    return bytes(body).decode("utf-8", errors="replace")


def first_space_text(tokens):
    """A tokenizer that drops the space before the first word, as sentencepiece does."""
    return "".join(f" w{token}" for token in tokens)[1:]


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=12), st.booleans())
def test_pieces_join_to_the_text(text, stopped):
    tokens = [*text.encode(), *([STOP] if stopped else [])]
    found = pieces(tokens, bytes_text)
    assert "".join(found) == text == bytes_text(tokens)
    assert len(found) == len(tokens)


def test_a_character_of_several_tokens_is_in_its_last_one():
    assert pieces("aé€".encode(), bytes_text) == ["a", "", "é", "", "", "€"]
    assert pieces([0x61, 0xE2, 0x82], bytes_text) == ["a", "", "\ufffd"]  # cut off inside a character


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([*b"a\x80\xff\xe2\x82\xac\xf0\x9f\x98\x80\xc3\xa9"]), max_size=60))
def test_pieces_of_broken_utf_8_join_to_the_text(tokens):
    assert "".join(pieces(tokens, bytes_text)) == bytes_text(tokens)


def test_bytes_that_make_no_character_are_not_decoded_again_and_again():
    decoded = []

    def counted(tokens):
        decoded.append(len(tokens))
        return bytes_text(tokens)

    tokens = [0x80] * 500
    assert "".join(pieces(tokens, counted)) == "\ufffd" * 500
    assert max(decoded) <= 20


def test_the_mean_of_equal_numbers_is_that_number_and_of_none_is_none():
    assert mean_of(np.full(7, 0.1, np.float32)) == 0.1
    assert mean_of(np.array([np.nan, 0.25, 0.5], np.float32)) == 0.375
    assert mean_of(np.full(2, np.nan, np.float32)) is mean_of(np.zeros(0, np.float32)) is None


def test_pieces_keep_the_space_that_a_tokenizer_drops_at_a_beginning():
    assert pieces([1, 2, 3], first_space_text) == ["w1", " w2", " w3"]


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_numbers_come_back_as_the_float32_that_they_were(value):
    assert np.float32(shortest(value)) == np.float32(value)
    assert shortest(np.float32(0.1)) == 0.1


def test_a_record_has_a_piece_and_three_numbers_for_each_token():
    turn = Transition((1,), Completion((104, 105), (-0.5, -0.25), "length", 0), "hi", Score("scored", 1.0))
    group = TrajectoryGroup(TASK, (Trajectory(TASK, (turn,), "done", 0),) * 2)
    training = TurnTraining(None, np.array([np.nan, 0.5], np.float32), np.array([np.nan, 0.1], np.float32))
    first, second = token_records([group], step=3, turns={(0, 0, 0): training}, text=bytes_text)
    assert first == {
        "version": 1,
        "step": 3,
        "group": 0,
        "sample": 0,
        "turn": 0,
        "tokens": ["h", "i"],
        "logprobs": [-0.5, -0.25],
        "advantages": [None, 0.5],
        "log_ratios": [None, pytest.approx(0.1, abs=0)],
    }
    assert (second["sample"], second["advantages"], second["log_ratios"]) == (1, None, None)
