from __future__ import annotations

import gzip
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Fragment, Trace
from malletrain.simulator.traces import convert
from malletrain.simulator.traces.convert import ConversionOptions
from malletrain.simulator.traces.lines import Line
from malletrain.simulator.traces.presence import idle_columns
from malletrain.simulator.traces.runs import Run, table_of
from tests.support.shared import shared_path

SACCT = """\
JobID|Start|End|NodeList|State
1|2026-11-21T00:00:00|2026-11-21T00:01:40|n[1-2]|COMPLETED
1.batch|2026-11-21T00:00:00|2026-11-21T00:01:40|n1|COMPLETED
2|2026-11-21T00:03:20|2026-11-21T00:05:00|n2,gpu1|FAILED
3|Unknown|Unknown|None assigned|PENDING
4|2026-11-21T00:04:10|Unknown|n1|RUNNING
5|2026-11-21T00:02:30|2026-11-21T00:02:30|n1|CANCELLED
"""
PBS = """\
11/21/2026 03:00:00;L;license;floating license hour:0
11/21/2026 03:00:00;Q;1.pbs;queue=workq
11/21/2026 03:00:01;S;1.pbs;user=a queue=workq start=1000000000 exec_host=pn1/0*8+pn2/0*8 exec_vnode=(pn1:ncpus=8)
11/21/2026 03:01:40;E;1.pbs;user=a start=1000000000 exec_host=pn1/0*8+pn2/0*8 Resource_List.nodect=2 end=1000000100
11/21/2026 03:02:00;S;2.pbs;start=1000000150 exec_vnode=(pn2:ncpus=4+pn3:ncpus=4)+(pn2:ncpus=2)
11/21/2026 03:02:30;R;2.pbs;start=1000000150 end=1000000180 exec_host=pn2/0+pn3/0
11/21/2026 03:02:40;E;3.pbs;user=a end=1000000190 Exit_status=271
11/21/2026 03:03:00;S;4.pbs;start=1000000200 exec_host=pn1/0
11/21/2026 03:03:20;E;5[7].pbs;start=1000000250 end=1000000300 exec_host=pn3/0
"""
POLLS = """\
2026-11-21T00:00:00
idle|n[1-2]
allocated|n3
# 2026-11-21T00:00:10
idle|n2
mixed|n[1,3]

@ 2026-11-21T00:00:20
n1|planned|plnd|0/8/0/8
n2|idle|idle|0/8/0/8
n3|idle*|idle*|0/8/0/8
2026-11-21 00:00:30
2026-11-21T00:00:40
n1 allocated
n2 idle
n3 idle
2026-11-21T00:00:50
n1 allocated
n2 drained
n3 idle
"""


def put(folder: Path, text: str, name: str = "log.txt") -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def convert_sacct(
    inputs: list[Path],
    nodes: Path | None = None,
    window: tuple[str, str] | None = None,
    down: Path | None = None,
    *,
    strict: bool = True,
) -> Trace:
    return convert.convert_jobs(
        "sacct", inputs, ConversionOptions(nodes=nodes, window=window, down=down, strict=strict)
    ).trace


def convert_pbs(inputs: list[Path], *, strict: bool = True) -> Trace:
    return convert.convert_jobs("pbs", inputs, ConversionOptions(strict=strict)).trace


def convert_polling(inputs: list[Path], nodes: Path | None = None, debounce: int = 0, *, strict: bool = True) -> Trace:
    return convert.convert_polling(inputs, ConversionOptions(nodes=nodes, strict=strict), debounce).trace


def rows(trace: Trace) -> set[tuple[str, float, float]]:
    return {(entry.node, entry.idle_from_s, entry.idle_until_s) for entry in trace.fragments}


@pytest.mark.parametrize("name", ["log.txt", "log.txt.gz"])
def test_sacct_idle_is_what_no_job_holds(tmp_path: Path, name: str) -> None:
    trace = convert_sacct([put(tmp_path, SACCT, name)])
    assert (trace.nodes, trace.duration_s, trace.origin) == (("gpu1", "n1", "n2"), 150, "2026-11-21T00:01:40")
    assert rows(trace) == {("gpu1", 0, 100), ("n1", 0, 150), ("n2", 0, 100)}


