"""Which names in a kernel are looked up outside of it: a recording takes along what these stand for."""

from __future__ import annotations

import importlib.util

import pytest

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("torch", "triton")), reason="no torch or no triton here"
)
READS = {
    "its own parameter": ("def k(x, n):\n    x + n", ""),
    "a default of the same name": ("def k(x, n=n):\n    x + n", "n"),
    "an annotation": ("def k(x, n: mine):\n    x + n", "mine"),
    "a decorator": ("@tuned\ndef k(x):\n    x + y", "y"),
    "a name of the module's": ("def k(x):\n    y = x + a", "a"),
    "a local name": ("def k(x):\n    y = x\n    x + y", ""),
    "a local name of a tuple": ("def k(x):\n    y, (z, w) = x\n    y + z + w", ""),
    "a name before it is local": ("def k(x):\n    z = y\n    y = x\n    y + z", "y"),
    "a name that is made of itself": ("def k(x):\n    y = y + x", "y"),
    "a name that is added to": ("def k(x):\n    y += x\n    y + x", "y"),
    "a name that is only added to": ("def k(x):\n    y += x", "y"),
    "the count of a loop": ("def k(x):\n    for i in range(n):\n        x + i", "n range"),
    "the count after a loop": ("def k(x):\n    for i in range(4):\n        x + i\n    i + x", "i range"),
    "one branch": ("def k(x):\n    if x:\n        y = x\n    y + x", "y"),
    "both branches": ("def k(x):\n    if x:\n        y = x\n    else:\n        y = 1\n    y + x", ""),
    "the condition of a branch": (
        "def k(x):\n    if flag:\n        y = x\n    elif other:\n        y = 1",
        "flag other",
    ),
    "a loop that may not run": ("def k(x):\n    while x:\n        y = x\n    y + x", "y"),
    "an attribute": ("def k(x):\n    tl.load(x)", "tl"),
    "a value with an annotation": ("def k(x):\n    y: kind = x\n    y + x", "kind"),
}


@pytest.mark.parametrize("what", READS)
def test_a_name_is_read_where_none_of_the_kernels_hides_it(what: str) -> None:
    from assay.kernels.inside.record.kernels import names_in

    text, names = READS[what]
    assert sorted(names_in(text)) == names.split(), names_in(text)
