from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from malletrain.client.checkpoints import Checkpoints, UnfinishedCheckpoint
from malletrain.client.checksum import ChecksumWriter


def read(path: Path, _sealed: bool) -> str:
    text = path.read_text().partition("\nmalletrain-sha256:")[0]
    if not text.endswith("."):
        raise ValueError(f"{path.name} is torn")
    return text


def save(checkpoints: Checkpoints, samples: int, text: str) -> None:
    def write(stream: ChecksumWriter) -> None:
        stream.write(text.encode())

    checkpoints.save(samples, write)


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "new/folder")
    for samples in (5, 90, 1000):
        save(checkpoints, samples, f"at {samples}.")
    assert [path.name for path in checkpoints.newest_first()] == [
        "samples-000000000001000.pt",
        "samples-000000000000090.pt",
    ]
    assert checkpoints.load(read, (ValueError,)) == "at 1000."


def test_a_torn_one_falls_back_to_the_one_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1, "first.")
    save(checkpoints, 2, "sec")
    assert checkpoints.load(read, (ValueError,)) == "first."
    assert "samples-000000000000002.pt can't be read" in capsys.readouterr().err
    # It does not count among the two that are kept.
    save(checkpoints, 3, "third.")
    assert [path.name for path in checkpoints.newest_first()] == [
        "samples-000000000000003.pt",
        "samples-000000000000001.pt",
    ]


def test_nothing_there_is_none(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "missing").load(read, (ValueError,)) is None


def test_a_failing_write_leaves_the_earlier_ones_and_no_rest(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1, "first.")

    def fail(_: object) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        checkpoints.save(2, fail)
    assert [path.name for path in tmp_path.iterdir()] == ["samples-000000000000001.pt"]


def test_a_kill_in_mid_write_leaves_the_earlier_ones(tmp_path: Path) -> None:
    save(Checkpoints(tmp_path), 1, "first.")
    code = (
        "import sys, time; from pathlib import Path; from malletrain.client.checkpoints import Checkpoints\n"
        "def write(stream):\n"
        "    stream.write(b'half'); stream.flush(); print('half', flush=True); time.sleep(60)\n"
        "Checkpoints(Path(sys.argv[1])).save(2, write)"
    )
    writer = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "half\n"
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    assert len(list(tmp_path.iterdir())) == 2
    assert Checkpoints(tmp_path).load(read, (ValueError,)) == "first."
    # What the killed writer has left is gone.
    assert [path.name for path in tmp_path.iterdir()] == ["samples-000000000000001.pt"]


def test_what_another_is_writing_is_left_alone(tmp_path: Path) -> None:
    writing = UnfinishedCheckpoint(tmp_path / ".samples-000000000000007.pt.elsewhere.1")
    save(Checkpoints(tmp_path), 1, "first.")
    assert writing.path.exists()
    writing.close()
    save(Checkpoints(tmp_path), 2, "second.")
    assert not writing.path.exists()


@pytest.mark.parametrize("place", [0, 3, 9, -1, -40, -64])
def test_one_changed_byte_anywhere_is_noticed(tmp_path: Path, place: int) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1, "first.")
    save(checkpoints, 2, "the second.")
    newest = checkpoints.newest_first()[0]
    content = bytearray(newest.read_bytes())
    content[place] ^= 1
    newest.write_bytes(content)
    assert checkpoints.load(read, (ValueError,)) == "first."
