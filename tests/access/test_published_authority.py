"""Certificates are renewed while a process runs, and the CA's is published."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from pathlib import Path

import pytest

from malletrain.runtime.access.certificate_keeper import CertificateKeeper
from malletrain.runtime.access.pki import certificate_path, publish_authority, renew_certificate
from malletrain.runtime.clock import ManualClock
from malletrain.runtime.errors import InvalidInputError
from tests.support.waiting import wait_until_async
from tests.tls.serving import serial

NOW = 1.8e9
LIFESPAN = 4.0


async def test_certificates_are_renewed_while_a_process_runs(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    keeper = CertificateKeeper(tmp_path, ("monitor", "agent"), clock, LIFESPAN, tmp_path / "ca.pem")
    keeper.renew()
    paths = [certificate_path(tmp_path, role) for role in ("monitor", "agent")]
    first = [serial(path) for path in paths]
    published = (tmp_path / "ca.pem").read_bytes()
    keeper.renew()
    assert [serial(path) for path in paths] == first

    keeping = asyncio.create_task(keeper.keep())
    try:
        clock.advance(LIFESPAN / 2 + 0.5)
        await wait_until_async(lambda: not set(first) & {serial(path) for path in paths}, what="both renewed")
        # What goes wrong once is tried again.
        (tmp_path / "keys").chmod(0o755)
        clock.advance(LIFESPAN)
        second = {serial(path) for path in paths}
        (tmp_path / "keys").chmod(0o700)
        await wait_until_async(lambda: not second & {serial(path) for path in paths}, what="both renewed again")
    finally:
        keeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await keeping
    assert (tmp_path / "ca.pem").read_bytes() == published


def test_without_roles_and_place_nothing_is_made(tmp_path: Path) -> None:
    CertificateKeeper(tmp_path, (), ManualClock(NOW), LIFESPAN).renew()
    assert not list(tmp_path.iterdir())


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
