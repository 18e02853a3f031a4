"""Completion of the command by real shells, after it was installed by one command."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.support.waiting import wait_until

SECONDS = 90.0
FILES = {"bash": (".bashrc", ("--noprofile",)), "zsh": (".zshrc", ())}
shells = pytest.mark.parametrize(
    "shell",
    [
        pytest.param(name, marks=pytest.mark.skipif(shutil.which(name) is None, reason=f"needs {name}"))
        for name in FILES
    ],
)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Of a user whose home is empty, with the command first in the path."""
    programs = tmp_path / "bin"
    programs.mkdir()
    script = programs / "malletrain"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m malletrain.cli.main "$@"\n')
    script.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MALLETRAIN_")}
    home = tmp_path / "home"
    home.mkdir()
    return kept | {"HOME": str(home), "ZDOTDIR": str(home), "PATH": f"{programs}:{kept['PATH']}", "TERM": "dumb"}


def install(shell: str, environment: dict[str, str]) -> None:
    """As a user does: the shell that asks is the one that is found."""
    words = [shutil.which(shell) or shell, "-c", "malletrain --install-completion; exit $?"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{shell} completion installed" in done.stdout


class Shell:
    """An interactive shell in a pseudo-terminal."""

    def __init__(self, shell: str, environment: dict[str, str]) -> None:
        self.terminal, inner = os.openpty()
        termios.tcsetwinsize(inner, (40, 160))
        options = FILES[shell][1]
        self.process = subprocess.Popen(
            [shell, *options, "-i"], env=environment, stdin=inner, stdout=inner, stderr=inner, start_new_session=True
        )
        os.close(inner)
        self.text = ""

    def says(self, text: str) -> bool:
        while select.select([self.terminal], [], [], 0)[0]:
            self.text += os.read(self.terminal, 1 << 16).decode(errors="replace")
        return text in self.text

    def type(self, keys: str) -> None:
        self.text = ""
        os.write(self.terminal, keys.encode())

    def close(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.terminal)


@shells
@pytest.mark.processes
def test_a_shell_completes_verbs_and_options(shell: str, environment: dict[str, str]) -> None:
    install(shell, environment)
    assert (Path(environment["HOME"]) / FILES[shell][0]).exists()
    typed = Shell(shell, environment)
    try:
        typed.type("echo rea''dy\n")
        wait_until(lambda: typed.says("\nready"), SECONDS, "a prompt")
        typed.type("malletrain expl\t")
        wait_until(lambda: typed.says("explain ") or typed.says("explain\x1b"), SECONDS, "the verb")
        typed.type("--pl\t")
        wait_until(lambda: typed.says("--plan "), SECONDS, "its option")
        typed.type("\x15")
        typed.type("malletrain trace con\t")
        wait_until(lambda: typed.says("convert "), SECONDS, "the verb of a group")
    finally:
        typed.close()


def completed(words: str, environment: dict[str, str]) -> list[str]:
    variables = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    done = subprocess.run(
        ["malletrain"],
        env=environment | variables | {"_MALLETRAIN_COMPLETE": "complete_bash"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_what_is_completed(environment: dict[str, str]) -> None:
    assert completed("malletrain job", environment) == ["jobs", "job"]
    assert set(completed("malletrain ", environment)) > {"submit", "top", "trace", "fleet"}
    assert completed("malletrain submit --wai", environment) == ["--wait"]
    assert completed("malletrain nonsense --x", environment) == []
