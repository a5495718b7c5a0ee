"""The rules with numbers, each at its limit and one past it."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import pytest
import torch

from assay.kernels.operators import HEAVY as HEAVY_KINDS
from assay.kernels.operators import kind_of
from assay.kernels.program import rules
from assay.kernels.program.form import Operation, Program, literal_bytes
from assay.kernels.program.judging import arithmetic, reductions
from assay.kernels.program.operations import (
    _PLACES,
    ARITHMETIC,
    FILLS,
    HEAVY,
    MOVES,
    RANDOM,
    arithmetic_of,
    base_name,
    reference_arithmetic,
    role_of,
)
from support.programs import N, launch, made, operation, window


def forward(*operations: dict[str, Any], **changes: Any) -> Program:
    return made(forward=[*operations, launch()], **changes)


def added(line: int = 7) -> dict[str, Any]:
    return operation("add.Tensor", window(0), window(0), outs=(window(0),), line=line)


def told(program: Program, reference: int = 10**6) -> set[str]:
    return {finding.rule for finding in rules.static_findings(program, reference)}


def test_a_kernel_by_itself_breaks_no_rule() -> None:
    assert rules.static_findings(made(), 1) == []


def test_arithmetic_up_to_its_share() -> None:
    program = forward(added(line=21))
    assert not arithmetic.host_arithmetic(program, 50 * N)
    (finding,) = arithmetic.host_arithmetic(program, 50 * N - 1)
    assert finding.refused and finding.line == 21 and "add" in finding.message


def test_arithmetic_up_to_its_number() -> None:
    most = arithmetic.MAX_ARITHMETIC_OPERATIONS
    assert not arithmetic.host_arithmetic(forward(*[added()] * most), 10**9)
    assert arithmetic.host_arithmetic(forward(*[added()] * (most + 1)), 10**9)


def test_arithmetic_at_import_and_in_hooks_counts() -> None:
    assert arithmetic.host_arithmetic(made(module=[added()]), 1)
    hooked = launch()
    hooked["variants"][0]["before"] = [added()]
    assert arithmetic.host_arithmetic(made(forward=[hooked]), 1)


M = 1024
INPUT, PART, HALF = window(0, (M,)), window(3, (M // 8,)), window(3, (M // 2,))


def part(place: int, size: int = M // 8) -> list[Any]:
    return window(0, (size,), offset=place * size)


def added_up(step: str, read: list[Any], out: list[Any]) -> dict[str, Any]:
    return operation(step, read, outs=(out,))


SLICES = [operation("add.Tensor", PART, part(place), outs=(PART,)) for place in range(8)]
COPY = window(4, (M // 8,))
ADDED = operation("add.Tensor", PART, COPY, outs=(PART,))
COPIES = [each for place in range(8) for each in (added_up("clone.default", part(place), COPY), ADDED)]
BY_HALVES = [
    operation("add.Tensor", part(0, M // 2), part(1, M // 2), outs=(HALF,)),
    operation("add.Tensor", window(3, (M // 4,)), window(3, (M // 4,), offset=M // 4), outs=(window(4, (M // 4,)),)),
    operation("add.Tensor", window(4, (M // 8,)), window(4, (M // 8,), offset=M // 8), outs=(PART,)),
]
SPREAD = [
    operation(
        "add.Tensor",
        [0, "float32", [4, 4, 128], [128, 0, 1], 0],
        [0, "float32", [4, 4, 128], [0, 128, 1], 512],
        outs=(window(3, (4, 4, 128)),),
    )
]
GATED = [
    added_up("sigmoid.default", INPUT, window(3, (M,))),
    operation("mul.Tensor", INPUT, window(3, (M,)), outs=(window(4, (M,)),)),
]
REDUCED: dict[str, tuple[list[dict[str, Any]], int]] = {
    "a sum": ([added_up("sum.default", INPUT, window(3, (1,)))], M - 1),
    "a sum of a copy": (
        [added_up("clone.default", INPUT, window(3, (M,))), added_up("sum.default", window(3, (M,)), window(4, (1,)))],
        M - 1,
    ),
    "a sum of slices": (SLICES, M - M // 8),
    "a sum of copies of slices": (COPIES, M - M // 8),
    "halves of halves": (BY_HALVES, M // 2 + M // 4 + M // 8),
    "sums of all pairs": (SPREAD, 2 * M),
    "a gate": ([operation("mul.Tensor", part(0, M // 2), part(1, M // 2), outs=(HALF,))], M // 2),
    "a square": ([operation("mul.Tensor", INPUT, INPUT, outs=(window(3, (M,)),))], 0),
    "a function, and a product with it": (GATED, 0),
    "a bias": ([operation("add.Tensor", INPUT, window(2, (M,)), outs=(window(3, (M,)),))], 0),
    "a sum of what kernels wrote": ([added_up("sum.default", window(1, (M,)), window(3, (1,)))], 0),
    "a move": ([added_up("clone.default", part(0), PART)], 0),
}  # fmt: skip
OF_WEIGHTS = [added_up("sum.default", window(2, (M,)), window(3, (1,)))]


def summing(*steps: dict[str, Any], output: int = M) -> Program:
    return made(
        storages=[4 * M] * 3 + [8 * M] * 2,
        inputs=[INPUT],
        outputs=[window(1, (output,))],
        params=[["scale", window(2, (M,))]],
        init=[operation("uniform_.default", window(2, (M,)), outs=(window(2, (M,)),))],
        forward=[launch(), *steps],
    )


@pytest.mark.parametrize("what", REDUCED)
def test_what_pytorch_puts_together_of_what_no_kernel_wrote(what: str) -> None:
    steps, pairs = REDUCED[what]
    program = summing(*steps)
    assert sum(each.pairs for each in reductions.reductions(program)) == pairs
    assert bool(reductions.host_reductions(program, None)) == (pairs > M)
    assert bool(reductions.host_reductions(summing(*steps, output=1), None)) == (pairs > M // 2)


def test_what_pytorch_puts_together_of_weights_is_held_against_the_references() -> None:
    program = summing(*OF_WEIGHTS)
    assert not reductions.host_reductions(program, 2 * M - 2) and not reductions.host_reductions(program, None)
    (finding,) = reductions.host_reductions(program, 2 * M - 4)
    assert "weights" in finding.message and finding.rule == "arithmetic"


def test_a_workspace_of_the_constructor_is_no_weight() -> None:
    step = operation("sum.default", window(3, (M,)), outs=(window(4, (1,)),))
    init = [operation("empty.memory_format", [M], outs=(window(3, (M,)),))]
    program = made(storages=[4 * N] * 3 + [4 * M] * 2, init=init, forward=[launch(), step])
    assert not list(reductions.reductions(program))


def test_arithmetic_of_the_constructor_is_not_that_of_forward() -> None:
    assert not arithmetic.host_arithmetic(made(init=[added()]), 1)


@pytest.mark.parametrize(
    ("name", "inputs", "out", "expected"),
    [
        ("add.Tensor", [(4, 6), (6,)], (4, 6), 24),
        ("sum.dim_IntList", [(4, 6)], (6,), 18),
        ("mm.default", [(4, 6), (6, 2)], (4, 2), 2 * 4 * 2 * 6),
        ("addmm.default", [(2,), (4, 6), (6, 2)], (4, 2), 2 * 4 * 2 * 6),
        ("mv.default", [(4, 6), (6,)], (4,), 2 * 4 * 6),
        ("addbmm.default", [(4, 2), (3, 4, 6), (3, 6, 2)], (4, 2), 2 * 4 * 2 * 6 * 3),
        ("outer.default", [(4,), (6,)], (4, 6), 2 * 24),
        ("convolution.default", [(1, 2, 4, 4), (2, 2, 3, 3)], (1, 2, 2, 2), 2 * 8 * 18),
        ("clone.default", [(4, 6)], (4, 6), 0),
        ("_to_copy.default", [(4, 6)], (4, 6), 0),
        ("zeros.default", [], (4, 6), 0),
    ],
)
def test_arithmetic_from_shapes(name: str, inputs: list[Any], out: Any, expected: int) -> None:
    step = operation(name, *[window(0, size) for size in inputs], outs=(window(1, out),))
    program = made(storages=[1000, 1000, 1000], inputs=[], forward=[step, launch()])
    assert arithmetic_of(program.forward[0]) == expected  # type: ignore[arg-type]


def priced(name: str, *args: Any, out: tuple[int, ...], **kwargs: Any) -> int:
    step = operation(name, *args, outs=(window(1, out),), **kwargs)
    program = made(storages=[1000, 1000, 1000], inputs=[], forward=[step, launch()])
    return arithmetic_of(program.forward[0])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "more", "each"),
    [
        ("addcmul.default", {}, 2),
        ("addcmul.default", {"value": 0.5}, 3),
        ("addcdiv.default", {}, 2),
        ("lerp.Tensor", {}, 3),
        ("add.Tensor", {"alpha": 2}, 2),
        ("add.Tensor", {"alpha": 1}, 1),
    ],
)
def test_operators_that_multiply_and_add_do_more_than_one_operation(name: str, more: Any, each: int) -> None:
    operands = [window(0, (4, 6))] * (2 if name == "add.Tensor" else 3)
    assert priced(name, *operands, out=(4, 6), **more) == each * 24


def named(size: tuple[int, ...], storage: int = 0) -> dict[str, Any]:
    return {"window": window(storage, size)}


def test_factors_are_known_by_their_names() -> None:
    image, filters = named((1, 2, 4, 4)), named((2, 2, 3, 3))
    given = {"bias": None, "stride": [1, 1], "transposed": False, "groups": 1}
    for order in ({"weight": filters, **given, "input": image}, {**given, "input": image, "weight": filters}):
        assert priced("convolution.default", out=(1, 2, 2, 2), **order) == 2 * 8 * 18
    assert priced("mm.out", window(0, (4, 6)), window(0, (6, 2)), out=(4, 2)) == 2 * 4 * 2 * 6
    step = operation("mm.out", window(0, (4, 6)), window(0, (6, 2)), outs=(window(1, (4, 2)),), out=named((4, 2), 1))
    program = made(storages=[1000, 1000, 1000], inputs=[], forward=[step, launch()])
    assert arithmetic_of(program.forward[0]) == 2 * 4 * 2 * 6  # type: ignore[arg-type]
    assert priced("mm.default", out=(4, 2), mat2=named((6, 2)), self=named((4, 6))) == 2 * 4 * 2 * 6


def test_a_transposed_convolution_spreads_each_element_of_its_input() -> None:
    image, filters = window(0, (1, 6, 5)), window(0, (6, 1, 1))
    for transposed, expected in ((True, 2 * 30), (False, 2 * 10)):
        args = (image, filters, None, [1], [0], [1], transposed, [0], 2)
        assert priced("convolution.default", *args, out=(1, 2, 5)) == max(expected, 30)


def test_names_of_arguments_are_those_of_pytorch() -> None:
    for name, places in _PLACES.items():
        schema = getattr(torch.ops.aten, name).default._schema
        assert [argument.name for argument in schema.arguments][: len(places)] == list(places), name
        assert role_of(Operation(name, (), (), (), 0)) == "heavy"
    products = {name for name in HEAVY if kind_of(name) in ("product", "convolution")}
    assert products == set(_PLACES)


@pytest.mark.parametrize(
    ("name", "args", "dtype", "expected"),
    [
        ("arange.start_step", (0, 3, 1), "float32", 0),
        ("arange.start_step", (0, 1.5, 0.5), "float32", 6),
        ("arange.start_step", (0.5, 3.5, 1), "float32", 6),
        ("arange.start_step", (0, 1.5, 0.5), "int64", 0),
        ("linspace.default", (0, 1, 3), "float32", 6),
    ],
)
def test_ranges_of_fractions_are_arithmetic(name: str, args: Any, dtype: str, expected: int) -> None:
    step = operation(name, *args, outs=(window(2, (3,), dtype),))
    assert arithmetic_of(forward(step).forward[0]) == expected  # type: ignore[arg-type]


def test_casts_to_whole_numbers_are_arithmetic() -> None:
    for dtype, expected in (("int32", N), ("bool", N), ("float16", 0)):
        step = operation("_to_copy.default", window(0), outs=(window(2, dtype=dtype),), dtype={"dtype": dtype})
        assert arithmetic_of(forward(step).forward[0]) == expected  # type: ignore[arg-type]


def cast(read: Any, to: str, place: int) -> Any:
    return operation("_to_copy.default", read, outs=(window(place, dtype=to),), dtype={"dtype": to})


@pytest.mark.parametrize(
    ("kinds", "rounds"),
    [
        (("float16", "float32"), True),
        (("bfloat16", "bfloat16", "float32"), True),
        (("float16",), False),
        (("float64", "float64"), False),
        (("float16", "bfloat16"), False),
    ],
    ids=["there and back", "copied between", "narrow alone", "wide", "as narrow"],
)
def test_casts_there_and_back_round(kinds: tuple[str, ...], rounds: bool) -> None:
    taken, steps = window(0), []
    for place, kind in enumerate(kinds, start=3):
        steps.append(cast(taken, kind, place))
        taken = window(place, dtype=kind)
    program = forward(*steps, storages=[4 * N] * 3 + [8 * N] * len(kinds))
    assert bool(rules.host_arithmetic(program, 2 * N)) == rounds and not rules.host_arithmetic(program, 100 * N)


def test_what_a_kernel_wrote_and_another_reads_is_cast_by_kernels() -> None:
    cast_ = cast(window(1), "float16", 3)
    copied = operation("clone.default", window(1), outs=(window(4),))
    after = launch(x={"window": window(3, dtype="float16")}, y={"window": window(4)}, n=N, BLOCK=4)
    storages = [4 * N] * 3 + [2 * N, 4 * N]
    through = cast(window(4), "float16", 3)
    for steps, rounds in (
        ([launch(), cast_, after], True),
        ([launch(), copied, through, after], True),
        ([launch(), cast_], False),
        ([cast_, after], False),
        ([launch(), copied, after], False),
    ):
        program = made(forward=[*steps, launch()], storages=storages)
        assert bool(rules.host_arithmetic(program, 2 * N)) == rounds, steps


def test_the_reference_counts_a_multiply_add_as_two() -> None:
    assert reference_arithmetic({"mm": (1, 100), "relu": (2, 30), "view": (4, 0)}) == 230


def test_moves_up_to_the_bytes_of_inputs_and_outputs() -> None:
    copied = operation("clone.default", window(0), outs=(window(2),))
    assert not rules.moves(forward(copied, copied))
    (finding,) = rules.moves(forward(copied, copied, copied))
    assert finding.refused and finding.line == 7


def test_each_parameter_may_be_moved_once_beside_them() -> None:
    of_input = operation("clone.default", window(0), outs=(window(1),))
    of_parameter = operation("clone.default", window(2), outs=(window(1),))
    assert not rules.moves(forward(of_input, of_input, of_parameter))
    assert rules.moves(forward(of_input, of_input, of_parameter, of_parameter))
    assert rules.moves(forward(of_input, of_input, of_input)), "a parameter that is not moved allows nothing"
    both = operation("cat.default", [{"window": window(0)}, {"window": window(2)}], outs=(window(1),))
    assert rules.moves(forward(of_input, of_input, both))
    cleared = operation("zero_.default", window(2), outs=(window(2),))
    assert rules.moves(forward(of_input, of_input, of_parameter, cleared)), (
        "what forward writes is memory like any other"
    )
    one_number = made(params=[["w", window(2, (1,))]], forward=[of_input, of_input, of_parameter, launch()])
    assert rules.moves(one_number), "of a storage only what the parameter shows"
    forged = made(params=[["x", window(0)]], forward=[of_input, of_input, of_input, launch()])
    assert rules.moves(forged), "an input is no parameter"


def test_arithmetic_beside_kernels() -> None:
    few, many = forward(*[added()] * (arithmetic.MAX_ARITHMETIC_OPERATIONS // N)), forward(*[added()] * 20)
    assert not arithmetic.beside_kernels(few, 0) and arithmetic.kernel_share(few, 0) == 1.0
    assert not arithmetic.beside_kernels(many, 10 * 20 * N)
    (finding,) = arithmetic.beside_kernels(many, 10 * 20 * N - 10)
    assert finding.refused and finding.rule == "arithmetic" and finding.line == 7
    assert not arithmetic.beside_kernels(many, 20 * N, "partial") and arithmetic.kernel_share(many, 20 * N) == 0.5
    assert arithmetic.beside_kernels(many, 20 * N - 1, "partial")


def test_where_the_reference_only_moves_elements_pytorch_moves_none() -> None:
    turned = [2, "float32", [N // 2, 2], [1, N // 2], 0]
    same = operation("clone.default", window(0), outs=(window(2),))
    transposed = operation("copy_.default", window(2, (N // 2, 2)), {"window": turned}, outs=(window(2, (N // 2, 2)),))
    flipped = operation("flip.default", window(0), [0], outs=(window(2),))
    half, other = window(2, (N // 2,)), window(2, (N // 2,), offset=N // 2)
    shifted = operation("copy_.default", other, half, outs=(other,))
    named = operation("copy_.default", other, outs=(other,), src={"window": half})
    in_place = operation("copy_.default", half, window(0, (N // 2,)), outs=(half,))
    cast = operation("_to_copy.default", window(0), outs=(window(2, dtype="float16"),), dtype={"dtype": "float16"})
    cleared = operation("zero_.default", half, outs=(half,))
    whole = operation("zero_.default", window(2), outs=(window(2),))
    for step in (same, whole):
        assert not rules.rearrangement(forward(step))
    for step in (transposed, flipped, shifted, named, in_place, cast, cleared):
        assert rules.rearrangement(forward(step))[0].refused
        assert any(found.rule == "moves" for found in rules.static_findings(forward(step), 0))
        found = rules.static_findings(forward(step), 10**6, rearranged=True)
        assert any(each.rule == "moves" for each in found)
        assert not rules.static_findings(forward(step), 10**6)


def test_outputs_that_only_have_elements_of_inputs_are_moved_by_kernels() -> None:
    flipped = operation("flip.default", window(0), [0], outs=(window(2),))
    small = operation("flip.default", window(0, (N // 4,)), [0], outs=(window(2, (N // 4,)),))
    same = operation("clone.default", window(0), outs=(window(2),))
    for steps, moved in (((flipped,), True), ((small,), False), ((small, small), True), ((same,), False)):
        found = rules.static_findings(forward(*steps), 10**6, moved_outputs=(0,))
        assert [each.rule for each in found] == ["moves"] * moved
    assert not rules.static_findings(forward(flipped), 10**6, moved_outputs=())
    empty = replace(forward(same), outputs=(replace(forward(same).outputs[0], size=(0,)),))
    assert not rules.rearranged_outputs(empty, (0,)), "an output without elements has nothing to move"


@pytest.mark.parametrize(
    ("read", "made", "counted"), [("uint8", "uint8", 4 * N), ("int32", "int32", N), ("float32", "float32", 0)]
)
def test_moves_that_take_memory_for_other_numbers_are_arithmetic(read: str, made: str, counted: int) -> None:
    size = (4 * N,) if read == "uint8" else (N,)
    step = operation("flip.default", window(0, size, read), [0], outs=(window(1, size, made),))
    total = arithmetic.arithmetic_share(forward(step), 1)
    assert total == counted and bool(arithmetic.host_arithmetic(forward(step), 0)) == bool(counted)
    copied = operation("clone.default", window(0, size, read), outs=(window(1, size, made),))
    assert arithmetic.arithmetic_share(forward(copied), 1) == 0, (
        "bytes at the places that they had are the same numbers"
    )


@pytest.mark.parametrize(
    ("name", "extents", "expected"),
    [("avg_pool2d.default", [3], 9 * 16), ("avg_pool2d.default", [3, 5], 15 * 16), ("avg_pool2d.default", [1], 64)],
)
def test_pooling_takes_as_many_operations_as_its_windows_have_elements(
    name: str, extents: list[int], expected: int
) -> None:
    assert priced(name, window(0, (1, 8, 8)), extents, out=(1, 4, 4)) == expected


def test_wide_elements_count_as_the_narrow_ones_that_they_hold() -> None:
    step = operation("add.Tensor", window(0, (4,), "int64"), window(0, (4,), "int64"), outs=(window(0, (4,), "int64"),))
    assert arithmetic_of(forward(step).forward[0]) == 8  # type: ignore[arg-type]


@pytest.mark.parametrize(("source", "operations"), [("float32", 1), ("int32", 1), ("int64", 2), ("bool", 0)])
def test_a_cast_to_truth_values_compares(source: str, operations: int) -> None:
    half = (N // 2,)
    out = window(1, half, "bool")
    step = operation("_to_copy.default", window(0, half, source), outs=(out,), dtype={"dtype": "bool"})
    assert arithmetic_of(forward(step).forward[0]) == operations * N // 2  # type: ignore[arg-type]


def test_literals_up_to_their_bytes() -> None:
    empty = literal_bytes(made())
    left = rules.MAX_LITERAL_BYTES - empty
    for size, refused in ((left, False), (left + 1, True)):
        constant = [[3, base64.b64encode(bytes(size)).decode()]]
        program = made(storages=[32, 32, 32, size], constants=constant)
        assert bool(rules.constants(program)) is refused


def test_numbers_count_as_literals_wherever_they_are() -> None:
    step = operation("add.Tensor", window(0), 1.5, outs=(window(0),))
    base = literal_bytes(made())
    assert literal_bytes(forward(step)) == base + 8
    assert literal_bytes(made(init=[step])) > base - 16


def test_numbers_of_descriptors_count_and_those_of_windows_do_not() -> None:
    described = {"descriptor": [window(0, (2, 4)), [2, 4], [4, 1], [2, 4], "zero"]}
    base = literal_bytes(made(forward=[launch(x={"window": window(0)}, n=1)]))
    assert literal_bytes(made(forward=[launch(x=described, n=1)])) == base + 6 * 8


def folding(times: int) -> Program:
    """A constructor that adds to the weights, N operations at a time; forward reads the sum."""
    step = operation("add.Tensor", window(2), window(2), outs=(window(3),))
    return made(
        storages=[4 * N] * 4,
        init=[operation("uniform_.default", window(2), outs=(window(2),)), *[step] * times],
        forward=[launch(x={"window": window(0)}, y={"window": window(1)}, w={"window": window(3)})],
    )


def test_work_of_the_constructor_up_to_the_references_and_a_little() -> None:
    most = rules.MAX_FOLDED // N
    assert not rules.constructor(folding(most), 10**9, 0)
    assert not rules.constructor(folding(most + 2), 10**9, 2 * N)
    (finding,) = rules.constructor(folding(most + 2), 10**9, 2 * N - 1)
    assert finding.refused and finding.line == 7 and "add" in finding.message
    (told,) = rules.constructor(folding(most + 2), 10**9, 0, refused=False)
    assert not told.refused


def test_what_made_a_weight_that_is_set_anew_pays_for_nothing_else() -> None:
    draws = [operation("uniform_.default", window(place), outs=(window(place),)) for place in (2, 4)]
    table = [operation("mul.Tensor", window(4), window(4), outs=(window(4),))] * 20
    folded = [operation("add.Tensor", window(2), window(2), outs=(window(3),))] * (rules.MAX_FOLDED // N + 10)
    given = {name: {"window": window(place)} for name, place in (("x", 0), ("y", 1), ("w", 3), ("table", 4))}

    def constructed(*steps: dict[str, Any]) -> Program:
        named = [["table", window(4)]]
        return made(storages=[4 * N] * 5, init=[*draws, *steps], forward=[launch(**given)], params=named)

    assert not rules.constructor(constructed(*table, *folded), 10**9, 30 * N)
    assert not rules.constructor(constructed(*table), 10**9, 20 * N, frozenset({4}))
    assert rules.constructor(constructed(*table, *folded), 10**9, 20 * N, frozenset({4}))


def test_the_little_is_no_more_than_forward_may_do() -> None:
    assert not rules.constructor(folding(1), 50 * N, 0)
    assert rules.constructor(folding(1), 50 * N - 1, 0)


def test_partial_solutions_may_do_half_of_the_work() -> None:
    product = operation("mm.default", window(0, (2, 2)), window(2, (2, 2)), outs=(window(1, (2, 2)),))
    program = forward(product)
    assert arithmetic.arithmetic_share(program, 32) == 0.5
    assert not any(found.refused for found in rules.static_findings(program, 32, "partial"))
    assert any(found.rule == "arithmetic" for found in rules.static_findings(program, 31, "partial"))
    assert {found.rule for found in rules.static_findings(program, 32)} >= {"operators", "arithmetic"}


def test_operators_that_are_not_run() -> None:
    for name in (
        "set_.source_Tensor",
        "from_file.default",
        "mine::product_.default",
        "mkldnn::_linear_pointwise.default",
    ):
        assert rules.operators(forward(operation(name, outs=())))
        step = rules.not_run(made(init=[operation(name, outs=())]))
        assert step is not None and step.name == name


def test_heavy_operators_of_forward() -> None:
    step = operation("mm.default", window(0, (2, 2)), window(2, (2, 2)), outs=(window(1, (2, 2)),))
    (finding,) = rules.heavy_operators(forward(step))
    assert finding.refused and finding.rule == "operators"


def test_random_numbers_belong_to_the_constructor() -> None:
    step = operation("uniform_.default", window(2), outs=(window(2),))
    assert rules.operators(forward(step)) and rules.operators(made(module=[step]))
    assert not rules.operators(made(init=[step]))


def test_calls_that_differ() -> None:
    assert told(made(differs="launch 1 differs")) == {"calls"}


def test_forward_must_launch() -> None:
    assert told(made(forward=[])) == {"kernels"}


def test_outputs_that_no_kernel_wrote() -> None:
    assert not rules.outputs_written(made(), [0])
    assert rules.outputs_written(made(), [1])[0].refused


def test_kernels_that_change_nothing() -> None:
    assert not rules.kernels_matter(made(), {0: True})
    (finding,) = rules.kernels_matter(made(), {0: False})
    assert finding.refused and "double" in finding.message


def race(elements: int, lost: int = 0, line: int = 9) -> dict[str, object]:
    return {"kernel": "double", "line": line, "elements": elements, "lost": lost}


def test_races_without_loss_are_told() -> None:
    (finding,) = rules.races([race(3)])
    assert not finding.refused and "double meet" in finding.message
    assert rules.races([race(4095)]) == [finding], "a kernel may make the number of secret inputs"


@pytest.mark.parametrize("found", [[race(9), race(3, 2)], [race(3, 2), race(9)], [race(3, 2), race(1, 1)]])
def test_a_race_that_loses_is_refused_in_whatever_call_it_was_seen(found: list[dict[str, object]]) -> None:
    (finding,) = rules.races(found)
    assert finding.refused and finding.line == 9 and "double" in finding.message and " 2 elements" in finding.message
    assert [one.line for one in rules.races([*found, race(1, line=11)])] == [9, 11]


def test_the_lists_agree_with_the_kinds_of_operators() -> None:
    """No list names an operator that does a kernel's work and calls it light."""
    assert not {name for name in FILLS | MOVES | RANDOM | ARITHMETIC if kind_of(name) in HEAVY_KINDS}
    assert not HEAVY & (FILLS | MOVES | RANDOM | ARITHMETIC)
    program = made(init=[operation("uniform_.default", window(2), outs=(window(2),))])
    assert base_name(program.init[0]) == "uniform" and role_of(program.init[0]) == "random"  # type: ignore[arg-type]


