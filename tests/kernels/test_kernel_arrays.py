"""Host tensors: every dtype there and back, roundings, and bytes that are none."""

from __future__ import annotations

import io
import itertools
import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from assay.kernels.arrays import FLOATS, HostTensor, Layout, Lying, Value, host_tensor, meetings, settled, size_in_bytes
from assay.kernels.frames import Frame, read_frame, write_frame

DTYPES = (
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "bool",
)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3, 4)])
def test_elements_come_back_as_they_were(dtype: str, shape: tuple[int, ...]) -> None:
    values = (np.random.default_rng(0).normal(0, 50, shape)).astype(dtype)
    tensor = host_tensor(values, dtype)
    assert tensor.shape == shape and tensor.array().dtype == values.dtype
    np.testing.assert_array_equal(tensor.array(), values)
    assert tensor.is_float == (dtype in FLOATS)


def test_rows_come_first_whatever_the_strides() -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4).T
    np.testing.assert_array_equal(host_tensor(values, "float32").array(), values)


@given(st.integers(0, 0xFFFF))
def test_every_bfloat16_survives_widening_and_rounding(bits: int) -> None:
    tensor = HostTensor("bfloat16", (1,), np.uint16(bits).tobytes())
    value = tensor.array()
    again = host_tensor(value, "bfloat16")
    if np.isnan(value[0]):
        assert np.isnan(again.array()[0])
    else:
        assert again == tensor


@given(st.floats(-(2.0**126), 2.0**126, width=32))
def test_bfloat16_is_the_nearest_there_is(value: float) -> None:
    rounded = float(host_tensor([value], "bfloat16").array()[0])
    bits = int(np.float32(value).view(np.uint32)) & 0xFFFF0000
    below = float(np.uint32(bits).view(np.float32))
    above = float(np.uint32(min(bits + 0x10000, 0xFF7FFFFF)).view(np.float32))
    assert rounded in (below, above)
    assert abs(rounded - value) <= min(abs(below - value), abs(above - value))


def test_bfloat16_ties_go_to_even_and_overflow_is_infinite() -> None:
    halfway = np.array([0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x7FFFFFFF], dtype=np.uint32).view(np.float32)
    found = np.frombuffer(host_tensor(halfway, "bfloat16").data, dtype=np.uint16)
    assert [hex(v) for v in found] == ["0x3f80", "0x3f82", "0x7f80", "0x7fc0"]


def test_a_stranger_s_booleans_are_zero_or_not() -> None:
    tensor = HostTensor("bool", (4,), bytes([0, 1, 2, 255]))
    assert np.array_equal(tensor.array(), np.array([False, True, True, True]))


def test_bytes_that_are_no_such_tensor_are_refused() -> None:
    assert size_in_bytes("float16", (2, 3)) == 12
    with pytest.raises(ValueError, match="11 bytes are not a float16 tensor"):
        HostTensor("float16", (2, 3), bytes(11))
    with pytest.raises(ValueError, match="'float8' is not one of"):
        HostTensor("float8", (2,), bytes(2))


tensors = st.sampled_from(("float32", "int64", "bfloat16")).flatmap(
    lambda dtype: arrays(np.int16, array_shapes(min_dims=0, min_side=0, max_side=3)).map(
        lambda a: host_tensor(a, dtype)
    )
)
values = st.recursive(
    st.one_of(tensors, st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text()),
    lambda part: st.lists(part, max_size=3).map(tuple),
    max_leaves=6,
)


@settings(deadline=None)
@given(st.lists(values, max_size=3))
def test_frames_carry_any_value(sent: list[Value]) -> None:
    frame, sink = Frame({"more": [1, "ü"]}), io.BytesIO()
    entries = [frame.add(value) for value in sent]
    write_frame(sink, Frame(frame.header | {"values": entries}, frame.blobs))
    back = read_frame(sink.getvalue())
    assert [back.value(entry) for entry in back.header["values"]] == sent
    assert back.header["more"] == [1, "ü"]


