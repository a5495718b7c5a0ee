"""PyTorch modules made from recipes, each in as many spellings as wanted: sequences of operators, so that two texts are
known to mean the same or not; and another text for any module, with other names and constants.
"""

from __future__ import annotations

import ast
import builtins
import random
from dataclasses import dataclass

Recipe = tuple[str, ...]
"""Operators in the order in which they are applied."""

OPERATORS: dict[str, tuple[str, ...]] = {
    "relu": ("torch.relu({x})", "F.relu({x})", "{x}.relu()", "nn.ReLU()"),
    "gelu": ("F.gelu({x})", "torch.nn.functional.gelu({x})", "nn.GELU()"),
    "silu": ("F.silu({x})", "torch.nn.functional.silu({x})", "nn.SiLU()"),
    "tanh": ("torch.tanh({x})", "{x}.tanh()", "nn.Tanh()"),
    "sigmoid": ("torch.sigmoid({x})", "{x}.sigmoid()", "nn.Sigmoid()"),
    "softplus": ("F.softplus({x})", "nn.Softplus()"),
    "softsign": ("F.softsign({x})", "nn.Softsign()"),
    "elu": ("F.elu({x})", "nn.ELU()"),
    "selu": ("torch.selu({x})", "F.selu({x})", "nn.SELU()"),
    "leaky_relu": ("F.leaky_relu({x}, {c})", "nn.LeakyReLU({c})"),
    "hardswish": ("F.hardswish({x})", "nn.Hardswish()"),
    "hardsigmoid": ("F.hardsigmoid({x})", "nn.Hardsigmoid()"),
    "hardtanh": ("F.hardtanh({x})", "nn.Hardtanh()"),
    "mish": ("F.mish({x})", "nn.Mish()"),
    "logsigmoid": ("F.logsigmoid({x})", "nn.LogSigmoid()"),
    "exp": ("torch.exp({x})", "{x}.exp()"),
    "log1p": ("torch.log1p({x})", "{x}.log1p()"),
    "abs": ("torch.abs({x})", "{x}.abs()"),
    "sqrt": ("torch.sqrt({x})", "{x}.sqrt()"),
    "rsqrt": ("torch.rsqrt({x})", "{x}.rsqrt()"),
    "sin": ("torch.sin({x})", "{x}.sin()"),
    "cos": ("torch.cos({x})", "{x}.cos()"),
    "erf": ("torch.erf({x})", "{x}.erf()"),
    "neg": ("torch.neg({x})", "{x}.neg()"),
    "reciprocal": ("torch.reciprocal({x})", "{x}.reciprocal()"),
    "floor": ("torch.floor({x})", "{x}.floor()"),
    "square": ("torch.square({x})", "{x}.square()"),
    "sign": ("torch.sign({x})", "{x}.sign()"),
    "clamp": ("torch.clamp({x}, -{c}, {c})", "{x}.clamp(-{c}, {c})"),
    "scale": ("{x} * {c}", "torch.mul({x}, {c})"),
    "shift": ("{x} + {c}", "torch.add({x}, {c})"),
    "subtract": ("{x} - {c}", "torch.sub({x}, {c})"),
    "divide": ("{x} / {c}", "torch.div({x}, {c})"),
    "power": ("{x} ** {n}", "torch.pow({x}, {n})", "{x}.pow({n})"),
    "softmax": ("torch.softmax({x}, dim=-1)", "F.softmax({x}, dim=-1)", "{x}.softmax(-1)", "nn.Softmax(dim=-1)"),
    "log_softmax": ("torch.log_softmax({x}, dim=-1)", "F.log_softmax({x}, dim=-1)", "nn.LogSoftmax(dim=-1)"),
    "layer_norm": ("F.layer_norm({x}, ({d},))", "nn.LayerNorm({d})"),
    "cumsum": ("torch.cumsum({x}, dim=-1)", "{x}.cumsum(-1)"),
    "cumprod": ("torch.cumprod({x}, dim=-1)", "{x}.cumprod(-1)"),
    "flip": ("torch.flip({x}, [-1])", "{x}.flip(-1)"),
    "roll": ("torch.roll({x}, {n}, -1)", "{x}.roll({n}, -1)"),
    "triu": ("torch.triu({x})", "{x}.triu()"),
    "tril": ("torch.tril({x})", "{x}.tril()"),
    "transpose": ("torch.transpose({x}, 0, 1)", "{x}.transpose(0, 1)"),
    "sort": ("torch.sort({x}, dim=-1)[0]", "{x}.sort(dim=-1)[0]"),
    "normalize": ("F.normalize({x}, dim=-1)", "torch.nn.functional.normalize({x}, dim=-1)"),
    "dropout": ("F.dropout({x}, p=0.0)", "nn.Dropout(0.0)"),
    "linear": ("nn.Linear({d}, {d})", "torch.nn.Linear({d}, {d}, bias=True)"),
    "matmul": ("{x} @ self.weight", "torch.matmul({x}, self.weight)", "{x}.matmul(self.weight)"),
    "mean": ("torch.mean({x}, dim=-1, keepdim=True)", "{x}.mean(dim=-1, keepdim=True)"),
    "amax": ("torch.amax({x}, dim=-1, keepdim=True)", "{x}.amax(dim=-1, keepdim=True)"),
    "logsumexp": ("torch.logsumexp({x}, dim=-1, keepdim=True)", "{x}.logsumexp(-1, keepdim=True)"),
}

