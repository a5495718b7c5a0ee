"""A policy that writes kernels by a script, for the kernel environment: no model, the real grader."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any

from assay.rollouts.renderers.base import PlainRenderer
from assay.types import Completion, SamplingParams
from support.scripted_backend import END, Letters, ScriptedBackend

Script = Callable[[str, int], str]
"""(prompt, seed) -> reply."""

RIGHT = (
    resources.files("assay.kernels.problems")
    .joinpath("shipped/starters/level1_1_triton.py")
    .read_text(encoding="utf-8")
)
"""A right kernel for problem 1/1 of those that Assay ships."""
WRONG = RIGHT.replace("x + s * s / a", "x + s * a")
BROKEN = RIGHT.replace("tl.sin(a * x)", "tl.silu(a * x)")
CHEAT = RIGHT.replace("return out", "return x + torch.sin(self.frequency * x) ** 2 / self.frequency")
CRASH = RIGHT.replace("x = x.contiguous()", "x = x.contiguous().missing")


def reply(kernel: str, thought: str = "one program per block") -> str:
    """A reply in the form that prompts ask for."""
    return f"<think>\n{thought}\n</think>\n<KERNEL>\n```python\n{kernel}```\n</KERNEL>"


class KernelPolicy(ScriptedBackend):
    """Replies as `script` says, one token per character."""

    def __init__(self, script: Script) -> None:
        super().__init__(most_s=0.0)
        self.context_length = 1_000_000
        self.vocab_size = 1_114_112
        self.script = script
        self.prompts: list[str] = []

    def answer(self, prompt: Sequence[int], params: SamplingParams, seed: int) -> Completion:
        text = self.tokenizer.decode(prompt)
        self.prompts.append(text)
        said = (*self.tokenizer.encode(self.script(text, seed)), END)
        return Completion(said, (-1.0,) * len(said), "stop", self.policy_version)


def plain() -> PlainRenderer:
    tokenizer: Any = Letters()
    return PlainRenderer(tokenizer)
