"""From a model's reply to the source it stands for: one scan over the text, no guessing.

    <think> ... </think>  <KERNEL> ```python ... ``` </KERNEL>

What is inside a thought is never graded: not a draft, and not the part before a lone `</think>`, which ends a thought
that the prompt had opened. The last complete KERNEL block counts. Without one, the last complete fenced block that
defines `ModelNew` does, or the whole reply where it is a Python module. A reply that defines `ModelNew` twice in what
counts is refused, since it would leave the choice to the reader. `fault` says why a reply has no gradable source.
"""

from __future__ import annotations

import io
import keyword
import re
from dataclasses import dataclass
from typing import Literal

Fault = Literal["unclosed_think", "unclosed_kernel", "no_code", "no_model_new", "duplicate_model_new", "too_large"]
Origin = Literal["kernel_block", "fence", "bare"]

MAX_SOURCE_CHARACTERS = 100_000
"""Longer sources are refused unread; honest kernels have a tenth of this."""

_MARK = "\ufeff"
"""Of byte order, which some editors put before a text."""

_TAG = re.compile(r"<(/?)(think|thinking|thought|kernel)>", re.IGNORECASE)
_FENCE = re.compile(r"^[ \t]*```([^\n`]*+)$", re.MULTILINE)
_TAGGED = re.compile(r"[ \t]*([\w+.-]*)")
_LANGUAGES = frozenset({"", "python", "py", "python3", "triton", "cuda", "cu", "cpp", "c++", "c"})
_MODEL_NEW = re.compile(r"^[ \t\f]*class(?:[ \t\f]|\\\n)+ModelNew\b", re.MULTILINE)
_KERNEL = re.compile(r"^[ \t\f]*@[ \t\f]*(?:\w+\.)?(?:jit|autotune|heuristics)\b|load_inline", re.MULTILINE)
# Only repeats of one set of characters are possessive: before 3.11.5 Python matches those of groups wrongly.
_TEXT = re.compile(
    r"""#[^\n]*+"""
    r"""|\"{3}[^"\\]*+(?:(?:\\.|"(?!""))[^"\\]*+)*(?:\"{3}|\Z)?|'{3}[^'\\]*+(?:(?:\\.|'(?!''))[^'\\]*+)*(?:'{3}|\Z)?"""
    r"""|"[^"\\\n]*+(?:\\.[^"\\\n]*+)*"?|'[^'\\\n]*+(?:\\.[^'\\\n]*+)*'?""",
    re.DOTALL,
)
"""Comments and strings; one that is never closed goes on to the end of its line, or of the text."""
_WORDS = re.compile(r"^([^\W\d]\w*)[ \t]+([^\W\d]\w*)|^[^\W\d]\w*[.!?][ \t]*$|^\*\*|^[-*] |^`", re.MULTILINE)
_STATEMENTS = frozenset((*keyword.kwlist, *keyword.softkwlist)) - {"True", "False", "None", "_"}
_OPERATORS = frozenset(("and", "as", "async", "else", "for", "if", "in", "is", "not", "or"))
_COOKIE = re.compile(rb"[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
_BLANK = re.compile(rb"[ \t\f]*(?:#.*)?$")
_RETURN = re.compile(r"\r(?!\n)")
_UTF8 = re.compile(r"utf-8(?:-.*)?", re.DOTALL)
"""What Python takes for UTF-8 by itself."""
_SAME = frozenset({"utf8", "u8"})
"""Other names of it, which Python looks up, but not beside a mark."""
_ASCII = frozenset({"ascii", "us-ascii", "latin-1", "latin1", "iso-8859-1", "iso8859-1", "cp1252"})
"""Encodings in which ASCII is as it is."""
_LONGEST_NAME = 64
_ENCODING = (
    "the source says by a comment in its first two lines that its file has the encoding {}: Python may read another "
    "module from the file than the text that is graded, or none. Leave that comment out"
)
_ENDS = (
    "the source has a carriage return that is no part of a line's end (line {}): Python, Triton and editors end lines "
    "in different places of it. End lines with \\n"
)
_FIRST_CODE = re.compile(r"^(?:import|from|class|def|@|#|\"\"\"|''')", re.MULTILINE)


def lines_of(source: str) -> list[str]:
    """The lines of a Python module with their ends, as Python counts them: `str.splitlines` also ends a line at a form
    feed or a separator within a comment."""
    return io.StringIO(source, newline=None).readlines()


def without_mark(source: str) -> str:
    """A text without a mark of byte order before it, as Python reads a file; with it where Python reads none."""
    return source if encoding_fault(source) else source.removeprefix(_MARK)


def encoding_fault(source: str) -> str:
    """Why a file with this text would be another module than the text is, or none; empty where it is the same.

    Python reads a file as its first two lines say (PEP 263); a text is one already. It ends lines at carriage returns
    where it compiles a file, and not where it reads one to show a function's source.
    """
    if (found := _RETURN.search(source)) is not None:
        return _ENDS.format(source.count("\n", 0, found.start()) + 1)
    marked = source.startswith(_MARK)
    for line in source.removeprefix(_MARK).encode("utf-8", "replace").splitlines()[:2]:
        if (cookie := _COOKIE.match(line)) is not None:
            name = cookie[1].decode()[:_LONGEST_NAME]
            plain = name.lower().replace("_", "-")
            other = plain in _SAME or (plain in _ASCII and source.isascii())
            same = _UTF8.fullmatch(plain) is not None or (other and not marked)
            return "" if same else _ENCODING.format(name)
        if not _BLANK.match(line):
            break
    return ""


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """What a reply holds. `code` is empty unless `format_ok`; `fault` and `message` then say why.

    `thought` is the text of all thoughts; `blocks` is the number of complete KERNEL blocks outside them.
    """

    thought: str
    code: str
    origin: Origin | None = None
    language: str = ""
    blocks: int = 0
    fault: Fault | None = None
    message: str = ""

    @property
    def format_ok(self) -> bool:
        """Whether there is a source to grade."""
        return self.fault is None


@dataclass(frozen=True, slots=True)
class _Sections:
    thought: str
    answer: str
    """The text outside thoughts, KERNEL blocks included."""
    kernels: tuple[str, ...]
    open_thought: bool
    open_kernel: bool


def parse_reply(text: str, thinking_opened: bool = False) -> ParsedReply:
    """The source in a reply, or why there is none.

    Args:
        text: The completion as sampled, without its prompt.
        thinking_opened: Whether the prompt ended inside a thought. A reply with a lone `</think>` is read as if it had.
    """
    sections = _sections(text, thinking_opened)
    blocks = len(sections.kernels)
    if sections.open_thought and not blocks:
        message = "the thought is never closed, so no kernel was given (was the reply cut off?)"
        return ParsedReply(sections.thought, "", fault="unclosed_think", message=message)
    if blocks:
        return _judged(sections, _inside(sections.kernels[-1]), "kernel_block")
    if sections.open_kernel:
        message = "the KERNEL block is never closed (was the reply cut off?)"
        return ParsedReply(sections.thought, "", fault="unclosed_kernel", message=message)
    fences = [f for f in _fences(sections.answer)[0] if _MODEL_NEW.search(f[1])]
    if fences:
        return _judged(sections, fences[-1], "fence")
    bare = _bare_module(sections.answer)
    if bare:
        return _judged(sections, ("", bare), "bare")
    message = "the reply has no KERNEL block, no fenced block with a class ModelNew, and is not a Python module"
    return ParsedReply(sections.thought, "", fault="no_code", message=message)


def _sections(text: str, thinking_opened: bool) -> _Sections:
    tags = list(_TAG.finditer(text))
    first_thinking = next((tag for tag in tags if tag[2].lower() != "kernel"), None)
    thoughts: list[str] = []
    kernels: list[str] = []
    answer: list[str] = []
    place = 0
    state: Literal["answer", "thought", "kernel"] = "answer"
    if thinking_opened or (first_thinking and first_thinking[1]):
        # The prompt opened the thought: everything up to the first closing tag belongs to it, drafts included.
        state = "thought"
    start = 0
    for tag in tags:
        kernel, closing = tag[2].lower() == "kernel", bool(tag[1])
        if state == "thought":
            if not kernel and closing:
                thoughts.append(text[place : tag.start()])
                state, place = "answer", tag.end()
        elif state == "kernel":
            if kernel and closing:
                kernels.append(text[start : tag.start()])
                state = "answer"
            elif kernel:
                start = tag.end()
        elif kernel and not closing:
            state, start = "kernel", tag.end()
        elif not kernel and not closing:
            answer.append(text[place : tag.start()])
            state, place = "thought", tag.end()
    if state == "thought":
        thoughts.append(text[place:])
    else:
        answer.append(text[place:])
    thought = "\n".join(part.strip() for part in thoughts).strip()
    return _Sections(thought, "".join(answer), tuple(kernels), state == "thought", state == "kernel")


def _fences(text: str) -> tuple[list[tuple[str, str]], tuple[str, str] | None]:
    """Complete fenced blocks as (language, content), and the last one where it is never closed."""
    complete: list[tuple[str, str]] = []
    opened: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        if opened is None:
            opened = fence
        elif not _language(fence):
            complete.append((_language(opened), text[opened.end() + 1 : fence.start()]))
            opened = None
    return complete, (_language(opened), text[opened.end() + 1 :]) if opened else None


def _language(fence: re.Match[str]) -> str:
    """What a fence is tagged with, in lower case."""
    tagged = _TAGGED.match(fence[1])
    return tagged[1].lower() if tagged else ""


def _inside(kernel: str) -> tuple[str, str]:
    """(language, code) of a KERNEL block: its fenced block with `ModelNew`, else all its fences, else its bare text."""
    complete, unclosed = _fences(kernel)
    if unclosed is not None:
        complete.append(unclosed)
    if not complete:
        return "", kernel
    models = [fence for fence in complete if _MODEL_NEW.search(fence[1])]
    chosen = models or complete
    return chosen[0][0], "\n".join(code for _, code in chosen)


def _bare_module(answer: str) -> str:
    """The reply from its first line of code on, where that much looks like a Python module with a class `ModelNew`."""
    match = _FIRST_CODE.search(answer)
    if match is None or not _MODEL_NEW.search(answer) or len(answer) > MAX_SOURCE_CHARACTERS:
        return ""
    code = answer[match.start() :]
    plain = _without_texts(code)
    return code if _MODEL_NEW.search(plain) and not _is_prose(plain) else ""


def _judged(sections: _Sections, found: tuple[str, str], origin: Origin) -> ParsedReply:
    language, code = found
    fault: Fault | None = None
    message = ""
    count = count_model_new(code)
    if len(code) > MAX_SOURCE_CHARACTERS:
        fault, message = "too_large", f"the source has {len(code)} characters; at most {MAX_SOURCE_CHARACTERS} are read"
    elif not code.strip() or language not in _LANGUAGES:
        shown = f" (the block is tagged {language!r})" if language not in _LANGUAGES else ""
        fault, message = "no_code", f"the block does not hold Python source{shown}"
    elif count == 0:
        fault, message = "no_model_new", "the source defines no class ModelNew"
    elif count > 1:
        fault, message = "duplicate_model_new", f"the source defines ModelNew {count} times; define it once"
    code = "" if fault else code.strip("\n") + "\n"
    return ParsedReply(sections.thought, code, origin, language, len(sections.kernels), fault, message)


@dataclass(frozen=True, slots=True)
class KernelFile:
    """The source in a kernel's file, and what was left out around it, in words for its author."""

    code: str
    told: str = ""
    """Empty where the file was taken as it is."""


def read_kernel_file(text: str) -> KernelFile:
    """The module in the text of a file: the text itself, or where that is a reply its last KERNEL block, or where it is
    Markdown its last code block with `ModelNew`.

    Text with fences and without such a block is taken as it is: `text_around` then says what to change.
    """
    if len(text) > MAX_SOURCE_CHARACTERS:
        return KernelFile(text)
    plain = _without_texts(text)
    sections = _sections(text, False)
    # The end of a block is no Python, outside of a text.
    if sections.kernels and any(tag[1] and tag[2].lower() == "kernel" for tag in _TAG.finditer(plain)):
        return _block_of(text, _inside(sections.kernels[-1])[1])
    if not _FENCE.search(plain):
        return KernelFile(text)
    blocks, unclosed = _fences(sections.answer)
    if unclosed is not None:
        blocks.append(unclosed)
    models = [code for _, code in blocks if _MODEL_NEW.search(code)]
    place = text.rfind(models[-1]) if models else -1
    if place < 0:
        return KernelFile(text)
    start = text.count("\n", 0, place) + 1
    end = start + models[-1].rstrip("\n").count("\n")
    told = f"the file is Markdown; only the code block in lines {start} to {end} is graded"
    if len(blocks) > 1:
        which = "the last that defines" if len(models) > 1 else "the only one that defines"
        told += f" ({which} ModelNew; the file has {len(blocks)} code blocks)"
        if not _KERNEL.search(models[-1]) and any(_KERNEL.search(code) for _, code in blocks):
            told += "; its kernels are in another block, which is not graded: put the whole module into one"
    return KernelFile(models[-1], f"{told}. Line numbers in the verdict are those of the block.")


def _block_of(text: str, code: str) -> KernelFile:
    """A KERNEL block of a reply, where it defines `ModelNew`."""
    place = text.rfind(code)
    if place < 0 or not _MODEL_NEW.search(code):
        return KernelFile(text)
    code = code.strip("\n") + "\n"
    start = text.count("\n", 0, text.index(code.rstrip("\n"), place)) + 1
    end = start + code.rstrip("\n").count("\n")
    told = f"the file is a reply; only its last KERNEL block, lines {start} to {end}, is graded"
    return KernelFile(code, f"{told}. Line numbers in the verdict are those of the block.")


def text_around(code: str) -> str:
    """What to change in a text that is not valid Python, where Markdown or prose may be why; else empty."""
    fence = _FENCE.search(code)
    if fence is not None:
        line = code.count("\n", 0, fence.start()) + 1
        return (
            f"line {line} is a Markdown fence ({fence[0].strip()[:40]}): give the Python module alone, or in one code "
            "block that defines ModelNew (`assay.kernels.parse_reply` takes the module out of a model's reply)"
        )
    if _MODEL_NEW.search(code) is None:
        return "the text has no class ModelNew either: give a Python module that defines it"
    return ""


def count_model_new(code: str) -> int:
    """How many lines of a source begin a class `ModelNew`, at any depth, outside of strings and comments."""
    return len(_MODEL_NEW.findall(_without_texts(code))) if len(code) <= MAX_SOURCE_CHARACTERS else 0


def _without_texts(code: str) -> str:
    """A source without its comments, and with empty strings in place of those that it has; lines stay lines."""
    return _TEXT.sub(lambda found: "" if found[0][0] == "#" else '""' + "\n" * found[0].count("\n"), code)


def _is_prose(plain: str) -> bool:
    """Whether a line that is not indented reads like a sentence or a list, which no statement does."""
    for found in _WORDS.finditer(plain):
        if found[1] is None or (found[1] not in _STATEMENTS and found[2] not in _OPERATORS):
            return True
    return False
