"""Kernels whose error bounds are known: honest ones, and those that make much of last bits.

`a` and `b` are float32 from -2 to 2, 256 of each (`bound_kernels.case_of`).
"""

from __future__ import annotations

from typing import Any

from support.bound_kernels import case_of

WELFORD = (
    "def welford(m, q, w, n, r, v):\n    delta = n - m\n    total = w + v\n"
    "    return m + delta * v / total, q + r + delta * delta * w * v / total, total"
)
_ONLINE = """
j = tl.arange(0, 32)
m = tl.max(a, 0) * 0.0 - 1000.0
s = m * 0.0
for k in range(8):
    x = tl.load(a_ptr + k * 32 + j) / 0.7
    n = tl.maximum(m, tl.max(x, 0))
    s = s * tl.exp(m - n) + tl.sum(tl.exp(x - n), 0)
    m = n
found = tl.exp(a / 0.7 - m) / s
"""
_ADDED = """
for k in range(3):
    x = tl.sum(a * a, 0) / 3.0
    old = tl.load(c_ptr)
    tl.debug_barrier()
    done = 0
    while done == 0:
        seen = tl.atomic_cas(c_ptr, old, old + x)
        done = (seen == old).to(tl.int32)
        old = seen
    tl.debug_barrier()
found = tl.load(c_ptr) + a * 0.0
"""
HONEST: dict[str, dict[str, Any]] = {
    "softmax": case_of("e = tl.exp(a / 0.3 - tl.max(a / 0.3, 0))\nfound = e / tl.sum(e, 0)"),
    "softmax of a product": case_of("x = tl.sum(SQUARE(a), 1) * 3.0\nfound = FLAT(tl.softmax(SQUARE(a * b)))"),
    "layer norm": case_of(
        "mean = tl.sum(a, 0) / 256.0\nx = a - mean\nfound = x * tl.rsqrt(tl.sum(x * x, 0) / 256.0 + 1e-5) * b + 0.5"
    ),
    "a product in a loop": case_of(
        "m = tl.zeros((16, 16), tl.float32)\nfor k in range(8):\n"
        "    m = tl.dot(SQUARE(a).to(tl.float16), (SQUARE(b) * 0.5).to(tl.float16), m)\nfound = FLAT(m)"
    ),
    "a product in float32": case_of(
        "m = tl.zeros((16, 16), tl.float32)\nfor k in range(8):\n"
        "    m += tl.dot(SQUARE(a), SQUARE(b), input_precision='ieee')\nfound = FLAT(m)"
    ),
    "online softmax": case_of(_ONLINE),
    "Welford": case_of(
        "m, q, w = tl.reduce((a, a * 0.0, a * 0.0 + 1.0), 0, welford)\nfound = (a - m) * tl.rsqrt(q / w)"
    )
    | {"names": {"welford": WELFORD}},
    "the place of what is largest": case_of(
        "x = tl.exp(a)\nfound = tl.max(tl.where(x == tl.max(x, 0), i, 0), 0).to(tl.float32) + a * 0.0"
    ),
    "the place of what is largest, of a sum": case_of(
        "x = tl.exp(a) + 1.0\nfound = tl.max(tl.where(x == tl.max(x, 0), i, 0), 0).to(tl.float32) + a * 0.0"
    ),
    "the place of what is largest, of a product": case_of(
        "x = tl.exp(a) * 1.1\nfound = tl.max(tl.where(x == tl.max(x, 0), i, 0), 0).to(tl.float32) + a * 0.0"
    ),
    "a question whether it is a number": case_of("x = tl.exp(a) + 1.0\nfound = tl.where(x != x, 0.0, x)"),
    "one number loaded twice": case_of(
        "tl.store(c_ptr + i, tl.exp(a) + 1.0)\ntl.debug_barrier()\n"
        "found = tl.where(tl.load(c_ptr + i) == tl.load(c_ptr + i), a, 100.0)"
    ),
    "what is largest, left out": case_of("x = a / 0.7\nfound = tl.where(x == tl.max(x, 0), -100.0, x)"),
    "parts of bfloat16": case_of(
        "x = a / 0.7\nh = x.to(tl.bfloat16)\nl = (x - h.to(tl.float32)).to(tl.bfloat16)\n"
        "found = h.to(tl.float32) + l.to(tl.float32)"
    ),
    "sorted": case_of("found = tl.sort(tl.exp(a) / 0.7, 0)"),
    "sorted backwards": case_of("found = tl.sort(a / 0.7, 0, descending=True)"),
    "the largest ones": case_of("x = tl.topk(a / 0.7, 16)\nfound = a + tl.sum(x, 0)"),
    "sums by exchanges": case_of(_ADDED),
    "logarithms of sums": case_of("m = tl.max(a, 0)\nfound = a - (m + tl.log(tl.sum(tl.exp(a - m), 0)))"),
    "GELU": case_of("x = a * 1.5\nfound = 0.5 * x * (1.0 + tl.erf(x * 0.70710678))"),
    "ReLU of a quotient": case_of("found = tl.maximum(a / 0.7 - b / 0.3, 0.0)"),
    "a choice near zero": case_of("x = a / 0.7 - b / 0.3\nfound = tl.where(x > 0.0, x, 0.1 * x)"),
    "sums in memory": case_of(
        "tl.atomic_add(c_ptr + i % 16, a * a / 0.7)\ntl.debug_barrier()\nfound = tl.load(c_ptr + i % 16)"
    ),
    "a mask of infinities": case_of(
        "x = tl.where(i < 200, a / 0.7, -float('inf'))\ne = tl.exp(x - tl.max(x, 0))\nfound = e / tl.sum(e, 0)"
    ),
    "turned by angles": case_of("x = a * 30.0\nfound = tl.cos(x) * a - tl.sin(x) * b"),
    "a scan of decays": case_of("x = tl.exp(-tl.abs(a))\nfound = tl.cumsum(x, 0)"),
}
"""Their bounds are below a thousandth of their size."""

