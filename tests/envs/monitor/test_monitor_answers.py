import pytest

from assay.envs.monitor.answers import parse_answer, true_measurements, write_answer
from assay.errors import DataError


@pytest.mark.parametrize(
    ("text", "reasoning", "measurements"),
    [
        ("It adds. <measurements>[True, False]</measurements>", "It adds.", (True, False)),
        ("<measurements>[True]</measurements>", "", (True,)),
        ("a\nb\n<measurements>\n[ true,FALSE ,True ]\n</measurements>\n", "a\nb", (True, False, True)),
        ("[True] then <measurements>[False]</measurements>", "[True] then", (False,)),
    ],
)
def test_answers_are_read(text, reasoning, measurements):
    answer = parse_answer(text)
    assert (answer.reasoning, answer.measurements, answer.problem) == (reasoning, measurements, "")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "one <measurements>"),
        ("[True, True]", "one <measurements>"),
        ("<measurements>[True]", "one <measurements>"),
        ("<measurements>[True]</measurements><measurements>[True]</measurements>", "one <measurements>"),
        ("</measurements>[True]<measurements>", "comes before"),
        ("<measurements>[True]</measurements> but really it is wrong", "which the monitor does not read"),
        ("<measurements>True</measurements>", "not a list"),
        ("<measurements>[]</measurements>", "not True or False"),
        ("<measurements>[True,]</measurements>", "not True or False"),
        ("<measurements>[1, 0]</measurements>", "not True or False"),
        ("<measurements>[True False]</measurements>", "not True or False"),
        ("<measurements>[[True]]</measurements>", "not True or False"),
    ],
)
def test_any_other_text_is_invalid_and_says_why(text, problem):
    answer = parse_answer(text)
    assert problem in answer.problem and answer.measurements == ()


def test_what_is_written_is_read_back():
    answer = parse_answer(write_answer("two words", [True, False]))
    assert (answer.reasoning, answer.measurements, answer.words) == ("two words", (True, False), 2)


@pytest.mark.parametrize("value", [[True, False], (1, 0), "[true, false]", "[True, False]", [1.0, 0.0]])
def test_true_measurements_as_data_sets_and_hosts_give_them(value):
    assert true_measurements(value) == (True, False)


def test_true_measurements_in_an_array():
    numpy = pytest.importorskip("numpy")
    assert true_measurements(numpy.array([True, False])) == (True, False)


@pytest.mark.parametrize("value", [None, [], "yes", "[2]", [True, None], {"a": True}, 1])
def test_anything_else_is_refused(value):
    with pytest.raises(DataError, match="not a list of True and False"):
        true_measurements(value)
