from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from malletrain.runtime.logs import LogStream


class FullDisk:
    """A stream on a disk that may be full."""

    def __init__(self) -> None:
        self.full = False
        self.lines: list[str] = []

    def write(self, text: str) -> int:
        if self.full:
            raise OSError(28, "No space left on device")
        self.lines.append(text)
        return len(text)

    def flush(self) -> None:
        if self.full:
            raise OSError(28, "No space left on device")


def test_lines_that_cannot_be_written_are_lost_and_counted() -> None:
    disk = FullDisk()
    stream = LogStream(disk)
    stream.write("first\n")
    disk.full = True
    stream.write("second\n")
    stream.write("third\n")
    disk.full = False
    stream.write("fourth\n")
    stream.write("fifth\n")
    lost = json.loads(disk.lines[1])
    assert (disk.lines[0], lost["lines"], disk.lines[2:]) == ("first\n", 2, ["fourth\n", "fifth\n"])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_service_goes_on_without_its_log() -> None:
    program = (
        "import structlog; from malletrain.runtime.logs import configure_logging; configure_logging('monitor'); "
        "[structlog.get_logger().info('line') for _ in range(1000)]; print('went on')"
    )
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=full, check=False)
    assert b"went on" in done.stdout
