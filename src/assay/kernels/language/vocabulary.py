"""Triton's names, one by one: which are part of the language, with which parameters, and why the others are not.

Checked against the installed Triton by the tests, so that a parameter that Triton renames or adds is noticed.
"""

from __future__ import annotations

import ast
from typing import NamedTuple

from assay.kernels.language.refusals import shown


def _words(text: str) -> list[str]:
    return text.split()


TYPES = frozenset(
    _words(
        "int1 int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64 "
        "float8e4b15 float8e4nv float8e4b8 float8e5 float8e5b16"
    )
)
_OTHER_NAMES = {
    "int1": "bool i1 u1 uint1",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32 int",
    "int64": "i64",
    "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
    "float16": "fp16 half",
    "bfloat16": "bf16",
    "float32": "fp32 float",
    "float64": "fp64 double",
}
_TYPES_BY_NAME = {name: name for name in (*TYPES, "const")} | {
    other: name for name, others in _OTHER_NAMES.items() for other in _words(others)
}
"""What an annotation may call a type, as Triton reads it. What `const` points to must not be stored to."""
CONSTANTS = frozenset({"PropagateNan.ALL", "PropagateNan.NONE"})
_ATOMIC = "pointer val mask sem scope"

TL: dict[str, str] = {
    # programs and shapes
    "program_id": "axis",
    "num_programs": "axis",
    "arange": "start end",
    "full": "shape value dtype",
    "zeros": "shape dtype",
    "zeros_like": "input",
    "broadcast": "input other",
    "broadcast_to": "input *shape",
    "trans": "input *dims",
    "permute": "input *dims",
    "cat": "input other can_reorder dim",
    "join": "a b",
    "split": "a",
    "view": "input *shape",
    "reshape": "input *shape can_reorder",
    "expand_dims": "input axis",
    "squeeze": "x dim",
    "unsqueeze": "x dim",
    "ravel": "x can_reorder",
    "flip": "x dim",
    "interleave": "a b",
    "to_tensor": "x",
    "cast": "input dtype fp_downcast_rounding bitcast",
    "pointer_type": "element_ty",
    # memory
    "load": "pointer mask other boundary_check padding_option cache_modifier eviction_policy volatile",
    "store": "pointer value mask boundary_check cache_modifier eviction_policy",
    "make_block_ptr": "base shape strides offsets block_shape order",
    "advance": "base offsets",
    "make_tensor_descriptor": "base shape strides block_shape padding_option",
    "load_tensor_descriptor": "desc offsets",
    "store_tensor_descriptor": "desc offsets value",
    "atomic_cas": "pointer cmp val sem scope",
    **dict.fromkeys((f"atomic_{name}" for name in _words("xchg add max min and or xor")), _ATOMIC),
    # arithmetic
    **dict.fromkeys(_words("exp exp2 log log2 cos sin rsqrt sqrt sqrt_rn abs erf floor ceil sigmoid"), "x"),
    **dict.fromkeys(_words("umulhi div_rn"), "x y"),
    "fdiv": "x y ieee_rounding",
    "fma": "x y z",
    "softmax": "x dim keep_dims ieee_rounding",
    "cdiv": "x div",
    **dict.fromkeys(_words("add sub mul"), "x y sanitize_overflow"),
    **dict.fromkeys(_words("minimum maximum"), "x y propagate_nan"),
    "clamp": "x min max propagate_nan",
    "where": "condition x y",
    "swizzle2d": "i j size_i size_j size_g",
    "dot": "input other acc input_precision allow_tf32 max_num_imprecise_acc out_dtype",
    # reductions, scans, orders
    **dict.fromkeys(_words("max min"), "input axis return_indices return_indices_tie_break_left keep_dims"),
    **dict.fromkeys(_words("argmax argmin"), "input axis tie_break_left keep_dims"),
    "sum": "input axis keep_dims dtype",
    **dict.fromkeys(_words("xor_sum reduce_or"), "input axis keep_dims"),
    "reduce": "input axis combine_fn keep_dims",
    "associative_scan": "input axis combine_fn reverse",
    "cumsum": "input axis reverse dtype",
    "cumprod": "input axis reverse",
    "sort": "x dim descending",
    "topk": "x k dim",
    "bitonic_merge": "x dim descending",
    "histogram": "input num_bins mask",
    "gather": "src index axis",
    # random numbers
    **dict.fromkeys(_words("rand randn randint"), "seed offset n_rounds"),
    **dict.fromkeys(_words("randint4x randn4x"), "seed offset n_rounds"),
    "rand4x": "seed offsets n_rounds",
    "philox": "seed c0 c1 c2 c3 n_rounds",
    "philox_impl": "c0 c1 c2 c3 k0 k1 n_rounds",
    "uint_to_uniform_float": "x",
    "pair_uniform_to_normal": "u1 u2",
    # hints and checks
    **dict.fromkeys(_words("multiple_of max_contiguous max_constancy"), "input values"),
    "assume": "cond",
    "static_assert": "cond msg",
    "device_assert": "cond msg mask",
    "debug_barrier": "",
    "constexpr": "value",
}
"""Functions of `triton.language`: name -> parameters. A star marks the one that takes any number of values."""

