"""A disk that is really full: what the trainer's saver says of it reaches Monitor, and that it has room again, too."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from malletrain.client.ring import create_ring
from malletrain.client.sidecar import save_report
from malletrain.v1 import monitor_pb2
from tests.client.conftest import StartTrainer
from tests.client.peers import RecordingMonitor
from tests.support.waiting import wait_until

pytestmark = pytest.mark.processes

FULL = "No space left on device"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=False).returncode:
        pytest.skip("may not mount a file system")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def newest(monitor: RecordingMonitor) -> monitor_pb2.SaveReport | None:
    request = monitor.requests[-1]
    return request.saves if request.HasField("saves") else None


def test_a_full_disk(disk: Path, monitor: RecordingMonitor, start_trainer: StartTrainer) -> None:
    pytest.importorskip("torch", reason="needs torch")
    trainer = start_trainer()
    trainer.do("report(1)")
    wait_until(lambda: monitor.delivered == 1, 20, "the first record")
    assert newest(monitor) is None, "it has not saved yet"
    trainer.do("from malletrain.client.checkpoint_manager import CheckpointManager")
    trainer.do("import torch")
    trainer.do("from pathlib import Path")
    trainer.do(f"manager = CheckpointManager(Path({str(disk)!r}), 1.0)")
    trainer.do("state = lambda n: {'model': torch.zeros(n), 'optimizer': {}, 'samples': n}")
    trainer.do("manager.save(1, lambda: state(1_000_000)); manager.wait()")
    wait_until(lambda: newest(monitor) == monitor_pb2.SaveReport(failures=1, reason=FULL), 20, "the failure")
    trainer.do("manager.save(2, lambda: state(1_000_000)); manager.wait()")
    wait_until(lambda: newest(monitor) == monitor_pb2.SaveReport(failures=2, reason=FULL), 20, "another one")
    trainer.do("manager.save(3, lambda: state(10)); manager.wait()")
    wait_until(lambda: newest(monitor) == monitor_pb2.SaveReport(), 20, "a good one")


def test_a_script_says_it_itself_also_before_its_first_report(
    monitor: RecordingMonitor, start_trainer: StartTrainer
) -> None:
    trainer = start_trainer()
    trainer.do("note_save(ValueError('no such key'))")
    trainer.do("report(1)")
    failed = monitor_pb2.SaveReport(failures=1, reason="see its log")
    wait_until(lambda: monitor.requests and newest(monitor) == failed, 20, "the failure")
    trainer.do("note_save(rescale_seconds=2.5)")
    wait_until(lambda: newest(monitor) == monitor_pb2.SaveReport(rescale_seconds=2.5), 20, "a good one")
    trainer.do("note_save(ValueError('no such key'))")
    failed.rescale_seconds = 2.5
    wait_until(lambda: newest(monitor) == failed, 20, "what the good one took still counts")
    trainer.do("note_save()")
    wait_until(lambda: newest(monitor) == monitor_pb2.SaveReport(), 20, "one of which that is not known")
    trainer.do("note_save(rescale_seconds=float('nan'))")
    trainer.do("report(1)")
    wait_until(lambda: len(monitor.requests) and monitor.delivered == 2, 20, "a figure that is none does no harm")


def test_words_that_no_trainer_writes_do_no_harm() -> None:
    ring = create_ring(4)
    assert save_report(ring) is None
    ring.words[12], ring.words[13], ring.words[14] = 1, 1, 2**40
    assert save_report(ring) == monitor_pb2.SaveReport(failures=1, reason="see its log")
    ring.words[13] = -5
    assert save_report(ring) == monitor_pb2.SaveReport()
    ring.words[15] = -1
    assert save_report(ring) == monitor_pb2.SaveReport()
    ring.close()
