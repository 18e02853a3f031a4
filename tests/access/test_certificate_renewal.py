"""Certificates are made when they are missing, and renewed while a service runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

from structlog.testing import capture_logs

from malletrain.runtime.access.certificate_renewal import CertificateRenewal
from tests.support.clocks import ManualClock
from tests.support.waiting import wait_until_async

NOW = 1_800_000_000.0
LIFESPAN = 4.0
"""In seconds; a manager looks eight times as often. Only the clock below says how old certificates are."""


async def test_each_role_has_a_certificate_that_is_renewed_when_half_is_over(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    manager = CertificateRenewal(tmp_path, ("supervisor", "agent"), clock, LIFESPAN, tmp_path / "ca.pem")
    manager.renew()
    first = [manager.path(role).read_bytes() for role in ("supervisor", "agent")]
    published = (tmp_path / "ca.pem").read_bytes()
    manager.renew()
    assert [manager.path(role).read_bytes() for role in ("supervisor", "agent")] == first, "they are good"
    keeping = asyncio.create_task(manager.keep_renewed())
    try:
        clock.advance(LIFESPAN * 10)
        await wait_until_async(lambda: manager.path("agent").read_bytes() != first[1], 10, "another certificate")
        assert manager.path("supervisor").read_bytes() != first[0]
        assert {path.name for path in manager.path("agent").parent.iterdir()} == {"supervisor.pem", "agent.pem"}
        assert (tmp_path / "ca.pem").read_bytes() == published
    finally:
        keeping.cancel()


async def test_what_can_not_be_renewed_is_said_and_tried_again(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    manager = CertificateRenewal(tmp_path, ("agent",), clock, LIFESPAN)
    manager.renew()
    first = manager.path("agent").read_bytes()
    key = tmp_path / "keys" / "ca.key"
    content = key.read_bytes()
    key.write_bytes(b"no key")
    clock.advance(LIFESPAN * 10)
    with capture_logs() as logs:
        keeping = asyncio.create_task(manager.keep_renewed())
        try:
            await wait_until_async(lambda: logs, 10, "the error")
            key.write_bytes(content)
            await wait_until_async(lambda: manager.path("agent").read_bytes() != first, 10, "another certificate")
        finally:
            keeping.cancel()
    assert logs[0]["event"] == "certificates not renewed"


def test_without_roles_and_place_nothing_is_made(tmp_path: Path) -> None:
    CertificateRenewal(tmp_path, (), ManualClock(NOW), LIFESPAN).renew()
    assert not list(tmp_path.iterdir())
