"""Published data sets of problems and kernels, by their columns: what a row says, as a `Pair`.

Nothing here opens a file; see `corpora`. A row whose columns are there but say nothing useful is passed over with a
reason, which is counted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from assay.retrieval.entries import LANGUAGES, Language
from assay.storage.records import ABSENT, Record, column
from assay.types import Json, Message

MAX_PROBLEM_CHARACTERS = 50_000
MAX_KERNEL_CHARACTERS = 100_000
"""Longer texts are passed over: no model's prompt has room for them."""
MAX_NAME_CHARACTERS = 200
MAX_SPEEDUP = 1e6
MAX_MESSAGES = 100
"""Of one conversation."""

_MODEL_NEW = re.compile(r"^[ \t]*class[ \t]+ModelNew\b", re.MULTILINE)


@dataclass(frozen=True)
class Pair:
    """A problem, and a kernel that solves it where the data set has one."""

    name: str
    language: Language
    problem: str
    """A PyTorch module."""
    solution: str | None
    """The kernel's module; None in data sets of problems alone."""
    source: str
    """The data set or file."""
    correct: bool = True
    """What the data set says of the solution; true where it says nothing."""
    speedup: float | None = None
    """Over eager PyTorch, as the data set says."""
    messages: tuple[Message, ...] = ()
    """The prompt or conversation as published, where there is one. In the form `assay` it ends with the reply that the
    kernel is from."""


@dataclass(frozen=True)
class Form:
    """The published form of a data set."""

    hub: str | None
    """Its id on the Hugging Face hub."""
    splits: tuple[str, ...]
    columns: tuple[str, ...]
    """Those that every row has and that tell the form from others; a dot leads into nested columns."""
    read: Callable[[Record, str], Pair | str]
    """A row and its source as a pair, or why it is none."""
    solved: bool = True
    """Whether there are solutions."""


def fits(form: Form, row: Record) -> bool:
    """Whether a row has the columns of a form."""
    return all(column(row, name) is not ABSENT for name in form.columns)


def pair_of(row: Record, form: Form, source: str, incorrect: bool = False) -> Pair | str:
    """A row as a pair, or why it is passed over; limits on sizes included.

    Args:
        row: It has the form's columns.
        form: The form of its data set.
        source: What to say of where it comes from.
        incorrect: Whether solutions that the data set says are wrong are taken too.
    """
    pair = form.read(row, source)
    if isinstance(pair, str):
        return pair
    if not incorrect and not pair.correct:
        return "not correct"
    if len(pair.problem) > MAX_PROBLEM_CHARACTERS:
        return f"problem over {MAX_PROBLEM_CHARACTERS:,} characters"
    if pair.solution is not None and len(pair.solution) > MAX_KERNEL_CHARACTERS:
        return f"kernel over {MAX_KERNEL_CHARACTERS:,} characters"
    if not _is_unicode(pair.name + pair.problem + (pair.solution or "") + "".join(m.content for m in pair.messages)):
        return "not text"
    return pair


def _kernelbook(row: Record, source: str) -> Pair | str:
    problem, kernel = row["python_code"], row["triton_code"]
    if not _is_code(problem) or not _is_code(kernel):
        return _nothing(problem)
    return Pair(_name(row.get("entry_point"), row.get("module_name")), "triton", problem, kernel, source)


def _ai_cuda_engineer(row: Record, source: str) -> Pair | str:
    problem, kernel, correct = row["PyTorch_Code_Module"], row["CUDA_Code"], row["Correct"]
    if not _is_code(problem) or not _is_code(kernel):
        return _nothing(problem)
    if correct not in (0, 1):
        return "correctness unknown"
    name = _name(row.get("Op_Name"), row.get("Kernel_Name"))
    level, task = row.get("Level_ID"), row.get("Task_ID")
    if _is_id(task) and not name.startswith(f"{task}_"):
        name = f"{task}_{name}"
    if _is_id(level):
        name = f"level_{level}/{name}"
    return Pair(name, "cuda", problem, kernel, source, bool(correct), _speedup(row.get("CUDA_Speedup_Native")))


def _drkernel_rl(row: Record, source: str) -> Pair | str:
    problem = column(row, "reward_model.ground_truth")
    if not _is_code(problem):
        return "no problem"
    told = row.get("extra_info")
    extra = told if isinstance(told, Mapping) else {}
    name = _name(extra.get("module_name"), extra.get("entry_point"), extra.get("uuid"))
    return Pair(name, "triton", problem, None, source, messages=_messages(row["prompt"]))


def _drkernel_coldstart(row: Record, source: str) -> Pair | str:
    problem, speedup = row["original_python_code"], row["final_speedup"]
    if not _is_code(problem):
        return "no problem"
    messages = _messages(row["messages"])
    kernel = _kernel_of_round(messages, row["best_round"])
    if kernel is None:
        return "no kernel"
    name = _name(row.get("module_name"), row.get("entry_point"), row.get("uuid"))
    # A trajectory of which no kernel was right has no speedup.
    gained = _speedup(speedup)
    return Pair(name, "triton", problem, kernel, source, gained is not None, gained, messages)


