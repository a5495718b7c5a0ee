"""What a module computes, whatever the spelling."""

from __future__ import annotations

import pytest

from assay.retrieval.code_text import tokens
from assay.retrieval.operations import operations
from support.synthetic_problems import OPERATORS, recipes, write_module


def done(code: str) -> list[str]:
    return operations(tokens(code))


@pytest.mark.parametrize("operator", sorted(OPERATORS))
def test_every_spelling_of_an_operator_is_one_operation(operator: str) -> None:
    found = {tuple(done(write_module((operator,), seed))) for seed in range(24)}
    assert len(found) == 1
    assert len(found.pop()) == 1


def test_spellings_of_a_recipe_have_the_same_operations_in_the_same_order() -> None:
    for place, recipe in enumerate(recipes(200, 1)):
        assert done(write_module(recipe, place)) == done(write_module(recipe, 10_000 + place)), recipe


def test_different_recipes_differ() -> None:
    made = recipes(500, 2)
    assert len({tuple(done(write_module(recipe, 0))) for recipe in made}) == len(made)


CODE = """
import torch
from torch.nn import Linear
from math import sqrt

class Gate(torch.nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(x)

class Model(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(n, n))
        self.first = Linear(n, n)
        self.stack = torch.nn.Sequential(torch.nn.GELU(), torch.nn.Dropout(0.1))
        self.gate = Gate()

    def forward(self, x):
        self.state = torch.tanh(x)
        x = self.stack(self.first(x).transpose(0, 1).contiguous())
        x += 1
        return torch.relu(self.gate(x) @ self.weight)
"""


def test_layers_count_where_they_are_applied_and_helpers_where_they_stand() -> None:
    wanted = ["mul", "sigmoid", "tanh", "linear", "transpose", "gelu", "dropout", "add", "matmul", "relu"]
    assert done(CODE) == wanted


def test_a_layer_that_is_applied_twice_counts_twice_like_its_function() -> None:
    layer = (
        "class M:\n    def __init__(self):\n        self.a = nn.ReLU()\n"
        "    def f(self, x):\n        return self.a(self.a(x))"
    )
    function = "class M:\n    def f(self, x):\n        return F.relu(F.relu(x))"
    assert done(layer) == done(function) == ["relu", "relu"]


def test_layers_that_are_looped_over_count() -> None:
    code = (
        "class M:\n    def __init__(self):\n        self.all = nn.ModuleList([nn.Linear(3, 3), nn.Tanh()])\n"
        "    def f(self, x):\n        for one in self.all:\n            x = one(x)\n        return x"
    )
    assert done(code) == ["linear", "tanh"]
