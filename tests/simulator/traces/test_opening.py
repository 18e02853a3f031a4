"""Compressed logs are known by their first bytes, and none may grow without end."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.traces import lines
from malletrain.simulator.traces import lines as log_lines
from malletrain.simulator.traces.lines import read_lines

TEXT = "first line\nsecond line, müde\n\nlast"


def zipped(content: bytes, *names: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(name, content)
    return out.getvalue()


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zip": lambda content: zipped(content, "folder/", "folder/jobs.txt"),
}


def texts(path: Path) -> list[str]:
    return [line.text for line in read_lines([path])]


@pytest.mark.parametrize("name", PACKERS)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_the_name_does_not_matter(tmp_path: Path, name: str, encoding: str) -> None:
    path = tmp_path / "log"
    path.write_bytes(PACKERS[name](TEXT.encode(encoding)))
    assert texts(path) == TEXT.split("\n")


@pytest.mark.parametrize("name", ["gzip", "bzip2", "xz"])
def test_files_that_were_appended_to_are_read_to_their_end(tmp_path: Path, name: str) -> None:
    path = tmp_path / "log"
    path.write_bytes(PACKERS[name](b"one\n" * 100_000) + PACKERS[name](b"two\n"))
    found = texts(path)
    assert (len(found), found[-1]) == (100_001, "two")


def test_what_is_not_utf8_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"caf\xe9|n1\n")
    assert texts(path) == ["caf�|n1"]


@pytest.mark.parametrize("name", ["gzip", "bzip2", "xz", "zip"])
def test_a_file_that_was_cut_off_is_an_error(tmp_path: Path, name: str) -> None:
    path = tmp_path / "log"
    path.write_bytes(PACKERS[name](b"".join(b"%d\n" % number for number in range(50_000)))[:-30])
    with pytest.raises(InvalidInputError, match=r"log:\d+: expected a complete compressed file"):
        texts(path)


def test_archives_of_several_files_and_of_none(tmp_path: Path) -> None:
    path = tmp_path / "log.zip"
    for names in ((), ("a", "b")):
        path.write_bytes(zipped(b"x", *names))
        with pytest.raises(InvalidInputError, match=rf"exactly one file, got {len(names)}"):
            texts(path)


def test_a_zip_of_a_mac_has_one_file(tmp_path: Path) -> None:
    path = tmp_path / "log.zip"
    path.write_bytes(zipped(b"x\n", "jobs.txt", "__MACOSX/._jobs.txt"))
    assert texts(path) == ["x"]


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_a_tar_archive_is_told(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "log"
    (tmp_path / "jobs.txt").write_text("x\n")
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        archive.add(tmp_path / "jobs.txt")
    with pytest.raises(InvalidInputError, match="this is a tar archive"):
        texts(path)


def test_zstandard_is_told(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"\x28\xb5\x2f\xfd\x04\x00")
    with pytest.raises(InvalidInputError, match="this is zstd"):
        texts(path)


@pytest.mark.parametrize("name", ["gzip", "bzip2", "xz", "zip"])
def test_what_grows_without_end_is_refused(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "FREE_BYTES", 1024**2)
    path = tmp_path / "log"
    path.write_bytes(PACKERS[name]((b"x" * 9999 + b"\n") * 1000))
    with pytest.raises(InvalidInputError, match="more than 250 times its size"):
        texts(path)


def test_an_xz_file_may_not_ask_for_any_amount_of_memory(tmp_path: Path) -> None:
    path = tmp_path / "log.xz"
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1024**3}]
    path.write_bytes(lzma.compress(b"x\n", filters=filters))
    with pytest.raises(InvalidInputError, match="complete compressed file"):
        texts(path)


def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_lines, "MAX_LINE_BYTES", 1000)
    path = tmp_path / "log"
    path.write_bytes(b"short\n" + b"x" * 2000)
    with pytest.raises(InvalidInputError, match="log:2: expected a line of at most 1000 bytes"):
        texts(path)
