"""Prompts: one form of answer in all of them, examples that the grader takes, and retrieval without answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from itertools import product
from typing import Any, get_args

import pytest

from assay.envs.kernelbench.prompts import SHOTS, PromptStyle, Retrieval, filled, own_examples, prompt_of, text
from assay.envs.kernelbench.reply import read_reply
from assay.kernels.base import Language
from assay.kernels.config import GraderConfig
from assay.kernels.grader import Grader
from assay.kernels.problems.sources import load_problems, make_problem
from assay.kernels.verdicts import Verdict
from support.sandboxes import needs_walls

PROBLEM = load_problems("shipped", (1,))[0]
STYLES = [
    PromptStyle(option, language, thinks)  # type: ignore[arg-type]
    for option, language, thinks in product((*SHOTS, "raicl"), get_args(Language), (True, False))
]


@dataclass
class Entry:
    torch_code: str = "class Model: pass"
    kernel_code: str = "class ModelNew: similar = True"


def words(style: PromptStyle, found: Sequence[Any] = ()) -> str:
    system, user = prompt_of(PROBLEM, style, found)
    assert (system.role, user.role) == ("system", "user")
    return f"{system.content}\n{user.content}"


@pytest.mark.parametrize("style", STYLES, ids=str)
def test_a_prompt_has_the_problem_the_language_and_one_form_of_answer(style: PromptStyle) -> None:
    found = words(style, [Entry()])
    assert PROBLEM.code.strip() in found and "$" not in found
    assert ("Triton" if style.language == "triton" else "CUDA") in found
    assert found.count("Answer in exactly this form") == 1
    assert ("<think>" in found) == style.thinks, "thoughts are asked for, and shown, only where they are paid"
    assert ("similar = True" in found) == (style.option == "raicl")
    shown = sum(example.kernel.strip() in found for example in own_examples(style.language))
    assert shown == SHOTS.get(style.option, 0)


def test_an_example_is_written_as_an_answer_should_be() -> None:
    for style in (s for s in STYLES if s.option == "few_shot"):
        _, user = prompt_of(PROBLEM, style)
        answers = user.content.split("The answer:\n")[1:]
        assert len(answers) == 3
        for written, example in zip(answers, own_examples(style.language), strict=True):
            reply = read_reply(written.partition("Example ")[0].partition("Now your task")[0])
            assert reply.kernel.strip() == example.kernel.strip() and bool(reply.thought) == style.thinks


def test_values_are_not_read_for_placeholders() -> None:
    odd = make_problem(9, 9, "odd", PROBLEM.code + "\n# ${reference} $language\n", "test")
    _, user = prompt_of(odd, PromptStyle("zero_shot", "triton", True))
    assert "# ${reference} $language" in user.content
    assert filled("example", number=1, reference="$kernel", kernel="k", thought="").count("$kernel") == 1


@needs_walls
@pytest.mark.parametrize(("language", "wanted"), [("triton", "ok"), ("cuda", "compiled_not_run")])
def test_the_grader_takes_the_examples(language: Language, wanted: str) -> None:
    async def grade() -> list[Verdict]:
        check: dict[str, Any] = {"compile_check": "all"} if language == "triton" else {}
        config = GraderConfig(backend=language, cache=False, workers=1, **check)
        async with Grader(config) as grader:
            return [
                await grader.grade(make_problem(9, 1, "example", example.reference, "test"), example.kernel)
                for example in own_examples(language)
            ]

    verdicts = asyncio.run(grade())
    assert len(verdicts) == 3
    for verdict in verdicts:
        assert verdict.kind == wanted, verdict.message


def test_no_example_is_a_problem_that_is_shipped() -> None:
    shipped = {problem.hash for problem in load_problems("shipped", None)}
    for example in (*own_examples("triton"), *own_examples("cuda")):
        assert make_problem(9, 1, "example", example.reference, "test").hash not in shipped


@dataclass
class Recorded:
    """An index that keeps what it was asked."""

    found: list[Entry]
    asked: list[tuple[str, int, str, Any]] = field(default_factory=list)
    fingerprint: str = "recorded"

    def search(self, query: str, k: int, *, language: str, exclude: Any) -> list[Entry]:
        self.asked.append((query, k, language, exclude))
        return self.found


def test_retrieval_asks_for_the_language_and_leaves_out_what_is_too_long() -> None:
    index = Recorded([Entry(kernel_code="y" * 20_000), Entry("near"), Entry("x" * 20_000)])
    retrieval = Retrieval(index, "the problems", 2, "cuda")
    assert [one.torch_code for one in retrieval.of(PROBLEM)] == ["near"]
    assert index.asked == [(PROBLEM.code, 2, "cuda", "the problems")]


def test_every_text_is_used() -> None:
    names = {f.name.removesuffix(".md") for f in resources.files("assay.envs.kernelbench").joinpath("texts").iterdir()}
    examples = {f"example_{language}_{n}" for language in get_args(Language) for n in (1, 2, 3)}
    rest = {"system", "task", "examples", "example", "retrieved", "refinement", "attempt", "guidance"}
    assert names == examples | rest | {"format_think", "format_no_think", "rules_triton", "rules_cuda"}
    assert all(text(name) for name in names)
