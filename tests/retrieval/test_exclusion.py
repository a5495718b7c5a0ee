"""The three nets that keep solutions of a problem out of its prompt."""

from __future__ import annotations

import pytest

from assay.retrieval.code_text import code_hash
from assay.retrieval.exclusion import Exclusion, Screen, name_keys, screen
from support.retrieval_entries import entry
from support.synthetic_problems import write_module

CODE = write_module(("relu", "softmax", "linear"), 0)
OTHER = write_module(("tanh", "cumsum"), 1)


def test_each_net_catches_what_it_is_for() -> None:
    spelled = write_module(("relu", "softmax", "linear"), 7)
    assert Screen(Exclusion(hashes=frozenset({code_hash(CODE)}))).reason(entry("# new\n" + CODE)) == "hash"
    assert Screen(Exclusion(names=frozenset({"19_ReLU"}))).reason(entry(OTHER, "level_1/19_ReLU")) == "name"
    assert Screen(Exclusion(texts=(CODE,))).reason(entry(spelled)) == "near_duplicate"
    everything = Screen(Exclusion.of({"19_ReLU": CODE}))
    assert [everything.reason(entry(*given)) for given in ((CODE,), (OTHER, "ReLU"), (spelled,), (OTHER,))] == [
        "hash",
        "name",
        "near_duplicate",
        None,
    ]


def test_nothing_excluded_excludes_nothing() -> None:
    assert Screen(Exclusion()).reason(entry(CODE, "1/1")) is None


@pytest.mark.parametrize(
    ("asked", "there", "same"),
    [
        ("19_ReLU", "level_1/19_ReLU", True),
        ("level_1/20_ReLU.py", "19_ReLU", True),
        ("1/19", "level_1/19_ReLU", True),
        ("1/19", "level_2/19_ReLU", False),
        ("1/19", "19_ReLU", False),
        ("1_Square_matrix_multiplication_", "SquareMatrixMultiplication", True),
        ("19_ReLU", "20_LeakyReLU", False),
        ("level_1/19_ReLU", "level_1/19_Softmax", False),
        ("3D_conv", "D_conv", False),
        ("", "x", False),
    ],
)
def test_names_are_compared_without_number_and_punctuation(asked: str, there: str, same: bool) -> None:
    reason = Screen(Exclusion(names=frozenset({asked}))).reason(entry(OTHER, there))
    assert (reason == "name") is same


def test_a_name_without_letters_has_no_key() -> None:
    assert name_keys("") == name_keys("_") == frozenset()


def test_one_exclusion_is_prepared_once() -> None:
    assert screen(Exclusion(texts=(CODE,))) is screen(Exclusion(texts=(CODE,)))
