"""Programs as untrusted bytes: every limit holds, and nothing in them raises."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.kernels.arrays import Layout
from assay.kernels.program.form import Program, Window, misplaced, operations_in, table_of, windows_in
from assay.kernels.program.limits import Limits
from assay.kernels.program.reading import Refusal, read
from support.programs import HELPER, N, launch, made, operation, window, written


def read_json(program: Any, limits: Limits | None = None) -> Program | Refusal:
    return read(json.dumps(program).encode(), limits)


def test_an_honest_program_is_read_as_it_is() -> None:
    program = read_json(written())
    assert isinstance(program, Program), program
    assert program.outputs == (Window(1, "float32", (N,), (1,), 0),)
    assert program.forward[0].variants[0].options == (("num_warps", 4),)  # type: ignore[union-attr]
    assert ("scaled", "function", "1") in program.kernels[0].names
    assert table_of(program)["1"] == {"source": HELPER, "line": 8, "names": {"FACTOR": {"constant": 2.0}}}


def bent(change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    program = copy.deepcopy(written())
    change(program)
    return program


def variant(program: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = program["forward"][0]["variants"][0]
    return found


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


HOSTILE: dict[str, Callable[[dict[str, Any]], object]] = {
    "a field is missing": lambda p: p.pop("outputs"),
    "a field is unknown": lambda p: p.update(more=1),
    "another version": lambda p: p.update(version=2),
    "storages of a terabyte": lambda p: p.update(storages=[1 << 40]),
    "storages of a terabyte together": lambda p: p.update(storages=[1 << 30] * 1024),
    "a storage of a negative size": lambda p: p.update(storages=[-1, 32, 32]),
    "a storage of a fraction": lambda p: p.update(storages=[32.0, 32, 32]),
    "a storage that is true": lambda p: p.update(storages=[True, 32, 32]),
    "a window past its storage": lambda p: p.update(outputs=[window(1, (N + 1,))]),
    "a window past its storage by its offset": lambda p: p.update(outputs=[window(1, offset=1)]),
    "a window past its storage by its dtype": lambda p: p.update(outputs=[window(1, dtype="float64")]),
    "a window past its storage by its stride": lambda p: p.update(outputs=[[1, "float32", [2], [N], 0]]),
    "a window of another storage": lambda p: p.update(outputs=[window(3)]),
    "a window of storage -1": lambda p: p.update(outputs=[window(-1)]),
    "a window before its storage": lambda p: p.update(outputs=[window(1, (1,), offset=-1)]),
    "a window with a negative stride": lambda p: p.update(outputs=[[1, "float32", [2], [-1], 4]]),
    "a window with too few strides": lambda p: p.update(outputs=[[1, "float32", [2, 2], [1], 0]]),
    "a window of too many elements": lambda p: p.update(outputs=[[1, "float32", [1 << 20, 1 << 20], [0, 0], 0]]),
    "a window of a thousand axes": lambda p: p.update(outputs=[[1, "float32", [1] * 1000, [1] * 1000, 0]]),
    "an input of the constructor with memory around it": lambda p: p.update(
        storages=[8 * N, 4 * N, 4 * N], init_inputs=[window(0)], inputs=[]
    ),
    "one that does not lie row by row": lambda p: p.update(
        init_inputs=[[0, "float32", [2, N // 2], [1, 2], 0]], inputs=[]
    ),
    "one that begins later": lambda p: p.update(init_inputs=[window(0, (N - 1,), offset=1)], inputs=[]),
    "one in the storage of another input": lambda p: p.update(init_inputs=[window(0)]),
    "an input that lasts": lambda p: p.update(kept=[0]),
    "a launch of the first call alone": lambda p: p.update(once=[0]),
    "a buffer that is no window": lambda p: p.update(buffers=[["running_mean", [0]]]),
    "a dtype that is none": lambda p: p.update(outputs=[window(1, dtype="object")]),
    "a dtype that is a list": lambda p: p.update(outputs=[[1, ["float32"], [1], [1], 0]]),
    "a grid of minus one": lambda p: variant(p).update(grid=[-1]),
    "a grid of four axes": lambda p: variant(p).update(grid=[1, 1, 1, 1]),
    "a grid without axes": lambda p: variant(p).update(grid=[]),
    "a grid that no GPU takes": lambda p: variant(p).update(grid=[1, 65536]),
    "a grid of true": lambda p: variant(p).update(grid=[True]),
    "an option with a file": lambda p: variant(p).update(options={"extern_libs": "/lib/x.bc"}),
    "an option for the assembler": lambda p: variant(p).update(options={"ptx_options": "-o /tmp/x"}),
    "an option out of range": lambda p: variant(p).update(options={"num_warps": 4096}),
    "an option that is a text": lambda p: variant(p).update(options={"num_warps": "4"}),
    "a number that is true": lambda p: variant(p).update(options={"num_warps": True}),
    "half a flag": lambda p: variant(p).update(options={"enable_fp_fusion": 0.5}),
    "a flag of two": lambda p: variant(p).update(options={"enable_fp_fusion": 2}),
    "a list for an option": lambda p: variant(p).update(options={"num_stages": [1]}),
    "clusters of blocks": lambda p: variant(p).update(options={"num_ctas": 2}),
    "a launch before the end of another": lambda p: variant(p).update(options={"launch_pdl": True}),
    "a grid as a whole": lambda p: variant(p).update(options={"launch_cooperative_grid": 1}),
    "checks of overflows": lambda p: variant(p).update(options={"debug": True}),
    "an option of a kilobyte": lambda p: variant(p).update(options={"x" * 2000: 1}),
    "no variant": lambda p: p["forward"][0].update(variants=[]),
    "too many variants": lambda p: p["forward"][0].update(variants=[variant(p)] * 65),
    "a kernel that is not there": lambda p: p["forward"][0].update(launch=2),
    "kernel -1": lambda p: p["forward"][0].update(launch=-1),
    "an argument of another kernel": lambda p: variant(p).update(args={"f": {"kernel": 9}}),
    "an argument with a name that is none": lambda p: variant(p).update(args={"a b": 1}),
    "an argument nested deeply": lambda p: variant(p).update(args={"a": nested(50)}),
    "a number of 80 bits": lambda p: variant(p).update(args={"a": 1 << 80}),
    "an unknown tag": lambda p: variant(p).update(args={"a": {"eval": "1"}}),
    "two tags": lambda p: variant(p).update(args={"a": {"dtype": "int8", "float": "nan"}}),
    "a special number that is none": lambda p: variant(p).update(args={"a": {"float": "1e999"}}),
    "a descriptor without axes": lambda p: variant(p).update(
        args={"a": {"descriptor": [window(0), [], [], [], "zero"]}}
    ),
    "a hook that launches": lambda p: variant(p).update(before=[launch()]),
    "tuning of two parts": lambda p: p["forward"][0].update(tuning=[[], []]),
    "tuning that launches": lambda p: p["forward"][0].update(tuning=[[], [launch()], []]),
    "an allocator that is a number": lambda p: p["forward"][0].update(allocator=1),
    "an operation with a path for a name": lambda p: p.update(forward=[operation("../../x")]),
    "an operation with a dunder of Python's": lambda p: p.update(forward=[operation("__class__.__mro__")]),
    "an operation without outs": lambda p: p.update(
        forward=[{"op": "add.Tensor", "args": [], "kwargs": {}, "line": 1}]
    ),
    "too many steps": lambda p: p.update(forward=[launch()] * 9000),
    "a meaning that is none": lambda p: p["kernels"][0]["names"].update(os={"import": "os"}),
    "a module that is no text": lambda p: p["kernels"][0]["names"].update(os={"module": ["os"]}),
    "a constant that is a tensor": lambda p: p["kernels"][0]["names"].update(e={"constant": {"window": window(0)}}),
    "a constant nested deeply": lambda p: p["kernels"][0]["names"].update(e={"constant": nested(50)}),
    "a constant of 80 bits": lambda p: p["kernels"][0]["names"].update(e={"constant": 1 << 80}),
    "a name with dots": lambda p: p["kernels"][0]["names"].update({"a.b": {"constant": 1}}),
    "a name of two meanings": lambda p: p["kernels"][0]["names"].update(a={"constant": 1, "module": "triton"}),
    "a kernel with no identifier for a name": lambda p: p["kernels"][0].update(name="a(b)"),
    "kernels of a megabyte": lambda p: p["kernels"][0].update(source="#" * (1 << 17)),
    "lone surrogates": lambda p: p["kernels"][0].update(source="'\ud800'"),
    "a constant of another size": lambda p: p.update(constants=[[0, "AAAA"]]),
    "a constant that is not base64": lambda p: p.update(constants=[[0, "!"]]),
    "a constant given twice": lambda p: p.update(storages=[3, 32, 32], constants=[[0, "AAAA"], [0, "AAAA"]]),
    "a line of 2^70": lambda p: p["forward"][0].update(line=1 << 70),
    "a name of a parameter of a kilobyte": lambda p: p.update(params=[["x" * 1024, window(2)]]),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_what_is_refused(what: str) -> None:
    found = read_json(bent(lambda program: HOSTILE[what](program) and None))
    assert isinstance(found, Refusal), found
    assert 0 < len(found.reason) < 1000


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff\xfe", b"null", b"[" * 100_000, b'{"a":' * 50_000, b"9" * 5000, b"1e999", b"NaN", b'"\\ud800"'],
    ids=lambda data: repr(data[:8]),
)
def test_bytes_that_are_no_program(data: bytes) -> None:
    assert isinstance(read(data), Refusal)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e999"])
def test_numbers_that_json_lacks(value: str) -> None:
    text = json.dumps(written()).replace('"n": 8', f'"n": {value}')
    assert isinstance(read(text.encode()), Refusal)


def test_the_length_is_looked_at_first() -> None:
    assert "at most 100 are read" in read(b" " * 101, Limits(json_bytes=100)).reason  # type: ignore[union-attr]


def test_literals_are_counted_together() -> None:
    constants = [[place, "AAAA"] for place in range(3)]
    program = written(storages=[3, 3, 3], inputs=[], outputs=[], params=[], init=[], forward=[], constants=constants)
    assert isinstance(read_json(program, Limits(literal_bytes=9)), Program)
    assert isinstance(read_json(program, Limits(literal_bytes=8)), Refusal)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(values)
@settings(deadline=None, max_examples=200)
def test_any_json_is_answered(value: Any) -> None:
    assert isinstance(read(json.dumps(value).encode()), Refusal)


@given(st.binary(max_size=64))
@settings(deadline=None, max_examples=200)
def test_any_bytes_are_answered(data: bytes) -> None:
    assert isinstance(read(data), Refusal)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container of a program with each of its keys."""
    if isinstance(value, dict):
        return [place for key, part in value.items() for place in [(value, key), *places(part)]]
    if isinstance(value, list):
        return [place for key, part in enumerate(value) for place in [(value, key), *places(part)]]
    return []


