"""Rounds of `malletrain advise --apply` where Slurm does not answer: what was changed is told, and they go on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from malletrain.cli.simulate.advice import QueueOrder
from malletrain.cli.simulate.advice_asking import AdviceQuestion
from malletrain.cli.simulate.advice_rounds import (
    MAX_FAILURES,
    NotAppliedError,
    RoundSettings,
    apply_changes,
    outcome_lines,
    run_rounds,
)
from malletrain.cli.simulate.change_record import LONG_BYTES, open_record
from malletrain.cli.simulate.reordering import ChangeKind, NiceChange, Reordering, ReorderLimits, StandingChange
from malletrain.scavenger.sources.base import SourceError
from malletrain.scavenger.sources.schedulers.commands import NO_INPUT, Input
from malletrain.scavenger.sources.schedulers.settings import SlurmSettings
from malletrain.selection.methods import SelectionMethod
from malletrain.selection.select import SelectionSettings
from tests.support.clocks import ManualClock

AT = "2026-11-28T10:00:00"
CHANGES = tuple(NiceChange(ChangeKind.RAISE, job, AT, 0, -103, 800, 903) for job in ("2", "3"))
SECTION = SlurmSettings()


class FakeSlurm:
    """Its jobs have the nice values that they are given. Some of its answers do not come."""

    def __init__(self, silent: Callable[[int], bool], lowest: int = 800) -> None:
        self.asked = 0
        self.nice = {"2": 0, "3": 0}
        self._silent = silent
        self._lowest = lowest

    async def __call__(self, argv: Sequence[str], timeout_seconds: float, command_input: Input = NO_INPUT) -> str:
        if argv[0] == SECTION.scontrol:
            job, nice = (word.partition("=")[2] for word in argv[2:])
            self.nice[job] = int(nice)
            return ""
        self.asked += 1
        if self._silent(self.asked):
            raise SourceError("squeue has not answered within 10 s")
        job = argv[argv.index("-j") + 1]
        return f"{job}|PD|{self._lowest - self.nice[job]}|{self.nice[job]}|{AT}\n"


async def test_a_change_after_which_slurm_does_not_answer_counts_and_is_told(tmp_path: Path) -> None:
    slurm = FakeSlurm(lambda number: number == 4)  # right after the second change
    with open_record(tmp_path / "record", ManualClock(1.0)) as record:
        made = await apply_changes(SECTION, Reordering(CHANGES, (("1", AT),)), record, slurm)
        assert set(record.read().standing) == {"2", "3"}
    assert [one.unknown for one in made] == [False, True]
    assert outcome_lines(made) == [
        "job 2: nice 0 -> -103, priority 800 -> 903",
        "job 3: nice 0 -> -103 may have been made: squeue has not answered within 10 s",
    ]


async def test_a_change_before_which_slurm_does_not_answer_is_not_tried(tmp_path: Path) -> None:
    slurm = FakeSlurm(lambda number: number >= 3)
    with open_record(tmp_path / "record", ManualClock(1.0)) as record:
        made = await apply_changes(SECTION, Reordering(CHANGES), record, slurm)
        assert set(record.read().standing) == {"2"}
    assert slurm.nice == {"2": -103, "3": 0}
    assert [(one.unknown, one.unasked) for one in made] == [(False, False), (False, True)]
    assert outcome_lines(made)[1] == "job 3: not changed: squeue has not answered within 10 s"


async def test_a_raise_whose_second_step_is_not_tried_is_told(tmp_path: Path) -> None:
    slurm = FakeSlurm(lambda number: number == 3, lowest=700)
    with open_record(tmp_path / "record", ManualClock(1.0)) as record:
        made = await apply_changes(SECTION, Reordering(CHANGES), record, slurm)
        assert record.read().standing == {"2": StandingChange("2", AT, 0, -103)}
    assert [one.unasked for one in made] == [True]
    assert outcome_lines(made) == ["job 2: nice 0 -> -103, priority 800 -> 803"]


QUESTION = AdviceQuestion(
    SelectionSettings(SelectionMethod.BBSCHED, trade_off=None), QueueOrder.PRIORITY, 20, ("main",), 0, None, False
)
ANSWER = """#!/bin/sh
echo "$*" >> {calls}
case "$(wc -l < {calls})" in {silent}) echo "Unable to contact slurm controller" >&2; exit 1;; esac
case "$*" in
*BurstBuffer*)
    printf '%s|(null)\\n' '1|PD|main|900|{at}|1:00:00|4|{reason}' '2|PD|main|800|{at}|1:00:00|1|Priority' ;;