def test_sacct_window_nodes_and_outages(tmp_path: Path) -> None:
    log = put(tmp_path, SACCT)
    nodes = put(
        tmp_path,
        "NodeName=gpu1 Arch=x86_64 BootTime=2026-11-21T00:00:50 SlurmdStartTime=2026-11-21T00:00:55\n"
        "NodeName=n1 BootTime=2026-11-20T00:00:00\nNodeName=n2 State=IDLE\nNodeName=n9 BootTime=None\n",
        "nodes.txt",
    )
    window = ("2026-11-21T00:00:40", "2026-11-21T00:06:40")
    down = put(tmp_path, "node,from,until\nn2,2026-11-21T00:05:30,\nother,2026-11-21T00:05:30,\n", "down.csv")
    trace = convert_sacct([log], nodes, window, down)
    assert (trace.nodes, trace.duration_s, trace.origin) == (("gpu1", "n1", "n2", "n9"), 360, window[0])
    assert rows(trace) == {
        ("gpu1", 10, 160), ("gpu1", 260, 360), ("n1", 60, 210), ("n2", 60, 160), ("n2", 260, 290),
    }  # fmt: skip
    events = put(
        tmp_path,
        "Cluster|NodeName|TimeStart|TimeEnd|State\nc||2026-11-21T00:00:00|Unknown|\n"
        "c|n2|2026-11-21T00:05:30|Unknown|DOWN*\n",
        "events.txt",
    )
    assert convert_sacct([log], nodes, window, events) == trace


def test_logs_of_several_months_may_each_have_a_header(tmp_path: Path) -> None:
    lines = SACCT.splitlines(keepends=True)
    parts = [put(tmp_path, "".join((lines[0], *some)), f"{i}.txt") for i, some in enumerate((lines[1:3], lines[3:]))]
    assert convert_sacct(parts) == convert_sacct([put(tmp_path, SACCT)])


