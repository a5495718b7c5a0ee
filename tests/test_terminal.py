import logging
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from assay.errors import first_line
from assay.terminal import clipped, inert, quoted, shown
from assay.training.logs import StderrHandler

ESCAPES = [
    "\x1b[2J\x1b[H",  # clear the screen
    "\x1b]0;title\x07",  # rename the window
    "\x1b]52;c;ZXZpbA==\x07",  # write to the clipboard
    "\x9b31m",  # the 8-bit form of an escape sequence
    "good\rbad",  # overwrite the line
    "a\x08b",  # overwrite the character
    "\u202e\u2066\u200b\ufeff",  # turn the direction of writing, hide
    "\u2028\u2029\x85",  # further line ends
    "\ud800",  # half a character, which cannot be printed
]


def test_escapes_are_shown_and_do_nothing():
    assert inert(ESCAPES[0]) == "␛[2J␛[H"
    assert inert("a\x9bb\u202ec\U000e0001") == "a\\x9bb\\u202ec\\U000e0001"
    for text in ESCAPES:
        assert all(unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in inert(text))


@given(st.text())
def test_whatever_the_text_it_is_inert_and_said_once(text):
    found = inert(text)
    assert all(unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in found if c not in "\n\t")
    assert inert(found) == found
    found.encode()


@given(st.text(st.characters(categories=("L", "N", "P", "S", "M", "Zs"))))
def test_ordinary_text_is_left_alone(text):
    assert inert(text) == text
    assert inert(f"{text}\n\t") == f"{text}\n\t"


def test_one_line_has_no_line_ends():
    assert inert("a\n\tb", lines=False) == "a␊␉b"


def test_a_clipped_line_says_so():
    assert (clipped("abcdef", 4), clipped("abcd", 4)) == ("abc…", "abcd")


def test_the_log_prints_what_it_quotes_inert(capsys):
    handler = StderrHandler()
    handler.handle(logging.makeLogRecord({"msg": "first\nreason: %s", "args": (ESCAPES[0],)}))
    assert capsys.readouterr().err == "first\nreason: ␛[2J␛[H\n"


def test_values_are_shown_on_one_line_and_cut_where_they_are_long() -> None:
    assert quoted("a\nb", 3) == repr("a\nb")
    assert quoted("abcd", 3) == "'abc...'"
    assert shown({"a": 1}, 20) == "{'a': 1}"
    assert shown("x" * 100, 20) == "'" + "x" * 16 + "..."
    assert first_line(ValueError("\none\ntwo")) == "one"
    assert first_line(ValueError()) == "ValueError"
