import errno
import json
import math
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import RunDirectoryError
from assay.storage.files import Writing, append, encode_json, human_bytes, read_object, replace_file, truncate_file

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


def finite(value):
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list) else value


@given(JSON)
def test_any_value_is_one_valid_line_that_reads_back(value):
    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    line = encode_json(value)
    assert b"\n" not in line
    assert json.loads(line, parse_constant=refuse) == finite(value)


def test_numpy_numbers_tuples_sets_and_text_that_utf8_cannot_hold_are_written():
    value = {"a": np.float32(0.5), "b": (np.int64(2), {3}), "c": "♞", "d": np.bool_(True), 5: None, "e": np.eye(2)}
    assert encode_json(value) == '{"a":0.5,"b":[2,[3]],"c":"♞","d":true,"5":null,"e":[[1.0,0.0],[0.0,1.0]]}'.encode()
    assert json.loads(encode_json("♞\ud800")) == "♞\ud800"


def test_a_value_that_is_not_data_is_refused():
    with pytest.raises(TypeError, match="cannot be written as JSON"):
        encode_json({"a": object()})


def test_a_file_is_replaced_whole_and_leaves_no_other_file(tmp_path):
    replace_file(tmp_path / "a", b"old")
    replace_file(tmp_path / "a", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"new"


def test_a_write_that_fails_half_way_is_undone(tmp_path, monkeypatch):
    fd = os.open(tmp_path / "a", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    append(fd, b"kept")
    write = os.write

    def full(fd, data):
        if len(data) < 6:
            raise OSError(errno.ENOSPC, "full")
        return write(fd, data[:3])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="full"):
        append(fd, b"123456")
    os.close(fd)
    assert (tmp_path / "a").read_bytes() == b"kept"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (errno.ENOSPC, r"No room to write metrics at .* \(needs 1.5 kB\): .* free"),
        (errno.EDQUOT, "No room"),
        (errno.EROFS, "Read-only file system.*Set log_path"),
        (errno.EACCES, "Permission denied.*Set log_path"),
        (errno.EIO, "Cannot write metrics .*Input/output error"),
    ],
)
def test_errors_of_the_operating_system_say_what_to_do(tmp_path, code, message):
    with pytest.raises(RunDirectoryError, match=message), Writing(tmp_path / "no" / "file", "metrics", 1500):
        raise OSError(code, os.strerror(code))


def test_other_errors_pass_unchanged(tmp_path):
    with pytest.raises(KeyError), Writing(tmp_path, "metrics"):
        raise KeyError("bug")


def test_truncating_keeps_the_beginning(tmp_path):
    (tmp_path / "a").write_bytes(b"12345")
    truncate_file(tmp_path / "a", 2)
    assert (tmp_path / "a").read_bytes() == b"12"


def test_sizes_are_readable():
    assert [human_bytes(n) for n in (0, 999, 1000, 1_234_567, 5e12)] == [
        "0 bytes",
        "999 bytes",
        "1 kB",
        "1.23 MB",
        "5e+03 GB",
    ]


def test_an_object_is_read_or_none(tmp_path):
    assert read_object(tmp_path / "missing") is None
    for text, expected in (('{"a": 1}', {"a": 1}), ("[1]", None), ("{", None)):
        (tmp_path / "a").write_text(text)
        assert read_object(tmp_path / "a") == expected