*) printf '1|PD|900|0|{at}\\n2|PD|800|0|{at}\\n' ;;
esac
"""


def commands(folder: Path, silent: str, reason: str) -> SlurmSettings:
    """Commands of a Slurm with two jobs of which the second one fits.

    Args:
        folder: Where they are.
        silent: Which calls of squeue fail: a pattern of the shell for their numbers.
        reason: Why the first job waits.
    """
    squeue, sinfo, scontrol = (folder / name for name in ("squeue", "sinfo", "scontrol"))
    squeue.write_text(ANSWER.format(calls=folder / "calls", silent=silent, reason=reason, at=AT))
    sinfo.write_text("#!/bin/sh\nprintf 'main|idle|n[1-2]\\nmain|allocated|n[3-4]\\n'\n")
    scontrol.write_text("#!/bin/sh\necho 'Permission denied' >&2; exit 1\n")
    for command in (squeue, sinfo, scontrol):
        command.chmod(0o755)
    return SlurmSettings(squeue=str(squeue), sinfo=str(sinfo), scontrol=str(scontrol))


def settings(
    folder: Path, silent: str = "none", rounds: int = 1, *, reason: str = "Resources", dry_run: bool = True
) -> RoundSettings:
    section = commands(folder, silent, reason)
    return RoundSettings(section, folder / "record", ReorderLimits(), rounds, 60.0, dry_run=dry_run, ask=False)


def test_rounds_go_on_after_one_in_which_slurm_did_not_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pauses: list[float] = []
    run_rounds(QUESTION, settings(tmp_path, "1|4", 4), pauses.append)  # of the first round, and of the third
    told = capsys.readouterr()
    assert told.out.count("nothing was changed (--dry-run)") == 2
    assert told.err.count("Unable to contact") == 2
    assert "3 rounds are left" in told.err
    assert pauses == [60.0] * 3


def test_rounds_end_where_slurm_does_not_answer_for_long(tmp_path: Path) -> None:
    pauses: list[float] = []
    with pytest.raises(SourceError, match="Unable to contact"):
        run_rounds(QUESTION, settings(tmp_path, "*", 100), pauses.append)
    assert len(pauses) == MAX_FAILURES - 1


def test_the_last_round_ends_with_what_went_wrong(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="Unable to contact"):
        run_rounds(QUESTION, settings(tmp_path, "1", 1), list)


RESERVED = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"


@pytest.mark.parametrize(("reason", "holds_back"), [(RESERVED, True), ("Dependency", False), ("JobHeldUser", False)])
def test_who_waits_for_something_else_does_not_hold_the_queue(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], reason: str, holds_back: bool
) -> None:
    chosen = settings(tmp_path, reason=reason)
    with open_record(chosen.record, ManualClock(1.0)) as record:
        for _ in range(50):
            record.round([("1", AT)])
    run_rounds(QUESTION, chosen, list)
    told = capsys.readouterr().out
    assert ("job 2 stays behind job 1, which has been passed over in 50 rounds" in told) is holds_back


def test_a_long_record_is_made_shorter_before_a_round(tmp_path: Path) -> None:
    chosen = settings(tmp_path, dry_run=False)
    with open_record(chosen.record, ManualClock(1.0)) as record:
        record.round([("1", AT), *((str(job), AT) for job in range(1000, LONG_BYTES // 20))])
        assert record.is_long
    with pytest.raises(NotAppliedError, match="refuses"):
        run_rounds(QUESTION, chosen, list)
    assert chosen.record.stat().st_size < 2000
    asked = (tmp_path / "calls").read_text().splitlines()[0].split()
    assert asked[:4] == ["-h", "-r", "-t", "all"]
    assert "-p" not in asked  # those of other partitions count, too
    with open_record(chosen.record, ManualClock(2.0)) as record:
        assert record.read().passes == {("1", AT): 2}
        assert record.read().standing == {}
