"""Accounting logs of PBS Pro, OpenPBS and Torque, with what real ones have in them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Trace
from malletrain.simulator.traces import pbs_accounting
from malletrain.simulator.traces.calendar_time import CalendarReader
from malletrain.simulator.traces.convert import Conversion, ConversionOptions, convert_jobs
from malletrain.simulator.traces.lines import Line
from malletrain.simulator.traces.pbs_accounting import LogClock, read_pbs
from malletrain.simulator.traces.runs import OtherRow, Recorded, Run, SkippedRow

EIGHT = 1767600000
"""2026-01-05 08:00:00 UTC."""


def record(time: str, kind: str, job: str, message: str = "") -> str:
    return f"01/05/2026 {time};{kind};{job};{message}\n"


def started(time: str, job: str, hosts: str, after: int, more: str = "") -> str:
    return record(time, "S", job, f"user=u1 jobname=a queue=main start={EIGHT + after} exec_host={hosts} {more}")


def ended(time: str, job: str, hosts: str, begin: int, end: int, more: str = "") -> str:
    message = (
        f"user=u1 start={EIGHT + begin} exec_host={hosts} Resource_List.nodect=1 session=9 end={EIGHT + end} {more}"
    )
    return record(time, "E", job, message)


def convert(folder: Path, *records: str, **more: object) -> Conversion:
    path = folder / "acct.log"
    path.write_text("".join(records))
    return convert_jobs("pbs", [path], ConversionOptions(**more))  # type: ignore[arg-type]


def rows(trace: Trace) -> set[tuple[str, float, float]]:
    return {(entry.node, entry.idle_from_s, entry.idle_until_s) for entry in trace.fragments}


OTHER = (started("08:00:00", "9.head", "n9/0*8", 0), ended("12:00:00", "9.head", "n9/0*8", 0, 14400))
"""A job on another node, from 0 to 14400 s."""


def test_a_rerun_without_text_ends_the_run_that_began_last(tmp_path: Path) -> None:
    found = convert(
        tmp_path,
        started("08:00:00", "1.head", "n1/0-7", 0),
        record("09:00:00", "R", "1.head"),
        started("10:00:00", "1.head", "n2/0-7", 7200),
        ended("12:00:00", "1.head", "n2/0-7", 7200, 14400),
        strict=True,
    )
    assert rows(found.trace) == {("n1", 3600, 14400), ("n2", 0, 7200)}


@pytest.mark.parametrize("zone_h", [-5, 0, 1, 5.75])
def test_times_of_records_are_local(tmp_path: Path, zone_h: float) -> None:
    def local(hours: float) -> str:
        minutes = int((8 + zone_h + hours) * 60)
        return f"{minutes // 60:02d}:{minutes % 60:02d}:00"

    found = convert(
        tmp_path,
        started(local(0), "1.head", "n1/0*8", 0),
        started(local(0), "9.head", "n9/0*8", 0),
        record(local(1), "R", "1.head"),
        ended(local(4), "9.head", "n9/0*8", 0, 14400),
    )
    assert rows(found.trace) == {("n1", 3600, 14400)}


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        ("A", "", pbs_accounting.ABORTED),
        ("A", "Job deleted as result of dependency on job 7.head", pbs_accounting.ABORTED),
        ("D", "requestor=root@head", pbs_accounting.DELETED),
    ],
)
def test_a_job_that_was_aborted_and_has_no_end(tmp_path: Path, kind: str, text: str, why: str) -> None:
    begun = started("08:00:00", "1.head", "n1/0*8", 0)
    found = convert(tmp_path, OTHER[0], begun, record("09:00:00", kind, "1.head", text), OTHER[1])
    assert rows(found.trace) == {("n1", 3600, 14400)}
    assert f"assumed of 1 row: {why}" in found.notes
    # What follows counts.
    end = ended("10:00:00", "1.head", "n1/0*8", 0, 7200)
    found = convert(tmp_path, OTHER[0], begun, record("09:00:00", kind, "1.head", text), end, OTHER[1], strict=True)
    assert rows(found.trace) == {("n1", 7200, 14400)}


def test_job_arrays_hold_nothing_as_a_whole(tmp_path: Path) -> None:
    common = f"user=u1 jobname=sweep queue=main ctime={EIGHT} qtime={EIGHT} etime={EIGHT}"
    found = convert(
        tmp_path,
        record("07:59:00", "Q", "2[].head", f"{common} array_indices=1-2"),
        record("08:00:00", "S", "2[].head", f"{common} start={EIGHT} array_indices=1-2 Resource_List.ncpus=8"),
        started("08:00:00", "2[1].head", "n1/0*8", 0),
        started("08:00:00", "2[2].head", "n2/0*8", 0),
        ended("09:00:00", "2[1].head", "n1/0*8", 0, 3600),
        ended("10:00:00", "2[2].head", "n2/0*8", 0, 7200),
        record("10:00:00", "E", "2[].head", f"{common} start={EIGHT} array_indices=1-2 session=0 end={EIGHT + 7200}"),
        strict=True,
    )
    assert rows(found.trace) == {("n1", 3600, 7200)}
    assert found.metadata["rows_without_run"] == {"job arrays as a whole": 3}


def test_a_second_start_ends_the_first_run(tmp_path: Path) -> None:
    first, second = started("08:00:00", "1.head", "n1/0*8", 0), started("10:00:00", "1.head", "n2/0*8", 7200)
    end = ended("12:00:00", "1.head", "n2/0*8", 7200, 14400)
    found = convert(tmp_path, first, second, end)
    assert rows(found.trace) == {("n1", 7200, 14400), ("n2", 0, 7200)}
    assert f"assumed of 1 row: {pbs_accounting.STARTED_AGAIN}" in found.notes
    # It was queued again, or checkpointed, before.
    for kind in "QC":
        found = convert(tmp_path, first, record("09:00:00", kind, "1.head"), second, end)
        assert rows(found.trace) == {("n1", 3600, 14400), ("n2", 0, 7200)}
    found = convert(tmp_path, first, record("09:00:00", "A", "1.head"), second, end)
    assert rows(found.trace) == {("n1", 3600, 14400), ("n2", 0, 7200)}
    # The same start once more, as after a restart of the server.
    twice = started("08:00:00", "1.head", "n2/0*8", 0)
    found = convert(tmp_path, twice, twice, ended("12:00:00", "1.head", "n2/0*8", 0, 14400), *OTHER, strict=True)
    assert rows(found.trace) == set()


def test_jobs_without_an_end_that_have_ended(tmp_path: Path) -> None:
    lost = started("08:00:00", "1.head", "n1/0*8+n2/0*8", 0, "Resource_List.walltime=30:00:00")
    later = started("10:00:00", "2.head", "n1/0*8", 7200), ended("11:00:00", "2.head", "n1/0*8", 7200, 10800)
    found = convert(tmp_path, OTHER[0], lost, *later, OTHER[1])
    assert rows(found.trace) == {("n1", 10800, 14400), ("n2", 7200, 14400)}
    assert f"assumed of 1 row: {pbs_accounting.REPLACED}" in found.notes
    # Beside it, in another slot of the node, is no proof.
    beside = started("10:00:00", "2.head", "n1/1*8", 7200), ended("11:00:00", "2.head", "n1/1*8", 7200, 10800)
    assert not any(
        pbs_accounting.REPLACED in note for note in convert(tmp_path, OTHER[0], lost, *beside, OTHER[1]).notes
    )
    limited = lost.replace("30:00:00", "01:30:00")
    found = convert(tmp_path, OTHER[0], limited, OTHER[1])
    assert rows(found.trace) == {("n1", 5400, 14400), ("n2", 5400, 14400)}
    assert f"assumed of 1 row: {pbs_accounting.BEYOND_LIMIT}" in found.notes


def test_the_newest_jobs_go_on(tmp_path: Path) -> None:
    newest = started("11:00:00", "1.head", "n1/0*8", 10800, "Resource_List.walltime=02:00:00")
    found = convert(tmp_path, OTHER[0], newest, OTHER[1])
    assert rows(found.trace) == {("n1", 0, 10800)}
    assert "jobs without an end, which go on to the end of the window: 1" in found.notes


def test_nodes_that_a_job_gives_back_are_idle(tmp_path: Path) -> None:
    both, one = "n1/0*8+n2/0*8", "n1/0*8"
    kept = f"start={EIGHT} exec_host={one} Resource_List.nodect=1"
    found = convert(
        tmp_path,
        started("08:00:00", "1.head", both, 0),
        record("09:00:00", "u", "1.head", f"start={EIGHT} exec_host={both}"),
        record("09:00:00", "c", "1.head", kept),
        record("12:00:00", "e", "1.head", kept),
        ended("12:00:00", "1.head", both, 0, 14400),
        strict=True,
    )
    assert rows(found.trace) == {("n2", 3600, 14400)}
    pruned = record("08:00:00", "s", "1.head", kept)
    found = convert(
        tmp_path, started("08:00:00", "1.head", both, 0), pruned, ended("12:00:00", "1.head", both, 0, 14400), *OTHER
    )
    assert found.trace.nodes == ("n1", "n9")


@pytest.mark.parametrize(
    ("hosts", "names"),
    [
        ("n1/0", ["n1"]),
        ("n1/0*8+n2/0*4", ["n1", "n2"]),
        ("n1/1+n1/0+n2/0", ["n1", "n2"]),
        ("n1/0-7+n2/0,2-3", ["n1", "n2"]),
        ("n1.cluster:15002/0*8", ["n1.cluster"]),
        ("123/0-15", ["123"]),
        ("x1000c0s0b0n0/0*64", ["x1000c0s0b0n0"]),
        ("n1", ["n1"]),
        (" exec_vnode=(n1[0]:ncpus=4+n1[1]:ncpus=4)+(n2[0]:ncpus=4:mem=1kb)", ["n1", "n2"]),
        ("[n1]/0*8+[n2]/0", ["n1", "n2"]),
        ('"0-2,6"', ["0", "1", "2", "6"]),
        ('"0007"', ["0007"]),
    ],
)
def test_forms_of_node_lists(tmp_path: Path, hosts: str, names: list[str]) -> None:
    found = convert(tmp_path, *OTHER, ended("12:00:00", "1.head", hosts, 0, 14400), strict=True)
    assert set(found.trace.nodes) == {*names, "n9"}


def test_records_without_nodes_are_skipped(tmp_path: Path) -> None:
    bare = record("09:00:00", "E", "1.head", f"start={EIGHT} Resource_List.nodect=4 end={EIGHT + 3600}")
    found = convert(tmp_path, *OTHER, bare, max_skipped=0.9)
    assert "skipped 1 row, 4.0 node-hours: a job whose record names no node" in found.notes[1]
    with pytest.raises(InvalidInputError, match=r"acct\.log:3: expected exec_host=NAME/"):
        convert(tmp_path, *OTHER, bare, strict=True)
    # A start may have them.
    found = convert(tmp_path, *OTHER, started("08:00:00", "1.head", "n1/0", 0), bare, strict=True)
    assert rows(found.trace) == {("n1", 3600, 14400)}


def test_hosts_that_are_too_many_are_skipped(tmp_path: Path) -> None:
    for hosts in ('"0-9999999"', '"9-0"', '"' + ",".join(["0-99999"] * 11) + '"'):
        found = convert(tmp_path, *OTHER, ended("12:00:00", "1.head", hosts, 0, 14400), max_skipped=0.9)
        assert "a job whose record names no node" in found.notes[1]


def test_ends_without_a_time(tmp_path: Path) -> None:
    bare = record("09:00:00", "E", "1.head", f"start={EIGHT} exec_host=n1/0 session=9 Exit_status=271")
    found = convert(tmp_path, OTHER[0], bare, OTHER[1])
    assert rows(found.trace) == {("n1", 3600, 14400)}
    assert f"assumed of 1 row: {pbs_accounting.END_OF_RECORD}" in found.notes


def test_what_users_choose_changes_neither_times_nor_nodes(tmp_path: Path) -> None:
    forged = f"start={EIGHT + 1} end={EIGHT + 2} exec_host=n7/0 exec_vnode=(n7:ncpus=1) etime={EIGHT} start={EIGHT + 3}"
    message = (
        f'user=u1 account="{forged}" jobname={forged} etime={EIGHT} start={EIGHT} exec_host=n1/0 '
        f'exec_vnode=(n1:ncpus=8) Resource_List.site="{forged}" session=9 end={EIGHT + 3600}'
    )
    found = convert(tmp_path, *OTHER, record("09:00:00", "E", "1.head", message), strict=True)
    assert rows(found.trace) == {("n1", 3600, 14400)}


def test_a_record_that_a_line_break_has_torn_apart(tmp_path: Path) -> None:
    torn = record(
        "09:00:00", "E", "1.head", f'user=u1 account="a\n\nb" start={EIGHT} exec_host=n1/0 end={EIGHT + 3600}'
    )
    found = convert(tmp_path, *OTHER, torn, strict=True)
    assert rows(found.trace) == {("n1", 3600, 14400)}
    with pytest.raises(InvalidInputError, match=r"acct\.log:3: expected a record MM/DD/YYYY"):
        convert(tmp_path, *OTHER, "x\n" * 100, strict=True)
    assert "skipped 1 row: no record of PBS" in convert(tmp_path, *OTHER, "x\n").notes[1]


@pytest.mark.parametrize("before", ["20260105:", "Jan  5 08:00:01 head torque: ", "2026-01-05 08:00:01,123 "])
def test_records_as_other_programs_print_them_and_with_fractions(tmp_path: Path, before: str) -> None:
    lines = [f"{before}{line}" for line in OTHER]
    late = ended("12:00:00.123456", "1.head", "n1/0", 0, 3600).replace("start=1767600000", "start=1767600000.00")
    late = late.replace("end=1767603600", "end=1767603600.25")
    assert rows(convert(tmp_path, *lines, late, strict=True).trace) == {("n1", 3600.25, 14400)}


def test_other_records_are_counted(tmp_path: Path) -> None:
    others = [record("08:30:00", kind, "1.head", "") for kind in "LMPTUYBFKkpazr"]
    never = record("09:00:00", "E", "5.head", f"user=u1 ctime={EIGHT} end={EIGHT + 3600} Exit_status=271")
    found = convert(tmp_path, *OTHER, *others, record("09:00:00", "D", "5.head"), never, strict=True)
    assert found.metadata["rows_without_run"] == {
        "records of other types": len(others),
        "records of deleted and aborted jobs": 1,
        "jobs that never started": 1,
    }


def test_a_rerun_of_which_nothing_is_known(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"acct\.log:1: expected start="):
        convert(tmp_path, record("08:00:00", "R", "1.head"), *OTHER, strict=True)


def test_a_log_of_ends_only_covers_less(tmp_path: Path) -> None:
    ends = [
        ended(f"{8 + hour:02d}:00:00", f"{hour}.head", "n1/0", 3600 * hour - 1800, 3600 * hour) for hour in range(1, 6)
    ]
    found = convert(tmp_path, *ends)
    assert "from the earliest end to the latest start" in found.notes[0]
    assert found.trace.duration_s == 3600 * 3.5


def test_a_job_that_ran_when_the_log_began(tmp_path: Path) -> None:
    before = ended("09:00:00", "1.head", "n1/0", -7200, 3600)
    found = convert(tmp_path, OTHER[0], before, OTHER[1], strict=True)
    assert rows(found.trace) == {("n1", 3600, 14400)}


def test_the_clock_of_a_log_follows_summer_time() -> None:
    clock = LogClock()
    assert clock.seconds(7200) is None
    clock.learn(7200.0, 0.0 + 1)
    assert clock.seconds(7200.0) == 0.0
    # One that was written two hours late, and a time that is none.
    clock.learn(7200.0 + 7000, 0.0)
    clock.learn(1e9, 0.0)
    assert clock.seconds(7200.0) == 0.0
    for second in range(5):
        clock.learn(3600.0 + second, float(second))
    assert clock.seconds(3600.0) == 0.0


RECORD = st.one_of(
    st.builds(
        lambda kind, job, message: f"01/05/2026 08:00:00;{kind};{job};{message}",
        st.sampled_from("SERADQCscux"),
        st.sampled_from(["1.h", "2.h", "3[].h", "3[1].h", ""]),
        st.lists(
            st.sampled_from(
                [
                    *(f"start={EIGHT}", f"start={EIGHT + 60}", "start=", "start=0", "start=99999999999999", "start=x"),
                    *(f"end={EIGHT + 90}", "end=0", "end=", "exec_host=n1/0", "exec_host=n2/0*8+n1/1", "exec_host=+"),
                    *("exec_host=n\x1b/0", "exec_vnode=(n3:ncpus=1)", "exec_vnode=((", 'account="', "\n"),
                    *("Resource_List.walltime=00:01:00", "Resource_List.nodect=2", "Resource_List.walltime=99:99"),
                ]
            ),
            max_size=5,
        ).map(" ".join),
    ),
    st.text(max_size=30),
)


@given(records=st.lists(RECORD, max_size=12))
def test_no_log_breaks_the_reader(records: list[str]) -> None:
    lines = [Line("x", number, text) for number, text in enumerate("\n".join(records).split("\n"), 1)]
    for row in read_pbs(lines, CalendarReader()):
        assert isinstance(row, Run | SkippedRow | OtherRow | Recorded)
        if isinstance(row, Run):
            assert row.nodes
            assert row.until_s is None or row.until_s > row.from_s
            assert all(re.fullmatch(r"[\w.-]+", name) for name in row.nodes)


def test_a_node_that_was_given_back_ends_nothing_when_another_job_gets_it(tmp_path: Path) -> None:
    found = convert(
        tmp_path,
        *OTHER[:1],
        started("08:00:00", "1.head", "n1/0+n2/0", 0),
        record("09:00:00", "s", "1.head", f"user=u1 start={EIGHT} exec_host=n1/0 "),
        started("10:00:00", "2.head", "n2/0", 7200),
        ended("11:00:00", "2.head", "n2/0", 7200, 10800),
        *OTHER[1:],
        strict=True,
    )
    assert rows(found.trace) == {("n2", 3600, 7200), ("n2", 10800, 14400)}


def test_a_restart_without_nodes_leaves_one_run_behind_it() -> None:
    texts = [
        started("08:00:00", "1.head", "n1/0", 0),
        record("09:00:00", "Q", "1.head"),
        started("10:00:00", "1.head", "", 7200),
    ]
    found = list(read_pbs([Line("log", 1, text.strip()) for text in texts], CalendarReader()))
    assert [(row.from_s, row.until_s) for row in found if isinstance(row, Run)] == [(EIGHT, EIGHT + 3600)]


def test_a_clock_that_was_wrong_does_not_move_the_window(tmp_path: Path) -> None:
    wrong = record("09:00:00", "S", "5.head", "user=u1 jobname=a queue=main start=100 exec_host=n9/0 ")
    found = convert(tmp_path, OTHER[0], wrong, OTHER[1], max_skipped=0.5)
    assert (found.trace.origin, found.trace.duration_s) == ("2026-01-05T08:00:00+00:00", 14400)
    with pytest.raises(InvalidInputError, match="start= of a right clock"):
        convert(tmp_path, OTHER[0], wrong, OTHER[1], strict=True)
