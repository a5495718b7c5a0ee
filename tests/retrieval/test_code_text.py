"""Hashes that layout does not change, and names as words."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.kernels.problems.sources import read_shipped
from assay.retrieval.code_text import code_hash, model_part, name_words, tokens

CODE = """
import torch

class Model(torch.nn.Module):
    \"\"\"Says something.\"\"\"

    def forward(self, x, dim=1):
        'and here'
        y = torch.sum(x, dim=dim)  # a sum
        return y // 2 + 0x1F - 1e-3
"""


@pytest.mark.parametrize(
    "other",
    [
        CODE.replace("# a sum", "# the sum"),
        CODE.replace('    """Says something."""\n\n', ""),
        CODE.replace("        'and here'\n", ""),
        CODE.replace("        ", "\t"),
        CODE.replace("\n", "\r\n"),
        CODE.replace("torch.sum(x, dim=dim)", "torch.sum(\n            x,  # of this\n\n            dim = dim)"),
        CODE.replace("return y // 2", "return y \\\n            // 2"),
        "# licence\n\n\n" + CODE + "\n\n",
    ],
)
def test_comments_docstrings_and_layout_do_not_change_the_hash(other: str) -> None:
    assert other != CODE
    assert code_hash(other) == code_hash(CODE)


@pytest.mark.parametrize(
    ("old", "new"),
    [("dim=1", "axis=1"), ("dim=1", "dim=2"), ("sum(", "mean("), ("Model", "Net"), ("//", "/"), ("1e-3", "1e-4")],
)
def test_names_numbers_and_operators_change_it(old: str, new: str) -> None:
    assert code_hash(CODE.replace(old, new)) != code_hash(CODE)


def test_the_order_of_statements_and_strings_with_a_use_change_it() -> None:
    assert code_hash("a = 1\nb = 2") != code_hash("b = 2\na = 1")
    assert code_hash("s = '''one'''") != code_hash("s = '''two'''")
    assert code_hash("f(\n'''one'''\n)") != code_hash("f(\n'''two'''\n)")


@pytest.mark.parametrize("problem", read_shipped(), ids=lambda problem: problem.name)
def test_what_python_writes_of_a_tree_has_the_same_names_numbers_and_operators(problem: object) -> None:
    """Python's own parser agrees: its text, which has neither comments nor the layout, differs in parentheses, commas
    and the spelling of strings and numbers at most."""
    code = problem.code  # type: ignore[attr-defined]
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]

    def words(text: str) -> list[str]:
        return [token.text for token in tokens(text) if token.kind == "name"]

    assert words(ast.unparse(tree)) == words(code)


@settings(max_examples=300, deadline=None)
@given(
    st.text(alphabet=st.characters(codec=None), max_size=300)
    | st.text(alphabet="'\"\\#\n\t ([{)]}abf1.=@\r", max_size=200)
)
def test_any_text_has_tokens_and_a_hash(text: str) -> None:
    assert all(token.text for token in tokens(text))
    assert len(code_hash(text)) == 64
    model_part(tokens(text))


def test_long_texts_take_time_in_proportion(tmp_path: Path) -> None:
    for nasty in (
        "'''" * 30_000,
        '"' * 100_001,
        "(" * 100_000,
        "\\\n" * 50_000,
        "a" * 100_000,
        "1" * 100_000,
        "#" * 100_000,
    ):
        tokens(nasty)


def test_only_what_computes_is_compared() -> None:
    part = model_part(tokens(CODE + "\nsize = 7\n\ndef get_inputs():\n    return [torch.rand(size)]\n"))
    assert [token.text for token in part][:2] == ["class", "Model"]
    assert "rand" not in {token.text for token in part} and "size" not in {token.text for token in part}
    bare = tokens("x = torch.relu(y)")
    assert model_part(bare) == bare


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("LayerNorm", ("layernorm", "layer", "norm")),
        ("layer_norm", ("layernorm", "layer", "norm")),
        ("softmax", ("softmax",)),
        ("ConvTranspose2d", ("convtranspose2d", "conv", "transpose2d")),
        ("conv_transpose2d", ("convtranspose2d", "conv", "transpose2d")),
        ("ReLU", ("relu",)),
        ("self", ()),
        ("x", ()),
        ("BN_2", ("bn2", "bn")),
    ],
)
def test_names_are_split_at_capitals_and_underscores(name: str, words: tuple[str, ...]) -> None:
    assert set(words) <= set(name_words(name))
    assert words or not name_words(name)
