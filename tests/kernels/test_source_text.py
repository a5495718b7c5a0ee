"""Replies: what counts as the kernel, what is a thought, and why a reply has none."""

from __future__ import annotations

import ast

import pytest

from assay.kernels.source_text import (
    MAX_SOURCE_CHARACTERS,
    KernelFile,
    count_model_new,
    lines_of,
    parse_reply,
    read_kernel_file,
    text_around,
    without_mark,
)
from assay.kernels.text.examining import examine
from support.cpu_limit import at_most_cpu

MODEL = "import torch\n\nclass ModelNew(torch.nn.Module):\n    pass"
DRAFT = "class ModelNew:\n    draft = True"


def block(code: str, tag: str = "python") -> str:
    return f"<KERNEL>\n```{tag}\n{code}\n```\n</KERNEL>"


@pytest.mark.parametrize("tag", ["python", "triton", "py", "cuda", "cpp", "c++", "", "Python"])
def test_a_block_is_read_whatever_its_fence_is_tagged(tag: str) -> None:
    reply = parse_reply(f"<think>- tile\n- mask</think>\n{block(MODEL, tag)}\nDone.")
    assert reply.format_ok and reply.code == MODEL + "\n"
    assert reply.thought == "- tile\n- mask"
    assert (reply.origin, reply.language, reply.blocks) == ("kernel_block", tag.lower(), 1)


def test_a_block_needs_no_fence() -> None:
    assert parse_reply(f"<KERNEL>\n{MODEL}\n</KERNEL>").code == MODEL + "\n"


def test_a_fence_that_is_not_closed_inside_a_closed_block_is_read_to_its_end() -> None:
    assert parse_reply(f"<KERNEL>\n```python\n{MODEL}\n</KERNEL>").code == MODEL + "\n"


def test_the_last_complete_block_counts() -> None:
    reply = parse_reply(f"{block(DRAFT)} better: {block(MODEL)} or <KERNEL>\n```python\nclass ModelNew: cut")
    assert reply.code == MODEL + "\n" and reply.blocks == 2


def test_a_block_that_starts_again_forgets_its_first_start() -> None:
    assert parse_reply(f"<KERNEL> let me see <KERNEL>\n```python\n{MODEL}\n```\n</KERNEL>").code == MODEL + "\n"


def test_drafts_in_thoughts_are_never_graded() -> None:
    assert parse_reply(f"<think>{block(DRAFT)}</think>{block(MODEL)}").code == MODEL + "\n"
    only_draft = parse_reply(f"<thinking>{block(MODEL)}</thinking>\nI give up.")
    assert (only_draft.fault, only_draft.code) == ("no_code", "")


def test_a_lone_closing_tag_ends_a_thought_that_the_prompt_opened() -> None:
    reply = parse_reply(f"first {block(DRAFT)} then</think>\n{block(MODEL)}")
    assert reply.code == MODEL + "\n"
    assert "first" in reply.thought and "draft" in reply.thought


def test_a_draft_that_is_never_closed_does_not_swallow_the_answer() -> None:
    assert parse_reply(f"maybe <KERNEL> no</think>\n{block(MODEL)}").code == MODEL + "\n"


def test_a_prompt_that_opened_the_thought_makes_a_reply_without_an_end_a_thought() -> None:
    reply = parse_reply(f"hm {block(MODEL)}", thinking_opened=True)
    assert reply.fault == "unclosed_think" and "hm" in reply.thought
    assert parse_reply(f"hm {block(MODEL)}").format_ok


def test_an_unclosed_thought_is_a_fault_unless_a_kernel_came_before() -> None:
    assert parse_reply(f"<think>never ends {block(MODEL)}").fault == "unclosed_think"
    assert parse_reply(f"{block(MODEL)}<think>one more thing").format_ok


def test_tags_inside_a_kernel_are_text() -> None:
    code = MODEL + "\n    # <think> is what models write </think>"
    assert parse_reply(f"<think>x</think>{block(code)}").code == code + "\n"


def test_an_unclosed_block_is_a_fault() -> None:
    assert parse_reply(f"<KERNEL>\n```python\n{MODEL}").fault == "unclosed_kernel"


def test_without_blocks_the_last_fence_with_a_model_counts() -> None:
    reply = parse_reply(f"```python\n{DRAFT}\n```\ntext\n```\n{MODEL}\n```\nand\n```bash\nls\n```")
    assert (reply.code, reply.origin) == (MODEL + "\n", "fence")


