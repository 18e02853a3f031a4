"""Tables of commands that escape nothing: names of jobs may hold the delimiter, or a line end."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.traces.lines import Line
from malletrain.simulator.traces.runs import SkippedRow

MAX_SURPLUS = 1000
"""Delimiters in the texts of one row."""
MAX_HEADER = 20_000
MAX_JOINED_LINES = 200
MAX_JOINED_CHARACTERS = 1_000_000
_HEADER = re.compile(r"\w+(?:(?P<delimiter>\W+)\w+(?:(?P=delimiter)\w+)*(?P=delimiter)?)?")
_DELIMITERS = "|;\t,^@#~ "
_DASHES = re.compile(r"-+( -+)*")

_TIME = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?\S*|\d{9,12}|Unknown|None|N/A|"
_LENGTH = r"(\d+-)?\d+(:\d\d){1,2}(\.\d+)?|INVALID|"
_WHOLE = r"\d*"
FORMS: Mapping[str, re.Pattern[str]] = {
    name: re.compile(form)
    for names, form in (
        ("start end submit eligible", _TIME),
        ("jobid jobidraw", r"\d[\w\[\]+.,%:-]*"),
        ("elapsed suspended planned cputime totalcpu usercpu systemcpu", _LENGTH),
        ("timelimit", _LENGTH + r"|UNLIMITED|Partition_Limit"),
        ("elapsedraw cputimeraw timelimitraw nnodes allocnodes ncpus alloccpus reqcpus ntasks uid gid", _WHOLE),
        ("exitcode derivedexitcode", r"\d+:\d+|"),
        ("state", r"[A-Z][A-Z_]+( by \S+)?\+?"),
        ("nodelist nodename", r"[\w.,\[\]-]*|None assigned|\(null\)"),
        ("timestart timeend", _TIME),
    )
    for name in names.split()
} | {"": re.compile("")}
"""Forms of columns that hold no text of users. In a row with more cells than columns they say which cells are which."""


_SPREAD = {",": frozenset({"nodelist", "jobid"}), " ": frozenset({"nodelist", "state"})}
"""Columns that hold a delimiter, though they are no texts."""


@dataclass(frozen=True)
class _Table:
    """The header of a table.

    Attributes:
        columns: Names of the columns in lower case.
        delimiter: What stands between the cells.
        widths: Begin and end of each column where cells have fixed widths; then there is no delimiter.
    """

    columns: list[str]
    delimiter: str
    widths: list[slice] = field(default_factory=list)

    def split(self, text: str) -> list[str]:
        """Cells of a line."""
        if self.widths:
            return [text[width].strip() for width in self.widths]
        if self.delimiter == "," and '"' in text:
            quoted = next(csv.reader([text]), [])
            if len(quoted) == len(self.columns):
                return quoted
        return text.split(self.delimiter)

    def is_filled(self, cells: list[str]) -> bool:
        """Whether these are as many cells as there are columns, each of the form of its column."""
        if len(cells) != len(self.columns):
            return False
        return all(FORMS[name].fullmatch(cell) for name, cell in zip(self.columns, cells, strict=True) if name in FORMS)

    def begins(self, cells: list[str]) -> bool:
        """Whether a row may begin with these cells."""
        form = FORMS.get(self.columns[0])
        return form is None or form.fullmatch(cells[0]) is not None


Cells = tuple[str, ...]
"""Values of the columns that were asked for, in their order; empty for an optional column that is not there."""


def read_table(
    lines: Iterable[Line],
    needed: Sequence[str],
    optional: Sequence[str],
    command: str,
    columns: str | None = None,
) -> Iterator[tuple[Line, Cells] | SkippedRow]:
    """Rows of tables whose first line names the columns, such as `sacct -P` prints.

    The delimiter is what stands between the names in the header. A delimiter at the end of every line (`-p`) is
    accepted, and so are columns of fixed width with a line of dashes below the header. A text that holds the delimiter
    makes a row longer: the columns before and after it are found from both sides. A text that holds a line end makes
    several lines of a row: they are joined. Empty lines and repeated headers are left out. Each file has its header.

    Args:
        lines: The files.
        needed: Required columns.
        optional: Columns that are returned if they are there.
        command: Command that prints such a table, for errors.
        columns: Names of the columns, for tables without a header: as `-o` takes them.

    Raises:
        InvalidInputError: the header is none, or lacks a column.
    """
    table: _Table | None = None
    chosen: Callable[[list[str]], Cells] = tuple
    wanted = [name.lower() for name in (*needed, *optional)]
    file, header = "", ""
    begun: tuple[Line, str, int] | None = None
    for line in lines:
        text = line.text
        if line.file != file:
            if begun:
                yield _skip_unfinished(begun, table)
            file, table, begun = line.file, None, None
        if table is None:
            if not text.strip() or text.startswith("#"):
                continue
            if columns is None:
                table, header = _table_of(line, needed, command), text
                chosen = _chooser(table, wanted)
                continue
            table, header = _headless(line, columns, needed), columns
            chosen = _chooser(table, wanted)
        if not (table.delimiter or table.widths):
            table = _with_widths(table, line, command)
            continue
        if begun is None and (not text.strip() or text == header):
            continue
        cells = table.split(text)
        if columns is None and _is_header(cells, needed):
            # Dumps that were put together need not have the same columns.
            if begun:
                yield _skip_unfinished(begun, table)
                begun = None
            table, header = _table_of(line, needed, command), text
            chosen = _chooser(table, wanted)
            continue
        if begun is None:
            if len(cells) == len(table.columns):
                yield line, chosen(cells)
            elif len(cells) > len(table.columns):
                yield _sorted_out(table, line, cells, wanted)
            elif table.begins(cells):
                begun = line, text, 1
            # Else a text at the end of the row before goes on here.
            continue
        if (alone := _row_of(table, line, cells, wanted, chosen)) is not None:
            yield _skip_unfinished(begun, table)
            begun = None
            yield alone
            continue
        first, before, count = begun
        joined = f"{before}\n{text}"
        cells = table.split(joined)
        if len(cells) >= len(table.columns):
            begun = None
            yield _row_of(table, first, cells, wanted, chosen) or _sorted_out(table, first, cells, wanted)
        elif count >= MAX_JOINED_LINES or len(joined) > MAX_JOINED_CHARACTERS:
            yield _skip_unfinished(begun, table)
            begun = None
        else:
            begun = first, joined, count + 1
    if begun:
        yield _skip_unfinished(begun, table)


def _table_of(line: Line, needed: Sequence[str], command: str) -> _Table:
    text = line.text.strip(" ")
    match = _HEADER.fullmatch(text[:MAX_HEADER])
    delimiter = match["delimiter"] or "" if match else ""
    if len(delimiter) > 1 and not delimiter.strip(" "):
        delimiter = ""  # columns of fixed width
    columns = [name.lower() for name in (text.split(delimiter) if delimiter else text.split())]
    for name in needed:
        if name.lower() not in columns:
            raise InvalidInputError(line.place, f"a header with {name}, as `{command}` prints it", line.text[:80])
    return _Table(columns, delimiter)


def _is_header(cells: Sequence[str], needed: Sequence[str]) -> bool:
    if needed[0] not in cells and needed[0].lower() not in cells:
        return False
    names = {cell.strip().lower() for cell in cells}
    return all(name.lower() in names for name in needed)


def _headless(line: Line, columns: str, needed: Sequence[str]) -> _Table:
    """The table whose columns a user names; the delimiter is the usual one that comes often enough."""
    names = [name.partition("%")[0].strip().lower() for name in columns.split(",")]
    for name in needed:
        if name.lower() not in names:
            raise InvalidInputError("--header", f"columns with {name}, as `-o` takes them", columns[:80])
    others = sorted(set(re.findall(r"[^\w\s]", line.text[:MAX_HEADER])) - set(_DELIMITERS) - set(".-:"))
    for delimiter in (*_DELIMITERS, *others):
        surplus = line.text.count(delimiter) - len(names) + 1
        if surplus == 0:
            return _Table(names, delimiter)
        if surplus == 1 and line.text.endswith(delimiter):
            return _Table([*names, ""], delimiter)
    # A first row with a delimiter in a text is refused as well: else a list that lacks columns would be believed.
    raise InvalidInputError(line.place, f"{len(names)} columns, as --header names them", line.text[:80])


def _with_widths(table: _Table, line: Line, command: str) -> _Table:
    widths = [slice(*match.span()) for match in re.finditer("-+", line.text)]
    if not _DASHES.fullmatch(line.text.strip()) or len(widths) != len(table.columns):
        expected = f"a delimiter between columns, as `{command}` prints it, or dashes below each name"
        raise InvalidInputError(line.place, expected, line.text[:80])
    return _Table(table.columns, "", widths)


def _row_of(
    table: _Table, line: Line, cells: list[str], wanted: Sequence[str], chosen: Callable[[list[str]], Cells]
) -> tuple[Line, Cells] | None:
    """A row that is whole for sure."""
    if table.is_filled(cells):
        return line, chosen(cells)
    if len(cells) > len(table.columns):
        row = _sorted_out(table, line, cells, wanted)
        return None if isinstance(row, SkippedRow) else row
    return None


def _chooser(table: _Table, wanted: Sequence[str]) -> Callable[[list[str]], Cells]:
    positions = [table.columns.index(name) if name in table.columns else -1 for name in wanted]
    if -1 not in positions:
        return lambda cells: tuple([cells[position] for position in positions])
    return lambda cells: tuple([cells[position] if position >= 0 else "" for position in positions])


def _skip_unfinished(begun: tuple[Line, str, int], table: _Table | None) -> SkippedRow:
    line, text, _ = begun
    count = 0 if table is None else len(table.columns)
    error = InvalidInputError(line.place, f"{count} columns, as in the header", text[:80])
    return SkippedRow("a row with too few columns", error)


def _sorted_out(table: _Table, line: Line, cells: list[str], wanted: Sequence[str]) -> tuple[Line, Cells] | SkippedRow:
    """The wanted cells of a row that has more cells than there are columns.

    Column c begins with cell c + d, where d is the number of delimiters in the texts before it. Going from the left,
    and from the right, tells which d are possible: a column with a form takes one cell of that form, others take any
    number of cells.
    """
    columns = table.columns
    surplus = len(cells) - len(columns)
    expected = f"{len(columns)} columns between {table.delimiter}, as in the header"
    error = InvalidInputError(line.place, expected, line.text[:80])
    if surplus > MAX_SURPLUS:
        return SkippedRow("a row with too many columns", error)
    spread = _SPREAD.get(table.delimiter, frozenset())
    forms = [None if name in spread else FORMS.get(name) for name in columns]
    from_left = _possible(forms, cells, surplus)
    from_right = [
        {surplus - offset for offset in offsets} for offsets in _possible(forms[::-1], cells[::-1], surplus)[::-1]
    ]
    offsets = [left & right for left, right in zip(from_left, from_right, strict=True)]
    texts = []
    for name in wanted:
        if name not in columns:
            texts.append("")
            continue
        at = columns.index(name)
        values = {
            table.delimiter.join(cells[at + low : at + high + 1])
            for low in offsets[at]
            for high in offsets[at + 1]
            if low == high or (forms[at] is None and low < high)
        }
        if name in spread:
            values = {value for value in values if FORMS[name].fullmatch(value)}
        if len(values) != 1:
            return SkippedRow("a row whose columns can't be told apart", error)
        texts.append(values.pop())
    return line, tuple(texts)


def _possible(forms: Sequence[re.Pattern[str] | None], cells: Sequence[str], surplus: int) -> list[set[int]]:
    """Before each column and after the last: how many more cells than columns may have been used."""
    now = {0}
    spreads = [now]
    for column, form in enumerate(forms):
        if form is None:
            now = set(range(min(now), surplus + 1)) if now else now
        else:
            now = {offset for offset in now if form.fullmatch(cells[column + offset])}
        spreads.append(now)
    return spreads
