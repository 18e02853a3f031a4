"""Certificates of an installation whose state folder is a test's own."""

from __future__ import annotations

from pathlib import Path

import grpc
import grpc.aio

from malletrain.common.files import write_atomically
from malletrain.runtime.access.pki import ensure_certificate, issue_to_node
from malletrain.runtime.clock import SystemClock
from malletrain.tls.credentials import channel_credentials, peer_options

LIFESPAN_SECONDS = 3600.0


def certificate(folder: Path, role: str) -> Path:
    """The certificate file of a role, made if there is none."""
    return ensure_certificate(folder, role, SystemClock(), LIFESPAN_SECONDS)


def node_certificate(folder: Path, node: str, placeholder: int | None = None) -> Path:
    """A new certificate file for the agent of a node, as the Scavenger or an operator makes it."""
    path = folder / f"{node}-{placeholder or 'by-hand'}.pem"
    content = issue_to_node(folder, node, placeholder, SystemClock(), LIFESPAN_SECONDS)
    write_atomically(path, content, mode=0o600)
    return path


def secure_channel(address: str, shown: Path, server_role: str) -> grpc.Channel:
    """A channel that shows a certificate, and accepts only a server of a role."""
    return grpc.secure_channel(address, channel_credentials(shown), _options(server_role))


def secure_aio_channel(address: str, shown: Path, server_role: str) -> grpc.aio.Channel:
    """The same for the running event loop."""
    return grpc.aio.secure_channel(address, channel_credentials(shown), _options(server_role))


def _options(server_role: str) -> tuple[tuple[str, object], ...]:
    return (*peer_options(server_role), ("grpc.use_local_subchannel_pool", 1))
