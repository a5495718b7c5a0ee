"""What the operators of a program are, by name: which of them a replay runs, and how much arithmetic they do.

Names are those of `operators.normal_name`, without overload and in-place underscore. What stands in none of the sets is
`unknown` and is never run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Set
from typing import Literal

import numpy as np

from assay.kernels.operators import is_heavy, kind_of, normal_name
from assay.kernels.program.form import DTYPES, Launch, Operation, Program, Value, Window, operations_in, windows_in

Role = Literal["fill", "move", "arithmetic", "random", "heavy", "unknown"]

FILLS = frozenset(
    {
        *("zeros", "zeros_like", "new_zeros", "zero", "fill", "full", "full_like", "new_full", "ones", "ones_like"),
        *("new_ones", "arange", "linspace", "eye", "scalar_tensor", "tril_indices", "triu_indices"),
    }
)
"""Writes what depends on no tensor."""
CONSTANT_FILLS = FILLS - {"arange", "linspace", "eye", "tril_indices", "triu_indices"}
"""Writes one number everywhere."""
MOVES = frozenset(
    {
        *("clone", "_to_copy", "copy", "cat", "stack", "flip", "roll", "repeat", "constant_pad_nd", "tril", "triu"),
        *(
            "_unsafe_view",
            "contiguous",
            "lift_fresh_copy",
            "view_copy",
            "expand_copy",
            "permute_copy",
            "transpose_copy",
        ),
    }
)
"""Takes elements elsewhere, possibly in another dtype."""
COPIES = frozenset({"clone", "_to_copy", "copy", "contiguous", "lift_fresh_copy"})
"""Moves that take each element to its own place."""
RANDOM = frozenset(
    {
        *("uniform", "normal", "normal_functional", "random", "bernoulli", "exponential", "geometric", "log_normal"),
        *("cauchy", "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "multinomial"),
    }
)
"""Draws from the default generator, which the grader seeds."""
ARITHMETIC = frozenset(
    {
        *("add", "sub", "rsub", "mul", "div", "true_divide", "floor_divide", "remainder", "neg", "abs", "reciprocal"),
        *("sqrt", "rsqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "pow", "square", "sin", "cos"),
        *("tan", "tanh", "atan", "sinh", "cosh", "erf", "erfinv", "sigmoid", "relu", "floor", "ceil", "round", "trunc"),
        *("clamp", "clamp_min", "clamp_max", "minimum", "maximum", "where", "eq", "ne", "lt", "le", "gt", "ge"),
        *("logical_and", "logical_or", "logical_not", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_not"),
        *("sum", "mean", "amax", "amin", "prod", "masked_fill", "lerp", "addcmul", "addcdiv", "sign", "fmod"),
        *("__lshift__", "__rshift__", "__and__", "__or__", "__xor__", "isnan", "isinf", "complex", "polar"),
    }
)
"""Pointwise operators and plain reductions."""
HEAVY = frozenset(
    {
        *("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "outer", "convolution", "linalg_qr"),
        *(
            "linalg_vector_norm",
            "norm",
            "linalg_svd",
            "_linalg_svd",
            "linalg_inv_ex",
            "geqrf",
            "linalg_householder_product",
        ),
        *("_softmax", "_log_softmax", "logsumexp", "native_layer_norm", "native_group_norm", "cumsum", "cumprod"),
        *("var", "var_mean", "std", "topk", "sort", "argmax", "argmin", "max", "min", "max_pool2d_with_indices"),
        *("avg_pool2d", "_adaptive_avg_pool2d", "embedding", "gather", "index_select", "index", "silu", "gelu"),
        *("mish", "softplus", "hardtanh", "leaky_relu", "elu", "hardswish", "hardsigmoid", "celu", "diag_embed"),
        *("diagonal_copy", "logspace", "hann_window", "hamming_window", "blackman_window", "bartlett_window"),
        "kaiser_window",
    }
)
"""What does a problem's work, or a step of it, in one call. Run in constructors and where a policy allows it. Batch
norms are left out: PyTorch's do not check the sizes of weights and statistics, and would reach beyond them."""

