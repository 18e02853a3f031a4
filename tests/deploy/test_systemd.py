"""A real systemd, as process 1 of namespaces, restarts services that hang: those of the units that we install."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from malletrain.cli.operate.install import SystemdInstallation, render, template_folder
from tests.support.ports import free_port
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.processes, pytest.mark.timeout(600)]

INIT = Path("/lib/systemd/systemd")
CGROUPS = Path("/sys/fs/cgroup")
SERVICES = ("scavenger", "monitor")
WATCHDOG_SECONDS = 30
PATIENCE = 180.0

BOOT = """
mount --make-rprivate /
mount -t tmpfs tmpfs /run
if [ -e {cgroups}/cgroup.controllers ]; then
  mount -t cgroup2 cgroup2 {cgroups}
else
  mount -t tmpfs tmpfs {cgroups}
  mkdir {cgroups}/systemd {cgroups}/unified
  mount -t cgroup -o none,name=systemd cgroup {cgroups}/systemd
  mount -t cgroup2 cgroup2 {cgroups}/unified
fi
export container=other SYSTEMD_UNIT_PATH={units}
exec {init} --system --unit=test.target --log-target=null --show-status=no
"""
DROP_IN = f"""
[Service]
# The interpreter of this test may be in a home, and its account is root, with no capability.
ProtectHome=no
WatchdogSec={WATCHDOG_SECONDS}
# Long enough to see why it is restarted.
RestartSec=5
"""
SETTINGS = """
state_dir = "{state}"
[addresses]
scavenger = "127.0.0.1:{scavenger}"
monitor = "127.0.0.1:{monitor}"
[scavenger]
source = "static"
nodes = ["n1"]
"""


class Machine:
    """What systemd runs.

    Attributes:
        folder: Units and state.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mains = [group / f"malletrain-test-{os.getpid()}" for group in _hierarchies()]
        ports = {service: free_port() for service in SERVICES}
        (folder / "malletrain.toml").write_text(SETTINGS.format(state=folder / "state", **ports))
        for state in ("state", "state-viewer"):
            (folder / state).mkdir(mode=0o700)
        command = folder / "bin" / "malletrain"
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m malletrain.cli.main "$@"\n')
        command.chmod(0o755)
        self._write_units(folder / "units")

    def _write_units(self, units: Path) -> None:
        installation = SystemdInstallation(self.folder, "root", self.folder / "malletrain.toml", self.folder / "state")
        for path, text in render(template_folder(), installation).items():
            target = units / path.relative_to("systemd/system") if path.parts[0] == "systemd" else None
            if target is not None:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text)
        (units / "malletrain@.service.d").mkdir()
        (units / "malletrain@.service.d" / "test.conf").write_text(DROP_IN)
        for name in ("sysinit", "basic", "shutdown", "umount", "network-online", "nss-user-lookup"):
            (units / f"{name}.target").write_text("[Unit]\nDefaultDependencies=no\n")
        wanted = " ".join(f"malletrain@{service}.service" for service in SERVICES)
        (units / "test.target").write_text(f"[Unit]\nDefaultDependencies=no\nWants={wanted}\n")

    def start(self) -> subprocess.Popen[bytes]:
        """Start systemd in namespaces and a control group of its own."""
        for group in self._mains:
            group.mkdir()
        join = "".join(f"echo $$ >{group}/cgroup.procs; " for group in self._mains)
        boot = BOOT.format(cgroups=CGROUPS, units=self.folder / "units", init=INIT)
        apart = "unshare --pid --mount --cgroup --ipc --uts --fork --kill-child --mount-proc"
        argv = ["sh", "-ec", f'{join}exec {apart} sh -ec "$0"', boot]
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL)

    def clean_up(self) -> None:
        """Remove the control groups once their processes are gone."""
        for main in self._mains:
            for folder in [*sorted(main.rglob("*/"), reverse=True), main]:
                with suppress(OSError):
                    folder.rmdir()

    def show(self, service: str) -> dict[str, str]:
        """What systemd says of a service; nothing while it can't be asked."""
        init = next((one.pid for one in psutil.process_iter(["cmdline"]) if self._is_init(one)), None)
        argv = ["systemctl", "show", "--property=ActiveState,Result,NRestarts", f"malletrain@{service}.service"]
        enter = ["nsenter", f"--target={init}", "--mount", "--pid", *argv]
        done = subprocess.run(enter, capture_output=True, text=True, check=False, timeout=30)
        return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)

    def _is_init(self, process: psutil.Process) -> bool:
        if (process.info["cmdline"] or [""])[0] != str(INIT):
            return False
        groups = Path(f"/proc/{process.pid}/cgroup").read_text()
        return self._mains[0].name in groups

    def pid(self, service: str) -> int | None:
        """The service's process; None while there is none."""
        argv = ["serve", service, "--config", str(self.folder / "malletrain.toml")]
        found = (one for one in psutil.process_iter(["cmdline"]) if (one.info["cmdline"] or [])[-4:] == argv)
        return next((one.pid for one in found), None)


def _hierarchies() -> list[Path]:
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    return [CGROUPS / name for name in ("systemd", "unified")]


def missing() -> str:
    """Why there can be no such machine here; empty: there can."""
    if os.geteuid() != 0:
        return "only root can run a systemd of its own"
    if not INIT.exists() or shutil.which("unshare") is None:
        return "systemd is not installed"
    if not all(os.access(group, os.W_OK) for group in _hierarchies()):
        return "this machine lets nobody make cgroups here, as systemd does"
    return ""


@pytest.fixture
def machine() -> Iterator[Machine]:
    if reason := missing():
        pytest.skip(reason)
    # The units hide /tmp from the services.
    folder = Path(tempfile.mkdtemp(prefix="malletrain-systemd-", dir="/var/lib"))
    found = Machine(folder)
    process = found.start()
    try:
        yield found
    finally:
        process.kill()  # process 1 of the namespace ends with it, and all others with that
        process.wait()
        wait_until(lambda: not any(map(found.pid, SERVICES)), 30, "the end of all services")
        found.clean_up()
        shutil.rmtree(folder)


def test_a_service_that_hangs_is_killed_and_started_again(machine: Machine) -> None:
    def serves(service: str, restarts: int) -> bool:
        told = machine.show(service)
        return told.get("ActiveState") == "active" and told.get("NRestarts") == f"{restarts}"

    wait_until(lambda: all(serves(service, 0) for service in SERVICES), PATIENCE, "both services serving")
    before = {service: machine.pid(service) for service in SERVICES}
    hanging = before["monitor"]
    assert hanging is not None
    stopped = time.monotonic()
    os.kill(hanging, signal.SIGSTOP)
    wait_until(lambda: machine.show("monitor").get("Result") == "watchdog", PATIENCE, "the watchdog")
    noticed = time.monotonic() - stopped
    wait_until(lambda: serves("monitor", 1), PATIENCE, "that it serves again")
    print(f"systemd: noticed after {noticed:.1f} s, serves again after {time.monotonic() - stopped:.1f} s")
    assert machine.pid("monitor") not in (None, hanging)
    assert not psutil.pid_exists(hanging)
    assert noticed < WATCHDOG_SECONDS + 15
    assert machine.pid("scavenger") == before["scavenger"], "the other service has gone on"
    assert serves("scavenger", 0)
