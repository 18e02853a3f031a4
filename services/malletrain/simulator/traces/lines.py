"""Opens logs as they lie on disks, plain or compressed, and reads them by lines, each with its place for errors."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol

from malletrain.runtime.errors import InvalidInputError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MAX_RATIO = 250
"""Logs shrink to between a fifth and a hundredth. What grows by more than this, beyond `FREE_BYTES`, is no log."""
FREE_BYTES = 4 * 1024**3
"""So much may come out of any compressed file, however small it is."""
MAX_XZ_MEMORY = 256 * 1024**2
"""Memory for the dictionary of an xz file; that of `xz -9` needs 65 MiB."""
_CHUNK_BYTES = 256 * 1024
_MAGIC_BYTES = 6
_TAR_AT, _TAR = 257, b"ustar"
_TAR_BYTES = 512
UNREADABLE = (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile)
"""What reading from `open_log` may raise besides `InvalidInputError`; see `unreadable`."""


class _Readable(Protocol):
    """What a compressed file holds."""

    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True)
class OpenLog:
    """A log that is open.

    Attributes:
        file: What it says, decompressed, in UTF-8. Bytes that are none are to be replaced.
        position: How many bytes were read, of the file as it lies there.
    """

    file: BinaryIO
    position: Callable[[], int]


@contextmanager
def open_log(path: Path) -> Iterator[OpenLog]:
    """Open a log that is plain, or compressed with gzip, bzip2, xz or zip. Text in UTF-16 becomes UTF-8.

    Raises:
        InvalidInputError: the archive has not exactly one file, or more comes out than a log can hold.
        OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile: the file can't be read; see `unreadable`.
    """
    with ExitStack() as stack:
        raw = stack.enter_context(path.open("rb"))
        # Pipes have no beginning to go back to.
        magic = raw.peek(_MAGIC_BYTES)[:_MAGIC_BYTES]
        packed, content = _decompress(raw, magic, path, stack), raw
        if packed is not None:
            limited = _Limited(packed, raw.tell, str(path))
            content = stack.enter_context(io.BufferedReader(limited, _CHUNK_BYTES))
        position = raw.tell if raw.seekable() else lambda: 0
        begin = content.peek(_TAR_BYTES)
        if begin[_TAR_AT : _TAR_AT + len(_TAR)] == _TAR:
            raise InvalidInputError(str(path), "a log (this is a tar archive: unpack it first)")
        mark = begin[:2]
        if mark in (b"\xff\xfe", b"\xfe\xff"):
            text = io.TextIOWrapper(content, "utf-16", "replace", newline="")
            stack.callback(text.detach)
            content = stack.enter_context(io.BufferedReader(_Encoded(text), _CHUNK_BYTES))
        yield OpenLog(content, position)


def unreadable(error: BaseException, path: Path, number: int | None = None) -> InvalidInputError:
    """The error for the user where a log can't be read.

    Args:
        error: One of `UNREADABLE`.
        path: The log.
        number: Lines that were read; None: not known.
    """
    if isinstance(error, EOFError | zlib.error | lzma.LZMAError | gzip.BadGzipFile | zipfile.BadZipFile):
        place = str(path) if number is None else f"{path}:{number + 1}"
        return InvalidInputError(place, f"a complete compressed file ({error})")
    return InvalidInputError(str(path), f"a readable file ({error})")


def _decompress(raw: io.BufferedReader, magic: bytes, path: Path, stack: ExitStack) -> _Readable | None:
    """What a compressed file holds; None where it is not compressed."""
    if magic.startswith(b"\x1f\x8b"):
        return stack.enter_context(gzip.GzipFile(fileobj=raw, mode="rb"))
    if magic.startswith(b"BZh"):
        return stack.enter_context(bz2.BZ2File(raw))
    if magic.startswith(b"\xfd7zXZ\x00"):
        return stack.enter_context(io.BufferedReader(_Xz(raw), _CHUNK_BYTES))
    if magic.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _only_member(raw, path, stack)
    if magic.startswith(b"\x28\xb5\x2f\xfd"):
        raise InvalidInputError(str(path), "a plain file, or gzip, bzip2, xz or zip (this is zstd: unpack it first)")
    return None


def _only_member(raw: BinaryIO, path: Path, stack: ExitStack) -> _Readable:
    archive = stack.enter_context(zipfile.ZipFile(raw))
    members = [
        member for member in archive.infolist() if not member.is_dir() and not member.filename.startswith("__MACOSX/")
    ]
    if len(members) != 1:
        raise InvalidInputError(str(path), "an archive with exactly one file", len(members))
    try:
        return stack.enter_context(archive.open(members[0]))
    except (RuntimeError, NotImplementedError) as error:
        raise InvalidInputError(str(path), f"an archive that can be unpacked without a password ({error})") from error


class _ReadOnly(io.RawIOBase):
    def readable(self) -> bool:
        return True


class _Xz(_ReadOnly):
    """The content of an xz file. `lzma.LZMAFile` takes as much memory as the file's header asks for."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._unpack = _xz_stream()

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer)
        plain = b""
        while not plain:
            packed = b""
            if self._unpack.eof:
                # Files that are appended to have several streams, which zeros may separate.
                packed = self._unpack.unused_data.lstrip(b"\0")
                while not packed:
                    if not (packed := self._raw.read(_CHUNK_BYTES)):
                        return 0
                    packed = packed.lstrip(b"\0")
                self._unpack = _xz_stream()
            elif self._unpack.needs_input and not (packed := self._raw.read(_CHUNK_BYTES)):
                raise EOFError("the file ends before its content does")
            plain = self._unpack.decompress(packed, len(view))
        view[: len(plain)] = plain
        return len(plain)


