"""Rows of data files that the user has: JSON lines, CSV or parquet. Nothing is fetched.

Knows nothing of what the columns mean.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from deepinfer.errors import ConfigError

Row = dict[str, Any]


def read_rows(path: Path) -> list[Row]:
    """All rows of a file, or of the files of a directory in the order of their names.

    Args:
        path: a `.jsonl`, `.csv` or `.parquet` file, or a directory that holds such files.

    Raises:
        ConfigError: nothing readable is there, or parquet is asked for without `pyarrow`.
    """
    files = sorted(p for p in path.iterdir() if p.suffix in _READERS) if path.is_dir() else [path]
    if not files:
        raise ConfigError(f"{path}: no {', '.join(_READERS)} file in this directory")
    rows: list[Row] = []
    for file in files:
        reader = _READERS.get(file.suffix)
        if reader is None:
            raise ConfigError(f"{file}: unknown ending; use one of {', '.join(_READERS)}")
        try:
            rows += reader(file)
        except (OSError, ValueError, csv.Error) as error:  # pyarrow's errors are ValueErrors
            raise ConfigError(f"{file}: not readable: {error}") from error
    if not rows:
        raise ConfigError(f"{path}: it holds no rows")
    return rows


def column(row: Row, number: int, names: Sequence[str]) -> Any:
    """The value of the first of `names` that the row has.

    Args:
        row: one row.
        number: its number in the file, for the message.
        names: spellings of the column, the usual one first.

    Raises:
        ConfigError: it has none of them, or the value is empty.
    """
    for name in names:
        if name in row:
            value = row[name]
            if value is None or value == "":
                raise ConfigError(f"row {number}: column {name!r} is empty")
            return value
    raise ConfigError(
        f"row {number}: no column {' or '.join(map(repr, names))}; it has {sorted(row)}"
    )


def _json_lines(file: Path) -> Iterator[Row]:
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            value = json.loads(line)
            if not isinstance(value, dict):
                raise ValueError(f"line {number} is no JSON object")
            yield value


def _csv(file: Path) -> Iterator[Row]:
    with file.open(encoding="utf-8-sig", newline="") as lines:
        yield from csv.DictReader(lines)


def _parquet(file: Path) -> Iterator[Row]:
    try:
        from pyarrow import parquet  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ConfigError(
            f"{file}: reading parquet needs pyarrow; install it, or give JSON lines"
        ) from error
    with parquet.ParquetFile(file) as source:
        for batch in source.iter_batches():
            yield from batch.to_pylist()


_READERS = {".jsonl": _json_lines, ".csv": _csv, ".parquet": _parquet}