def test_seconds_since_1970_and_zones_are_one_clock(tmp_path: Path) -> None:
    log = put(tmp_path, "Start|End|NodeList\n1000000000|1000000100|a\n2001-09-09T03:46:50+02:00|1000000200|b\n")
    trace = convert_sacct([log])
    assert trace.origin == "2001-09-09T01:46:40+00:00"
    assert rows(trace) == {("a", 100, 200), ("b", 0, 10)}


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("", None, "at least one job that held nodes, got none"),
        ("JobID|Start|End\n", 1, "a header with NodeList"),
        (SACCT + "6|2026-11-21T00:00:00|n1\n", 8, "5 columns, as in the header"),
        (SACCT + "6|yesterday|Unknown|n1|R\n", 8, "a time such as 2026-11-21T03:02:27"),
        (SACCT + "6|2026-13-21T00:00:00|Unknown|n1|R\n", 8, "a time such as"),
        (SACCT + "6|2026-11-21T00:00:00Z|Unknown|n1|R\n", 8, "a time without a zone, like that of"),
        (
            SACCT + "6|2026-11-21T00:09:00|2026-11-21T00:08:00|n1|R\n",
            8,
            "a row that needs no assumption (an end up to an hour before",
        ),
        (SACCT + "6|2026-11-21T09:00:00|2026-11-21T07:00:00|n1|R\n", 8, "an end at or after the start"),
        (SACCT + "6|2026-11-21T00:00:00|Unknown|n[1|R\n", 8, "a node list such as"),
        (SACCT.replace("n2,gpu1", "n2,gpu7"), 4, "nodes of "),
    ],
)
def test_sacct_errors_name_file_and_line(tmp_path: Path, text: str, line: int | None, said: str) -> None:
    path = put(tmp_path, text)
    nodes = put(tmp_path, "# all\nn[1-2]\ngpu1\n", "nodes.txt")
    with pytest.raises(InvalidInputError, match=re.escape(said)) as caught:
        convert_sacct([path], nodes)
    if line:
        assert caught.value.field == f"{path}:{line}"
    if "gpu7" in text:
        assert str(caught.value).endswith("got 'gpu7'")


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ("n1\nn[1-2]\n", r"nodes\.txt:2: expected each node once \(n1"),
        ("# none\n", r"nodes\.txt: expected at least one"),
    ],
)
def test_lists_of_nodes_that_can_not_be(tmp_path: Path, nodes: str, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        convert_sacct([put(tmp_path, SACCT)], put(tmp_path, nodes, "nodes.txt"))


def test_windows_and_outages_that_can_not_be(tmp_path: Path) -> None:
    log = put(tmp_path, SACCT)
    with pytest.raises(InvalidInputError, match=r"--window: expected an end after its beginning"):
        convert_sacct([log], window=("2026-11-21T00:00:40", "2026-11-21T00:00:40"))
    for text, said in (("node|x\n", "a header with NodeName"), ("n1,a,b\n", "the header node,from,until")):
        with pytest.raises(InvalidInputError, match=rf"down\.csv:1: expected {said}"):
            convert_sacct([log], down=put(tmp_path, text, "down.csv"))
    with pytest.raises(InvalidInputError, match=r"missing: expected a readable file"):
        convert_sacct([tmp_path / "missing"])
    with pytest.raises(InvalidInputError, match="at least one job"):
        convert_sacct([put(tmp_path, "Start|End|NodeList\n")])


def test_a_real_list_of_nodes_has_boot_times(tmp_path: Path) -> None:
    nodes = shared_path("schedulers/samples/slurm/multi32_states/scontrol_show_nodes_oneline.txt")
    log = put(tmp_path, "Start|End|NodeList\n2026-11-21T02:01:00|2026-11-21T02:30:00|n[001-031]\n")
    trace = convert_sacct([log], nodes)
    assert len(trace.nodes) == 32
    # It was up from 02:01:3x on.
    assert [(entry.node, 30 <= entry.idle_from_s < 40) for entry in trace.fragments] == [("n032", True)]


@given(
    jobs=st.lists(
        st.tuples(st.sets(st.sampled_from("abc"), min_size=1), st.integers(-5, 40), st.integers(1, 20)), max_size=8
    ),
    up=st.integers(0, 30),
    length=st.integers(1, 30),
)
def test_idle_is_the_complement_of_allocated(jobs: list[tuple[set[str], int, int]], up: int, length: int) -> None:
    names = ("a", "b", "c")
    runs = [Run(tuple(nodes), begin, begin + held, Line("x", 1, "")) for nodes, begin, held in jobs]
    table = table_of(runs)
    table = table.on_nodes(names, {name: index for index, name in enumerate(names)})
    counted = np.array([-9.0, up, -9.0]), np.full(3, 99.0)
    found = idle_columns([table], counted, (0, length))
    for index, node in enumerate(names):
        for second in range(length):
            busy = any(node in nodes and begin <= second < begin + held for nodes, begin, held in jobs)
            covered = (found.node == index) & (found.begin <= second) & (second < found.end)
            assert covered.sum() == (not busy and (node != "b" or second >= up))
    assert ((found.begin >= 0) & (found.begin < found.end) & (found.end <= length)).all()


def test_pbs_runs_reruns_and_running_jobs(tmp_path: Path) -> None:
    trace = convert_pbs([put(tmp_path, PBS)])
    assert (trace.nodes, trace.duration_s) == (("pn1", "pn2", "pn3"), 300)
    assert trace.origin == "2001-09-09T01:46:40+00:00"
    assert rows(trace) == {("pn1", 100, 200), ("pn2", 100, 150), ("pn2", 180, 300), ("pn3", 0, 150), ("pn3", 180, 250)}


def test_a_pbs_job_may_start_in_one_log_and_end_in_the_next(tmp_path: Path) -> None:
    lines = PBS.splitlines(keepends=True)
    parts = [put(tmp_path, "".join(some), f"{i}.txt") for i, some in enumerate((lines[:3], lines[3:]))]
    assert convert_pbs(parts) == convert_pbs([put(tmp_path, PBS)])


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ("garbage", "a record MM/DD/YYYY HH:MM:SS;TYPE;ID;..."),
        ("11/21/2026 03:00:00;S;9.pbs;exec_host=a/0", "start= in seconds since 1970, got ''"),
        ("11/21/2026 03:00:00;S;9.pbs;start=soon exec_host=a/0", "start= in seconds since 1970, got 'soon'"),
        ("11/21/2026 03:00:00;S;9.pbs;start=1000000000", "exec_host=NAME/... or exec_vnode=(NAME:...)"),
        ("11/21/2026 03:00:00;E;9.pbs;start=1000000000 exec_host=a/0 end=999999999", "end= at or after start="),
    ],
)
def test_pbs_errors_name_file_and_line(tmp_path: Path, record: str, said: str) -> None:
    path = put(tmp_path, f"{PBS}{record}\n")
    with pytest.raises(InvalidInputError, match=re.escape(f"{path}:10: expected {said}")):
        convert_pbs([path])