def test_fills_with_what_a_tensor_holds() -> None:
    """`fill_` of a tensor moves and rounds, `linspace` of tensors computes; a shape or a number does neither."""
    filled = operation("fill_.Tensor", window(1), window(0, (1,)), outs=(window(1),))
    assert role_of(forward(filled).forward[0]) == "move"  # type: ignore[arg-type]
    assert any(found.rule == "moves" for found in rules.rearrangement(forward(filled)))
    ends = operation("linspace.Tensor_Tensor", window(0, (1,)), window(2, (1,)), 8, outs=(window(1),))
    assert role_of(forward(ends).forward[0]) == "unknown"  # type: ignore[arg-type]
    for plain in (
        operation("fill_.Scalar", window(1), 3.0, outs=(window(1),)),
        operation("zeros_like.default", window(0), outs=(window(1),)),
        operation("new_full.default", window(0), [N], 1.0, outs=(window(1),)),
    ):
        assert role_of(forward(plain).forward[0]) == "fill"  # type: ignore[arg-type]


def test_bytes_that_operators_write_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    step = operation("zeros.default", [N], outs=(window(1),))
    monkeypatch.setattr(rules, "MAX_WRITTEN_BYTES", 3 * 4 * N)  # the constructor draws as much as one of them
    assert not rules.written(forward(step, step))
    (finding,) = rules.written(forward(step, step, step))
    assert finding.refused and f"{16 * N} bytes" in finding.message


def test_the_other_size_has_slack() -> None:
    added = operation("add.Tensor", window(0), window(2), outs=(window(1),))
    assert arithmetic.host_arithmetic(forward(added), 50 * N - 1) and not arithmetic.host_arithmetic(
        forward(added), 50 * N
    )
    assert not arithmetic.host_arithmetic(forward(added), 25 * N, slack=2.0)
