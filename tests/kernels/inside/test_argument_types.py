"""What a launch may be given: what Triton's launcher has a type for, and numbers that its compiler computes with."""

from __future__ import annotations

import numpy as np
import pytest
from test_interpreter import OUT, X, module, ok

from support.kernel_graders import Bench

KERNEL = """
import numpy as np
from triton.tools.tensor_descriptor import TensorDescriptor as Desc
def hidden(x):
    other = x.view(-1)
    other.data_ptr = x.data_ptr
    return other
class Whole(int): pass
class Text(str): pass
class Held(tl.constexpr): pass
class Row(tuple): pass
class Says:
    def __index__(self): return 3
class Types: int8, constexpr = tl.int32, tl.int32
BYTE, CONSTANT, SAME = tl.int8, tl.constexpr, tl.const
@triton.jit
def kernel(x, out, n, a TYPE, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    tl.store(out + i, tl.load(x + i, mask=m), mask=m)
"""
LOOKS = "that only looks like a number or a text to Triton"
RAISES, LARGE = "so Triton raises at the launch", "too large to represent"
OTHER_NAME = "or the type by its own name"
CONSTANT, NO_TYPE = ": tl.constexpr", "the argument a of kernel() has no type in a kernel"
IS_CONSTANT = "the argument a of kernel() is a tl.constexpr, and the parameter is none"
READ = "is annotated, reads a value of a tensor on the host"
IS_TENSOR = "and is a Tensor, so Triton raises at the launch"
NO_CONSTANT, ANNOTATED = "with which Triton computes nothing when it compiles", "annotated as i32 and is 3.0"
ERRORS = (IS_TENSOR, NO_TYPE, ANNOTATED, RAISES, LARGE, "a type that Triton's launcher has not")
GIVEN: dict[str, tuple[str, str, str]] = {
    "bool": ("True", "", ""),
    "a float of NumPy's that is one": ("np.float64(2)", "", ""),
    "a whole number by another name": ("Whole(5)", "", ""),
    "nothing": ("None", "", ""),
    "a tuple": ("(x, 2, (None, 1.5))", "", ""),
    "a shape": ("x.shape", "", ""),
    "a compile-time number": ("tl.constexpr(4)", CONSTANT, ""),
    "one for a parameter that is none": ("tl.constexpr(4)", "", IS_CONSTANT),
    "one for a parameter of a type": ("tl.constexpr(4)", ": tl.int32", IS_CONSTANT),
    "a compile-time dtype": ("tl.float16", CONSTANT, ""),
    "a compile-time text": ("'sum'", CONSTANT, ""),
    "a compile-time shape": ("x.shape", CONSTANT, ""),
    "a compile-time number of a class": ("Whole(4)", CONSTANT, LOOKS),
    "a compile-time text of a class": ("Text('sum')", CONSTANT, LOOKS),
    "a compile-time tuple of a class": ("Row((1, 2))", CONSTANT, LOOKS),
    "one in a compile-time tuple": ("(1, (2, Whole(4)))", CONSTANT, LOOKS),
    "one in a constant": ("tl.constexpr(Whole(4))", CONSTANT, LOOKS),
    "a constant of a class": ("Held(4)", CONSTANT, "of a class made of tl.constexpr"),
    "a tensor of another address": ("((hidden(x),),)", "", "a data_ptr of its own"),
    "a descriptor of numbers": ("Desc(x, [128], [1], [64])", "", ""),
    "a descriptor of numbers of a class": ("Desc(x, [Whole(128)], [1], [64])", "", "something else than plain numbers"),
    "a descriptor of another address": ("Desc(hidden(x), [128], [1], [64])", "", "a data_ptr of its own"),
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
    "a constant of NumPy's": ("tl.constexpr(np.int64(2))", CONSTANT, NO_CONSTANT),
    "one of NumPy's for a parameter that is none": ("tl.constexpr(np.int64(2))", "", IS_CONSTANT),
    "a float for an annotated whole number": ("3.0", ": tl.int32", ANNOTATED),
    "a tensor for an annotated fraction": ("x[0]", ": tl.float32", READ),
    "one of whole numbers": ("x[0].to(torch.int8)", ": tl.float16", READ),
    "one for an annotated whole number": ("x[0].int()", ": tl.int32", READ),
    "one of fractions for a whole number": ("x[0]", ": tl.int32", IS_TENSOR),
    "one of several elements": ("x.int()", ": tl.int32", IS_TENSOR),
    "one for a number without a sign": ("x[0].int()", ": tl.uint32", IS_TENSOR),
    "what says a number": ("Says()", ": tl.int32", NO_TYPE),
    "a text for a whole number": ("'3'", ": tl.int32", NO_TYPE),
    "a number below zero for one without a sign": ("-3", ": tl.uint32", RAISES),
    "the same of Python's types": ("-3", ": 'u8'", RAISES),
    "a number of more than 64 bits": ("1 << 64", ": 'uint64_t'", LARGE),
    "a number below zero of more than 64 bits": ("-1 - (1 << 63)", ": tl.int8", LARGE),
    "a number that wraps around": ("300", ": tl.int8", ""),
    "a number too large for halves": ("1e5", ": tl.float16", RAISES),
    "a number too large for floats": ("10 ** 400", ": float", RAISES),
    "a whole number for a float": ("3", ": float", ""),
    "a truth value for a whole number": ("True", ": int", ""),
    "neither true nor false": ("2", ": bool", "give True or False"),
    "a number of eight bits": ("2.0", ": tl.float8e5", "a type that Triton's launcher has not"),
    "a pointer": ("x", ": '*fp32'", ""),
    "a pointer that nothing is stored to": ("x", ": 'const *fp32'", ""),
    "the same by the type of the tensor": ("x", ": tl.const", ""),
    "the same by another name": ("x", ": SAME", OTHER_NAME),
    "a pointer to another type": ("x", ": tl.pointer_type(tl.float16)", "Triton takes the tensor's own type"),
    "a number for a pointer": ("3.0", ": '*fp32'", "Triton takes the tensor's own type"),
    "another name for a type": ("300", ": BYTE", OTHER_NAME),
    "the name of another type": ("3", ": Types.int8", OTHER_NAME),
    "another name for a constant": ("3", ": CONSTANT", OTHER_NAME),
    "a constant that is none": ("3", ": Types.constexpr", OTHER_NAME),
}


