"""A shell that does what a page says, one command after the other, in a folder of its own."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from malletrain.cli.demo.setup import free_ports
from malletrain.common.processes import kill_processes
from malletrain.runtime.config import Addresses
from malletrain.runtime.settings_file import SERVICES
from tests.docs.blocks import Command, ConsoleBlock, FileBlock, matches
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
LOOPBACK = "127.0.0.1"
COMMAND_SECONDS = 150.0
"""How long one command may take."""


@dataclass
class Shell:
    """A running shell.

    Attributes:
        process: The shell.
        folder: Its working directory at first.
        addresses: What stands in for each default address of a service.
    """

    process: subprocess.Popen[str]
    folder: Path
    addresses: Mapping[str, str]
    _commands: int = field(default=0, init=False)

    def follow(self, block: ConsoleBlock | FileBlock) -> None:
        """Do what a block says; a skipped one says nothing.

        Raises:
            AssertionError: a command failed, or its output is not what the page shows.
        """
        if isinstance(block, FileBlock):
            (self.folder / block.path).write_text(block.text, encoding="utf-8")
        elif not block.skipped:
            for command in block.commands:
                self.run(command)

    def run(self, command: Command) -> None:
        """Run one command; `malletrain up` goes on in the background once its services serve.

        Raises:
            AssertionError: it failed, or its output is not what the page shows.
        """
        text = command.text
        for default, own in self.addresses.items():
            text = text.replace(default, own)
        self._commands += 1
        out, status = (self.folder / f".{self._commands}.{name}" for name in ("out", "status"))
        if re.match(r"malletrain up\b", text):
            self._send(f"{text} > {out} 2>&1 &")
            wait_until(lambda: out.exists() and "stop with Ctrl-C" in out.read_text(), 60, "all services serving")
            return
        self._send(f"{{ {text}\n}} > {out} 2>&1 < /dev/null; echo $? > {status}.new; mv {status}.new {status}")
        wait_until(status.exists, COMMAND_SECONDS, f"the end of line {command.line}: {command.text}")
        output = out.read_text()
        told = f"line {command.line}: {command.text}\n{output}"
        assert status.read_text().strip() == "0", told
        assert not command.expected or matches(command.expected, output), f"{told}\nis not what the page shows"

    def _send(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()

    def close(self) -> None:
        """End the services that were started, then the shell, then whatever is left of both."""
        self._send("jobs -p | xargs --no-run-if-empty kill -TERM; wait; exit 0")
        with contextlib.suppress(subprocess.TimeoutExpired):  # a command that hangs has failed the test already
            self.process.wait(60)
        kill_processes(lambda environment: environment.get("HOME") == str(self.folder))
        self.process.wait(10)


@contextmanager
def page_shell(folder: Path, host: str = LOOPBACK, shown_host: str = LOOPBACK) -> Iterator[Shell]:
    """A shell in an empty folder, with a home, examples and ports of its own.

    Its `malletrain` and `python` are those of the tests.

    Args:
        folder: Its working directory and home.
        host: Where the services listen.
        shown_host: What the page writes for it.
    """
    (folder / "examples").symlink_to(ROOT / "examples")
    own = {name: f"{host}:{port}" for name, port in zip(SERVICES, free_ports(), strict=True)}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLETRAIN_")}
    environment |= {f"MALLETRAIN_ADDRESSES__{name.upper()}": address for name, address in own.items()}
    environment |= {"HOME": str(folder), "COLUMNS": "200"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    process = subprocess.Popen(
        ["bash", "--noprofile", "--norc"],
        cwd=folder,
        env=environment,
        stdin=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    defaults = Addresses()
    shown = {name: defaults.of(name).replace(LOOPBACK, shown_host) for name in SERVICES}
    shell = Shell(process, folder, {shown[name]: address for name, address in own.items()})
    try:
        yield shell
    finally:
        shell.close()