def test_damaged_frames_are_refused() -> None:
    frame, sink = Frame({}), io.BytesIO()
    frame.header["x"] = frame.add(host_tensor([1.0, 2.0], "float32"))
    write_frame(sink, frame)
    whole = sink.getvalue()
    for damaged in (b"", whole[:5], whole[:-1], whole + b"x", b"\xff" * 40):
        with pytest.raises(ValueError):
            read_frame(damaged)
    lying = read_frame(whole)
    with pytest.raises(ValueError, match="8 bytes for"):
        lying.tensor(lying.header["x"] | {"shape": [3]})


def test_tensors_that_share_memory_agree_and_travel_with_their_layout() -> None:
    whole, part, row = Layout(0, 12, (1, 3), 0), Layout(0, 12, (1,), 9), Layout(1, 4, (0, 1), 0)
    given = (
        HostTensor("int8", (3, 4), bytes(range(12)), whole),
        (HostTensor("int8", (3,), bytes((50, 51, 52)), part), "text"),
        HostTensor("int8", (2, 4), bytes((1, 2, 3, 4, 5, 6, 7, 8)), row),
    )
    made = settled(given)
    assert made[0] == HostTensor("int8", (3, 4), bytes((0, 1, 2, 50, 4, 5, 6, 51, 8, 9, 10, 52)), whole)
    assert made[1] == given[1] and made[2].array().tolist() == [[5, 6, 7, 8]] * 2  # type: ignore[union-attr]
    frame = Frame({})
    assert [frame.value(entry) for entry in [frame.add(value) for value in made]] == list(made)


@pytest.mark.parametrize(
    "layout",
    [
        Layout(0, 5, (2, 1), 0),
        Layout(0, 6, (2, 1), 1),
        Layout(0, 6, (1, 1), 0),
        Layout(0, 6, (-3, 1), 3),
        Layout(0, 6, (1,), 0),
        Layout(0, 1 << 60, (2, 1), 0),
        Layout(1 << 40, 6, (2, 1), 0),
        Layout(0, 6, (2, True), 0),
    ],
)
def test_layouts_that_are_none_are_refused(layout: Layout) -> None:
    HostTensor("int8", (3, 2), bytes(6), Layout(0, 6, (2, 1), 0))
    with pytest.raises(ValueError):
        HostTensor("int8", (3, 2), bytes(6), layout)


STEPS = st.tuples(st.integers(0, 4), st.sampled_from((0, 1, 2, 3, 4, 5, 6, 8, 12)))


@st.composite
def lying(draw: st.DrawFn) -> Lying:
    steps = draw(st.lists(STEPS, max_size=3))
    size, stride = tuple(size for size, _ in steps), tuple(stride for _, stride in steps)
    storage, itemsize = draw(st.sampled_from((0, 0, 1))), draw(st.sampled_from((1, 2, 4)))
    return Lying(storage, itemsize, size, stride, draw(st.integers(0, 12)))


def _bytes(tensor: Lying) -> list[tuple[int, int]]:
    places = (sum(map(operator.mul, place, tensor.stride)) for place in np.ndindex(tensor.size))
    first = [(tensor.offset + place) * tensor.itemsize for place in places]
    return [(tensor.storage, byte + each) for byte in first for each in range(tensor.itemsize)]


@settings(max_examples=300)
@given(st.lists(lying(), min_size=2, max_size=3))
def test_tensors_meet_where_they_show_a_byte_in_common(tensors: list[Lying]) -> None:
    shown = list(map(_bytes, tensors))
    twice = {(place, place) for place, each in enumerate(shown) if len(set(each)) < len(each)}
    pairs = itertools.combinations(range(len(shown)), 2)
    assert meetings(tensors) == twice | {pair for pair in pairs if set(shown[pair[0]]) & set(shown[pair[1]])}


def test_meetings_of_large_and_of_tangled_tensors_are_told_in_little_time() -> None:
    columns = [Lying(0, 4, (1 << 20, 1 << 10), (3 << 10, 1), place << 10) for place in range(3)]
    assert meetings(columns) == set()
    assert meetings([*columns, Lying(0, 4, (1 << 20,), (3 << 10,), 1 << 11)]) == {(2, 3)}
    steps = tuple(7919 + 2 * place for place in range(12))
    tangled = [Lying(0, 1, (1 << 12,) * 12, steps, place) for place in range(2)]
    assert (0, 1) in meetings(tangled)