_OFF = "d = (tl.max(a, 0) * 0.0 + 1.0) / 3.0 - 0.3333333432674408\n"
"""A number that is 0 in the interpreter, and a little more or less on a GPU."""
_NUMBER = "n = ((tl.max(a, 0) * 0.0 + 1.0) / 3.0 * 3.0).to(tl.int32)\n"
"""0 or 1."""
UNDECIDED: dict[str, tuple[str]] = {
    "a branch": (f"{_OFF}found = a\nif d == 0.0:\n    found = b",),
    "a branch on a whole number": (f"{_NUMBER}found = a\nif n > 0:\n    found = b",),
    "an expression that branches": (f"{_OFF}found = a if d > 0.0 else b",),
    "a loop's end": (f"{_NUMBER}found = a\nfor k in range(n):\n    found += b",),
    "a loop's begin": (f"{_NUMBER}found = a\nfor k in range(n, 4):\n    found += b",),
    "a loop's step": (f"{_NUMBER}found = a\nfor k in range(0, 4, n + 1):\n    found += b",),
    "a loop while": (f"{_NUMBER}found = a\nwhile n > 0:\n    found += b\n    n -= 1",),
    "where a store goes": (f"{_NUMBER}tl.store(c_ptr + n, 1.0)\nfound = a",),
    "whether it is made": (f"{_NUMBER}tl.store(c_ptr + i, a, mask=i < n + 5)\nfound = a",),
    "where a sum goes": (f"{_NUMBER}tl.atomic_add(c_ptr + n, 1.0)\nfound = a",),
    "whether a sum is made": (f"{_NUMBER}tl.atomic_add(c_ptr + i, a, mask=i < n + 5)\nfound = a",),
    "where an exchange goes": (f"{_NUMBER}tl.atomic_cas(c_ptr + n, 1.0, 2.0)\nfound = a",),
    "a pointer that is chosen": (f"{_OFF}tl.store(tl.where(d > 0.0, c_ptr + i, a_ptr + i), b)\nfound = a",),
    "where a descriptor loads": (
        f"{_NUMBER}t = tl.make_tensor_descriptor(a_ptr, [16, 16], [16, 1], [16, 16])\nfound = FLAT(t.load([n, 0]))",
    ),
    "where a descriptor stores": (
        f"{_NUMBER}t = tl.make_tensor_descriptor(c_ptr, [16, 16], [16, 1], [16, 16])\nt.store([n, 0], SQUARE(a))\n"
        "found = a",
    ),
    "how large a descriptor's tensor is": (
        f"{_NUMBER}t = tl.make_tensor_descriptor(a_ptr, [15 + n, 16], [16, 1], [16, 16])\nfound = FLAT(t.load([0, 0]))",
    ),
    "where a block pointer points": (
        f"{_NUMBER}p = tl.make_block_ptr(a_ptr, (16, 16), (16, 1), (n, 0), (16, 16), (1, 0))\n"
        "found = FLAT(tl.load(p, boundary_check=(0, 1)))",
    ),
    "where it moves": (
        f"{_NUMBER}p = tl.make_block_ptr(c_ptr, (16, 16), (16, 1), (0, 0), (16, 16), (1, 0))\n"
        "p = tl.advance(p, (n, 0))\ntl.store(p, SQUARE(a), boundary_check=(0, 1))\nfound = a",
    ),
    "what is taken for granted": (f"{_OFF}tl.assume(d == 0.0)\nfound = a",),
}
"""Lines that ask for the last bits of something inexact where the program goes, or which memory it touches."""
_WHOLE = "w = c_ptr.to(tl.pointer_type(tl.int32))\n"
NO_VALUE: dict[str, tuple[str]] = {
    "a place that is not certain": (f"{_NUMBER}found = tl.load(a_ptr + i % 4 + n)",),
    "a mask that is not certain": (f"{_NUMBER}found = tl.load(a_ptr + i, mask=i < n * 256, other=9.0)",),
    "the place of what is largest": ("x = a * 0.0 + 1.0\nfound = tl.argmax(x / 3.0, 0).to(tl.float32) + a",),
    "the bits of zero": (f"{_OFF}found = d.to(tl.int32, bitcast=True).to(tl.float32) + a",),
    "a gathered place": (f"{_NUMBER}found = tl.gather(a, (i + n) % 256, 0)",),
    "a histogram": (f"{_NUMBER}found = tl.histogram(i * 0 + n, 256).to(tl.float32)",),
    "bits of what is inexact": ("found = ((a / 0.7).to(tl.int32, bitcast=True) ^ i).to(tl.float32)",),
    "an inverse of nearly nothing": (f"{_OFF}found = a / d",),
    "a sum in memory beyond its type": (
        f"{_NUMBER}{_WHOLE}tl.store(w, 2147483647)\ntl.debug_barrier()\ntl.atomic_add(w, n)\ntl.debug_barrier()\n"
        "found = tl.load(w) + a",
    ),
    "a certain sum in memory beyond its type": (
        f"{_NUMBER}{_WHOLE}tl.store(w, n)\ntl.debug_barrier()\ntl.atomic_add(w, 2147483646)\ntl.debug_barrier()\n"
        "found = tl.load(w) + a",
    ),
    "a number with a sign read without": (
        f"{_NUMBER}{_WHOLE}tl.store(w, n - 1)\ntl.debug_barrier()\n"
        "found = tl.load(w.to(tl.pointer_type(tl.uint32))).to(tl.float32) + a",
    ),
    "a byte with a sign read without": (
        f"{_NUMBER}{_WHOLE}w = w.to(tl.pointer_type(tl.int8))\ntl.store(w, (n - 1).to(tl.int8))\n"
        "tl.debug_barrier()\nfound = tl.load(w.to(tl.pointer_type(tl.uint8))).to(tl.float32) + a",
    ),
    "a number with a sign exchanged for one without": (
        f"{_NUMBER}w = c_ptr.to(tl.pointer_type(tl.uint32))\ntl.atomic_cas(w, 0, n - 1)\ntl.debug_barrier()\n"
        "found = tl.load(w).to(tl.float32) + a",
    ),
    "the largest without a sign of numbers that have one": (
        f"{_NUMBER}{_WHOLE}tl.store(w, n - 1)\ntl.debug_barrier()\n"
        "tl.atomic_max(w.to(tl.pointer_type(tl.uint32)), 5)\ntl.debug_barrier()\nfound = tl.load(w) + a",
    ),
    "a power of a negative number": (f"{_NUMBER}found = libdevice.pow(a * 0.0 - 1.0, n * 0.5)",),
    "a whole power of a negative number": (f"{_NUMBER}found = libdevice.pow(a * 0.0 - 1.0, n)",),
    "a hypotenuse at the end of float64": (
        "z = a.to(tl.float64) * 0.0\nh = libdevice.hypot(z + 1.7976931348623157e308, z + 2.0669e300)\n"
        "found = (h == float('inf')).to(tl.float32)",
    ),
}
"""Lines whose result may be anything on a GPU, at least in its first element."""
NO_NUMBER = "one = a * 0.0 + 1.000244140625\nu = tl.sqrt((1.00048828125 - one * one) + 0.000000014901161)\nfound = "
"""A root that is no number where a sum takes a product that is not rounded."""
OF_NO_NUMBER = (
    *("tl.maximum(u, 5.0)", "tl.maximum(u, float('inf'), propagate_nan=tl.PropagateNan.ALL)", "u * 0.0", "u - u"),
    *("tl.minimum(u, -float('inf'), propagate_nan=tl.PropagateNan.ALL)", "tl.clamp(u, 1.0, 1.0)", "u / u", "tl.abs(u)"),
    *("(u > 0.0).to(tl.float32)", "(u == u).to(tl.float32)", "(u * 0.5 <= u).to(tl.float32)", "tl.exp(-u * u)"),
    *("(tl.where(i >= 0, u, u) >= u).to(tl.float32)", "tl.where(u != u, 1.0, 2.0)", "tl.sigmoid(u)", "tl.sort(u, 0)"),
    *("libdevice.tanh(u)", "libdevice.isnan(u).to(tl.float32)", "libdevice.signbit(u).to(tl.float32)", "tl.erf(u)"),
    *("libdevice.copysign(1.0, u)", "libdevice.pow(u, 0.0)", "libdevice.saturatef(u)", "tl.fma(u, 0.0, 1.0)"),
    *("tl.max(u, 0) + a * 0.0", "tl.argmax(u, 0).to(tl.float32) + a", "tl.sum(u * 0.0, 0) + a", "tl.exp2(u * 0.0)"),
    *("u.to(tl.int8).to(tl.float32)", "u.to(tl.float8e4nv).to(tl.float32)", "tl.cumprod(u * 0.0, 0)", "tl.floor(u)"),
)
"""What is made of it, and may be anything in every element."""