@pytest.mark.parametrize("name", GIVEN)
def test_a_launch_takes_what_triton_has_a_type_for(bench: Bench, name: str) -> None:
    value, annotation, said = GIVEN[name]
    code = module(KERNEL.replace("TYPE", annotation), f"kernel[(1,)](x, out, n, {value}, BLOCK=128)")
    ran = bench.run(code, X, outputs=OUT)
    if said:
        assert said in ran.fault["message"], ran.fault
        kinds = {READ: "host_read", **dict.fromkeys(ERRORS, "error")}
        assert ran.fault["kind"] == kinds.get(said, "unsupported")
    else:
        assert np.array_equal(ok(ran), X)


SHOWN = """
@triton.jit
def kernel(x, out, n, a: TYPE, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.zeros([BLOCK], tl.float32) + a, mask=i < n)
"""


@pytest.mark.parametrize(
    ("annotation", "given", "seen"),
    [
        ("'u8'", "300", 44.0),
        ("int", "(1 << 32) + 7", 7.0),
        ("int", "True", 1.0),
        ("float", "3", 3.0),
        ("bool", "True", 1.0),
        ("tl.bfloat16", "1.0077", 1.0),
        ("tl.int8", "300", 44.0),
    ],
)
def test_a_kernel_sees_what_the_launcher_makes_of_an_argument(
    bench: Bench, annotation: str, given: str, seen: float
) -> None:
    code = module(SHOWN.replace("TYPE", annotation), f"kernel[(1,)](x, out, n, {given}, BLOCK=128)")
    assert set(ok(bench.run(code, X, outputs=OUT)).tolist()) == {seen}