NAMES = (
    "x",
    "inputs",
    "hidden",
    "out",
    "value",
    "state",
    "features",
    "activations",
    "y",
    "z",
    "h",
    "data",
    "t",
    "batch",
)
CLASSES = ("Model", "Net", "Block", "Fused", "Layer", "Head", "Module1", "Kernel", "Op", "Stage")


def recipes(count: int, seed: int) -> list[Recipe]:
    """Distinct recipes of 2 to 5 operators."""
    rng = random.Random(seed)
    names = sorted(OPERATORS)
    found: dict[Recipe, None] = {}
    while len(found) < count:
        found[tuple(rng.choice(names) for _ in range(rng.randint(2, 5)))] = None
    return list(found)


@dataclass
class _Writer:
    rng: random.Random

    def module(self, recipe: Recipe) -> str:
        rng = self.rng
        size, dim = rng.choice((16, 128, 1024)), rng.choice((32, 64, 256, 4096))
        inits: list[str] = []
        names = rng.sample(NAMES, len(recipe) + 1)
        body, value = [], names[0]
        nested = rng.random() < 0.4
        for step, operator in enumerate(recipe):
            said = rng.choice(OPERATORS[operator])
            given = {"x": value, "c": f"{rng.uniform(0.1, 3):.2f}", "n": rng.randint(2, 4), "d": dim}
            if "self.weight" in said and not any("weight" in line for line in inits):
                inits.append(f"self.weight = nn.Parameter(torch.randn({dim}, {dim}))")
            if said.startswith(("nn.", "torch.nn.L")):
                attribute = rng.choice(("layer", "op", "step", "act")) + str(step)
                inits.append(f"self.{attribute} = {said.format(**given)}")
                said = f"self.{attribute}({{x}})"
            elif nested and not said.startswith("{x}."):
                value = f"({said.format(**given)})" if said.startswith("{x} ") else said.format(**given)
                continue
            body.append(f"{names[step + 1]} = {said.format(**given)}")
            value = names[step + 1]
        return self._text(names[0], inits, [*body, f"return {value}"], size, dim)

    def _text(self, first: str, inits: list[str], body: list[str], size: int, dim: int) -> str:
        rng = self.rng
        document = '    """A module.\n\n    Args:\n        see forward.\n    """\n\n' if rng.random() < 0.5 else ""
        typed = ": torch.Tensor" if rng.random() < 0.5 else ""
        created = "".join(f"        {line}\n" for line in inits)
        work = "".join(f"        {line}  # step\n" if rng.random() < 0.2 else f"        {line}\n" for line in body)
        return (
            "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"
            f"class {rng.choice(CLASSES)}(nn.Module):\n{document}"
            f"    def __init__(self):\n        super().__init__()\n{created}\n"
            f"    def forward(self, {first}{typed}):\n{work}\n\n"
            f"def get_inputs():\n    return [torch.randn({size}, {dim})]\n\n\ndef get_init_inputs():\n    return []\n"
        )


def write_module(recipe: Recipe, seed: int) -> str:
    """A module that does what a recipe says; other seeds spell it otherwise: functions, methods or layers, operators or
    functions, names, sizes, constants, steps or one expression, comments."""
    return _Writer(random.Random(seed)).module(recipe)


class _Renamer(ast.NodeTransformer):
    """Other names for all that a module names itself, and other numbers."""

    def __init__(self, names: dict[str, str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self.names.get(node.id, node.id)
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.arg = self.names.get(node.arg, node.arg)
        node.annotation = None
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            node.attr = self.names.get(node.attr, node.attr)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if type(node.value) is int and node.value > 4:
            return ast.Constant(node.value * 2 + 1)
        return node


def disguised(code: str) -> str:
    """A module under other names, with other sizes, without comments and docstrings. It need not run."""
    tree = ast.parse(code)
    taken = {"self", "Model", "forward", *dir(builtins)}
    own: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        if isinstance(node, ast.arg):
            own[node.arg] = None
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own[node.id] = None
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            own[node.attr] = None
    names = {name: f"renamed_{place}" for place, name in enumerate(own) if name not in taken}
    return ast.unparse(_Renamer(names).visit(tree))