_SHARED = f"{_OFF}x = a + d * 1024.0\n"
"""Numbers that are off by about a ten-thousandth, all by the same."""
_EQUAL = f"{_SHARED}y = a + tl.div_rn(tl.max(a, 0) * 0.0, 3.0)\n"
"""Exact ones that equal them in the interpreter."""
CANCELS: dict[str, tuple[str]] = {
    name: (f"{_SHARED}{lines}" if "found" in lines else f"{_SHARED}found = {lines}",)
    for name, lines in {
        "the largest": "x - tl.max(x, 0)",
        "the smallest": "x - tl.min(x, 0)",
        "of rows": "FLAT(SQUARE(x) - tl.max(SQUARE(x), 1)[:, None])",
        "the larger of one and itself": "tl.maximum(x, x) - x",
        "a choice": "tl.where(a > 0.0, x, x) - x",
        "what was added": "x - d * 1024.0",
        "twice and half": "x * 0.5 + x * 0.5 - x",
        "another shape": "FLAT(tl.trans(tl.trans(SQUARE(x)))) - x",
        "joined and split": "p, q = tl.split(tl.join(x, a))\nfound = p - x",
        "a wider type": "x.to(tl.float64).to(tl.float32) - x",
        "its bits": "x = (x + 5.0) * 1.1\nfound = x.to(tl.int32, bitcast=True).to(tl.float32, bitcast=True) - x",
        "memory": "tl.store(c_ptr + i, x)\ntl.debug_barrier()\nfound = tl.load(c_ptr + i) - x",
        "memory of whole numbers": (
            "x = (x + 5.0) * 1.1\ntl.store(c_ptr.to(tl.pointer_type(tl.int32)) + i, "
            "x.to(tl.int32, bitcast=True))\ntl.debug_barrier()\nfound = tl.load(c_ptr + i) - x"
        ),
        "a loop": "y = x\nfor k in range(3):\n    y = y + 1.0\nfound = y - x",
        "a quotient by itself": "z = x + 3.0\nfound = z / z",
        "exact products of whole numbers": (
            "found = tl.where(i.to(tl.float32) * 3.0 + 1.0 == (i * 3 + 1).to(tl.float32), a, 0.0)"
        ),
    }.items()
}
"""What is left of numbers of which as much is taken as they are off by."""
MERELY_EQUAL: dict[str, tuple[str]] = {
    name: (f"{_EQUAL}{lines}" if "found" in lines else f"{_EQUAL}found = {lines}",)
    for name, lines in {
        "a difference": "x - y",
        "the larger one less the first": "tl.maximum(x, y) - x",
        "the larger one less the second": "tl.maximum(x, y) - y",
        "the smaller one": "tl.minimum(x, y) - x",
        "a choice of equals, less the first": "tl.where(x == y, x, y) - x",
        "a choice of equals, less the second": "tl.where(x == y, x, y) - y",
        "the largest of both, less the first": "tl.max(tl.join(x, y), 1) - x",
        "the largest of both, less the second": "tl.max(tl.join(x, y), 1) - y",
        "the largest of all": "tl.max(x, 0) - tl.max(y, 0) + a * 0.0",
        "memory that was written again": (
            "tl.store(c_ptr + i, x)\ntl.debug_barrier()\ntl.store(c_ptr + i, y)\ntl.debug_barrier()\n"
            "found = tl.load(c_ptr + i) - x"
        ),
        "the other half of a store": (
            "tl.store(c_ptr + i, y)\ntl.debug_barrier()\ntl.store(c_ptr + i, x, mask=i >= 4)\ntl.debug_barrier()\n"
            "found = tl.load(c_ptr + i) - x"
        ),
        "one address": (
            "tl.store(c_ptr + i // 2, tl.where(i % 2 == 0, x - a, y - a))\ntl.debug_barrier()\n"
            "found = tl.load(c_ptr + i // 2)"
        ),
        "bits that are swapped": (
            "p = tl.reshape(x.to(tl.int32, bitcast=True), (128, 2))\n"
            "z = tl.reshape(y.to(tl.int32, bitcast=True), (128, 2))\n"
            "found = FLAT((z ^ tl.xor_sum(p, 1, keep_dims=True)).to(tl.float32, bitcast=True))"
        ),
    }.items()
}
"""What is left of numbers of which others are taken that only equal them in the interpreter."""


