"""The record of changes of Slurm's queue: what it says, also after a crash, and that it stays short."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from malletrain.cli.simulate.change_record import LONG_BYTES, ChangeRecord, open_record, read_lines
from malletrain.cli.simulate.reordering import ChangeKind, NiceChange, StandingChange
from malletrain.runtime.errors import InvalidInputError, PreconditionError
from malletrain.scavenger.sources.schedulers.slurm_priorities import JobPriority
from tests.support.clocks import ManualClock

AT = "2026-11-28T10:00:00"


CHANGE = NiceChange(ChangeKind.RAISE, "2", AT, 0, -103, 800, 903)
BACK = NiceChange(ChangeKind.RESTORE, "2", AT, -103, 0, 903)


def test_a_record_knows_what_stands_also_after_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "record"
    with open_record(path, ManualClock(1.0)) as record:
        record.round([("1", AT)])
        record.change(CHANGE, ["scontrol", "update", "JobId=2", "Nice=-103"])
        assert record.read().standing == {"2": StandingChange("2", AT, 0, -103)}  # no outcome was written
        with pytest.raises(PreconditionError, match="another"), open_record(path, ManualClock()):
            pass
    with open_record(path, ManualClock(2.0)) as record:
        record.outcome("2", took=True, values={"nice": -103})
        record.change(BACK, [])
        record.outcome("2", took=False, values={}, refusal="permission denied")
        record.round([("1", AT)])
        found = record.read()
        assert found.standing == {"2": StandingChange("2", AT, 0, -103)}
        assert found.passes[("1", AT)] == 2
        record.change(BACK, [])
        record.outcome("2", took=True, values={"nice": 0})
        assert record.read().standing == {}
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "line",
    [
        "nothing",
        "[]",
        '{"event":"change","job":"2;id","submitted":"","niceBefore":0,"niceAfter":1}',
        '{"event":"change","job":"2","submitted":"","niceBefore":0,"niceAfter":99999999999}',
        '{"event":"other","job":"2"}',
    ],
)
def test_a_record_with_other_lines_is_refused(line: str) -> None:
    with pytest.raises(InvalidInputError, match="line 1"):
        read_lines([line])


def test_a_record_that_others_can_write_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "record"
    path.touch()
    path.chmod(0o666)
    with pytest.raises(InvalidInputError, match="everybody can write"), open_record(path, ManualClock()):
        pass


def raise_2(record: ChangeRecord) -> None:
    record.change(CHANGE, ["scontrol", "update", "JobId=2", "Nice=-103"])
    record.outcome("2", took=True, values={"nice": -103})


STANDING = {"2": StandingChange("2", AT, 0, -103)}


@pytest.mark.parametrize(
    "torn", [b"{", b'{"at":1.0,"by":"ro', b'{"at":2.0,"by":"root","event":"again"}', b'{"at":1\0\0']
)
def test_a_line_that_does_not_end_is_cut_off(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "record"
    with open_record(path, ManualClock(1.0)) as record:
        raise_2(record)
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    with open_record(path, ManualClock(2.0)) as record:
        assert record.read().standing == STANDING
        assert path.read_bytes() == whole
        record.round([("1", AT)])
        assert record.read().passes[("1", AT)] == 1
    path.write_bytes(torn)
    with open_record(path, ManualClock(3.0)) as record:
        assert record.read().standing == {}


def test_another_file_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_bytes(b"a line\nand the last one")
    with pytest.raises(InvalidInputError, match="a file that advise --apply wrote"), open_record(path, ManualClock()):
        pass
    assert path.read_bytes() == b"a line\nand the last one"


def test_a_line_that_can_not_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record"
    real = os.write
    room = [20]

    def write(descriptor: int, data: memoryview) -> int:
        written = min(len(data), room[0])
        if not written:
            raise OSError(errno.ENOSPC, "No space left on device")
        room[0] -= written
        return real(descriptor, data[:written])

    with open_record(path, ManualClock(1.0)) as record:
        raise_2(record)
        whole = path.read_bytes()
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", write)
            with pytest.raises(OSError, match="No space"):
                record.round([("1", AT)])
        assert path.read_bytes() == whole
        record.round([("1", AT)])
    assert path.read_bytes().startswith(whole)
    with open_record(path, ManualClock(2.0)) as record:
        assert record.read().passes[("1", AT)] == 1


def test_a_round_like_the_last_one_is_a_short_line(tmp_path: Path) -> None:
    path = tmp_path / "record"
    many = [(str(job), AT) for job in range(1000)]
    with open_record(path, ManualClock(1.0)) as record:
        record.round(many)
        first = path.stat().st_size
        for _ in range(9):
            record.round(many)
        assert path.stat().st_size < first + 9 * 100
        record.round(many[:1])
        record.round(many[:1])
        found = record.read()
    assert (found.passes[many[0]], found.passes[many[1]]) == (12, 10)
    with open_record(path, ManualClock(2.0)) as record:  # the first round of a process is written in full
        record.round(many[:1])
    assert json.loads(path.read_text().splitlines()[-1])["event"] == "round"


def long_record(path: Path) -> None:
    """Rounds that pass over one job less each time, and whose change is taken back; two changes stand at its end."""
    with open_record(path, ManualClock(1.0)) as record:
        for number in range(40):
            record.round([(str(job), AT) for job in range(number, 1000)])
            raise_2(record)
            record.change(BACK, [])
            record.outcome("2", took=True, values={"nice": 0})
        raise_2(record)
        record.change(NiceChange(ChangeKind.RAISE, "77", AT, 0, -5, 800), [])


def test_a_long_record_keeps_what_still_counts(tmp_path: Path) -> None:
    path = tmp_path / "record"
    long_record(path)
    whole = path.read_bytes()
    assert len(whole) > LONG_BYTES
    now = {job: JobPriority(job, "PD", 900, -103, AT) for job in ("2", "500")}
    now["600"] = JobPriority("600", "PD", 900, 0, "2026-11-29T10:00:00")  # the number of another one, that is gone
    with open_record(path, ManualClock(2.0)) as record:
        was_long = record.is_long
        record.drop_ended(now)
        assert (was_long, record.is_long) == (True, False)
        assert path.stat().st_size < 1000
        found = record.read()
        assert found.standing == STANDING
        assert found.passes == {("2", AT): 3, ("500", AT): 40}
        with pytest.raises(PreconditionError, match="another"), open_record(path, ManualClock()):
            pass
        record.round([("500", AT)])
        record.drop_ended(now)
    assert path.stat().st_mode & 0o777 == 0o600
    with open_record(path, ManualClock(3.0)) as record:
        assert record.read().passes[("500", AT)] == 41
        record.change(BACK, [])
        record.outcome("2", took=True, values={"nice": 0})
        assert record.read().standing == {}
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["record", "record.old"]


def test_a_record_that_can_not_be_replaced_is_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record"
    long_record(path)
    whole = path.read_bytes()

    def link(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    with open_record(path, ManualClock(2.0)) as record:
        with monkeypatch.context() as patched:
            patched.setattr(os, "link", link)
            with pytest.raises(OSError, match="not permitted"):
                record.drop_ended({})
        assert path.read_bytes() == whole
        record.round([("1", AT)])
        assert path.read_bytes().startswith(whole)


def test_what_was_long_before_can_be_read_and_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "record"
    long_record(path)
    line = path.read_bytes().splitlines(keepends=True)[0]
    with path.open("ab") as file:
        while file.tell() < 17 * 1024 * 1024:
            file.write(line * 20)
    with open_record(path, ManualClock(2.0)) as record:
        assert record.read().standing["2"] == STANDING["2"]
