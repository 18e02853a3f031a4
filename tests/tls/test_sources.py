"""Certificates that are renewed in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from malletrain.tls.files import CertificateFileError
from malletrain.tls.sources import FileCertificate, RenewableCertificate, source_of
from tests.support.certificates import certificate, node_certificate


def content(folder: Path, number: int) -> bytes:
    path = node_certificate(folder, "n1", number)
    found = path.read_bytes()
    path.unlink()
    return found


def test_memory_needs_no_file(tmp_path: Path) -> None:
    first, second = content(tmp_path, 1), content(tmp_path, 2)
    source = RenewableCertificate(first)
    before = source.stamp()
    assert source.read().certificate in first
    source.renew(second)
    assert source.read().certificate in second
    assert source.stamp() != before
    assert "PRIVATE" not in f"{source!r} {vars(source)!r}"
    assert not list(tmp_path.glob("*.pem"))


def test_of_a_file_and_memory_what_was_replaced_last_counts(tmp_path: Path) -> None:
    path = node_certificate(tmp_path, "n1")
    source = RenewableCertificate(path)
    stamps = [source.stamp()]
    assert source.read().certificate in path.read_bytes()
    renewed = content(tmp_path, 1)
    source.renew(renewed)
    stamps.append(source.stamp())
    assert source.read().certificate in renewed
    later = content(tmp_path, 2)
    (tmp_path / "draft").write_bytes(later)
    (tmp_path / "draft").chmod(0o600)
    (tmp_path / "draft").rename(path)
    stamps.append(source.stamp())
    assert source.read().certificate in later
    assert len(set(stamps)) == 3


def test_what_was_renewed_stays_when_the_file_is_deleted(tmp_path: Path) -> None:
    path = node_certificate(tmp_path, "n1")
    source = RenewableCertificate(path)
    renewed = content(tmp_path, 1)
    source.renew(renewed)
    path.unlink()
    assert source.read().certificate in renewed
    source.renew(content(tmp_path, 2))
    with pytest.raises(CertificateFileError):
        RenewableCertificate(path).read()


@pytest.mark.parametrize("rubbish", [b"", b"rubbish", b"-----BEGIN CERTIFICATE-----\nAA\n-----END CERTIFICATE-----\n"])
def test_rubbish_changes_nothing_and_is_not_repeated(tmp_path: Path, rubbish: bytes) -> None:
    first = content(tmp_path, 1)
    source = RenewableCertificate(first)
    with pytest.raises(CertificateFileError, match="expected a private key") as raised:
        source.renew(rubbish)
    assert "rubbish" not in str(raised.value)
    assert source.read().certificate in first
    with pytest.raises(CertificateFileError):
        RenewableCertificate(rubbish)


def test_a_path_stands_for_its_file(tmp_path: Path) -> None:
    path = certificate(tmp_path, "agent")
    source = source_of(path)
    assert isinstance(source, FileCertificate)
    assert source.read().certificate in path.read_bytes()
    assert source_of(source) is source