def _xz_stream() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, MAX_XZ_MEMORY)


class _Limited(_ReadOnly):
    """Ends what grows without end."""

    def __init__(self, content: _Readable, packed: Callable[[], int], name: str) -> None:
        self._content = content
        self._packed = packed
        self._name = name
        self._plain = 0

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer)
        content = self._content.read(min(len(view), _CHUNK_BYTES))
        view[: len(content)] = content
        self._plain += len(content)
        if self._plain > FREE_BYTES and self._plain > MAX_RATIO * self._packed():
            raise InvalidInputError(
                self._name, f"a log: more than {MAX_RATIO} times its size comes out of this compressed file"
            )
        return len(content)


class _Encoded(_ReadOnly):
    """Text as UTF-8."""

    def __init__(self, text: io.TextIOWrapper) -> None:
        self._text = text
        self._rest = b""

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer)
        if not self._rest:
            self._rest = self._text.read(_CHUNK_BYTES // 4).encode("utf-8", "replace")
        part, self._rest = self._rest[: len(view)], self._rest[len(view) :]
        view[: len(part)] = part
        return len(part)


MAX_LINE_BYTES = 4 * 1024 * 1024
"""Longer than any line of a scheduler: a node list of a whole machine has some hundred kilobytes."""
_LINES_PER_PROGRESS = 1000
_BYTE_ORDER_MARK = "\ufeff"


class Line(NamedTuple):
    """One line of a log.

    Attributes:
        file: Path of the file.
        number: Number of the line, from 1.
        text: The line without its end.
        unit: What stands between file and number where it is told, if it is not a line that is counted.
    """

    file: str
    number: int
    text: str
    unit: str = ":"

    @property
    def place(self) -> str:
        """`file:number`, for errors."""
        return f"{self.file}{self.unit}{self.number}"


def size_of(paths: Iterable[Path]) -> int:
    """Bytes of files as they lie there; those that can't be read have none."""
    return sum(path.stat().st_size for path in paths if path.is_file())


def read_lines(paths: Iterable[Path], progress: Callable[[float], None] | None = None) -> Iterator[Line]:
    """Lines of text files, plain or compressed, one file after the other.

    Node names and times are ASCII; what is not UTF-8 in a comment or a user's name becomes U+FFFD.

    Args:
        paths: The files.
        progress: Called now and then with the number of bytes that were read, of the files as they lie there.

    Raises:
        InvalidInputError: a file can't be read, or a line is longer than `MAX_LINE_BYTES`.
    """
    before = 0
    for path in paths:
        number, name = 0, str(path)
        try:
            with open_log(path) as log:
                for number, raw in enumerate(iter(lambda: log.file.readline(MAX_LINE_BYTES + 1), b""), 1):
                    if len(raw) > MAX_LINE_BYTES:
                        raise InvalidInputError(f"{path}:{number}", f"a line of at most {MAX_LINE_BYTES} bytes")
                    text = raw.decode("utf-8", "replace")
                    if number == 1:
                        text = text.removeprefix(_BYTE_ORDER_MARK)
                    yield Line(name, number, text.rstrip("\r\n"))
                    if progress is not None and number % _LINES_PER_PROGRESS == 0:
                        progress(before + log.position())
                before += log.position()
            if progress is not None:
                progress(before)
        except UNREADABLE as error:
            raise unreadable(error, path, number) from error
