"""Logs of polls as they are found: any form of `date` and `sinfo`, and clocks that are put forward and back."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Trace
from malletrain.simulator.traces import polling
from malletrain.simulator.traces.convert import Conversion, ConversionOptions, convert_polling
from malletrain.simulator.traces.poll_trace import LONG_GAP, SUMMER_TIME_BEGAN, SUMMER_TIME_ENDED
from malletrain.simulator.traces.polling import read_date_line
from tests.support.shared import shared_path

# What `date` prints in glibc 2.36, and what it means.
DATES = {
    "C": ("Mon Jan  5 08:00:00 CET 2026", "2026-01-05T08:00:00"),
    "en_US": ("Sat Aug 15 08:05:09 PM -03 2026", "2026-08-15T20:05:09-03:00"),
    "en_US midnight": ("Sat Aug 15 12:05:09 AM CEST 2026", "2026-08-15T00:05:09"),
    "en_GB": ("Mon  5 Jan 08:00:00 GMT 2026", "2026-01-05T08:00:00+00:00"),
    "en_CA": ("Mon 05 Jan 2026 08:00:00 AM EST", "2026-01-05T08:00:00"),
    "en_IN": ("Saturday 15 August 2026 08:05:09 PM IST", "2026-08-15T20:05:09"),
    "en_DK": ("2026-01-05T08:00:00 CET", "2026-01-05T08:00:00"),
    "de_DE": ("Mo 5. Jan 08:00:00 CET 2026", "2026-01-05T08:00:00"),
    "de_DE in March": ("Di 3. Mär 08:00:00 CET 2026", "2026-03-03T08:00:00"),
    "fr_FR": ("sam. 15 août 2026 20:05:09 CEST", "2026-08-15T20:05:09"),
    "fr_CH in July": ("ven 03 jui 2026 00:05:09 CEST", "2026-07-03T00:05:09"),
    "fr_FR in June": ("mer. 03 juin 2026 00:05:09 CEST", "2026-06-03T00:05:09"),
    "es_ES": ("sáb 15 ago 2026 20:05:09 CEST", "2026-08-15T20:05:09"),
    "it_IT on a Tuesday": ("mar 6 gen 2026, 08:00:00, CET", "2026-01-06T08:00:00"),
    "it_IT on a Tuesday in March": ("mar 3 mar 2026, 08:00:00, CET", "2026-03-03T08:00:00"),
    "nl_NL": ("ma  5 mrt 2026  8:00:00 CET", "2026-03-05T08:00:00"),
    "pt_BR": ("seg 05 fev 2026 08:00:00 -03", "2026-02-05T08:00:00-03:00"),
    "pl_PL": ("sob, 15 sie 2026, 20:05:09 CEST", "2026-08-15T20:05:09"),
    "cs_CZ": ("So 15. července 2026, 20:05:09 CEST", "2026-07-15T20:05:09"),
    "cs_CZ in June": ("Po 15. června 2026, 20:05:09 CEST", "2026-06-15T20:05:09"),
    "sv_SE": ("lör 15 okt 2026 20:05:09 CEST", "2026-10-15T20:05:09"),
    "nb_NO": ("lø. 15. des. 20:05:09 +0100 2026", "2026-12-15T20:05:09+01:00"),
    "fi_FI": ("ma 5.1.2026 08.00.00 +0200", "2026-01-05T08:00:00+02:00"),
    "hr_HR": ("sub, 15.08.2026.  20:05:09 CEST", "2026-08-15T20:05:09"),
    "ru_RU": ("Сб 15 мая 2026 20:05:09 MSK", "2026-05-15T20:05:09"),
    "tr_TR": ("Cts 15 Ağu 2026 20:05:09 +03", "2026-08-15T20:05:09+03:00"),
    "ja_JP": ("2026年  8月 15日 土曜日 20:05:09 JST", "2026-08-15T20:05:09"),
    "zh_CN": ("2026年 08月 15日 星期六 20:05:09 CST", "2026-08-15T20:05:09"),
    "zh_TW": ("西元2026年08月15日 (週六) 20時05分09秒 CST", "2026-08-15T20:05:09"),
    "ko_KR": ("2026. 08. 15. (토) 20:05:09 KST", "2026-08-15T20:05:09"),
    "uk_UA": ("субота, 15 серпня 2026 20:05:09 +0300", "2026-08-15T20:05:09+03:00"),
    "ca_ES": ("dissabte, 15 d’agost de 2026, 20:05:09 CEST", "2026-08-15T20:05:09"),
    "-R": ("Mon, 05 Jan 2026 08:00:00 +0100", "2026-01-05T08:00:00+01:00"),
}


@pytest.mark.parametrize("name", DATES)
def test_date_as_it_is(name: str) -> None:
    line, expected = DATES[name]
    found = read_date_line(line)
    assert found is not None
    assert found.text == expected


@pytest.mark.parametrize(
    "line",
    [
        "main* up 1-00:00:00 2026 idle n[1-2]",
        "main up 10:00:00 5 idle may2026",
        "Mon Jan 35 08:00:00 CET 2026",
        "Mon Jan  5 28:00:00 CET 2026",
        "Mon Jan  5 08:00:00 CET 2026 2027",
        "Mon Jan  5 CET 2026",
        "Mon Jan  5 08:00:00 09:00:00 CET 2026",
        "Παρ 13 Ιουν 2026 08:05:09 μμ CET",
        "so 13 xyz 2026 08:05:09",
        "1 2 3 08:00:00 2026",
        "x" * 200,
        "",
    ],
)
def test_other_lines_are_no_dates(line: str) -> None:
    assert read_date_line(line) is None


@given(line=st.text(alphabet="Mon Jan 50:AP2026年月日+-.,Té年"))
def test_no_line_breaks_the_reader_of_dates(line: str) -> None:
    found = read_date_line(line)
    assert found is None or datetime.fromisoformat(found.text)


def convert(folder: Path, text: str, **more: object) -> Conversion:
    path = folder / "polls.txt"
    path.write_text(text)
    return convert_polling([path], ConversionOptions(**more))  # type: ignore[arg-type]


def rows(trace: Trace) -> set[tuple[str, float, float]]:
    return {(entry.node, entry.idle_from_s, entry.idle_until_s) for entry in trace.fragments}


def log_of(*samples: tuple[str, str]) -> str:
    return "".join(f"{time}\nidle|{idle}\nallocated|n9\n" for time, idle in samples)


@pytest.mark.parametrize(
    "form",
    [
        "{:%Y-%m-%dT%H:%M:%S}",
        "{:%Y-%m-%d %H:%M:%S}",
        "{:%Y-%m-%d_%H:%M:%S}",
        "{:%Y%m%d-%H%M%S}",
        "{:%Y%m%d%H%M%S}",
        "=== {:%Y-%m-%dT%H:%M:%S} ===",
        "[{:%Y-%m-%d %H:%M:%S}]",
        "# {:%a %b %d %H:%M:%S CET %Y}",
        "{:%Y-%m-%d %H:%M:%S%z}",
        "{:%s}",
    ],
)
def test_times_in_many_forms(tmp_path: Path, form: str) -> None:
    begin = datetime(2026, 1, 5, 8)
    if "%z" in form:
        begin = begin.astimezone()
    times = [form.format(begin + timedelta(seconds=seconds)) for seconds in (0, 10, 20)]
    found = convert(tmp_path, log_of((times[0], "n[1-2]"), (times[1], "n2"), (times[2], "n2")))
    assert rows(found.trace) == {("n1", 0, 10), ("n2", 0, 20)}
    assert found.notes == ()


def test_sinfo_as_it_is(tmp_path: Path) -> None:
    header = "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\n"
    text = (
        f"Mon Jan  5 08:00:00 CET 2026\n{header}main*        up   infinite      2   idle n[1-2]\n"
        "main*        up 1-00:00:00      1  alloc n3\nempty        up   infinite      0    n/a \n"
        f"Mon Jan  5 08:00:10 CET 2026\n{header}main*        up   infinite      1  idle~ n1\n"
        "main*        up   infinite      2   idle n[2-3]\n"
        f"Mon Jan  5 08:00:20 CET 2026\n{header}main*        up   infinite      3   idle n[1-3]\n"
    )
    found = convert(tmp_path, text)
    assert rows(found.trace) == {("n1", 0, 10), ("n2", 0, 20), ("n3", 10, 20)}
    assert found.trace.origin == "2026-01-05T08:00:00"
    assert found.notes == ()


@pytest.mark.parametrize(
    "lines",
    [
        "STATE|NODELIST\nidle|n[1-2]\nmixed|n3\n",
        "NODELIST STATE\nn1 idle\nn2 idle\nn3 mixed\n",
        "HOSTNAMES STATE\nn1 idle\nn2 idle\nn3 idle*\n",
        "NODELIST   NODES PARTITION STATE\nn1 1 main* idle\nn2 1 main* idle\nn3 1 main* mix\n",
        "Mon Jan  5 08:00:00 2026\nNODELIST NODES PARTITION STATE CPUS S:C:T MEMORY TMP_DISK WEIGHT AVAIL_FE REASON\n"
        "n1 1 main* idle 8 1:8:1 64000 0 1 (null) none\nn2 1 main* idle 8 1:8:1 64000 0 1 (null) none\n"
        "n3 1 main* draining 8 1:8:1 64000 0 1 (null) drain when free\n",
        "PARTITION AVAIL TIMELIMIT JOB_SIZE ROOT OVERSUBS GROUPS NODES STATE RESERVATION NODELIST\n"
        "main* up infinite 1-infinite no NO all 2 idle n[1-2]\n"
        "main* up infinite 1-infinite no NO all 1 reserved R1 n3\n",
    ],
)
def test_other_tables_of_sinfo(tmp_path: Path, lines: str) -> None:
    text = f"Mon Jan  5 08:00:00 CET 2026\n{lines}Mon Jan  5 08:00:10 CET 2026\n{lines.replace('08:00:00', '08:00:10')}"
    found = convert(tmp_path, text, strict=True)
    assert rows(found.trace) == {("n1", 0, 10), ("n2", 0, 10)}
    assert found.trace.nodes == ("n1", "n2", "n3")


def test_sinfo_of_a_real_slurm_as_it_is(tmp_path: Path) -> None:
    folder = shared_path("schedulers/samples/slurm/multi32_states")
    table = (folder / "sinfo.txt").read_text()
    found = convert(tmp_path, f"2026-11-21T03:02:27\n{table}2026-11-21T03:02:37\n{table}", strict=True)
    assert [entry.node for entry in found.trace.fragments] == [f"n{number:03d}" for number in range(19, 23)]
    assert len(found.trace.nodes) == 32


def test_a_summary_has_no_states(tmp_path: Path) -> None:
    table = "PARTITION AVAIL TIMELIMIT NODES(A/I/O/T) NODELIST\nmain* up infinite 1/1/0/2 n[1-2]\n"
    with pytest.raises(InvalidInputError, match=r"polls\.txt:3: expected a column with the states of nodes"):
        convert(tmp_path, f"1795231914\n{table}1795231924\n{table}", strict=True)


def test_the_end_of_summer_time(tmp_path: Path) -> None:
    text = log_of(("2026-10-25T02:59:50", "n[1-2]"), ("2026-10-25T02:00:00", "n[1-2]"), ("2026-10-25T02:00:10", "n1"))
    found = convert(tmp_path, text)
    assert rows(found.trace) == {("n1", 0, 20), ("n2", 0, 20)}
    assert found.notes == (f"assumed of 1 row: {SUMMER_TIME_ENDED}",)
    assert found.metadata["assumed_of_rows"] == {SUMMER_TIME_ENDED: 1}


def test_the_begin_of_summer_time(tmp_path: Path) -> None:
    times = ["2026-03-29T01:59:40", "2026-03-29T01:59:50", "2026-03-29T03:00:00", "2026-03-29T03:00:10"]
    found = convert(tmp_path, log_of(*((time, "n1") for time in times)))
    assert rows(found.trace) == {("n1", 0, 30)}
    assert found.notes == (f"assumed of 1 row: {SUMMER_TIME_BEGAN}",)


def test_the_zone_that_date_prints_is_believed(tmp_path: Path) -> None:
    # The loop stood still for ten minutes in both nights.
    times = ["Sun Mar 29 01:50:00 CET 2026", "Sun Mar 29 03:00:00 CEST 2026", "Sun Mar 29 03:01:00 CEST 2026"]
    text = log_of(*((time, "n1") for time in times))
    assert convert(tmp_path, text).trace.duration_s == 660
    times = ["Sun Oct 25 02:40:00 CEST 2026", "Sun Oct 25 02:00:00 CET 2026", "Sun Oct 25 02:01:00 CET 2026"]
    text = log_of(*((time, "n1") for time in times))
    assert convert(tmp_path, text).trace.duration_s == 1260


@given(minutes=st.integers(0, 5), interval=st.sampled_from([5, 10, 30, 60]))
def test_a_year_of_local_times_is_as_long_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, minutes: int, interval: int
) -> None:
    samples = []
    for second in range(0, 3 * 3600, interval):
        local = datetime(2026, 3, 29, 0, minutes) + timedelta(seconds=second)
        samples.append(local + timedelta(hours=local.hour >= 2))
    for second in range(0, 4 * 3600, interval):
        local = datetime(2026, 10, 25, 0, minutes) + timedelta(seconds=second)
        samples.append(local - timedelta(hours=local.hour >= 3))
    text = log_of(*((f"{time:%Y-%m-%dT%H:%M:%S}", "n1") for time in samples))
    trace = convert(tmp_path_factory.mktemp("year"), text, strict=True).trace
    # Both hours are as they were, and so is what lies between them.
    between = (datetime(2026, 10, 25, 0, minutes) - datetime(2026, 3, 29, 0, minutes)).total_seconds() - 3600
    assert trace.duration_s == between + 4 * 3600 - interval


def test_a_pause_of_an_hour_by_day_is_none_of_this(tmp_path: Path) -> None:
    times = ["2026-03-29T11:59:40", "2026-03-29T11:59:50", "2026-03-29T13:00:00"]
    found = convert(tmp_path, log_of(*((time, "n1") for time in times)))
    assert found.trace.duration_s == 3620
    assert found.notes == (f"assumed of 1 row: {LONG_GAP}",)


def test_local_times_of_a_known_zone(tmp_path: Path) -> None:
    times = [
        *(f"2026-10-25T02:{minute}:00" for minute in (57, 58, 59)),
        *(f"2026-10-25T02:{m:02d}:00" for m in range(60)),
    ]
    text = log_of(*((time, "n1") for time in [*times, "2026-10-25T03:00:00", "2026-10-25T03:01:00"]))
    found = convert(tmp_path, text, zone="Europe/Berlin", strict=True)
    assert (found.trace.duration_s, found.trace.origin) == (64 * 60, "2026-10-25T00:57:00+00:00")
    times = ["2026-03-29T01:58:00", "2026-03-29T01:59:00", "2026-03-29T03:00:00"]
    found = convert(tmp_path, log_of(*((time, "n1") for time in times)), zone="Europe/Berlin")
    assert (found.trace.duration_s, found.notes) == (120, ())


def test_lists_of_nodes_may_have_domains(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes.txt"
    nodes.write_text("n9.cluster\nn1.cluster\n")
    text = log_of(("1795231914", "n1"), ("1795231924", "n1"))
    found = convert(tmp_path, text, nodes=nodes)
    assert found.trace.nodes == ("n9.cluster", "n1.cluster")
    assert rows(found.trace) == {("n1.cluster", 0, 10)}


def test_zoned_times_are_believed(tmp_path: Path) -> None:
    times = ["2026-10-25T02:59:50+02:00", "2026-10-25T02:00:00+01:00", "2026-10-25T02:00:10+01:00"]
    found = convert(tmp_path, log_of(*((time, "n1") for time in times)))
    assert (found.trace.duration_s, found.notes) == (20, ())


def test_a_clock_that_was_set_back_loses_its_polls(tmp_path: Path) -> None:
    times = [f"{1795231914 + 10 * number}" for number in range(400)]
    text = log_of(*((time, "n1") for time in [*times[:200], times[197], times[198], *times[200:]]))
    found = convert(tmp_path, text)
    assert rows(found.trace) == {("n1", 0, 3990)}
    assert "skipped 2 rows: a time that is not later than the one before" in found.notes[0]
    with pytest.raises(InvalidInputError, match=r"polls\.txt:601: expected a time after that of .*polls\.txt:598"):
        convert(tmp_path, text, strict=True)
    with pytest.raises(InvalidInputError, match=r"at most 1\.00% of a log to be skipped"):
        convert(tmp_path, log_of(*((time, "n1") for time in [*times, *times[:200]])))


def test_unknown_words_are_not_idle(tmp_path: Path) -> None:
    text = "".join(
        f"2026-01-05T08:00:{second}0\nidle|n[1-2]\n{word}|n3\n" for second, word in enumerate(["idle", "hibernating"])
    )
    found = convert(tmp_path, text)
    assert rows(found.trace) == {("n1", 0, 10), ("n2", 0, 10), ("n3", 0, 10)}
    assert found.notes == (f"assumed of 1 row: {polling.UNKNOWN_STATE}",)
    table = "PARTITION STATE NODELIST\nmain idle n1\nmain odd+word n2\n"
    found = convert(tmp_path, f"2026-01-05T08:00:00\n{table}2026-01-05T08:00:10\n{table}")
    assert rows(found.trace) == {("n1", 0, 10)}
    assert found.trace.nodes == ("n1", "n2")


def test_what_else_a_loop_writes_is_skipped(tmp_path: Path) -> None:
    samples = [f"2026-01-05T08:{n // 6:02d}:{n % 6}0\nidle|n1\nallocated|n2\n" for n in range(300)]
    error = "slurm_load_partitions: Unable to contact slurm controller (connect failure)\n"
    samples[100] = f"2026-01-05T08:16:40\n{error}"
    found = convert(tmp_path, "".join(samples))
    assert rows(found.trace) == {("n1", 0, 2990)}
    assert "skipped 1 row: a line that is not of sinfo" in found.notes[0]
    assert found.metadata["rows_without_run"] == {"polls that failed": 1}
    with pytest.raises(InvalidInputError, match=r"polls\.txt:302: expected STATE\|NODES"):
        convert(tmp_path, "".join(samples), strict=True)


def test_a_poll_that_failed_is_not_one_without_idle_nodes(tmp_path: Path) -> None:
    text = (
        "2026-01-05T08:00:00\nidle|n1\n2026-01-05T08:00:10\nslurm_load_partitions: error: no contact\n"
        "2026-01-05T08:00:20\nidle|n1\n2026-01-05T08:00:30\n2026-01-05T08:00:40\nidle|n1\n2026-01-05T08:00:50\n"
    )
    assert rows(convert(tmp_path, text).trace) == {("n1", 0, 30), ("n1", 40, 50)}


def test_a_time_that_can_not_be_read_takes_its_nodes_with_it(tmp_path: Path) -> None:
    text = log_of(
        ("2026-01-05T08:00:00", "n1"), ("Παρ 5 Ιαν 2026 08:00:10 CET", "n[1-7]"), ("2026-01-05T08:00:20", "n1")
    )
    found = convert(tmp_path, text)
    assert rows(found.trace) == {("n1", 0, 20)}
    assert re.search(
        r"skipped 1 row: a time that is none \(first: .*polls\.txt:4: expected a time such as", found.notes[0]
    )


def test_a_file_without_times_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "MAX_POLL_CHARACTERS", 1000)
    with pytest.raises(InvalidInputError, match=r"polls\.txt:\d+: expected a time after at most 1000"):
        convert(tmp_path, "1795231914\n" + "idle|n1\n" * 1000)
    with pytest.raises(InvalidInputError, match=r"polls\.txt:1: expected a line with the time before"):
        convert(tmp_path, "idle|n1\n")


def test_a_list_says_when_nodes_were_there(tmp_path: Path) -> None:
    log = "".join(f"2026-01-05T{hour:02d}:00:00\nidle|n1,n4\nallocated|n2\n" for hour in range(10))
    nodes = tmp_path / "nodes.csv"
    nodes.write_text("node,from,until\nn[1-2],,\nn3,2026-02-01T00:00:00,\nn4,2026-01-05T08:00:00,\n")
    trace = convert(tmp_path, log, nodes=nodes).trace
    assert (trace.nodes, trace.present_s) == (("n1", "n2", "n4"), {"n4": (28800, 32400)})
    assert [(entry.node, entry.idle_from_s) for entry in trace.fragments] == [("n1", 0), ("n4", 28800)]