def test_polls_make_fragments_between_samples(tmp_path: Path) -> None:
    trace = convert_polling([put(tmp_path, POLLS)])
    assert (trace.nodes, trace.duration_s, trace.origin) == (("n1", "n2", "n3"), 50, "2026-11-21T00:00:00")
    # The sample at 30 s names no node: the poll failed. n3 was not available at 20 s.
    assert rows(trace) == {("n1", 0, 10), ("n1", 20, 40), ("n2", 0, 50), ("n3", 40, 50)}


def test_debounce_drops_what_is_idle_between_two_jobs_only(tmp_path: Path) -> None:
    path = put(tmp_path, POLLS)
    assert rows(convert_polling([path], debounce=1)) == {("n1", 0, 10), ("n2", 0, 50), ("n3", 40, 50)}
    assert rows(convert_polling([path], debounce=9)) == {("n1", 0, 10), ("n2", 0, 50), ("n3", 40, 50)}


def test_in_a_log_of_idle_nodes_only_an_empty_sample_is_an_answer(tmp_path: Path) -> None:
    log = "2026-11-21T00:00:00\nidle|n1\n2026-11-21T00:00:10\n2026-11-21T00:00:20\nidle|n1\n2026-11-21T00:00:30\n"
    nodes = put(tmp_path, "n1\nn2\n", "nodes.txt")
    trace = convert_polling([put(tmp_path, log)], nodes)
    assert trace.nodes == ("n1", "n2")
    assert rows(trace) == {("n1", 0, 10), ("n1", 20, 30)}


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("idle|n1\n", 1, "a line with the time before the first nodes"),
        (POLLS + "what is this\n", 21, "STATE|NODES, NODE|STATE"),
        (POLLS + "2026-11-21T00:00:50\n", 21, "a time after that of"),
        (POLLS + "2026-11-21T00:00:60\n", 21, "a time such as"),
        (POLLS + "1795231914\n", 21, "a time without a zone"),
        (POLLS + "idle|n[1\n", 21, "a node list"),
        (POLLS + "idle|n7\n", 21, "nodes of "),
    ],
)
def test_polling_errors_name_file_and_line(tmp_path: Path, text: str, line: int, said: str) -> None:
    path = put(tmp_path, text)
    with pytest.raises(InvalidInputError, match=re.escape(said)) as caught:
        convert_polling([path], put(tmp_path, "n[1-3]\n", "nodes.txt"))
    assert caught.value.field == f"{path}:{line}"


def test_one_sample_is_no_log(tmp_path: Path) -> None:
    for text in ("", "2026-11-21T00:00:00\nidle|n1\n"):
        with pytest.raises(InvalidInputError, match="at least two with nodes in them"):
            convert_polling([put(tmp_path, text)])


def test_polls_of_a_real_slurm() -> None:
    names = ("multi32_states", "multi32_queue", "preempting")
    trace = convert_polling([shared_path(f"schedulers/samples/slurm/{name}/sinfo_N_long.txt") for name in names])
    assert (len(trace.nodes), trace.duration_s, trace.origin) == (32, 1993, "2026-11-21T03:02:27")
    assert trace.fragments == (
        *(Fragment(f"n{number:03d}", 0, 1993) for number in range(19, 23)),
        Fragment("n023", 1035, 1993),
    )


def test_the_same_from_the_short_form(tmp_path: Path) -> None:
    folders = [shared_path(f"schedulers/samples/slurm/{name}") for name in ("multi32_states", "preempting")]
    log = "".join(
        f"{(folder / 'DATE').read_text().strip()}\n{(folder / 'sinfo_h_N_robust.txt').read_text()}"
        for folder in folders
    )
    trace = convert_polling([put(tmp_path, log)])
    assert trace.origin == "2026-11-21T03:02:27+00:00"
    assert [entry.node for entry in trace.fragments] == [f"n{number:03d}" for number in range(19, 23)]