def test_a_bare_module_is_read_and_prose_behind_it_is_not_code() -> None:
    assert parse_reply(f"Here it is:\n\n{MODEL}").origin == "bare"
    assert parse_reply(f'"""A docstring stays."""\n{MODEL}').code.startswith('"""A docstring')
    assert parse_reply(f"{MODEL}\n\nThis kernel is fast!").fault == "no_code"


@pytest.mark.parametrize(
    "text", ["", "   ", "I cannot.", "```python\nprint(1)\n```", "</KERNEL>", "\x00\xff", "<think>"]
)
def test_no_code_is_a_fault_and_no_exception(text: str) -> None:
    reply = parse_reply(text)
    assert not reply.format_ok and reply.code == "" and reply.message


def test_a_block_without_a_model_or_with_two_is_refused() -> None:
    assert parse_reply(block("x = 1")).fault == "no_model_new"
    assert parse_reply(block(f"{MODEL}\n\n{DRAFT}")).fault == "duplicate_model_new"
    two_fences = f"<KERNEL>\n```python\n{MODEL}\n```\n```python\n{DRAFT}\n```\n</KERNEL>"
    assert parse_reply(two_fences).fault == "duplicate_model_new"


def test_a_cuda_source_beside_the_module_is_kept_out_of_it() -> None:
    text = f"<KERNEL>\n```cuda\n__global__ void k() {{}}\n```\n```python\n{MODEL}\n```\n</KERNEL>"
    assert parse_reply(text).code == MODEL + "\n"


def test_mentions_in_strings_and_comments_are_no_second_model() -> None:
    assert count_model_new(f'{MODEL}\n\nDOC = """\nclass ModelNew\n"""\n# class ModelNew') == 1
    assert count_model_new("class ModelNew(:\n  x") == 1


def test_huge_replies_are_refused_quickly() -> None:
    assert parse_reply(block(MODEL + "\n#" + "x" * 10_000_000)).fault == "too_large"
    assert not parse_reply("<KERNEL>" * 100_000).format_ok
    assert not parse_reply("```" * 200_000 + "class ModelNew").format_ok
    assert not parse_reply(f"{MODEL}\n" + "(" * MAX_SOURCE_CHARACTERS).format_ok


PARTS = (
    "```",
    "``` ",
    "```a",
    "\n```",
    "'",
    '"',
    "\\",
    "'\\",
    '"""',
    "'''",
    "#",
    "class ModelNew\n",
    "class \\\n",
    "a ",
    "a\n",
)


