"""Logs of LSF: `lsb.acct`, and what `bhist -l` and `bacct -l` print."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.traces.calendar_time import CalendarReader, time_zone
from malletrain.simulator.traces.convert import ConversionOptions, convert_jobs
from malletrain.simulator.traces.lines import Line
from malletrain.simulator.traces.lsf_accounting import ASSUMED_YEAR, read_lsf
from malletrain.simulator.traces.runs import OtherRow, Row, Run, SkippedRow

EIGHT = 1767600000
TODAY = date(2026, 11, 27)


def finish(
    job: int, start: int, end: int, hosts: Iterable[str], asked: Iterable[str] = (), user_text: str = "sleep 100"
) -> str:
    """A record of JOB_FINISH with a user's text wherever one may be."""
    text = user_text.replace('"', '""')
    used, wanted = [f'"{host}"' for host in hosts], [f'"{host}"' for host in asked]
    fields = [
        f'"JOB_FINISH" "10.1" {EIGHT + end} {job} 1000 33554438 1 {EIGHT - 60} 0 0 {EIGHT + start} "u1" "normal"',
        *(f'"{text}"' for _ in range(3)),
        f'"login1" "{text}" "{text}" "{text}" "{text}" "10/1.{job}" {len(wanted)}',
        *wanted,
        f'{len(used)} {" ".join(used)} 64 60.0 "{text}" "{text}" 0.1 0.2 3748 0 -1 "" "default" 0 1 "" "" 0 2048',
    ]
    return " ".join(fields) + "\n"


def rows(text: str, zone: str | None = None, today: date = TODAY) -> list[Row]:
    lines = [Line("log", number, line) for number, line in enumerate(text.split("\n"), 1)]
    return list(read_lsf(lines, CalendarReader(time_zone(zone) if zone else None), today))


def runs(text: str, zone: str | None = None, today: date = TODAY) -> list[tuple[tuple[str, ...], float, float | None]]:
    found = rows(text, zone, today)
    assert not [row for row in found if isinstance(row, SkippedRow)]
    return [(row.nodes, row.from_s, row.until_s) for row in found if isinstance(row, Run)]


def test_finished_jobs_of_lsb_acct(tmp_path: Path) -> None:
    path = tmp_path / "lsb.acct"
    path.write_text(
        "# 12345\n"
        + finish(1, 0, 3600, ["16*h1", "16*h2"])
        + finish(2, 3600, 7200, ["h1", "h1", "h1"], ["h1", "h7"])
        + finish(3, -EIGHT, 7200, [])
        + f'"EVENT_ADRSV_FINISH" "10.1" {EIGHT} 1 2 "u1"\n'
        + finish(4, 9000, 10800, ["1*h2"])
    )
    found = convert_jobs("lsf", [path], ConversionOptions(strict=True))
    assert found.trace.origin == "2026-01-05T09:00:00+00:00"
    assert {(entry.node, entry.idle_from_s, entry.idle_until_s) for entry in found.trace.fragments} == {
        ("h1", 3600, 5400),
        ("h2", 0, 5400),
    }
    assert found.metadata["rows_without_run"] == {"jobs that never started": 1, "records of other types": 1}


@pytest.mark.parametrize(
    "text",
    [
        'echo "hi"',
        '"',
        '" 1 "h7" 1 "h8" "',
        'a\n"JOB_FINISH" "10.1" 1 1 1 1 1 1 1 1 1\nb',
        "caf\ufffd \x1b[31m",
        "\n" * 50,
        "x" * 10_000,
    ],
)
def test_what_users_choose_moves_no_field(text: str) -> None:
    log = finish(1, 0, 3600, ["h1"], user_text=text) + finish(2, 60, 120, ["h2"])
    assert runs(log) == [(("h1",), EIGHT, EIGHT + 3600), (("h2",), EIGHT + 60, EIGHT + 120)]


def test_records_that_can_not_be_used_are_skipped() -> None:
    good = finish(1, 0, 3600, ["h1"])
    for bad, reason in (
        ("what is this\n", "no record of LSF"),
        (good[:150] + "\n", "a record that lacks something"),
        (good.replace('1 "h1"', 'x "h1"'), "a record that lacks something"),
        (good.replace('1 "h1"', '99999999 "h1"'), "a record that lacks something"),
        (finish(2, 0, 3600, []), "a job whose record names no node"),
        (finish(2, 0, 3600, ["h\x1b1"]), "a job whose record names no node"),
        (finish(2, 3600, 0, ["h1"]), "an end before the start"),
    ):
        found = rows(good + bad + good)
        assert [row.reason for row in found if isinstance(row, SkippedRow)] == [reason], bad
        assert sum(isinstance(row, Run) for row in found) == 2