HOSTILE_VALUES: list[Any] = [
    *(None, True, -1, 0, 1, 3, 31, 2**31, 2**62, 2**63, 2**200, 0.5, "", "x", "float64", "triton", "\ud800", [], {}),
    *([0] * 300, [[0]], {"window": window(0)}, {"kernel": 0}, {"kernel": 99}, {"module": "os"}, nested(30)),
]


def consistent(program: Program) -> None:
    """What whoever runs a program relies on."""
    limits = Limits()
    assert sum(program.storages) <= limits.storage_bytes
    shown = [*program.inputs, *program.init_inputs, *program.outputs, *(found for _, found in program.params)]
    for found in operations_in(program.steps, tuning=True):
        shown += [*found.outs, *(part for value in found.values for part in windows_in(value))]
    for step in program.steps:
        for one in getattr(step, "variants", ()):
            assert 0 <= step.kernel < len(program.kernels)  # type: ignore[union-attr]
            assert 1 <= len(one.grid) <= 3 and min(one.grid) >= 0
            shown += [part for _, value in one.args for part in windows_in(value)]
    for found in shown:
        assert 0 <= found.storage < len(program.storages)
        assert found.end <= program.storages[found.storage]
        assert min((found.offset, *found.size, *found.stride)) >= 0


@pytest.mark.parametrize("seed", range(4))
def test_mutations_of_a_program_are_refused_or_harmless(seed: int) -> None:
    chance = random.Random(seed)
    added = operation("add.Tensor", window(0), [window(1), 2], outs=(window(1),), alpha={"float": "inf"})
    base = written(forward=[added, launch() | {"tuning": [[added], [], []], "allocator": True}])
    outcomes = set()
    for _ in range(500):
        program = copy.deepcopy(base)
        for _ in range(chance.randint(1, 3)):
            container, key = chance.choice(places(program))
            if chance.random() < 0.2 and isinstance(container, dict):
                container.pop(key, None)
            else:
                container[key] = copy.deepcopy(chance.choice(HOSTILE_VALUES))
        found = read_json(program)
        outcomes.add(type(found))
        if isinstance(found, Program):
            consistent(found)
    assert outcomes == {Program, Refusal}