@pytest.mark.parametrize("part", PARTS)
def test_replies_take_linear_time(part: str) -> None:
    with at_most_cpu(20):
        for head in ("", f"{MODEL}\n", "```", "```python\n", "'", '"'):
            for tail in ("", "`", "\n```", f"\n{MODEL}"):
                text = head + part * (90_000 // len(part)) + tail
                for told in (text, f"<KERNEL>{text}</KERNEL>"):
                    parse_reply(told)
                read_kernel_file(text)
                text_around(text)


def test_no_reply_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's parser may take any time and does not survive every text."""

    def parsed(*args: object, **options: object) -> None:
        raise AssertionError("a reply was parsed")

    monkeypatch.setattr("builtins.compile", parsed)
    for text in (block(MODEL), fenced(MODEL), MODEL, f"Here:\n{MODEL}"):
        assert parse_reply(text).format_ok
        read_kernel_file(text)


@pytest.mark.parametrize(
    "more",
    [
        "x = [\n    1,\n]\nassert x is not None\n",
        "if __name__ == '__main__':\n    print('It is done.')\n",
        '"""This is what\nthe module says.\nclass ModelNew\n"""\n',
        "for a in b: pass\nelse: pass\nlambda x: 1\nmatch x:\n    case _: pass\nx: int = 3\n",
        "# This is a note.\nasync def f(): ...\nprint(a if b else c, not a)\n",
        "x = 'don\\'t worry'\ny = f\"{x}\"\n",
    ],
)
def test_code_is_not_taken_for_prose(more: str) -> None:
    compile(more, "more", "exec")
    assert parse_reply(f"{MODEL}\n\n{more}").origin == "bare"


@pytest.mark.parametrize(
    "more",
    [
        "This kernel is fast!",
        "Done.",
        "- it is fast",
        "* and right",
        "**Note** this",
        "None of it is slow.",
        "`x` is y",
    ],
)
def test_prose_behind_code_is_not_code(more: str) -> None:
    assert parse_reply(f"{MODEL}\n\n{more}").fault == "no_code"


def test_model_new_is_counted_as_python_would() -> None:
    for code in (
        "class ModelNew: ...",
        "if a:\n\tclass \\\n ModelNew: ...",
        "x = '\\'\\\nclass ModelNew'\nclass ModelNew: ...",
        "x = r'\\'; y = '#'\nclass ModelNew: ...\nclass ModelNewer: ...",
        "x = '''a''b\nclass ModelNew\n'''\nclass ModelNew: ...",
        'class ModelNew: ...\nx = """never closed\nclass ModelNew: ...',
    ):
        assert count_model_new(code) == 1, code
    assert count_model_new("class ModelNew: ...\nif a:\n    class ModelNew: ...") == 2


def fenced(*codes: str) -> str:
    return "Text.\n" + "".join(f"```python\n{code}\n```\nmore text\n" for code in codes)


def test_a_file_is_taken_as_it_is_unless_it_is_markdown() -> None:
    documented = f'"""Use:\n```python\n{DRAFT}\n```\n"""\n{MODEL}\n'
    broken = f"{MODEL}\n    x = (\n"
    compared = f"KERNEL = 1\nx = 0 <KERNEL> 5\n{MODEL}\ny = '''</KERNEL><KERNEL>{DRAFT}</KERNEL>'''\n"
    for text in (MODEL, documented, broken, compared, "", "\ud800 no Python", "(" * 10_000, "```" * 100_000):
        assert read_kernel_file(text) == KernelFile(text)


def test_of_a_reply_the_last_kernel_block_is_taken() -> None:
    for inside in (MODEL, f"\n```python\n{MODEL}\n```\n"):
        text = f"<think>\n<KERNEL>{DRAFT}</KERNEL>\n</think>\n<KERNEL>{inside}</KERNEL>\nDone."
        found = read_kernel_file(text)
        assert found.code == MODEL + "\n" and "its last KERNEL block" in found.told
        first = text.splitlines().index("</think>") + (2 if inside == MODEL else 4)
        assert f"lines {first} to {first + MODEL.count(chr(10))}" in found.told
    for text in (f"# <KERNEL>\n{MODEL}\n# </KERNEL>\n", f"<KERNEL>x = 1</KERNEL>\n{MODEL}"):
        assert read_kernel_file(text) == KernelFile(text)


def test_of_markdown_the_last_block_with_a_model_is_taken() -> None:
    one = read_kernel_file(fenced(MODEL))
    assert one.code == MODEL + "\n" and "lines 3 to 6" in one.told and "code blocks" not in one.told
    text = fenced("import os", DRAFT, MODEL, "x = 1")
    several = read_kernel_file(text)
    assert f"lines {text.splitlines().index('import torch') + 1} to " in several.told
    assert several.code == MODEL + "\n" and "the last that defines ModelNew; the file has 4 code blocks" in several.told
    assert "the only one that defines ModelNew" in read_kernel_file(fenced("import os", MODEL)).told
    unclosed = read_kernel_file(f"```python\n{MODEL}\n")
    assert unclosed.code == MODEL + "\n" and "lines 2 to 5" in unclosed.told
    assert read_kernel_file(f"<think>{fenced(DRAFT)}</think>{fenced(MODEL)}").code == MODEL + "\n"
    assert read_kernel_file(fenced(MODEL, "x = (\n" + DRAFT)).code.startswith("x = (")


def test_kernels_in_another_block_than_the_model_are_told() -> None:
    kernel = "@triton.jit\ndef double(x):\n    pass"
    apart = read_kernel_file(fenced(kernel, MODEL))
    assert apart.code == MODEL + "\n" and "its kernels are in another block" in apart.told
    for text in (fenced("import os", MODEL), fenced(kernel, f"{kernel}\n{MODEL}")):
        assert "another block" not in read_kernel_file(text).told


def test_fences_that_say_nothing_clear_are_left_for_the_parser_which_names_them() -> None:
    for text, said in ((f"{MODEL}\n```", "line 5 is a Markdown fence (```)"), (fenced("x = 1"), "line 2")):
        assert read_kernel_file(text) == KernelFile(text)
        assert said in text_around(text)
        fault = examine(text).fault
        assert fault is not None and fault.startswith("line ") and fault.endswith(text_around(text))
    assert text_around(f"{MODEL}\n    x = (\n") == ""


def test_prose_is_told_that_it_is_no_module() -> None:
    fault = examine("Sorry, I cannot.").fault
    assert fault is not None and "no class ModelNew" in fault


def test_lines_end_where_python_ends_them() -> None:
    text = "a = 1  # one\u2028two\x85three\n\f\nb = '\x1c'\r\nc = 3"
    found = lines_of(text)
    assert [node.lineno for node in ast.parse(text).body] == [1, 3, 4] and len(found) == 4
    assert "".join(found) == text.replace("\r\n", "\n")
    assert without_mark("\ufeff" + text) == text
