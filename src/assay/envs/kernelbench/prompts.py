"""Prompts of kernel problems: texts from files, the problem's module, and examples of answers.

    zero_shot   the task alone
    one_shot    one worked example before it; few_shot: three
    raicl       the most similar modules of an index, with kernels written for them

Every prompt asks for the same form of answer: `<think>` (unless thoughts earn nothing) and `<KERNEL>`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module, resources
from pathlib import Path
from string import Template
from typing import Any, Literal, Protocol

from assay.errors import MissingDependencyError, pip_install
from assay.kernels.base import Language
from assay.kernels.problems.sources import Problem
from assay.retrieval.code_text import code_hash
from assay.retrieval.exclusion import Exclusion
from assay.types import Message

PromptOption = Literal["zero_shot", "one_shot", "few_shot", "raicl"]
SHOTS: Mapping[str, int] = {"zero_shot": 0, "one_shot": 1, "few_shot": 3}
NAMES: Mapping[Language, str] = {"triton": "Triton", "cuda": "CUDA C++ (with load_inline)"}
MAX_EXAMPLE_CHARACTERS = 10_000
"""Of each side of a retrieved example; a longer one is left out, since half a kernel teaches nothing."""

_FENCED = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Found(Protocol):
    """An entry of an index: a module and a kernel written for it."""

    torch_code: str
    kernel_code: str


class Searches(Protocol):
    """An index of such entries."""

    fingerprint: str

    def search(self, query: str, k: int, *, language: str, exclude: Any) -> Sequence[Found]:
        """The `k` entries in a language that are nearest to a module, without those to exclude."""
        ...


@dataclass(frozen=True, slots=True)
class Shown:
    """A worked example in a prompt."""

    reference: str
    kernel: str
    plan: str = ""


@dataclass(frozen=True, slots=True)
class PromptStyle:
    """How problems are posed."""

    option: PromptOption
    language: Language
    thinks: bool
    """Whether a thought is asked for."""
    chat: bool = True
    """Whether messages are written by a chat template; otherwise their texts follow each other, and are kept apart."""


@cache
def text(name: str) -> str:
    """A prompt text, as its file has it."""
    folder = resources.files("assay.envs.kernelbench").joinpath("texts")
    return folder.joinpath(f"{name}.md").read_text(encoding="utf-8").strip("\n")


def filled(name: str, **values: object) -> str:
    """A prompt text with its placeholders filled in; the values are not read for placeholders again."""
    return Template(text(name)).substitute({key: str(value).strip("\n") for key, value in values.items()})


def answer_form(thinks: bool) -> str:
    """The form in which an answer is asked for."""
    return text("format_think" if thinks else "format_no_think")


@cache
def own_examples(language: Language) -> tuple[Shown, ...]:
    """The worked examples that come with Assay; none is a problem of KernelBench."""
    found = []
    for number in range(1, max(SHOTS.values()) + 1):
        whole = text(f"example_{language}_{number}")
        reference, kernel = _FENCED.findall(whole)
        found.append(Shown(reference, kernel, whole.partition("```")[0].strip()))
    return tuple(found)


def prompt_of(problem: Problem, style: PromptStyle, retrieved: Sequence[Found] = ()) -> tuple[Message, ...]:
    """What the policy is told of a problem: a system message and the task.

    Args:
        retrieved: what an index has for it; read with `raicl`.
    """
    system = filled("system", language=NAMES[style.language])
    task = filled(
        "task",
        language=NAMES[style.language],
        reference=problem.code,
        rules=text(f"rules_{style.language}"),
        format=answer_form(style.thinks),
    )
    return Message("system", system if style.chat else f"{system}\n\n"), Message(
        "user", _examples(style, retrieved) + task
    )


def _examples(style: PromptStyle, retrieved: Sequence[Found]) -> str:
    if style.option == "raicl":
        shown, frame = [Shown(one.torch_code, one.kernel_code) for one in retrieved], "retrieved"
    else:
        shown, frame = list(own_examples(style.language)[: SHOTS[style.option]]), "examples"
    if not shown:
        return ""
    written = [_example(number, one, style.thinks) for number, one in enumerate(shown, start=1)]
    return filled(frame, examples="\n\n".join(written)) + "\n\n"


def _example(number: int, one: Shown, thinks: bool) -> str:
    thought = f"<think>\n{one.plan}\n</think>\n" if thinks and one.plan else ""
    written = Template(text("example")).substitute(
        number=number, reference=one.reference.strip("\n"), kernel=one.kernel.strip("\n"), thought=thought
    )
    return written


@dataclass(frozen=True)
class Retrieval:
    """Finds examples for problems, and never an answer to one that is trained or held out."""

    index: Searches
    exclude: Any
    k: int
    language: Language

    def of(self, problem: Problem) -> list[Found]:
        """At most `k` examples that fit into a prompt, the nearest first."""
        found = self.index.search(problem.code, self.k, language=self.language, exclude=self.exclude)
        return [one for one in found if max(len(one.torch_code), len(one.kernel_code)) <= MAX_EXAMPLE_CHARACTERS]


def open_retrieval(path: Path, k: int, language: Language, problems: Sequence[Problem]) -> Retrieval:
    """Retrieval from the index at `path`.

    Args:
        problems: everything that is trained or held out: no example is one of these, or near to one, or so named.

    Raises:
        ConfigError, DataError: there is no such index, or it cannot be read.
        MissingDependencyError: a package that it needs is not installed.
    """
    # Here, so that runs without retrieval do not need its packages.
    try:
        index: Any = import_module("assay.retrieval.index")
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"prompt_option=raicl reads an index with the package {error.name}, which is not installed: "
            f"{pip_install('retrieval')}, or set prompt_option to zero_shot, one_shot or few_shot."
        ) from error
    exclude = exclusion_of(problems)
    return Retrieval(index.open_index(path), exclude, k, language)


def exclusion_of(problems: Sequence[Problem]) -> Exclusion:
    """What may not be shown, or imitated, where these problems are to be solved."""
    return Exclusion(
        hashes=frozenset(code_hash(problem.code) for problem in problems),
        names=frozenset(name for problem in problems for name in _names(problem.name)),
        texts=tuple(problem.code for problem in problems),
    )


def _names(name: str) -> tuple[str, ...]:
    """A problem's name with and without the number before it (`19_ReLU`, `ReLU`) and the ending of a file."""
    bare = name.removesuffix(".py")
    return bare, re.sub(r"^\d+_", "", bare)
