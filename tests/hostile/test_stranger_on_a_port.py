"""A port of this machine is anybody's while its service is down. Who takes it is shown nothing."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator

import psutil
import pytest

from malletrain.runtime.settings_file import SERVICES
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed, run_command

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]
SETTINGS = """
[scavenger]
source = "static"
nodes = ["n1"]
debounce_seconds = 0
"""
_PREFACE = b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x05\x00\x00\x40\x00"
"""Settings with which a server of HTTP/2 greets: a client without TLS sends its calls, tokens and all, from then on."""


class Stranger:
    """Listens in the place of a service, and keeps what it is told."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        wait_until(lambda: self._bound(host, int(port)), 20, "the port")
        self.heard = b""
        self.visits = 0
        self._listener.settimeout(0.2)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _bound(self, host: str, port: int) -> bool:
        try:
            self._listener.bind((host, port))
            self._listener.listen(64)
        except OSError:
            return False
        return True

    def _listen(self) -> None:
        while not self._ended.is_set():
            try:
                with self._listener.accept()[0] as visitor:
                    self.visits += 1
                    visitor.settimeout(1.0)
                    visitor.sendall(_PREFACE)
                    while received := visitor.recv(65536):
                        self.heard += received
            except OSError:
                continue

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._listener.close()


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("stranger"), SETTINGS) as deployment:
        yield deployment


@pytest.mark.parametrize("service", SERVICES)
def test_who_listens_in_the_place_of_a_service_gets_no_token(system: Deployment, service: str) -> None:
    pid = system.pids()[service]
    os.kill(system.process.pid, signal.SIGSTOP)  # nobody starts the service again before the stranger listens
    try:
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, 20, "the end of the service")
        stranger = Stranger(system.address(service))
        try:
            # The other services connect again by themselves, and so do people.
            verb = {"scavenger": "nodes", "allocator": "plan", "monitor": "job", "profiler": "profile"}
            arguments = [verb.get(service, "jobs"), *(["j000001"] if service in ("monitor", "profiler") else [])]
            done = run_command(*arguments, cwd=system.folder, timeout=60)
            assert done.returncode != 0
            token = (system.folder / "keys/owner.token").read_text().strip()
            wait_until(lambda: stranger.visits > 0 and stranger.heard, 30, "visitors")
        finally:
            stranger.close()
    finally:
        os.kill(system.process.pid, signal.SIGCONT)
    assert token.encode() not in stranger.heard
    assert b"authorization" not in stranger.heard.lower()
    assert b"Bearer" not in stranger.heard
    assert b"\x16\x03" in stranger.heard, "the greeting of TLS, which holds nothing secret"
    assert b"PRI * HTTP/2.0" not in stranger.heard, "somebody spoke without TLS"
    wait_until(lambda: system.pids().get(service, pid) != pid, 60, "the service again")
    wait_until(lambda: system.command("health", service).returncode == 0, 60, "its answer")
