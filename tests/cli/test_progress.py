"""Progress bars: on a terminal only, never in what is printed, and gone at the end."""

from __future__ import annotations

import gzip
import os
import select
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from malletrain.cli.shared.progress import progress_bar
from malletrain.simulator.traces.lines import read_lines, size_of
from tests.support.waiting import wait_until

PROGRAM = """
import sys
from malletrain.cli.shared.progress import progress_bar
with progress_bar("simulations", 4, counts=True) as progress:
    for done in range(1, 5):
        progress(done)
        print("line", done)
"""


def test_without_a_terminal_there_is_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("work", 10) as progress:
        progress(5)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("piped", [False, True])
@pytest.mark.processes
def test_on_a_terminal_there_is_one_and_what_is_printed_stays_where_it_belongs(piped: bool) -> None:
    terminal, inner = os.openpty()
    termios.tcsetwinsize(inner, (24, 80))
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"TERM": "xterm"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if piped else inner,
        stderr=inner,
    )
    os.close(inner)
    shown = bytearray()

    def ended() -> bool:
        while select.select([terminal], [], [], 0)[0]:
            try:
                shown.extend(os.read(terminal, 65536))
            except OSError:  # nobody writes to it any more
                break
        return process.poll() is not None

    wait_until(ended, 60, "its end")
    ended()
    os.close(terminal)
    assert process.returncode == 0
    text = shown.decode()
    assert "simulations" in text
    assert "4/4" in text
    assert ("line 4" in text) is not piped
    if piped:
        assert process.stdout is not None
        assert process.stdout.read() == b"line 1\nline 2\nline 3\nline 4\n"


def test_bytes_of_logs_are_counted_as_they_lie_there(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a.log", tmp_path / "b.log.gz"
    plain.write_text("line\n" * 2500)
    packed.write_bytes(gzip.compress(b"line\n" * 2500))
    seen: list[float] = []
    assert len(list(read_lines([plain, packed], seen.append))) == 5000
    assert len(seen) >= 5
    assert seen == sorted(seen)
    assert seen[-1] == size_of([plain, packed]) == plain.stat().st_size + packed.stat().st_size
    assert size_of([tmp_path / "none"]) == 0
