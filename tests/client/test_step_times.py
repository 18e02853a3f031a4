"""What a worker tells of its steps: measured, written to a file, read by the sidecar of rank 0."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from malletrain.client.own_times import FILE_BYTES, MIN_STEPS, OwnTimes, WorkerTimes, from_bytes, to_bytes
from malletrain.client.step_times import READ_SECONDS, StepTimesReader, StepTimesTeller
from tests.support.waiting import wait_until

TOLD = WorkerTimes(3, "n3", 40, 0.25, 0.5)


def test_medians_of_the_newest_steps_are_told_at_most_every_10_seconds() -> None:
    times = OwnTimes(0.0)
    for number in range(MIN_STEPS - 1):
        times.add(0.1 if number else 5.0, 0.2 if number else 9.0)
    assert times.take(1, "n1", 100.0) is None, "too few steps"
    times.add(0.1, 0.2)
    assert times.take(1, "n1", 9.9) is None, "too soon"
    assert times.take(1, "n1", 10.0) == WorkerTimes(1, "n1", MIN_STEPS, 0.1, 0.2)
    assert times.take(1, "n1", 100.0) is None, "nothing new"


def test_steps_that_cannot_be_are_left_out() -> None:
    times = OwnTimes(0.0)
    for own, whole in [(float("nan"), 1.0), (-1.0, 1.0), (2.0, 1.0), (1.0, float("inf")), (1.0, 1e7)]:
        for _ in range(MIN_STEPS):
            times.add(own, whole)
    assert times.take(0, "n1", 100.0) is None


def test_what_is_written_can_be_read() -> None:
    content = to_bytes(TOLD)
    assert (len(content), from_bytes(content, 3)) == (FILE_BYTES, TOLD)
    with pytest.raises(ValueError, match="at most 1024 bytes"):
        to_bytes(TOLD._replace(node="n" * 1024))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[" * 1024,
        b"[]",
        to_bytes(TOLD._replace(rank=4)),
        to_bytes(TOLD._replace(node="")),
        to_bytes(TOLD._replace(node="n\n")),
        to_bytes(TOLD._replace(steps=0)),
        to_bytes(TOLD._replace(steps=2**61)),
        to_bytes(TOLD._replace(own_seconds=0.6)),
        to_bytes(TOLD._replace(own_seconds=-0.1)),
        to_bytes(TOLD._replace(step_seconds=float("inf"))),
        to_bytes(TOLD._replace(step_seconds=float("nan"))),
    ],
)
def test_what_no_worker_writes_is_not_read(content: bytes) -> None:
    assert from_bytes(content, 3) is None


def read_all(reader: StepTimesReader, now: float, workers: int = 8) -> list[WorkerTimes]:
    """What is found by a look at a time."""
    found: list[WorkerTimes] = []
    reader.look(workers, now)

    def done() -> bool:
        found.extend(reader.take())
        return not reader.is_reading

    wait_until(done, 60, "the look")
    return [*found, *reader.take()]


def test_the_reader_tells_what_has_changed_since_its_first_look(tmp_path: Path) -> None:
    folder = tmp_path / "step-times"
    folder.mkdir()
    (folder / "3").write_bytes(to_bytes(TOLD))
    (folder / "5").write_bytes(b"nonsense")
    os.mkfifo(folder / "6")
    (folder / "7").symlink_to("/dev/zero")
    reader = StepTimesReader(tmp_path)
    assert read_all(reader, 0.0) == [], "these may be of an earlier start"
    fresh = TOLD._replace(steps=60)
    (folder / "3").write_bytes(to_bytes(fresh))
    assert read_all(reader, READ_SECONDS - 0.1) == [], "it is not time yet"
    assert read_all(reader, READ_SECONDS) == [fresh]
    assert read_all(reader, 2 * READ_SECONDS) == [], "nothing new"
    (folder / "3").write_bytes(to_bytes(fresh._replace(steps=80)))
    assert read_all(reader, 3 * READ_SECONDS, workers=3) == [], "there is no rank 3"


def test_a_worker_writes_what_its_steps_come_to(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    now = 0.0
    environment = {"MALLETRAIN_NODE": "n7", "MALLETRAIN_JOB_DIR": str(tmp_path)}
    teller = StepTimesTeller(environment, {"torch": torch}, lambda: now)
    teller.tell(2, 4)
    layer = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(MIN_STEPS + 1):  # the first step ends nothing that was begun
        layer(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    now = 10.0
    teller.tell(2, 4)
    path = tmp_path / "step-times" / "2"
    wait_until(lambda: path.exists() and path.stat().st_size == FILE_BYTES, 60, "the file")
    told = from_bytes(path.read_bytes(), 2)
    assert told is not None
    assert (told.node, told.steps) == ("n7", MIN_STEPS)
    assert 0 < told.own_seconds < told.step_seconds


@pytest.mark.parametrize("more", [{"MALLETRAIN_STEP_TIMES": "0"}, {"MALLETRAIN_NODE": ""}])
def test_nothing_is_told_where_that_is_not_wanted_or_the_node_has_no_name(tmp_path: Path, more: dict[str, str]) -> None:
    torch = pytest.importorskip("torch")
    now = 0.0
    environment = {"MALLETRAIN_NODE": "n7", "MALLETRAIN_JOB_DIR": str(tmp_path)} | more
    teller = StepTimesTeller(environment, {"torch": torch}, lambda: now)
    teller.tell(0, 4)
    layer = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(MIN_STEPS + 2):
        layer(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    now = 10.0
    teller.tell(0, 4)
    assert not (tmp_path / "step-times").exists()
