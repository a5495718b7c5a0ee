"""Kernels for random GPUs: made up by chance, of 3 to 12 operations each."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

LANES = 256
HELPERS = {"plus": "def plus(x, y):\n    return x + y", "both": "def both(x, y):\n    return x / 3.0, x * y"}
OFTEN = (
    *("{x} + {y}", "{x} - {y}", "{x} * {y}", "{x} * {y} + {z}", "{x} * {y} - {z}", "{z} - {x} * {y}", "-{x}"),
    *("{x} * {c}", "{x} * 1.0", "{x} * 2.0", "{x} * -0.25", "({x} * {y}) * 2.0 - {z}", "tl.fma({x}, {y}, {z})"),
    *("{x} / (tl.abs({y}) + 0.5)", "{x} / {c}", "{c} / (tl.abs({x}) + 0.3)", "tl.div_rn({x}, {c})", "tl.abs({x})"),
    *("tl.exp(tl.minimum({x}, 2.0))", "tl.exp2(tl.minimum({x}, 2.0))", "tl.log(tl.abs({x}) + 0.3)", "tl.sin({x})"),
    *("tl.log2(tl.abs({x}) + 0.3)", "tl.sqrt(tl.abs({x}) + 0.1)", "tl.rsqrt(tl.abs({x}) + 0.1)", "tl.cos({x})"),
    *("tl.erf({x})", "libdevice.tanh({x})", "libdevice.atan({x})", "libdevice.log1p(tl.abs({x}))", "tl.floor({x})"),
    *(
        "libdevice.expm1(tl.minimum({x}, 2.0))",
        "libdevice.cbrt({x})",
        "libdevice.hypot({x}, {y})",
        "tl.sqrt_rn(tl.abs({x}))",
    ),
    *("libdevice.pow(tl.abs({x}) + 0.2, {c})", "libdevice.atan2({x}, {y})", "libdevice.erfc({x})", "tl.sigmoid({x})"),
    *("tl.where({x} > {y}, {z}, {x})", "tl.where({x} > {y}, {x}, {y})", "tl.where({x} == {y}, {z}, {x} + 1.0)"),
    *("tl.maximum({x}, {y})", "tl.minimum({x}, {y})", "tl.clamp({x}, -1.0, 1.0)", "tl.maximum({x}, 0.0) * {c}"),
    *("({x} * {y}).to(tl.float64).to(tl.float32) + {z}", "tl.where(i >= 0, {x} * {y}, 0.0) - {z}"),
    *("({x} * {y}).to(tl.int32, bitcast=True).to(tl.float32, bitcast=True) - {z}", "{x}.to(tl.float16).to(tl.float32)"),
    *("{x}.to(tl.bfloat16).to(tl.float32)", "({x}.to(tl.bfloat16) * {y}.to(tl.bfloat16)).to(tl.float32)"),
    *("({x}.to(tl.float16) * {y}.to(tl.float16) + {z}.to(tl.float16)).to(tl.float32)", "libdevice.rint({x} * 4.0)"),
    *("({x} * 8.0).to(tl.int32).to(tl.float32)", "(({x} * 64.0).to(tl.int32) // 3).to(tl.float32) * 0.05"),
    *("(({x} * 64.0).to(tl.int32) % 7).to(tl.float32)", "(({x} * 64.0).to(tl.int32) >> 2).to(tl.float32)"),
    *("((({x} * 64.0).to(tl.int32) & 31) * 3 - 1).to(tl.float32)", "tl.where(({x} * 9.0).to(tl.int32) > 4, {y}, {z})"),
    "({x}.to(tl.int32, bitcast=True) + 2).to(tl.float32, bitcast=True)",
    "tl.maximum({x}.to(tl.int32, bitcast=True), {y}.to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)",
)
"""Of float32, lane by lane."""
SELDOM = (
    *("{x} - tl.max({x}, 0)", "{x} - tl.sum({x}, 0) / 256.0", "tl.cumsum({x}, 0) * 0.02", "tl.sum({x} * {y}, 0) + {z}"),
    *(
        "tl.exp({x} - tl.max({x}, 0)) / tl.sum(tl.exp({x} - tl.max({x}, 0)), 0)",
        "tl.where({x} == tl.max({x}, 0), {y}, {z})",
    ),
    *("tl.cumsum({x}, 0, reverse=True) * 0.02", "tl.flip({x}, 0)", "tl.gather({x}, i ^ 5, 0)", "tl.max({x}, 0) - {y}"),
    *("FLAT(tl.broadcast_to(tl.sum(SQUARE({x}), 1)[:, None], (16, 16))) * 0.1", "{y} + tl.min({x}, 0) * {c}"),
    *("FLAT(tl.broadcast_to(tl.max(SQUARE({x}), 0)[None, :], (16, 16))) - {y}", "FLAT(SQUARE({x}).T)"),
    *("FLAT(tl.cumsum(SQUARE({x}), 1)) * 0.1", "FLAT(tl.cumprod(SQUARE({x}) * 0.1 + 0.9, 1))"),
    *("FLAT(tl.dot(SQUARE({x}), SQUARE({y}))) * 0.1", "FLAT(tl.dot(SQUARE({x}), SQUARE({y}), SQUARE({z}))) * 0.1"),
    *("FLAT(tl.dot(SQUARE({x}), SQUARE({y}), input_precision='ieee')) * 0.1 + {z}",),
    *("FLAT(tl.dot(SQUARE({x}).to(tl.float16), SQUARE({y}).to(tl.float16))) * 0.1",),
    *("FLAT(tl.dot(SQUARE({x}).to(tl.bfloat16), SQUARE({y}).to(tl.bfloat16)) + SQUARE({z})) * 0.1",),
    *("FLAT(tl.broadcast_to(tl.sum(SQUARE({x}).to(tl.float16), 1)[:, None], (16, 16))).to(tl.float32) * 0.1",),
    *("tl.reduce({x}, 0, plus) * 0.01 + {y}", "tl.associative_scan({x}, 0, plus) * 0.02"),
    *("tl.associative_scan({x}, 0, plus, reverse=True) * 0.02", "tl.sort({x}, 0)", "tl.sort({x}, 0, descending=True)"),
    *(
        "tl.argmax({x}, 0).to(tl.float32) * 0.01 + {y}",
        "tl.sum(({x} * 9.0).to(tl.int32), 0).to(tl.float32) * 0.001 + {y}",
    ),
)
"""Across lanes; SQUARE and FLAT change the shape."""
LINES = (
    "tl.store(c_ptr + i, {x})\ntl.debug_barrier()\n{v} = tl.load(c_ptr + (i ^ 3))\ntl.debug_barrier()",
    "tl.store(c_ptr + i, {x}, mask=i < 200)\ntl.debug_barrier()\n{v} = tl.load(c_ptr + i, mask=i > 5, other=1.0)\n"
    "tl.debug_barrier()",
    "tl.store(c_ptr + i, 0.0)\ntl.debug_barrier()\ntl.atomic_add(c_ptr + i % 16, {x})\ntl.debug_barrier()\n"
    "{v} = tl.load(c_ptr + i % 16) * 0.1\ntl.debug_barrier()",
    "tl.store(c_ptr + i, {x})\ntl.debug_barrier()\ntl.atomic_max(c_ptr + i // 2, {y})\ntl.debug_barrier()\n"
    "{v} = tl.load(c_ptr + i)\ntl.debug_barrier()",
    "p = c_ptr.to(tl.pointer_type(tl.int32))\ntl.store(p + i, {x}.to(tl.int32, bitcast=True))\ntl.debug_barrier()\n"
    "{v} = tl.load(c_ptr + i)\ntl.debug_barrier()",
    "{v} = tl.load(c_ptr + i, mask={y} > 5.0, other={x})",
    "t = tl.make_tensor_descriptor(c_ptr, [16, 16], [16, 1], [16, 16])\nt.store([0, 0], SQUARE({x}))\n"
    "tl.debug_barrier()\n{v} = FLAT(t.load([0, 0]))\ntl.debug_barrier()",
    "p = tl.make_block_ptr(c_ptr, (16, 16), (16, 1), (0, 0), (16, 16), (1, 0))\ntl.store(p, SQUARE({x}))\n"
    "tl.debug_barrier()\n{v} = FLAT(tl.load(p, boundary_check=(0, 1)))\ntl.debug_barrier()",
    "{v}, other = both({x}, {y})\n{v} = {v} - other",
    "{v} = tl.reshape(tl.trans(tl.reshape(tl.interleave({x}, {y}), (256, 2))), (512,))\n"
    "{v}, other = tl.split(tl.reshape({v}, (256, 2)))\n{v} = {v} + other",
    "{v}, place = tl.max({x}, 0, return_indices=True)\n{v} = {v} + place.to(tl.float32) * 0.01 - {y}",
    "{v}, unused = tl.split(tl.reshape(tl.join({x} * {y}, {z}), (256, 2)))\n{v} = {v} - {z}",
    "{v} = {x}\nfor step in range(3):\n    {v} = {v} * 0.5 + {y} / 3.0",
    "{v} = {x}\nif tl.sum({y}, 0) > 3.0:\n    {v} = {x} / 7.0",
    "less = {x} - tl.sum({x}, 0) / 256.0\n{v} = less * tl.rsqrt(tl.sum(less * less, 0) / 256.0 + 0.01)",
)
"""Lines that give a new variable, `v`."""


def made_up(seed: int) -> dict[str, Any]:
    """A case of `value_cases`."""
    chance = random.Random(seed)
    known, lines = ["a", "b"], []
    for number in range(chance.randint(3, 12)):
        kind = chance.random()
        table: Sequence[str] = LINES if kind < 0.12 else SELDOM if kind < 0.35 else OFTEN
        name = f"v{number}"
        line = chance.choice(table)
        chosen = {place: chance.choice(known[-4:]) for place in "xyz"}
        line = line.format(**chosen, c=round(chance.uniform(0.3, 3.0), 3), v=name)
        lines.append(line if table is LINES else f"{name} = {line}")
        known.append(name)
        if chance.random() < 0.5:  # keep numbers small
            lines.append(f"{name} = tl.clamp({name}, -4.0, 4.0)" if chance.random() < 0.3 else f"{name} = {name} * 0.5")
    lines.append(f"found = {known[-1]} + {chance.choice(known)}")
    return case_of("\n".join(lines), seed)


def case_of(text: str, seed: int = 5) -> dict[str, Any]:
    """A case with some lines."""
    chance = random.Random(seed)
    text = _unfolded(_unfolded(text, "SQUARE(", "tl.reshape(", ", (16, 16))"), "FLAT(", "tl.reshape(", ", (256,))")
    inputs = [("float32", [chance.uniform(-2.0, 2.0) for _ in range(LANES)]) for _ in "ab"]
    names = {name: helper for name, helper in HELPERS.items() if f", {name}" in text or f"{name}(" in text}
    lines = text if "found" in text else f"found = {text}"
    return {"lines": lines, "out": "float32", "inputs": [*inputs, ("float32", [0.0] * LANES)], "names": names}


def _unfolded(text: str, word: str, before: str, after: str) -> str:
    """Calls of a word written out."""
    while (start := text.find(word)) >= 0:
        depth, end = 1, start + len(word)
        while depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        text = f"{text[:start]}{before}{text[start + len(word) : end - 1]}{after}{text[end:]}"
    return text


GPUS: list[dict[str, Any]] = [
    {"seed": 1, "side": "up", "fuses": "first", "order": "row", "cuts": True},
    {"seed": 2, "side": "down", "fuses": "second", "order": "tree", "flushes": True},
    {"seed": 3, "side": "ends", "fuses": "any", "order": "any", "cuts": True},
    {"seed": 4, "side": "any", "fuses": "never", "order": "tree"},
]
"""Habits of some GPUs."""
UNROUNDED: list[dict[str, Any]] = [
    {"seed": 5, "side": "up", "fuses": "first", "unrounded": True},
    {"seed": 6, "side": "ends", "fuses": "second", "unrounded": True},
]
"""Of GPUs whose sums take the last product of a function without its rounding."""
_POSITIVE = "(tl.abs(a) + 0.3)"
_TWO = {"log": 1, "log2": 1, "sqrt": 1, **dict.fromkeys(("exp", "exp2", "sin", "cos", "rsqrt", "erf"), 2)}
_OF_LIBDEVICE = {
    **dict.fromkeys(("exp", "log", "log2", "log1p", "expm1", "cbrt", "rcbrt", "sqrt"), 1),
    **dict.fromkeys(
        ("exp2", "exp10", "sin", "cos", "erf", "tanh", "asin", "acos", "atan", "rsqrt", "cosh", "log10"), 2
    ),
    **{"tan": 4, "sinh": 3, "asinh": 3, "acosh": 4, "atanh": 3, "erfc": 4, "tgamma": 5, "normcdf": 5},
}
_BELOW_ONE = "tl.clamp(a, -0.9, 0.9)"
_ARGUMENTS = {
    **dict.fromkeys(("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "tgamma", "rcbrt"), _POSITIVE),
    **dict.fromkeys(("asin", "acos", "atanh"), _BELOW_ONE),
    "acosh": "(tl.abs(a) + 1.5)",
    "tan": "tl.clamp(a, -1.0, 1.0)",
}
DOMAINS: dict[str, tuple[str, int]] = {
    "a quotient": ("a / b", 2),
    **{f"tl.{name}": (f"tl.{name}({_ARGUMENTS.get(name, 'a')})", ulps) for name, ulps in _TWO.items()},
    **{f"libdevice.{n}": (f"libdevice.{n}({_ARGUMENTS.get(n, 'a')})", ulps) for n, ulps in _OF_LIBDEVICE.items()},
    "libdevice.pow": (f"libdevice.pow({_POSITIVE}, b)", 4),
    "libdevice.atan2": ("libdevice.atan2(a, b)", 3),
    "libdevice.hypot": ("libdevice.hypot(a, b)", 3),
    "libdevice.sinpi": ("libdevice.sinpi(a)", 2),
    "libdevice.cospi": ("libdevice.cospi(a)", 2),
}
"""Functions of what is exact, and by how many last bits CUDA documents that they may be off."""