LOOPS: dict[str, str] = {
    "range": "arg1 arg2 step",
    "tl.range": "arg1 arg2 step num_stages loop_unroll_factor disallow_acc_multi_buffer flatten warp_specialize "
    "disable_licm",
    "tl.static_range": "arg1 arg2 step",
}
"""What a `for` may loop over."""

BUILTINS: dict[str, str] = {"min": "*args", "max": "*args", "float": "x", "int": "x", "len": "obj"}
"""Of Python, in the meaning that Triton's compiler gives them."""

HOST: dict[str, str] = {"triton.cdiv": "x y", "triton.next_power_of_2": "n"}
"""Of `triton`, on compile-time numbers."""

_ONE = (
    "abs floor rsqrt ceil trunc exp2 saturatef sqrt rint llrint nearbyint isnan signbit finitef isinf sin cos sinpi "
    "cospi tan log2 exp exp10 cosh sinh tanh atan asin acos log log10 log1p acosh asinh atanh expm1 cbrt rcbrt erf "
    "erfc normcdf lgamma tgamma round llround isfinited"
)
_TWO = "copysign nextafter atan2 hypot ldexp fmod remainder pow fdim"

LIBDEVICE: dict[str, str] = {
    **dict.fromkeys(_ONE.split(), "arg0"),
    **dict.fromkeys(_TWO.split(), "arg0 arg1"),
    "fma": "arg0 arg1 arg2",
}
"""Of libdevice, as far as the interpreter has them."""

FUNCTIONS: dict[str, str] = {
    **{f"tl.{name}": parameters for name, parameters in TL.items()},
    **{f"libdevice.{name}": parameters for name, parameters in LIBDEVICE.items()},
    **BUILTINS,
    **HOST,
}
"""All functions by full name."""

_MEMBERS = (
    "broadcast_to trans permute split view reshape expand_dims cast store advance atomic_cas atomic_xchg atomic_add "
    "atomic_max atomic_min atomic_and atomic_or atomic_xor exp exp2 log log2 cos sin sqrt sqrt_rn rsqrt abs erf floor "
    "ceil reduce associative_scan gather histogram cdiv sigmoid softmax ravel max argmax min argmin sum xor_sum "
    "reduce_or cumsum cumprod sort flip"
)
TENSOR_METHODS: dict[str, str] = {
    **{name: TL[name].partition(" ")[2] for name in _MEMBERS.split()},
    "to": "dtype fp_downcast_rounding bitcast",
    "item": "",
    "logical_and": "other",
    "logical_or": "other",
}
DESCRIPTOR_METHODS: dict[str, str] = {
    "load": "offsets",
    "store": "offsets value",
    **dict.fromkeys((f"atomic_{name}" for name in _words("add min max and or xor")), "offsets value"),
}
TYPE_METHODS: dict[str, str] = dict.fromkeys(
    _words(
        "is_fp8 is_fp16 is_bf16 is_fp32 is_fp64 is_int1 is_int8 is_int16 is_int32 is_int64 is_uint8 is_uint16 "
        "is_uint32 is_uint64 is_floating is_int is_int_signed is_int_unsigned is_bool"
    ),
    "",
)
METHODS: dict[str, tuple[str, ...]] = {
    name: tuple(table[name] for table in (TENSOR_METHODS, DESCRIPTOR_METHODS, TYPE_METHODS) if name in table)
    for name in {**TENSOR_METHODS, **DESCRIPTOR_METHODS, **TYPE_METHODS}
}
"""Of tensors, descriptors and types: name -> the parameter lists that it may have."""

TENSOR_ATTRIBUTES = frozenset({"T", "dtype", "type", "shape", "numel"})
DESCRIPTOR_ATTRIBUTES = frozenset({"dtype", "block_shape"})
TYPE_ATTRIBUTES = frozenset({"element_ty", "scalar", "primitive_bitwidth", "int_bitwidth", "fp_mantissa_width"})
ATTRIBUTES = TENSOR_ATTRIBUTES | DESCRIPTOR_ATTRIBUTES | TYPE_ATTRIBUTES

