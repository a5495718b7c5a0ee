"""Reading and filling in text of a policy or a judge takes time in proportion to its length, and never fails oddly."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import ConfigError, UnreadableReplyError
from assay.rewards.judge.parsers import BooleanTag, JsonField, NumberTag, VerdictParser
from assay.rewards.judge.template import defuse
from support.cpu_limit import at_most_cpu

MILLION = 1_000_000


@pytest.mark.parametrize(
    "text",
    ["<" + " " * MILLION, "< / " * MILLION, "<" * MILLION, "</" + " " * MILLION, "< " * 1000 + " " * MILLION],
    ids=["spaces", "slashes", "brackets", "spaces after a slash", "brackets and spaces"],
)
def test_defusing_is_linear(text: str) -> None:
    with at_most_cpu(10):
        assert defuse(text, ["answer", "score"]) == text


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="</ >\tansweR&;_1", max_size=25))
def test_defusing_finds_what_it_always_found(text: str) -> None:
    assert defuse(text, ["answer"]) == re.sub(r"(?i)<(?=\s*/?\s*answer\b)", "&lt;", text)


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        (NumberTag(), "<score>" + "1" * MILLION + "x</score>"),
        (NumberTag(), "<score>1." + "1" * MILLION + "x</score>"),
        (NumberTag(), "<score>" * (MILLION // 7)),
        (NumberTag(), "<score>1</score" * (MILLION // 15)),
        (BooleanTag(), "<answer>" * (MILLION // 8)),
        (BooleanTag(), "<answer>True" + "<" * MILLION),
        (JsonField("grade", 0, 5), "```" + "\n" * MILLION),
        (JsonField("grade", 0, 5), "```json" + " \n" * MILLION + "x"),
        (JsonField("grade", 0, 5), "```\n```" * (MILLION // 7)),
        (JsonField("grade", 0, 5), "```\n" + "`" * MILLION + "x"),
    ],
)
def test_reading_a_verdict_is_linear(parser: VerdictParser, text: str) -> None:
    with at_most_cpu(10), pytest.raises(UnreadableReplyError) as caught:
        parser.read(text)
    assert len(str(caught.value)) < 1000, "a message of a bounded length"


@pytest.mark.parametrize(
    "text",
    [
        '{"grade": 1' + "0" * 400 + "}",
        '{"grade": -1' + "0" * 400 + "}",
        '{"grade": 1' + "0" * 5000 + "}",
        '{"grade": 1e400}',
        '{"grade": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"grade": ' + '{"a":' * 50_000 + "1" + "}" * 50_000 + "}",
        '{"grade": "' + "x" * 100_000 + '"}',
        '{"grade": ' + "[" * 900 + "]" * 900 + "}",
        "[" * 100_000,
    ],
)
@pytest.mark.parametrize("parser", [JsonField("grade", 0, 5), JsonField("grade")])
def test_a_verdict_that_is_no_number_is_unreadable(parser: JsonField, text: str) -> None:
    """Unreadable replies are asked for again; any other error would count as the reward's own."""
    with pytest.raises(UnreadableReplyError) as caught:
        parser.read(text)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('```json\n{"grade": 5}\n```', 1.0),
        ('```\n{"grade": 5}```', 1.0),
        ('  ```json  \n\n {"grade": 5}\n\n```\n', 1.0),
        ('{"grade": 0}', 0.0),
    ],
)
def test_a_code_block_is_opened(text: str, value: float) -> None:
    assert JsonField("grade", 0, 5).read(text) == value


@pytest.mark.parametrize("text", ['```python\n{"grade": 5}\n```', '```{"grade": 5}```', "``````", '```\n{"grade": 5}'])
def test_what_is_no_code_block_of_json_is_unreadable(text: str) -> None:
    with pytest.raises(UnreadableReplyError):
        JsonField("grade", 0, 5).read(text)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(["<score>", "</score>", "<SCORE>", "7", " ", "8", "<", "x", "</Score>"]), max_size=8))
def test_verdicts_between_tags_are_those_that_they_always_were(parts: list[str]) -> None:
    text = "".join(parts)
    closed = re.findall(r"(?is)<score>(.*?)</score>", text)
    opened = len(re.findall(r"(?i)<score>", text))
    try:
        found: float | None = NumberTag().read(text)
    except UnreadableReplyError:
        found = None
    expected = {body.strip() for body in closed}
    readable = opened == len(closed) and expected and all(re.fullmatch(r"\d+", body) for body in expected)
    numbers = {float(body) for body in expected} if readable else set()
    good = len(numbers) == 1 and min(numbers) <= 10
    assert found == (numbers.pop() / 10 if good else None)


@pytest.mark.parametrize("tag", ["", " ", "/answer", "answer!", "a b", "<answer"])
def test_a_tag_that_could_not_be_defused_is_refused(tag: str) -> None:
    for parser in (BooleanTag, NumberTag):
        with pytest.raises(ConfigError, match="verdict tag"):
            parser(tag)
    assert BooleanTag("final-answer").read("<final-answer>True</final-answer>") == 1
