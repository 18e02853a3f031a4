"""Addresses of this machine that other machines could reach."""

from __future__ import annotations

import socket

import pytest


def own_address() -> str:
    """An address of this machine that is not loopback; skips the calling test where there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
            address: str = probe.getsockname()[0]
        except OSError:
            address = "127.0.0.1"
    if address.startswith("127."):
        pytest.skip("this machine has loopback addresses only")
    return address
