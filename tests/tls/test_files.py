"""The file of a process: all three parts, for its owner only."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from malletrain.tls.files import CertificateFileError, read_certificate_file
from tests.tls.serving import certificate


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return certificate(tmp_path, "agent")


def test_the_parts(path: Path) -> None:
    found = read_certificate_file(path)
    assert found.private_key.startswith(b"-----BEGIN PRIVATE KEY-----\n")
    assert found.certificate.startswith(b"-----BEGIN CERTIFICATE-----\n")
    assert found.authority.startswith(b"-----BEGIN CERTIFICATE-----\n")
    assert found.private_key + found.certificate + found.authority == path.read_bytes()
    assert "PRIVATE" not in repr(found)


@pytest.mark.parametrize("bits", [0o640, 0o604, 0o620, 0o601])
def test_a_file_that_others_can_read_is_refused(path: Path, bits: int) -> None:
    path.chmod(bits)
    with pytest.raises(CertificateFileError, match=f"only its owner can read, got mode {bits:o}"):
        read_certificate_file(path)


def test_a_file_that_is_missing_or_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CertificateFileError, match="No such file"):
        read_certificate_file(tmp_path / "agent.pem")
    with pytest.raises(CertificateFileError, match="directory"):
        read_certificate_file(tmp_path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(CertificateFileError, match="plain file"):
        read_certificate_file(tmp_path / "pipe")


def test_other_content_is_refused_and_not_quoted(path: Path) -> None:
    parts = read_certificate_file(path)
    key, leaf, authority = parts.private_key, parts.certificate, parts.authority
    contents = [
        b"",
        b"secret",
        key,
        key + leaf,
        leaf + key + authority,
        key + leaf + authority + leaf,
        key + key + leaf,
        key + leaf + authority + b"secret",
        b"secret\n" + key + leaf + authority,
        (key + leaf + authority)[:-5],
    ]
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(CertificateFileError, match="expected a private key, a certificate and the CA's") as caught:
            read_certificate_file(path)
        assert "secret" not in str(caught.value)


def test_a_file_that_is_too_large_is_refused(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n" * 65536)
    with pytest.raises(CertificateFileError, match="at most 65536 bytes"):
        read_certificate_file(path)
