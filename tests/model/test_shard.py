import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.model.shard import ShardError, read_header
from tests.model.tiny import write_raw

F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"{ ", "not readable"),
        (b"\xff\xfe{}", "not readable"),
        (b"[]", "no JSON object"),
        (b"[" * 100_000, "not readable"),
        (b'{"a": {}, "a": {}}', "given twice"),
        ({"a": 3}, "no object"),
        ({"a": {"dtype": "F32", "shape": [2]}}, "lacks"),
        ({"a": {**F32, "shape": [True, 2]}}, "lacks"),
        ({"a": {**F32, "shape": [-2]}}, "lacks"),
        ({"a": {**F32, "data_offsets": [0, 4, 8]}}, "lacks"),
        ({"a": {**F32, "data_offsets": [-8, 0]}}, "lacks"),
        ({"a": {**F32, "data_offsets": [8, 0]}}, "do not hold"),
        ({"a": {**F32, "shape": [3]}}, "do not hold"),
        ({"a": {**F32, "dtype": "F33"}}, "not known"),
        ({"a": {**F32, "data_offsets": [1 << 70, (1 << 70) + 8]}}, "truncated"),
        ({"a": F32, "b": {**F32, "data_offsets": [4, 12]}}, "overlap"),
        ({"a": F32, "b": F32}, "overlap"),
        ({"a": F32, "b": {**F32, "data_offsets": [12, 20]}}, "belong to none"),
    ],
)
def test_a_damaged_header_is_refused(tmp_path, header, message):
    write_raw(tmp_path / "s", header, bytes(20 if "b" in list(header) else 8))
    with pytest.raises(ShardError, match=message):
        read_header(tmp_path / "s")


@pytest.mark.parametrize("claimed", [0, 1, 1 << 20, 1 << 40, (1 << 64) - 1])
def test_a_header_size_that_lies_is_refused(tmp_path, claimed):
    write_raw(tmp_path / "s", {"a": F32}, bytes(8), claimed)
    with pytest.raises(ShardError, match="header claims"):
        read_header(tmp_path / "s")


@given(st.binary(max_size=200))
def test_no_bytes_whatever_make_the_parser_fail_otherwise(pristine, raw):
    path = pristine.parent / "noise"
    for content in (raw, len(raw).to_bytes(8, "little") + raw):
        path.write_bytes(content)
        with contextlib.suppress(ShardError):  # any other exception fails the test
            assert read_header(path) == {}
