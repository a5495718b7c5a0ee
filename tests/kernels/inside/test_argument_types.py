"""What a launch may be given: what Triton's launcher has a type for, and numbers that its compiler computes with."""

from __future__ import annotations

import numpy as np
import pytest
from test_interpreter import OUT, X, module, ok

from support.kernel_graders import Bench

KERNEL = """
import numpy as np
class Whole(int): pass
@triton.jit
def kernel(x, out, n, a TYPE, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    tl.store(out + i, tl.load(x + i, mask=m), mask=m)
"""
CONSTANT, NO_TYPE = ": tl.constexpr", "the argument a of kernel() has no type in a kernel"
NO_CONSTANT, ANNOTATED = "with which Triton computes nothing when it compiles", "annotated as i32 and is a float"
GIVEN: dict[str, tuple[str, str, str]] = {
    "bool": ("True", "", ""),
    "a float of NumPy's that is one": ("np.float64(2)", "", ""),
    "a whole number by another name": ("Whole(5)", "", ""),
    "nothing": ("None", "", ""),
    "a tuple": ("(x, 2, (None, 1.5))", "", ""),
    "a shape": ("x.shape", "", ""),
    "a compile-time number": ("tl.constexpr(4)", "", ""),
    "a compile-time dtype": ("tl.float16", CONSTANT, ""),
    "a compile-time text": ("'sum'", CONSTANT, ""),
    "a whole number for an annotated one": ("3", ": tl.int32", ""),
    "a float of NumPy's": ("np.float32(2)", "", NO_TYPE),
    "a whole number of NumPy's": ("np.int64(2)", "", NO_TYPE),
    "a truth value of NumPy's": ("np.bool_(True)", "", NO_TYPE),
    "an array of NumPy's": ("np.array(2.0)", "", NO_TYPE),
    "one in a tuple": ("(x, np.int32(2))", "", NO_TYPE),
    "a list": ("[1, 2]", "", NO_TYPE),
    "a text": ("'sum'", "", NO_TYPE),
    "a dtype": ("torch.float16", "", NO_TYPE),
    "a compile-time number of NumPy's": ("np.int64(2)", CONSTANT, NO_CONSTANT),
    "a constant of NumPy's": ("tl.constexpr(np.int64(2))", "", NO_CONSTANT),
    "a float for an annotated whole number": ("3.0", ": tl.int32", ANNOTATED),
}


@pytest.mark.parametrize("name", GIVEN)
def test_a_launch_takes_what_triton_has_a_type_for(bench: Bench, name: str) -> None:
    value, annotation, said = GIVEN[name]
    code = module(KERNEL.replace("TYPE", annotation), f"kernel[(1,)](x, out, n, {value}, BLOCK=128)")
    ran = bench.run(code, X, outputs=OUT)
    if said:
        assert said in ran.fault["message"], ran.fault
        assert ran.fault["kind"] == ("unsupported" if said == NO_CONSTANT else "error")
    else:
        assert np.array_equal(ok(ran), X)