EXACT = frozenset(
    {
        *("add", "sub", "rsub", "mul", "square", "neg", "abs", "relu", "leaky_relu", "hardtanh", "sign", "where"),
        *("floor", "ceil", "round", "trunc", "clamp", "clamp_min", "clamp_max", "minimum", "maximum", "fmod"),
        *("remainder", "masked_fill", "embedding", "gather", "index_select", "index", "topk", "sort"),
        *("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "amax", "amin", "max", "min", "argmax", "argmin"),
        *("logical_and", "logical_or", "logical_not", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_not"),
        *("__lshift__", "__rshift__", "__and__", "__or__", "__xor__", "max_pool2d_with_indices"),
    }
)
"""Operators whose results every machine has to the last bit, since IEEE 754 has them, or they choose among elements;
sums only without a factor (`alpha`)."""
OF_MANY = HEAVY | {"sum", "mean", "prod"}
"""Operators that add up many numbers, in an order of the machine's."""


_PLACES: Mapping[str, tuple[str, ...]] = {
    **{"mm": ("self", "mat2"), "bmm": ("self", "mat2"), "mv": ("self", "vec"), "dot": ("self", "tensor")},
    **{"outer": ("self", "vec2"), "addmm": ("self", "mat1", "mat2"), "addmv": ("self", "mat", "vec")},
    **{"baddbmm": ("self", "batch1", "batch2"), "addbmm": ("self", "batch1", "batch2")},
    "convolution": (
        "input",
        "weight",
        "bias",
        "stride",
        "padding",
        "dilation",
        "transposed",
        "output_padding",
        "groups",
    ),
}
"""Names of the arguments that may stand without one, of those products and convolutions that are run. The last two of a
product are its factors."""


_STEPS = {"addcmul": 2, "addcdiv": 2, "lerp": 3}
"""Operations for each element, of pointwise operators that make several in one."""


def base_name(operation: Operation) -> str:
    """The operator's name without overload and in-place underscore."""
    return normal_name(operation.name)


def role_of(operation: Operation) -> Role:
    """What kind of operator it is. A fill with what a tensor holds is a move, or not known."""
    name = base_name(operation)
    if name in FILLS:
        if not _reads(operation, name):
            return "fill"
        return "move" if name == "fill" else "unknown"
    for role, names in (("move", MOVES), ("random", RANDOM), ("arithmetic", ARITHMETIC)):
        if name in names:
            return role  # type: ignore[return-value]
    return "heavy" if name in HEAVY else "unknown"


def _reads(operation: Operation, name: str) -> bool:
    """Whether a fill is given a tensor besides the one that it fills, or whose shape it takes."""
    own = 1 if name in ("fill", "zero") or name.endswith("_like") or name.startswith("new_") else 0
    given = (
        *operation.args[own:],
        *(value for key, value in operation.kwargs[max(own - len(operation.args), 0) :] if key != "out"),
    )
    return any(True for value in given for _ in windows_in(value))


def elements_read(operation: Operation) -> tuple[Value, ...]:
    """The arguments whose elements an operation reads: neither what it only writes, nor what says but a shape. Those
    that PyTorch takes by their places stand there in what is recorded, and a replay refuses others."""
    if role_of(operation) in ("fill", "random"):
        return ()
    named = (value for name, value in operation.kwargs if name != "out")
    return (*operation.args[base_name(operation) in ("copy", "fill") :], *named)


def moved_bytes(operation: Operation) -> int:
    """Bytes that a move writes."""
    return sum(out.nbytes for out in operation.outs) if role_of(operation) == "move" else 0


def rearranges(operation: Operation) -> bool:
    """Whether an operator writes elements to other places of a storage (offset, strides) than it reads them from: many
    such copies can put elements in any order."""
    if role_of(operation) != "move":
        return False
    if base_name(operation) not in COPIES:
        return True
    read = [window for value in operation.values for window in windows_in(value)]
    return not read or len({places_of(window) for window in (*read, *operation.outs)}) > 1


def casts(operation: Operation) -> bool:
    """Whether a move makes another dtype of what it reads."""
    read = [window for value in elements_read(operation) for window in windows_in(value)]
    return role_of(operation) == "move" and any(one.dtype != out.dtype for one in read for out in operation.outs)


def places_of(window: Window) -> tuple[int, tuple[tuple[int, int], ...]]:
    """Which elements of its storage a window shows, in their order."""
    extents = zip(window.size, window.stride, strict=True)
    return window.offset, tuple((size, stride if size > 1 else 0) for size, stride in extents)


def arithmetic_of(operation: Operation) -> int:
    """Arithmetic operations of an operator, from the shapes of what goes in and comes out; a multiply-add is two.

    A range with steps that are no whole numbers makes a product and a sum for each; a reduction of n elements to m
    makes n - m; a pointwise operator one for each element of its largest tensor. So does a cast of fractions to whole
    numbers, which rounds, of anything to truth values, which compares, and of whole numbers to few bits, which wraps;
    and so does what keeps one side of a diagonal.
    """
    role = role_of(operation)
    if role == "fill" and _has_steps(operation):
        return 2 * sum(map(_lanes, operation.outs))
    if role in ("fill", "random"):
        return 0
    inputs = [window for value in operation.values for window in windows_in(value)]
    if role == "move":
        chooses = base_name(operation) in ("tril", "triu")
        rounds = any(is_fraction(window) for window in inputs)
        tells = any(window.dtype != "bool" for window in inputs)
        return sum(
            max(out.elements, *(_lanes(window) for window in inputs)) if out.dtype == "bool" else out.elements
            for out in operation.outs
            if chooses
            or (tells and out.dtype == "bool")
            or (rounds and not is_fraction(out))
            or any(_wraps(window, out) for window in inputs)
        )
    made = sum(out.elements for out in operation.outs)
    largest = max((_lanes(window) for window in (*inputs, *operation.outs)), default=0)
    made = max(made, sum(_lanes(out) for out in operation.outs))
    kind = kind_of(base_name(operation))
    if kind == "product":
        return max(2 * made * _contracted(operation), largest)
    if kind == "convolution":
        return max(2 * _taps(operation, made), largest)
    if kind == "reduction":
        return max(largest - made, made)
    if kind == "linalg":
        return max((2 * window.elements * max(window.size[-2:], default=1) for window in inputs), default=largest)
    if kind == "pooling":
        return max(made * _pooled(operation), largest)
    return largest * (4 if is_heavy(base_name(operation)) else _steps(operation))


def _wraps(window: Window, out: Window) -> bool:
    """Whether whole numbers are cast to a type of less than 32 bits that does not hold all of theirs. A replay sees to
    it that 32 bits hold what is cast to them, as indices are."""
    if is_fraction(window) or is_fraction(out) or "bool" in (window.dtype, out.dtype) or window.dtype == out.dtype:
        return False
    unsigned = out.dtype.startswith("u") and not window.dtype.startswith("u")
    return DTYPES[out.dtype] < 4 and (unsigned or DTYPES[out.dtype] <= DTYPES[window.dtype])


def wide_casts(operation: Operation) -> list[tuple[Window, Window]]:
    """What is read and written by a cast of whole numbers to a type of 32 or 64 bits that does not hold all of them."""
    read = [window for value in elements_read(operation) for window in windows_in(value)]
    if role_of(operation) != "move":
        return []
    return [(one, out) for one in read for out in operation.outs if _narrows(one, out)]


def _narrows(window: Window, out: Window) -> bool:
    whole = not (is_fraction(window) or is_fraction(out) or "bool" in (window.dtype, out.dtype))
    return whole and DTYPES[out.dtype] >= 4 and not np.can_cast(window.dtype, out.dtype)


def _has_steps(operation: Operation) -> bool:
    """Whether it is a range of which each number is made by a multiplication of its own."""
    name = base_name(operation)
    whole = all(float(value).is_integer() for value in operation.values if isinstance(value, int | float))
    return any(map(is_fraction, operation.outs)) and (name == "linspace" or (name == "arange" and not whole))


def _steps(operation: Operation) -> int:
    """Operations of a pointwise operator for each element."""
    name = base_name(operation)
    factor = "value" if name in ("addcmul", "addcdiv") else "alpha"
    factors = [value for given, value in operation.kwargs if given == factor]
    if name in ("add", "sub", "rsub"):
        factors += operation.args[2:]
    return _STEPS.get(name, 1) + sum(factor != 1 for factor in factors)


def is_fraction(window: Window) -> bool:
    """Whether a window shows fractions, or pairs of them."""
    return "float" in window.dtype or "complex" in window.dtype


def _lanes(window: Window) -> int:
    """Elements, counted as the four bytes of a float32: wider ones, shown of narrower data, would do more at once."""
    return window.elements * max(1, DTYPES[window.dtype] // 4) * (4 if window.dtype.startswith("complex") else 1)


def _given(operation: Operation) -> dict[str, Value]:
    """The arguments of a product or convolution by their names, wherever they stand."""
    return {**dict(zip(_PLACES.get(base_name(operation), ()), operation.args, strict=False)), **dict(operation.kwargs)}


def _contracted(operation: Operation) -> int:
    """Numbers that a product sums for each of its results: the last dimension of the left factor, and the batch where
    it is summed over too."""
    name = base_name(operation)
    if name == "outer":
        return 1
    given = _given(operation)
    left = given.get(_PLACES[name][-2]) if name in _PLACES else None
    if not isinstance(left, Window) or not left.size:
        return max(
            (extent for value in operation.values for window in windows_in(value) for extent in window.size), default=1
        )
    return left.size[-1] * (left.size[0] if name == "addbmm" else 1)


def _pooled(operation: Operation) -> int:
    """Elements that each result of a pooling is made of."""
    extents = operation.args[1] if len(operation.args) > 1 else dict(operation.kwargs).get("kernel_size")
    if base_name(operation).startswith("_adaptive") or not isinstance(extents, tuple):
        return 1
    sizes = [extent for extent in extents if isinstance(extent, int)]
    return math.prod(sizes) ** (2 if len(sizes) == 1 else 1)


def _taps(operation: Operation, made: int) -> int:
    """Multiply-adds of a convolution: each result sees the weights of a filter, and in a transposed one each element of
    the input is spread by them."""
    given = _given(operation)
    taken, weight = given.get("input"), given.get("weight")
    if not isinstance(taken, Window) or not isinstance(weight, Window):
        return made
    return (_lanes(taken) if given.get("transposed") else made) * math.prod(weight.size[1:])


def dtypes_of(program: Program) -> dict[int, set[str]]:
    """Of each storage the dtypes under which it is given, written, handed to kernels or returned."""
    found: dict[int, set[str]] = {}
    held = (window for _, window in (*program.params, *program.buffers))
    handed = (window for step in program.steps if isinstance(step, Launch) for window in _handed(step))
    made = (each for each in operations_in(program.steps, tuning=True) if not _keeps_places(each))
    written = (out for operation in made for out in operation.outs)
    for window in (*program.inputs, *program.init_inputs, *program.outputs, *held, *handed, *written):
        found.setdefault(window.storage, set()).add(window.dtype)
    return found


def _handed(launch: Launch) -> Iterator[Window]:
    for variant in launch.variants:
        for _, value in variant.args:
            yield from windows_in(value)


def regrouped(operation: Operation, dtypes: Mapping[int, Set[str]]) -> int:
    """Elements that a move takes for other numbers than they are elsewhere: bytes of wider ones, the bits of fractions.
    That shifts, masks and joins, which is arithmetic. Complex numbers are pairs, and truth values bytes."""
    if role_of(operation) != "move" or _keeps_places(operation):
        return 0
    read = [window for value in operation.values for window in windows_in(value)]
    other = any(
        _unlike(window.dtype, dtype) for window in (*read, *operation.outs) for dtype in dtypes.get(window.storage, ())
    )
    return max((window.elements for window in (*read, *operation.outs)), default=0) if other else 0


def _keeps_places(operation: Operation) -> bool:
    """Whether an operator copies bytes to the places that they had, as a move to another device does."""
    read = [window for value in elements_read(operation) for window in windows_in(value)]
    forms = {(each.dtype, each.size, each.stride, each.offset) for each in (*read, *operation.outs)}
    return base_name(operation) in COPIES and bool(read) and len(forms) == 1


def _unlike(one: str, other: str) -> bool:
    if "complex" in one or "complex" in other or {one, other} <= {"bool", "uint8"}:
        return False
    return one != other


def reference_arithmetic(work: Mapping[str, tuple[int, int]]) -> int:
    """Arithmetic operations of a reference, from what was traced of it (operator -> calls, work): its products count
    multiply-adds, which are two each."""
    doubled = ("product", "convolution", "attention", "recurrent")
    return sum(amount * (2 if kind_of(name) in doubled else 1) for name, (_, amount) in work.items())