_SEM = frozenset({"acquire", "release", "acq_rel", "relaxed"})
OPTIONS: dict[str, frozenset[str]] = {
    "padding_option": frozenset({"", "zero", "nan"}),
    "cache_modifier": frozenset({"", ".ca", ".cg", ".cv", ".cs", ".wb", ".wt"}),
    "eviction_policy": frozenset({"", "evict_first", "evict_last"}),
    "sem": _SEM,
    "scope": frozenset({"cta", "gpu", "sys"}),
    "input_precision": frozenset({"tf32", "tf32x3", "ieee"}),
    "fp_downcast_rounding": frozenset({"rtne", "rtz"}),
}
"""Parameters that take a string, and which."""
MESSAGES = frozenset({"msg"})
"""Parameters that take any short string, kept as it is and never evaluated."""
FLOATS = frozenset(
    sign + word
    for sign in ("", "+", "-")
    for word in ("inf", "infinity", "nan", "Inf", "Infinity", "NaN", "INF", "NAN")
)
"""What `float` takes as a string."""
MATH = {
    "pi": 3.141592653589793,
    "e": 2.718281828459045,
    "tau": 6.283185307179586,
    "inf": float("inf"),
    "nan": float("nan"),
}
"""Numbers of the module `math`."""
STATIC = frozenset(
    _words(
        "axis dtype fp_downcast_rounding bitcast can_reorder dim dims keep_dims return_indices "
        "return_indices_tie_break_left tie_break_left ieee_rounding sanitize_overflow propagate_nan boundary_check "
        "padding_option cache_modifier eviction_policy volatile block_shape order sem scope input_precision allow_tf32 "
        "max_num_imprecise_acc out_dtype reverse descending k num_bins n_rounds values start end element_ty num_stages "
        "loop_unroll_factor disallow_acc_multi_buffer flatten warp_specialize disable_licm"
    )
)
"""Parameters that are known when compiled. The compiler takes any tensor there for true, the interpreter reads it."""
STATIC_SHAPES = frozenset({"tl.full", "tl.zeros", "tl.broadcast_to", "tl.view", "tl.reshape"})
"""Functions whose `shape` is known when compiled; that of a pointer to a block is not."""


class Group(NamedTuple):
    """Names that are refused for one reason."""

    names: frozenset[str]
    why: str
    instead: str


REFUSED_TL = (
    Group(
        frozenset({"inline_asm_elementwise", "dispatch", "extern", "extern_elementwise"}),
        "machine code and libraries in a string run on a GPU only, and nobody can check them without one",
        "Write the computation with functions of triton.language or of libdevice",
    ),
    Group(
        frozenset({"static_print", "device_print"}),
        "what a kernel prints is not part of its result, and it slows the kernel down",
        "Leave the call out",
    ),
    Group(
        frozenset({"map_elementwise", "dot_scaled"}),
        "the interpreter that checks kernels cannot compute it",
        "Write the computation with arithmetic on blocks or tl.dot",
    ),
    Group(
        frozenset(
            _words(
                "tensor dtype block_type tuple_type constexpr_type tuple slice const void pi32_t tensor_descriptor "
                "tensor_descriptor_type TRITON_MAX_TENSOR_NUMEL str_to_ty"
            )
        ),
        "it makes objects of the compiler, which a kernel does not need",
        "Use a type such as tl.float32, or x.dtype, or a tuple in parentheses",
    ),
    Group(
        frozenset({"target_info", "condition"}),
        "a kernel must do the same in the interpreter that checks it and on the GPU that is compiled for",
        "Write the kernel for the GPU that the problem names",
    ),
    Group(
        frozenset({"core", "math", "standard", "semantic", "random", "extra"}),
        "a module is not a value",
        "Call one of its functions",
    ),
    Group(
        frozenset({"range", "static_range"}),
        "it has a meaning only as what a for loop runs over",
        "Write `for i in tl.range(...)`",
    ),
)
"""The other public names of `triton.language`, each with its reason."""


def slots(parameters: list[str], positional: int, named: list[str | None]) -> list[str] | None:
    """The parameters that the positional arguments are for; None where a call does not fit the parameters."""
    star = next((place for place, name in enumerate(parameters) if name.startswith("*")), None)
    if star is None:
        filled = parameters[:positional]
        free = parameters[positional:]
    else:
        filled = parameters[:star] + [parameters[star][1:]] * max(0, positional - star)
        free = [] if parameters[star] == "*args" else parameters[star + 1 :] + parameters[positional:star]
    fits = len(filled) >= positional and len(set(named)) == len(named) and all(name in free for name in named)
    return filled[:positional] if fits else None


def last_name(node: ast.expr | None) -> str:
    """The last name of a dotted one, which may be a string; empty for anything else."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return shown(node.value).strip().rpartition(".")[2]
    return node.id if isinstance(node, ast.Name) else ""


def names_constexpr(annotation: ast.expr | None) -> bool:
    """Whether an annotation says that a value is known when compiled."""
    return last_name(annotation) == "constexpr"


def type_named(annotation: ast.expr | None) -> str:
    """The type of Triton that an annotation names; empty for others, which mean nothing to the compiler."""
    name = last_name(annotation)
    return "const" if name.startswith(("const ", "*k")) else _TYPES_BY_NAME.get(name.replace("_t", ""), "")
