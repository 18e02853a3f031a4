"""Rows of idle fragments in Parquet files. PyArrow is imported only when such a file is read or written."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from malletrain.runtime.errors import InvalidInputError


def read_parquet_rows(path: Path, columns: Sequence[str]) -> list[tuple[object, object, object]]:
    """All rows of a file with three columns: a name and two numbers. Values may be None.

    Raises:
        InvalidInputError: PyArrow is missing, the file isn't Parquet, or its columns are others.
        OSError: the file can't be opened.
    """
    arrow, parquet = _arrow(path)
    with path.open("rb") as file:
        try:
            table = parquet.ParquetFile(file).read()
        except (arrow.ArrowException, OSError) as error:
            raise InvalidInputError(str(path), f"a Parquet file ({error})") from error
    if table.column_names != list(columns):
        raise InvalidInputError(str(path), f"the columns {','.join(columns)}", ",".join(table.column_names))
    nodes, begins, ends = (table.column(name).to_pylist() for name in columns)
    return list(zip(nodes, begins, ends, strict=True))


def write_parquet_rows(
    path: Path, columns: Sequence[str], nodes: Sequence[str], begins: Sequence[float], ends: Sequence[float]
) -> None:
    """Write what `read_parquet_rows` reads; the same rows give the same bytes.

    Raises:
        InvalidInputError: PyArrow is missing.
        OSError: the file can't be written.
    """
    arrow, parquet = _arrow(path)
    arrays = (
        arrow.array(nodes, arrow.string()),
        arrow.array(begins, arrow.float64()),
        arrow.array(ends, arrow.float64()),
    )
    with path.open("wb") as file:
        parquet.write_table(arrow.Table.from_arrays(list(arrays), names=list(columns)), file, compression="zstd")


def _arrow(path: Path) -> tuple[Any, Any]:
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError as error:
        raise InvalidInputError(
            str(path), "a .csv or .csv.gz file, or PyArrow installed to use Parquet (pip install pyarrow)"
        ) from error