BHIST = """\
Job <101[1]>, Job Name <big[1]>, User <u1>, Project <default>, Command <mpirun
                     a "Mon Oct  8 17:00:00: Completed <done>.">
Mon Oct  8 17:07:54: Submitted from host <login1>, to Queue <normal>, CWD <$HOM
                     E>, 4 Task(s);
Mon Oct  8 17:08:44: Dispatched 4 Task(s) on Host(s) <h1> <h1> <h2> <h2>, Alloc
                     ated 4 Slot(s) on Host(s) <2*h1> <2*h
                     2>, Effective RES_REQ <select[type == any] order[r15s:pg]
                      >;
Mon Oct  8 17:08:44: Starting (Pid 1850744);
Mon Oct  8 17:08:44: Running with execution home </home/u1>, Execution CWD </h>;
Mon Oct  8 17:10:00: Suspended by the user or administrator;
Mon Oct  8 17:11:00: Running;
Mon Oct  8 17:20:00: Exited; job will be requeued and rerun;
Mon Oct  8 17:20:01: Pending: Job has been requeued;
Mon Oct  8 17:30:00: [1] dispatched to <h3>;
Mon Oct  8 17:40:00: Done successfully. The CPU time used is 0.2 seconds;
Mon Oct  8 17:40:01: Post job process done successfully;

Summary of time in seconds spent in various states by  Mon Oct  8 17:40:00 2012
  PEND     PSUSP    RUN      USUSP    SSUSP    UNKWN    TOTAL
  50       0        600      0        0        0        650
------------------------------------------------------------------------------

Job <102>, User <u1>, Project <default>, Command <sleep 60>
Mon Oct  8 17:07:54: Submitted from host <login1>, to Queue <normal>;
Mon Oct  8 17:09:00: Exited by signal 9. The CPU time used is 0.0 seconds;
"""


def at(text: str) -> float:
    return CalendarReader(None).read(text, "")


def test_bhist() -> None:
    assert runs(BHIST) == [
        (("h1", "h2"), at("2012-10-08T17:08:44"), at("2012-10-08T17:20:00")),
        (("h3",), at("2012-10-08T17:30:00"), at("2012-10-08T17:40:00")),
    ]
    (never,) = [row for row in rows(BHIST) if isinstance(row, OtherRow)]
    assert never.reason == "jobs that never started"


@pytest.mark.parametrize(
    ("event", "hosts"),
    [
        ("Dispatched to <h1>;", ("h1",)),
        ("Dispatched to <h1>, Effective RES_REQ <select[type == local] order[r15s:pg] >;", ("h1",)),
        ("Dispatched to 3 Hosts/Processors <2*h1> <h2>;", ("h1", "h2")),
        ("[7] dispatched to <h1.site>;", ("h1.site",)),
        ("[1] started on <h1>;", ("h1",)),
        ("Started 1 Task(s) on Host(s) <h1>, Allocated 1 Slot(s) on Host(s) <h1>, Execution Home </home>;", ("h1",)),
        ("Dispatched 2 Task(s) on Host(s) <b1> <h1>, Allocated 84 Slot(s)on Host(s)<b1><42*h1>;", ("b1", "h1")),
    ],
)
@pytest.mark.parametrize(
    "end", ["Completed <done>.", "Completed <exit>; TERM_RUNLIMIT: job killed.", "Done successfully.", "Exited."]
)
def test_forms_of_events(event: str, hosts: tuple[str, ...], end: str) -> None:
    log = f"Job <1>, User <u1>\nMon Oct  8 17:00:00 2012: {event}\nMon Oct  8 18:00:00 2012: {end}\n"
    assert runs(log) == [(hosts, at("2012-10-08T17:00:00"), at("2012-10-08T18:00:00"))]
    # As documents print it.
    assert runs("".join(f"     {line}\n" for line in log.splitlines())) == runs(log)


def test_lines_that_are_broken_within_words_at_any_indentation() -> None:
    for indent in (13, 21, 26, 27):
        go_on = "\n" + " " * indent
        log = (
            f"Job <1>, User <u1>, Command <a{go_on}b>\n"
            f"Mon Oct  8 17:00:00 2012: Dispatched 2 Task(s) on Host(s) <b1> <h1>, Allocate{go_on}d 84 Slot(s) on "
            f"Host(s) <b1> <{go_on}42*h1> <42*h1{go_on}01>, Effective RES_REQ <select[t{go_on}ype == local] >;\n"
            "Mon Oct  8 18:00:00 2012: Done successfully.\n"
        )
        assert runs(log) == [(("b1", "h1", "h101"), at("2012-10-08T17:00:00"), at("2012-10-08T18:00:00"))]