def test_options_that_mean_the_same_everywhere_are_taken() -> None:
    options = {"num_warps": 32, "num_stages": 0, "num_ctas": 1, "maxnreg": 255, "enable_fp_fusion": False}
    options |= {"launch_pdl": False, "launch_cooperative_grid": 0, "debug": None}
    found = read_json(bent(lambda p: variant(p).update(options=options)))
    assert isinstance(found, Program), found
    assert found.forward[0].variants[0].options == tuple(options.items())  # type: ignore[union-attr]


def test_inputs_must_lie_as_those_of_the_problem() -> None:
    whole, dense = [0, "float32", [2, N // 2], [1, 2], 0], window(0)
    turned, tail = Layout(0, N, (1, 2), 0), Layout(0, N, (1,), N // 2)
    right: list[tuple[list[Any], list[Layout | None]]] = [
        ([dense], [None]),
        ([whole], [turned]),
        ([whole, window(0, (N // 2,), offset=N // 2)], [turned, tail]),
        ([dense, window(1)], [None, None]),
    ]
    for inputs, layouts in right:
        assert not misplaced(made(inputs=inputs), layouts)
    wrong: list[tuple[list[Any], list[Layout | None]]] = [
        ([whole], [None]),
        ([dense], [turned]),
        ([window(0, (N - 1,), offset=1)], [None]),
        ([window(0, (N - 1,))], [None]),
        ([dense, dense], [None, None]),
        ([whole, window(1, (N // 2,), offset=N // 2)], [turned, tail]),
        ([dense], []),
    ]
    for inputs, layouts in wrong:
        assert misplaced(made(inputs=inputs), layouts), inputs