def trap(lines: str, least: float, a: Any = (3.0,), b: Any = (3.0,), c: Any = ("float32", (0.0,)), **more: Any) -> Any:
    """A case, and how large its first bound must be at least."""
    size = max(len(a), len(b), len(c[1]))
    inputs = [("float32", [*x, *x[:1] * (size - len(x))]) for x in (list(a), list(b))]
    inputs.append((c[0], [*c[1], *list(c[1])[:1] * (size - len(c[1]))]))
    found = lines if "found" in lines else f"found = {lines}"
    return {"lines": found, "out": "float32", "inputs": inputs, "names": {}, **more}, least


_NOTHING = "d = 1.0 / a - 0.3333333432674408\n"
"""0 in the interpreter, for a = 3."""
_TINY = f"{_NOTHING}d = d + 1e-9\n"
INF = float("inf")
PLUS = {"plus": "def plus(x, y):\n    return x + y"}
FUSED = {"a": (1.3,), "b": (1.6899998188018799,)}
_BITS = "p = a * a\nw = p.to(tl.int32, bitcast=True)\nz = (b * 0.0).to(tl.int32) + 12345\n"
_THROUGH_BITS = {
    "there and back": "(w + z) - z",
    "not twice": "~(~w)",
    "other bits twice": "(w ^ z) ^ z",
    "in halves": "(w & 65535) | (w & -65536)",
    "of another sign": "w ^ -2147483648",
    "of another sign by a sum": "w + -2147483648",
    "in a wider type": "((w.to(tl.int64) + z) - z).to(tl.int32)",
    "chosen": "tl.where(z > 5, w, z)",
    "beside nothing": "tl.xor_sum(tl.join(w, z * 0), 1)",
    "and nothing": "tl.sum(tl.join(w, z * 0), 1)",
    "and nothing by a helper": "tl.reduce(tl.join(w, z * 0), 1, plus)",
}
_FUSED_IN_FOUR = {name: 4 * numbers for name, numbers in FUSED.items()}
_CANCELS = (
    "k = tl.arange(0, 16)\nrow = tl.where(k == 0, 4194304.0, tl.where(k == 1, -4194304.0, 0.0))[None, :]\n"
    "m = tl.zeros((16, 16), tl.float32) + row\nc0 = (a * 0.0 + 0.3)[:, None]\n"
)
_REDUCED = "k = tl.arange(0, 32)\nv = tl.sum(tl.where(k[None, :] == 0, a[:, None], 0.0), 1)\n"
_PASSES = "x = tl.where(i < 2, 3e38, tl.where(i == 2, -3e38, a * 0.0))\n"
"""Numbers that pass the largest one in a row, and not in another order."""
TRAPS: dict[str, tuple[dict[str, Any], float]] = {
    **{
        f"bits of a product {name}": trap(
            f"{_BITS}found = tl.abs(({bits}).to(tl.float32, bitcast=True)) - b", 5e-8, names=PLUS, **FUSED
        )
        for name, bits in _THROUGH_BITS.items()
    },
    "the rest of a product": trap("found = (a * a) % 1.0 - (b - 1.0)", 5e-8, **FUSED),
    "infinity times what may be less than nothing": trap(f"{_TINY}found = d * b", INF, b=(INF,)),
    "a quotient just above the largest number": trap("found = a / b", INF, (3.4028235e38,), (0.99999994,)),
    "a quotient just below it": trap("found = a / b", INF, (3.4028232635611926e38,), (0.99999994,)),
    "infinity and what may be infinite": trap(f"{_TINY}found = -1.0 / d + b", INF, b=(INF,)),
    "nothing times what may be infinite": trap(f"{_TINY}found = (1.0 / d) * 0.0", INF),
    "nothing by what may be nothing": trap(f"{_TINY}found = (a * 0.0) / d", INF),
    "the larger of two of which one may be infinite": trap(f"{_NOTHING}found = tl.maximum(-1.0 / d, 0.0)", INF),
    "the place of a number that may be infinite": trap(
        f"{_NOTHING}u = tl.where(i == 0, -1.0 / tl.where(d == 0.0, 0.0, d), 1.0)\nfound = tl.argmax(u, 0)",
        INF, a=(3.0, 3.0), out="int32",
    ),
    "whether it is a number": trap(f"{_TINY}found = libdevice.isnan((d - d) / d).to(tl.int32)", 1.0, out="int32"),
    "a sine of what may be infinite": trap(f"{_TINY}found = tl.sin(1.0 / d)", INF),
    "three products of TF32 and of denormal numbers": trap(
        "m = tl.broadcast_to((a * 2.0**-100 * 2.0**-30)[:, None], (16, 16))\n"
        "found = tl.max(tl.dot(m, m * 0.0 + 1.0, input_precision='tf32x3'), 1) * 2.0**100 * 2.0**30",
        1.5, a=(1.5,) * 16,
    ),
    "three products of TF32 and of what it rounds to infinity": trap(
        "m = tl.broadcast_to((a * 0.0 + 3.4028234663852886e38)[:, None], (16, 16))\n"
        "found = tl.max(tl.dot(m, m * 0.0 + 2.0**-10, input_precision='tf32x3'), 1)",
        INF, a=(0.0,) * 16,
    ),
    "the sign of zero": trap(f"{_NOTHING}found = 1.0 / ((d - 1e-9) * 0.0)", INF),
    "the sign of a rounded zero": trap(f"{_NOTHING}found = 1.0 / libdevice.rint(d - 1e-9)", INF),
    "the sign of a chosen zero": trap(
        "found = 1.0 / tl.where(1.0 / a > 0.3333333432674408, a * 0.0, (-a) * 0.0)", INF
    ),
    "the bits of a zero": trap(f"{_NOTHING}found = ((d - 1e-9) * 0.0).to(tl.int32, bitcast=True)", INF, out="int32"),
    "a number that is scaled down and up": trap(
        "x = a / b * 1.1754943508222875e-38 * 1.1920928955078125e-07\nfound = x * 8.507059173023462e+37 * 16777216.0",
        1.9, a=(4.5,),
    ),
    "a half that is scaled down and up": trap(
        "x = tl.sum((a * b).to(tl.float16), 0) * 5.9604644775390625e-08\nfound = (x * 8192.0 * 2048.0).to(tl.float32)"
        " + a * 0.0",
        0.9, a=(0.3, 0.45, 0.55, 0.2), b=(1.0, 1.0, 1.0, 1.0),
    ),
    "a half that may be infinite": trap(
        "x = tl.sum((a * b).to(tl.float16), 0)\nfound = (x * 65504.0).to(tl.float32) + a * 0.0", INF,
        a=(0.25, 0.3, 0.2, 0.25), b=(1.0, 1.0, 1.0, 1.0),
    ),
    "a product beyond all numbers that is fused": trap("found = a * a - b", INF, a=(2e19,), b=(3e38,)),
    "a sum that passes them in another order": trap(
        "found = tl.sum(a.to(tl.float16), 0).to(tl.float32) + b", INF, a=(60000.0, -60000.0, 60000.0, -59000.0)
    ),
    "a quotient by what is nearly a power of two": trap("found = 1.0 / (a / b)", 2.9e-8 * 4, a=(12.0,)),
    "the rest of the nearest": trap("found = libdevice.remainder(a / b + 2.0, 1.0 + 0.0 * a)", 0.9, a=(1.5,)),
    "the rest of either sign": trap(
        "x = tl.where(1.0 / b * 3.0 == 1.0, 9, -9)\nfound = x % 10", 18.0, out="int32"
    ),
    "a cast that cuts off": trap(
        'found = (a / b).to(tl.float16, fp_downcast_rounding="rtz").to(tl.float32)', 4.8e-4
    ),
    "a power of nothing": trap("found = libdevice.ldexp(a / b, (a * 0.0).to(tl.int32) + 2)", 4e-7),
    "twice a product of bfloat16": trap(
        "x = a.to(tl.bfloat16)\nfound = ((x * x) * 2.0).to(tl.float32)", 1e-4, a=(1.3,)
    ),
    "what a cast between halves leaves": trap(
        "x = tl.sum((a * b).to(tl.float16), 0)\n"
        "found = (x - x.to(tl.bfloat16).to(tl.float16)).to(tl.float32) + a * 0.0",
        7e-3, a=(0.6, 0.7, 0.5, 0.05), b=(1.0, 1.0, 1.0, 1.0),
    ),
    "a fused product in a sum of its own": trap(
        "found = tl.reduce(tl.join(b, a) * tl.join(0 * a - 1, a), 1, plus)", 5.7e-8, **FUSED, names=PLUS
    ),
    "a fused product in a scan of its own": trap(
        "x = tl.associative_scan(tl.join(b, a) * tl.join(0 * a - 1, a), 1, plus)\n"
        "found = tl.sum(tl.where(tl.arange(0, 2)[None, :] == 1, x, 0.0), 1)", 5.7e-8, **FUSED, names=PLUS
    ),
    "a fused product that is the largest of one": trap("found = tl.max((a * a)[:, None], 1) - b", 5.7e-8, **FUSED),
    "a narrow product that is fused": trap(
        "x = a.to(tl.float16)\nfound = ((x.to(tl.float32) * x.to(tl.float32)).to(tl.float16) - b.to(tl.float16))"
        ".to(tl.float32)", 3.9e-5, a=(1.3,), b=(1.689453125,)
    ),
    "a scan from behind": trap(
        "found = tl.associative_scan(a / b, 0, plus, reverse=True)", 4e-7, a=(1.3, 1.4, 1.5, 1.6), names=PLUS
    ),
    "many short sums of its own": trap(
        "r = tl.reduce(tl.reshape(a, (64, 4)), 1, plus)\n"
        "found = tl.reshape(tl.broadcast_to(r[:, None], (64, 4)), (256,))",
        0.0, a=tuple(float(k * k % 257) / 77.0 for k in range(256)), names=PLUS,
    ),
    "what is added to a product of matrices": trap(
        "m = tl.full((16, 16), 0.5, tl.float16)\nfound = tl.max(tl.dot(m, m) + (a * 0.0 + 33554432.0)[:, None], 1)",
        4.5, a=tuple(range(16)),
    ),
    "a number that is nearly one of TF32": trap(
        "m = tl.broadcast_to((a / b)[:, None], (16, 16))\nfound = tl.max(tl.dot(m, m), 1)", 0.015, a=(3.0,) * 16
    ),
    "a sum of products in TF32": trap(
        "m = tl.broadcast_to(a[:, None], (16, 16))\nfound = tl.max(tl.sum(m[:, :, None] * m[None, :, :], 1), 1)",
        0.015, a=(1 - 2**-24,) * 16,
    ),
    "a sum of four": trap("found = tl.sum(a, 0)", 2.3e-7, a=(1.0, 2.0**-24, 2.0**-24, 2.0**-24)),
    "sums in memory that cancel": trap(
        "tl.atomic_add(c_ptr + i * 0, a)\ntl.debug_barrier()\nfound = tl.load(c_ptr + i * 0)", 61.0,
        a=(*[1.0] * 62, 1e8, -1e8),
    ),
    "whole sums in memory that pass what is exact": trap(
        "tl.atomic_add(c_ptr + i * 0, a)\ntl.debug_barrier()\nfound = tl.load(c_ptr + i * 0)", 61.0,
        a=(*[1.0] * 62, 33554432.0, -33554432.0),
    ),
    "the larger of two at one address": trap(
        "x = tl.where(i == 0, (a / b * 10.0).to(tl.int32), 1)\ntl.atomic_max(c_ptr + i * 0, x)\ntl.debug_barrier()\n"
        "found = tl.load(c_ptr + i * 0)", 1.0, a=(9.0, 1.0), c=("int32", (0,)), out="int32",
    ),
    "a number of which a byte is written": trap(
        "tl.store(c_ptr + i, a / b)\ntl.debug_barrier()\n"
        "tl.store(c_ptr.to(tl.pointer_type(tl.int8)) + 4 * i + 3, (i * 0 + 126).to(tl.int8))\ntl.debug_barrier()\n"
        "found = tl.load(c_ptr + i)", 1e31, a=(1.0,),
    ),
    "a half read as another one": trap(
        "x = (a * 0.0).to(tl.float16) + tl.sum((a * b).to(tl.float16), 0)\ntl.store(c_ptr + i, x)\ntl.debug_barrier()\n"
        "found = tl.load(c_ptr.to(tl.pointer_type(tl.bfloat16)) + i).to(tl.float32)", 1e30,
        a=(10000.3, 9999.7, 10000.1, 77.3), b=(1.0, 1.0, 1.0, 1.0), c=("float16", (0.0,)),
    ),
    "an exponential of a fused sum": trap("found = tl.exp(a * b + 0.3)", 1e23, a=(8.03,), b=(8.07,)),
    "a denormal result": trap("found = libdevice.exp(a)", 8e-40, a=(-90.0,)),
    "bits in 64": trap(
        "found = (tl.exp(a.to(tl.float64) * 0.37).to(tl.int64, bitcast=True) & 255).to(tl.int32)", 1.0, out="int32"
    ),
    "half of bits in 64": trap(
        "x = tl.exp(a.to(tl.float64) * 0.37).to(tl.int64, bitcast=True) >> 1\nfound = (x & 255).to(tl.int32)",
        1.0, out="int32",
    ),
    "bits in 64 there and back": trap(
        "x = tl.exp(a.to(tl.float64) * 0.37).to(tl.int64, bitcast=True)\n"
        "found = (((x - 1).to(tl.float64, bitcast=True) - tl.exp(1.11)) * 1e16).to(tl.float32)", 2.0,
    ),
    "a whole power": trap("found = libdevice.pow(a, (b * 0.0).to(tl.int32) + 65535)", 0.1, a=(1.0001,)),
    "a whole power beyond the range": trap("found = libdevice.pow(a, (b * 0.0).to(tl.int32) - 40)", INF, a=(10.0,)),
    "a sum that goes on in a loop": trap(
        "m = tl.reshape(a, (16, 16))\nacc = tl.zeros((16,), tl.float32)\nj = tl.arange(0, 16)[None, :]\n"
        "for k in range(8):\n    acc += tl.sum(tl.where(j == k, m, 0.0), 1)\n"
        "found = tl.reshape(tl.broadcast_to(acc[:, None], (16, 16)), (256,))", 1e-7,
        a=tuple(1.0 + k / 777.0 for k in range(256)),
    ),
    "a number added to a product that cancels": trap(
        f"{_CANCELS}found = tl.max(tl.dot(m, m * 0.0 + 1.0, input_precision='ieee') + c0, 1)", 0.2, a=(0.0,) * 16
    ),
    "the same with a step between that changes nothing": trap(
        f"{_CANCELS}p = tl.dot(m, m * 0.0 + 1.0, input_precision='ieee') * 1.0\nfound = tl.max(p + c0, 1)", 0.2,
        a=(0.0,) * 16,
    ),
    "the same in another shape": trap(
        f"{_CANCELS}p = tl.trans(tl.trans(tl.dot(m, m * 0.0 + 1.0, input_precision='ieee')))\n"
        "found = tl.max(p + c0, 1)", 0.2, a=(0.0,) * 16,
    ),
    "a sum of what a reduction left": trap(f"{_REDUCED}found = tl.sum(v, 0)", 1e-3, a=(1.1,) * 256),
    "a sum of what was combined with it": trap(f"{_REDUCED}found = tl.sum(a + v * 0.0, 0)", 1e-3, a=(1.1,) * 256),
    "one cast of two": trap(
        "x = (a * 0.0).to(tl.int32) + 16842753\nfound = x.to(tl.float32).to(tl.bfloat16).to(tl.float32)", 131072.0
    ),
    "a wide sum made narrow": trap(
        "found = ((a * a).to(tl.float64) - b.to(tl.float64)).to(tl.float32)", 5.7e-8, **FUSED
    ),
    "an excess of a product": trap("found = libdevice.fdim(a * a, b)", 5.7e-8, **FUSED),
    "a product that vanishes in a row": trap(
        "found = tl.cumprod(tl.where(i == 2, 1e30, tl.where(i < 2, 1e-30, a * 0.0 + 1.0)), 0, reverse=True)", INF,
        a=(1.0,) * 4,
    ),
    "a scan that is infinite in a row": trap(f"{_PASSES}found = tl.cumsum(x, 0, reverse=True)", INF, a=(1.0,) * 4),
    "a sum that is infinite in some order": trap(f"{_PASSES}found = tl.sum(x, 0) + a * 0.0", INF, a=(1.0,) * 4),
    "a product of matrices that is infinite in some order": trap(
        "k = tl.arange(0, 16)\nrow = tl.where(k < 2, 3e38, tl.where(k == 2, -3e38, 0.0))[None, :]\n"
        "m = (tl.zeros((16, 16), tl.float32) + row).to(tl.bfloat16)\n"
        "found = tl.max(tl.dot(m, (m * 0.0 + 1.0).to(tl.bfloat16)), 1) + a", INF, a=(1.0,) * 16,
    ),
    "a long sum of one thread": trap(
        "m = tl.where(tl.arange(0, 512)[:, None] == 0, 1.0, 2.9802322387695312e-08) + tl.zeros((512, 32), tl.float32)\n"
        "found = tl.max(tl.sum(m, 0), 0) + a * 0.0", 4.2e-5,
    ),
    "a product of eight bits": trap(
        "k = tl.arange(0, 32)\n"
        "x = tl.zeros((32, 32), tl.float32) + tl.where(k == 0, 448.0, tl.where(k == 1, 1.0, 0.0))\n"
        "p = tl.dot(x.to(tl.float8e4nv), tl.trans(x).to(tl.float8e4nv))\nfound = tl.max(p, 1) + a * 0.0", 1.0,
        a=(1.0,) * 32,
    ),
    "an infinite exponential less a large number": trap("found = libdevice.exp(a) - 3e38", INF, a=(88.8,)),
    "an exchange of lanes": trap(
        "x = (a / b).to(tl.int32, bitcast=True)\n"
        "found = tl.atomic_xchg(c_ptr.to(tl.pointer_type(tl.int32)) + i // 2, x)",
        INF, a=(3.3, 3.7), out="int32",
    ),
    "a comparison and exchange of lanes": trap(
        "x = tl.atomic_cas(c_ptr + i // 2, a * 0.0, a / b)\nfound = x", INF, a=(3.3, 3.7)
    ),
    "an exchange by the bits of a NaN": trap(
        "nan = a * 0.0 + float('nan')\ntl.store(c_ptr + i, nan)\ntl.debug_barrier()\n"
        "tl.atomic_cas(c_ptr + i, nan, a / b)\ntl.debug_barrier()\nfound = tl.load(c_ptr + i)", INF, a=(3.3, 3.7)
    ),
    "a partner of other bits": trap(
        "p = tl.reshape((a / b).to(tl.int32, bitcast=True), (1, 2))\n"
        "z = tl.reshape((a * 0.0 + 1.0).to(tl.int32, bitcast=True), (1, 2))\n"
        "found = tl.reshape(z ^ tl.xor_sum(p, 1, keep_dims=True), (2,)).to(tl.float32, bitcast=True)", INF,
        a=(3.0, 3.0),
    ),
    "a power of two that may be another": trap(
        "n = (a / b * 1.2e7).to(tl.int32) - 11999997\nfound = libdevice.ldexp(a * 0.0 + 1.0, n)", 100.0
    ),
    "a sum in memory that was stored again": trap(
        "tl.atomic_add(c_ptr + i * 0, a)\ntl.debug_barrier()\ntl.store(c_ptr + i * 0, a * 0.0 + 0.3)\n"
        "tl.debug_barrier()\ntl.atomic_add(c_ptr + i * 0, a)\ntl.debug_barrier()\nfound = tl.load(c_ptr + i * 0)",
        1e-6, a=(1.0,) * 4,
    ),
    "a denormal operand of TF32": trap(
        "m = tl.zeros((16, 16), tl.float32) + 5.877471754111438e-39\n"
        "found = tl.max(tl.dot(m, m * 0.0 + 1.0e30), 1) + a", 9e-8, a=(0.0,) * 16,
    ),
    "a fused sum in two places": trap(
        "x = a * a - b\nfound = tl.reshape(tl.reshape(x, (1, 4)) - x[None, :], (4,))", 1.1e-7, **_FUSED_IN_FOUR
    ),
    "what is made of a fused sum in two places": trap(
        "x = tl.where(a > 0.0, a * a - b, 0.0)\n"
        "found = tl.reshape(tl.reshape(x, (1, 4)) - tl.trans(tl.reshape(x, (4, 1)), 1, 0), (4,))", 1.1e-7,
        **_FUSED_IN_FOUR,
    ),
    "a denormal number that is rounded up": trap("found = tl.ceil(a) + b * 0.0", 0.99, a=(1e-40,)),
    "a root of a denormal number": trap("found = tl.sqrt(a)", 9e-21, a=(1e-40,)),
    "a denormal remainder": trap("found = libdevice.fmod(a, b) * 1e38", 0.5, a=(2.0**-99,), b=(1.5 * 2.0**-126,)),
    "a remainder that is exact of constants": trap("found = a % b", 0.09, a=(1.0,), b=(0.10000000149011612,)),
    "a remainder that is made narrow": trap(
        "found = (a.to(tl.float64) % b.to(tl.float64)).to(tl.float32)", 0.09, a=(1.0,), b=(0.10000000149011612,)
    ),
    "no number as a whole one": trap("found = (a * float('nan')).to(tl.int32).to(tl.float32)", INF),
    "infinity as a whole number": trap("found = b.to(tl.int32).to(tl.float32)", INF, b=(INF,)),
    "more than eight bits hold": trap("found = (a * 100.0).to(tl.int8).to(tl.float32)", INF),
    "less than nothing without a sign": trap("found = (-a).to(tl.uint8).to(tl.float32)", INF),
    "a product of matrices that passes the largest number": trap(
        "k = tl.arange(0, 16)\nrow = tl.where(k == 0, 1e38, tl.where(k == 1, -1e38, 0.0))[None, :]\n"
        "m = tl.zeros((16, 16), tl.float32) + row\n"
        "found = tl.max(tl.dot(m, m * 0.0 + 1.0, input_precision='ieee') + a[:, None], 1)", INF, a=(3e38,) * 16,
    ),
    "a zero less than nothing with a product of matrices": trap(
        "m = tl.zeros((16, 16), tl.float32)\n"
        "found = tl.max(1.0 / (tl.dot(m - 1.0, m, input_precision='ieee') + a[:, None]), 1)", INF, a=(-0.0,) * 16,
    ),
    "a fused sum that is joined and split": trap(
        "x = a * a - b\np, q = tl.split(tl.join(x, x))\nfound = p - x", 1.1e-7, **_FUSED_IN_FOUR
    ),
    "a logarithm": trap("found = tl.log(a)", 2 * 2.0**-26, a=(0.7789827,)),
}  # fmt: skip
"""Cases in which a bound was once too small, and how large the first must be at least."""
REFUSED = {
    "a block of pointers cast": (
        "found = tl.load((a_ptr + i).to(tl.pointer_type(tl.int8))).to(tl.float32)",
        "UnsupportedError: a block of pointers cast to elements of another width",
    ),
    "a descriptor without rows": (
        "t = tl.make_tensor_descriptor(a_ptr, [0, 16], [16, 1], [16, 16])\nfound = FLAT(t.load([0, 0]))",
        "WrongValueError: a tensor descriptor with an extent below 1",
    ),
    "a block pointer at an offset without a sign": (
        "o = (i * 0 - 8).to(tl.uint32)\nt = tl.make_block_ptr(a_ptr, (256,), (1,), (tl.max(o, 0),), (16,), (0,))\n"
        "found = tl.load(t, boundary_check=(0,))",
        "WrongValueError: a block pointer or descriptor at an offset of 2^31 or more",
    ),
    "a block pointer that advances too far": (
        "t = tl.make_block_ptr(a_ptr, (256,), (1,), (0,), (16,), (0,))\n"
        "t = tl.advance(tl.advance(t, (2147483647,)), (2147483647,))\nt = tl.advance(t, (2,))\n"
        "found = tl.load(t, boundary_check=(0,))",
        "WrongValueError: a block pointer or descriptor at an offset of 2^31 or more",
    ),
    "a descriptor at an offset without a sign": (
        "t = tl.make_tensor_descriptor(a_ptr, [16, 16], [16, 1], [16, 16])\n"
        "found = FLAT(t.load([tl.max((i * 0 - 8).to(tl.uint32), 0), 0]))",
        "WrongValueError: a block pointer or descriptor at an offset of 2^31 or more",
    ),
    "a descriptor with a negative stride": (
        "t = tl.make_tensor_descriptor(a_ptr, [16, 16], [-16, 1], [16, 16])\nfound = FLAT(t.load([0, 0]))",
        "WrongValueError: a tensor descriptor with a stride below 0",
    ),
}
"""Lines of which a GPU makes something else than the interpreter does, and what is said of them."""
