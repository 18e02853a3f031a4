"""Services and their callers: with certificates of the installation's CA, and with the site's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from malletrain.common.addresses import is_loopback
from malletrain.runtime.access.installation import open_installation
from malletrain.runtime.access.pki import renew_certificate
from malletrain.runtime.channel import is_serving, open_blocking_channel, open_channel
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.config import Addresses, Settings, TlsSettings
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.peer import Peer
from malletrain.runtime.server import ServiceHost
from tests.support.access import checked
from tests.support.addresses import own_address
from tests.tls.serving import shown_certificate
from tests.tls.site import SiteAuthority


@dataclass(frozen=True)
class Running:
    """A server of JobManager's address and role.

    Attributes:
        settings: Settings of its callers.
    """

    settings: Settings

    @property
    def address(self) -> str:
        return self.settings.addresses.job_manager

    async def health(self, peer: Peer) -> grpc.StatusCode:
        """Code with which a health check of a peer ends."""
        async with open_channel(peer, None) as channel:
            return await check(channel)


async def check(channel: grpc.aio.Channel) -> grpc.StatusCode:
    try:
        await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


@asynccontextmanager
async def running(state_dir: Path, tls: TlsSettings) -> AsyncIterator[Running]:
    host = own_address()
    settings = Settings(state_dir=state_dir, addresses=Addresses(job_manager=f"{host}:0"), tls=tls)
    installation = open_installation(settings, SystemClock())
    installation.certificates("job_manager").renew()
    server = ServiceHost(f"{host}:0", checked(), credentials=installation.server_credentials("job_manager"))
    port = await server.start()
    try:
        yield Running(settings.model_copy(update={"addresses": Addresses(job_manager=f"{host}:{port}")}))
    finally:
        await server.stop(0)


async def test_the_installations_own_certificates_name_roles(tmp_path: Path) -> None:
    async with running(tmp_path, TlsSettings()) as server:
        peer = server.settings.peer("job_manager")
        assert peer.role == "job_manager"
        assert await server.health(peer) is grpc.StatusCode.OK
        for wrong in ("monitor", None):
            assert (
                await server.health(Peer("job_manager", peer.address, peer.authority_file, wrong))
                is grpc.StatusCode.UNAVAILABLE
            )


async def test_a_blocking_channel_and_a_health_check(tmp_path: Path) -> None:
    async with running(tmp_path, TlsSettings()) as server:
        with open_blocking_channel(server.settings.peer("job_manager"), None) as channel:
            assert await asyncio.to_thread(is_serving, channel)


async def test_a_renewed_certificate_is_shown_at_once(tmp_path: Path) -> None:
    async with (
        running(tmp_path, TlsSettings()) as server,
        open_channel(server.settings.peer("job_manager"), None) as channel,
    ):
        assert await check(channel) is grpc.StatusCode.OK
        before = shown_certificate(server.address)
        renew_certificate(tmp_path, "job_manager", SystemClock(), 3600)
        assert shown_certificate(server.address) != before
        assert await check(channel) is grpc.StatusCode.OK


async def test_a_sites_own_certificate_names_the_host(tmp_path: Path) -> None:
    site = SiteAuthority(tmp_path / "site")
    async with running(tmp_path / "state", site.settings(own_address())) as server:
        peer = server.settings.peer("job_manager")
        assert peer.role is None
        assert await server.health(peer) is grpc.StatusCode.OK
        foreign = SiteAuthority(tmp_path / "foreign").settings(own_address()).authority_file
        assert foreign is not None
        assert await server.health(Peer("job_manager", peer.address, foreign, None)) is grpc.StatusCode.UNAVAILABLE
        before = shown_certificate(server.address)
        site.settings(own_address())
        assert shown_certificate(server.address) != before
        assert await server.health(peer) is grpc.StatusCode.OK
        # A certificate for another host is not good here.
        site.settings("203.0.113.7")
        assert await server.health(peer) is grpc.StatusCode.UNAVAILABLE
    assert not (tmp_path / "state/keys/certificates/job_manager.pem").exists()


async def test_a_key_that_is_not_the_certificates_leaves_the_server_as_it_was(tmp_path: Path) -> None:
    site = SiteAuthority(tmp_path / "site")
    async with running(tmp_path / "state", site.settings(own_address())) as server:
        before = shown_certificate(server.address)
        kept = (tmp_path / "site/tls.pem").read_bytes()
        site.settings(own_address(), timedelta(days=60))
        renewed = (tmp_path / "site/tls.pem").read_bytes()
        (tmp_path / "site/tls.pem").write_bytes(kept)
        assert shown_certificate(server.address) == before
        (tmp_path / "site/tls.pem").write_bytes(renewed)
        assert shown_certificate(server.address) != before


def test_nothing_is_served_in_plain_text_off_loopback() -> None:
    with pytest.raises(InvalidInputError, match="address: expected a loopback address: others are served over TLS"):
        ServiceHost("192.0.2.7:0", checked())


async def test_nothing_is_called_in_plain_text(tmp_path: Path) -> None:
    for opened in (open_channel, open_blocking_channel):
        with pytest.raises(InvalidInputError, match=r"tls\.authority_file: expected the certificate by which"):
            opened(Peer("monitor", "192.0.2.7:1", tmp_path / "ca.pem", "monitor"), None)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "localhost:0", "[::1]:65535"])
def test_loopback(address: str) -> None:
    assert is_loopback(address)


@pytest.mark.parametrize("address", ["127.0.0.2:1", "localhost.example.org:1", "[::]:1", "0.0.0.0:1", "127.0.0.1", ""])
def test_not_loopback(address: str) -> None:
    assert not is_loopback(address)


def test_on_loopback_the_installations_own_certificate_is_shown_beside_a_sites(tmp_path: Path) -> None:
    tls = TlsSettings(certificate_file=Path("/c"), key_file=Path("/k"), authority_file=Path("/a"))
    installation = open_installation(Settings(state_dir=tmp_path, tls=tls), SystemClock())
    installation.certificates("monitor").renew()
    assert installation.server_credentials("monitor") is not None
    made = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert made == {"token.key", "ca.key", "ca.pem", "monitor.pem"}


def test_a_site_certificate_that_can_not_be_used_is_named(tmp_path: Path) -> None:
    tls = SiteAuthority(tmp_path / "site").settings("192.0.2.7")
    settings = Settings(state_dir=tmp_path, addresses=Addresses(monitor="192.0.2.7:7704"), tls=tls)
    installation = open_installation(settings, SystemClock())
    assert installation.server_credentials("monitor") is not None
    (tmp_path / "site/tls.key").chmod(0o604)
    with pytest.raises(InvalidInputError, match=r"tls\.certificate_file: expected a usable certificate .*mode 604"):
        installation.server_credentials("monitor")
