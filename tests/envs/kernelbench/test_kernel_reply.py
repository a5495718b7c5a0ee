"""Replies: whatever a model writes is read without an exception, and only a whole answer is graded."""

from __future__ import annotations

import ast
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.envs.kernelbench.reply import MAX_REPLY_CHARACTERS, read_reply
from assay.rollouts.renderers.thinking import Thinking

MODEL = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    marker = {}\n"
pieces = st.sampled_from(
    [
        *("<think>", "</think>", "<thinking>", "</thinking>", "<KERNEL>", "</KERNEL>", "<kernel>", "</Kernel>"),
        *("```python\n", "```triton\n", "```", "\n```\n", "```cuda\n", "\n"),
        *(MODEL.format(n) for n in range(3)),
        *("class ModelNew", "Here it is: ", "\u2028", "\x00", "\ud800", "'''", '"', "#", "\\", "<", "é"),
    ]
)


@settings(max_examples=400, deadline=None)
@given(st.lists(pieces, max_size=30).map("".join), st.booleans())
def test_no_reply_raises_and_what_is_graded_has_one_model(text: str, opened: bool) -> None:
    reply = read_reply(text, opened)
    assert reply.format_ok == bool(reply.kernel) == (not reply.fault)
    assert ("class ModelNew" in reply.kernel) if reply.format_ok else bool(reply.message)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=300), st.integers(0, 2))
def test_noise_around_a_whole_answer_does_not_change_it(noise: str, mark: int) -> None:
    noise = noise.replace("<", " ").replace("`", " ")
    kernel = MODEL.format(mark)
    answers = [
        f"<think>{noise}</think>\n<KERNEL>\n```python\n{kernel}```\n</KERNEL>",
        f"{noise}</think><KERNEL>{kernel}</KERNEL>{noise}",
        f"<think>{noise} ```python\n{MODEL.format(9)}```</think>{noise}\n```triton\n{kernel}```\n{noise}",
        f"<KERNEL>{MODEL.format(7)}</KERNEL> no, better: <kernel>\n```\n{kernel}```\n</kernel>",
    ]
    for text in answers:
        reply = read_reply(text)
        assert reply.kernel == kernel, text
        ast.parse(reply.kernel)


def test_a_cut_off_reply_is_never_graded_in_part() -> None:
    whole = f"<think>plan</think>\n<KERNEL>\n```python\n{MODEL.format(1)}```\n</KERNEL>"
    for end in range(len(whole)):
        assert not read_reply(whole[:end]).format_ok, whole[:end]
    assert read_reply(whole).format_ok


@pytest.mark.parametrize("opened", [True, False])
def test_what_a_thinking_renderer_took_apart_is_one_text_again(opened: bool) -> None:
    rule = Thinking("[THINK]", "[/THINK]", opened)
    body = f"a draft <KERNEL>{MODEL.format(0)}</KERNEL>[/THINK]\n<KERNEL>{MODEL.format(1)}</KERNEL>"
    text = body if opened else f"[THINK]{body}"
    reply = read_reply(rule.read(text).whole)
    assert reply.kernel == MODEL.format(1) and reply.thought.startswith("a draft")
    cut = read_reply(rule.read(text.partition("[/THINK]")[0]).whole)
    assert (cut.fault, cut.format_ok) == ("unclosed_think", False)


def test_of_a_huge_reply_the_end_is_read_quickly() -> None:
    started = time.process_time()
    reply = read_reply("<think>" + "x " * MAX_REPLY_CHARACTERS + f"</think><KERNEL>{MODEL.format(1)}</KERNEL>")
    assert reply.kernel == MODEL.format(1) and time.process_time() - started < 2