def _cuda_agent_ops(row: Record, source: str) -> Pair | str:
    problem, ops = row["code"], row["ops"]
    if not _is_code(problem):
        return "no problem"
    listed = ops if isinstance(ops, Sequence) and not isinstance(ops, str) else [ops]
    name = _name("+".join(str(op) for op in listed[:20] if op is not None), row.get("data_source"))
    return Pair(name, "cuda", problem, None, source)


def _assay(row: Record, source: str) -> Pair | str:
    problem, kernel, language, correct = (row[name] for name in ("torch_code", "kernel_code", "language", "correct"))
    if not _is_code(problem) or not _is_code(kernel):
        return _nothing(problem)
    if language not in LANGUAGES:
        return "unknown language"
    if correct not in (0, 1):
        return "correctness unknown"
    said = _messages(row.get("prompt")) + _messages(row.get("completion"))
    messages = said if said and said[-1].role == "assistant" else ()
    return Pair(
        _name(row["name"]), language, problem, kernel, source, bool(correct), _speedup(row.get("speedup")), messages
    )


FORMS: Mapping[str, Form] = {
    "kernelbook": Form("GPUMODE/KernelBook", ("train",), ("python_code", "triton_code"), _kernelbook),
    "ai-cuda-engineer": Form(
        "SakanaAI/AI-CUDA-Engineer-Archive",
        ("level_1", "level_2", "level_3"),
        ("PyTorch_Code_Module", "CUDA_Code", "Correct"),
        _ai_cuda_engineer,
    ),
    "drkernel-coldstart": Form(
        "hkust-nlp/drkernel-coldstart-8k",
        ("train",),
        ("messages", "original_python_code", "final_speedup", "best_round"),
        _drkernel_coldstart,
    ),
    "drkernel-rl": Form(
        "hkust-nlp/drkernel-rl-data", ("train",), ("prompt", "reward_model.ground_truth"), _drkernel_rl, solved=False
    ),
    "cuda-agent-ops": Form(
        "BytedTsinghua-SIA/CUDA-Agent-Ops-6K", ("train",), ("code", "ops"), _cuda_agent_ops, solved=False
    ),
    "assay": Form(None, ("train",), ("name", "language", "torch_code", "kernel_code", "correct"), _assay),
}
"""Short name -> form. `assay` is the form in which Assay writes its own solutions, and yours may come."""


def as_row(pair: Pair) -> dict[str, Json]:
    """A solved pair as a row of the form `assay`."""
    return {
        "name": pair.name,
        "language": pair.language,
        "torch_code": pair.problem,
        "kernel_code": pair.solution,
        "correct": pair.correct,
        "speedup": pair.speedup,
        "source": pair.source,
    }


def kernel_in_reply(text: str) -> str | None:
    """The module in a published answer: its last fenced block that defines `ModelNew`, or all of it if it is code."""
    blocks = [block for block in fenced(text) if _MODEL_NEW.search(block)]
    if blocks:
        return blocks[-1]
    return text if _MODEL_NEW.search(text) and "```" not in text else None


def fenced(text: str) -> Iterator[str]:
    """The contents of fenced blocks; one that is never closed is none."""
    block: list[str] | None = None
    for line in text.splitlines(keepends=True):
        fence = line.strip()
        if block is None:
            block = [] if fence.startswith("```") else None
        elif fence == "```":
            yield "".join(block)
            block = None
        else:
            block.append(line)


def _kernel_of_round(messages: Sequence[Message], best: Json) -> str | None:
    """The kernel in the answer of a round, counted from 1; of the last one where the round is not known."""
    replies = [message.content for message in messages if message.role == "assistant"]
    if not replies:
        return None
    known = type(best) is int and 1 <= best <= len(replies)
    return kernel_in_reply(replies[best - 1 if known else -1])


def _messages(value: Json) -> tuple[Message, ...]:
    """A published conversation; empty where it is not one, or one too long to be one."""
    if not isinstance(value, list) or len(value) > MAX_MESSAGES:
        return ()
    found: list[Message] = []
    for one in value:
        role = one.get("role") if isinstance(one, Mapping) else None
        if role not in ("system", "user", "assistant") or not isinstance(one.get("content"), str):
            return ()
        found.append(Message(role, one["content"]))
    return tuple(found)


def _name(*values: Json) -> str:
    """The first of some values that can be a name, on one line."""
    for value in values:
        if isinstance(value, str | int) and str(value).strip():
            return " ".join(str(value).split())[:MAX_NAME_CHARACTERS]
    return "unnamed"


def _speedup(value: Json) -> float | None:
    known = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if known and 0 < value <= MAX_SPEEDUP else None


def _is_code(value: Json) -> TypeGuard[str]:
    return isinstance(value, str) and bool(value.strip())


def _nothing(problem: Json) -> str:
    return "no kernel" if _is_code(problem) else "no problem"


def _is_id(value: Json) -> bool:
    return type(value) is int and 0 <= value < 10**6


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
