"""Certificates are made anew on demand, and the CA's is published."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from malletrain.runtime.access.pki import publish_authority, renew_certificate
from malletrain.runtime.errors import InvalidInputError
from tests.support.clocks import ManualClock
from tests.tls.serving import serial

NOW = 1.8e9


def test_a_certificate_is_made_anew_on_demand(tmp_path: Path) -> None:
    first = serial(renew_certificate(tmp_path, "agent", ManualClock(NOW), 3600))
    assert serial(renew_certificate(tmp_path, "agent", ManualClock(NOW), 3600)) != first
    with pytest.raises(InvalidInputError, match="role: expected one of"):
        renew_certificate(tmp_path, "boss", ManualClock(NOW), 3600)


def test_everybody_may_read_the_published_certificate(tmp_path: Path) -> None:
    path, clock = tmp_path / "ca.pem", ManualClock(NOW)
    before = os.umask(0o077)
    try:
        publish_authority(tmp_path, path, clock)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert path.read_bytes() == (tmp_path / "keys/ca.pem").read_bytes()
    for damage in (b"", b"another"):
        path.write_bytes(damage)
        publish_authority(tmp_path, path, clock)
        assert path.read_bytes() == (tmp_path / "keys/ca.pem").read_bytes()
    path.chmod(0o666)
    publish_authority(tmp_path, path, clock)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
