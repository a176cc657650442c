"""Data files of the user: what is read, what is refused."""

import sys

import pytest

from deepinfer.errors import ConfigError
from deepinfer.eval.rows import column, read_rows


def test_json_lines_csv_and_a_directory_of_both_give_rows_in_order(tmp_path):
    (tmp_path / "b.jsonl").write_text('{"problem": "你好", "answer": 1}\n\n{"problem": "q"}\n')
    (tmp_path / "a.csv").write_text('\ufeffQuestion,Correct Answer\n"one, two",x\n')
    (tmp_path / "readme.md").write_text("not data")
    (csv_row,) = read_rows(tmp_path / "a.csv")
    assert csv_row == {"Question": "one, two", "Correct Answer": "x"}
    rows = read_rows(tmp_path)
    assert rows == [csv_row, {"problem": "你好", "answer": 1}, {"problem": "q"}]


def test_parquet_is_read_with_pyarrow(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet  # pyright: ignore[reportMissingImports]

    rows = [{"problem": "你好", "answer": 1}, {"problem": "q", "answer": None}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "test-0.parquet")
    assert read_rows(tmp_path / "test-0.parquet") == rows
    assert read_rows(tmp_path) == rows
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no parquet")
    with pytest.raises(ConfigError, match=r"bad\.parquet: not readable"):
        read_rows(tmp_path / "bad.parquet")


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(ConfigError, match="pyarrow; install it, or give JSON lines"):
        read_rows(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"x", "unknown ending"),
        ("a.jsonl", b"", "no rows"),
        ("a.jsonl", b"[1]\n", "line 1 is no JSON object"),
        ("a.jsonl", b'{"a": 1}\n{', "not readable"),
        ("a.jsonl", b"\xff\xfe", "not readable"),
        ("none.jsonl", None, "not readable"),
        ("empty", "directory", "no .jsonl, .csv, .parquet file"),
    ],
)
def test_files_that_hold_no_rows_are_refused_by_name(tmp_path, name, content, message):
    path = tmp_path / name
    if content == "directory":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"{name}.*{message}"):
        read_rows(path)


def test_a_column_may_have_several_spellings_but_not_be_empty():
    assert column({"b": 0}, 3, ("a", "b")) == 0
    with pytest.raises(ConfigError, match=r"row 3: no column 'a' or 'b'; it has \['c'\]"):
        column({"c": 1}, 3, ("a", "b"))
    with pytest.raises(ConfigError, match="row 3: column 'a' is empty"):
        column({"a": None, "b": 1}, 3, ("a", "b"))