def test_a_job_that_still_runs() -> None:
    log = "Job <1>, User <u1>\nMon Oct  8 17:00:00 2012: Dispatched to <h1>;\nMon Oct  8 18:00:00 2012: Running;\n"
    assert runs(log) == [(("h1",), at("2012-10-08T17:00:00"), None)]


def job(number: int, begin: str, end: str) -> str:
    return f"Job <{number}>, User <u1>\n{begin}: Dispatched to <h1>;\n{end}: Completed <done>.\n\n"


def test_years_that_are_not_told() -> None:
    log = job(1, "Mon Dec 31 23:00:00", "Tue Jan  1 01:00:00") + job(2, "Thu Feb 28 23:00:00", "Fri Mar  1 01:00:00")
    found = rows(log)
    assert [(row.from_s, row.until_s) for row in found if isinstance(row, Run)] == [
        (at("2018-12-31T23:00:00"), at("2019-01-01T01:00:00")),
        (at("2019-02-28T23:00:00"), at("2019-03-01T01:00:00")),
    ]
    assert {row.assumed for row in found if isinstance(row, Run)} == {ASSUMED_YEAR}
    assert runs(job(1, "Thu Feb 29 23:00:00", "Fri Mar  1 01:00:00"))[0][1] == at("2024-02-29T23:00:00")
    assert runs(job(1, "Fri Nov 27 01:00:00", "Fri Nov 27 02:00:00"))[0][1] == at("2026-11-27T01:00:00")
    assert runs(job(1, "Sat Nov 28 01:00:00", "Sat Nov 28 02:00:00"))[0][1] == at("2020-11-28T01:00:00")
    (skipped,) = [
        row for row in rows(job(1, "Mon Feb 30 01:00:00", "Sat Nov 28 02:00:00")) if isinstance(row, SkippedRow)
    ]
    assert skipped.reason == "a time that is none"


def test_local_times_of_a_zone() -> None:
    log = job(1, "Sun Oct 28 01:00:00 2012", "Sun Oct 28 02:30:00 2012")
    assert runs(log, "Europe/Berlin")[0][1] == at("2012-10-27T23:00:00")


def test_something_else_is_told(tmp_path: Path) -> None:
    path = tmp_path / "jobs.txt"
    for text in (
        "JOBID   USER    JOB_NAME  PEND    PSUSP   RUN     USUSP   SSUSP   UNKWN   TOTAL\n8640 u1 a 2 0 10 0 0 0 12\n",
        "\x00\x01\x02 binary\n",
        "SUMMARY:      ( time unit: second )\n Total number of done jobs: 1\n",
    ):
        path.write_text(text)
        with pytest.raises(InvalidInputError, match=r"jobs\.txt:1: expected jobs, as `bhist -l` and `bacct -l`"):
            convert_jobs("lsf", [path])


PIECES = [
    *(
        "Job <1>, User <u1>\n",
        "Job <1[2]>\n",
        "Mon Oct  8 17:00:00: ",
        "Mon Oct  8 17:00:00 2012: ",
        "Dispatched to <h1>;",
    ),
    *("\n", " " * 21, "Completed <done>.\n", "Pending", "<", ">", "Allocated 1 Slot(s) on Host(s) <2*h1>", '"', '""'),
    *(
        '"JOB_FINISH" "10.1" 1 ',
        "0 ",
        '1 "h1" ',
        "Summary of time in seconds spent in various states by Mon Oct  8 17:00:00 2012\n",
    ),
]


@given(text=st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=30).map("".join)))
def test_no_text_breaks_the_reader(text: str) -> None:
    for row in rows(text):
        if isinstance(row, Run):
            assert row.nodes
            assert row.until_s is None or row.until_s > row.from_s


def test_a_job_that_an_earlier_dump_saw_running_ends_when_a_later_one_says(tmp_path: Path) -> None:
    begun = (
        "Job <101>, User <u1>, Project <default>, Command <x>\n"
        "Mon Jan  5 08:00:00 2026: Submitted from host <m>, to Queue <q>;\n"
        "Mon Jan  5 08:00:10 2026: Dispatched to <n1>;\n"
    )
    other = begun.replace("101", "102").replace("n1", "n2")
    texts = (
        begun,
        begun + "Mon Jan  5 10:00:00 2026: Done successfully.;\n",
        other + "Mon Jan  5 16:00:00 2026: Exited;\n",
    )
    paths = [tmp_path / f"dump{number}" for number in range(2)]
    paths[0].write_text(texts[0])
    paths[1].write_text(texts[1] + texts[2])
    for inputs in (paths[1:], paths):
        found = convert_jobs("lsf", inputs, ConversionOptions(window=("2026-01-05T08:00:10", "2026-01-05T16:00:00")))
        (idle,) = found.trace.fragments
        assert (idle.node, idle.idle_from_s, idle.idle_until_s) == ("n1", 7190, 28790)
