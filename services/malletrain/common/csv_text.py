"""Tables as CSV for spreadsheets. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_FORMULA = ("=", "+", "-", "@", "\t")


def as_csv(columns: Mapping[str, Sequence[object]]) -> str:
    """Columns as CSV with a line of headings. What a spreadsheet would take for a formula is quoted."""
    import csv  # most who could write CSV do not, and start sooner
    import io

    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_harmless(value) for value in row] for row in zip(*columns.values(), strict=True))
    return buffer.getvalue()


def _harmless(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
