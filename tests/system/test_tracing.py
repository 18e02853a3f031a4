"""Distributed tracing for real: `malletrain up`, a job on virtual nodes, and a collector that takes OTLP."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from malletrain.v1 import job_manager_pb2, resources_pb2
from tests.scavenger.recorded_commands import RecordedCommands
from tests.support.collector import Collector, SeenSpan, collecting, tree
from tests.support.ports import free_port
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed

pytestmark = [pytest.mark.long, pytest.mark.system, pytest.mark.timeout(240)]

STATIC = """
[scavenger]
source = "static"
nodes = ["n1", "n2", "n3"]
debounce_seconds = 0
[job_manager]
backend = "command"
"""
SLURM = """
[scavenger]
source = "slurm"
debounce_seconds = 0
[scavenger.slurm]
partitions = ["main"]
interval_seconds = 0.5
{paths}
[job_manager]
backend = "command"
"""
TRAINER = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); time.sleep(600)"
PATIENCE = 60.0
ALL = ("n1", "n2", "n3")
SECRET = "s3cret-of-the-job"
IMPORTED = re.compile(r"import time:.*\|\s+(opentelemetry|grpc)\b")
PATH_OF_A_GROWTH = (
    "supervisor.start_workers",
    "supervisor.set_hosts",
    "job_manager.set_hosts",
    "job_manager.change_job",
    "job_manager.take_plan",
    "allocator.apply",
    "allocator.plan",
    "scavenger.event",
    "scavenger.resume",
)
PATH_OF_A_RELEASE = (
    "supervisor.end_workers",
    "supervisor.release_hosts",
    "job_manager.release_hosts",
    "job_manager.change_job",
    "scavenger.event",
    "scavenger.drain",
)


def submit(deployment: Deployment) -> None:
    curve = ("--curve", "1:1,2:2,3:3", "--env", f"PLAIN_NAME={SECRET}")
    done = deployment.command("submit", "--backend", "command", "--max", "3", *curve, "--", "python", "-c", TRAINER)
    assert done.returncode == 0, done.stderr
    wait_for_nodes(deployment, *ALL)


def wait_for_nodes(deployment: Deployment, *nodes: str) -> None:
    """Wait until the job trains on nodes."""
    stub = deployment.stubs.job_manager

    def trains() -> bool:
        (job,) = stub.ListJobs(job_manager_pb2.ListJobsRequest(), timeout=10).jobs
        return job.state == resources_pb2.JOB_STATE_RUNNING and sorted(job.confirmed_nodes) == sorted(nodes)

    wait_until(trains, PATIENCE, f"a job on {nodes}")


def take_n3(deployment: Deployment) -> None:
    assert deployment.command("drain", "n3").returncode == 0
    wait_for_nodes(deployment, "n1", "n2")


def give_n3(deployment: Deployment) -> None:
    assert deployment.command("resume", "n3").returncode == 0
    wait_for_nodes(deployment, *ALL)


def logs(deployment: Deployment) -> str:
    found = [*(deployment.folder / "logs").glob("*.log"), *(deployment.folder / "jobs").glob("*/supervisor.log")]
    return "\n".join(path.read_text(errors="replace") for path in found)


def ancestors(collector: Collector, span: SeenSpan) -> list[str]:
    """Names of a span and of those that it is part of, up to the first of its trace.

    Each service sends its spans on its own, so a parent may arrive after its child.
    """

    def names() -> list[str]:
        by_id = {other.span_id: other for other in collector.spans if other.trace_id == span.trace_id}
        found = [span]
        while (parent := found[-1].parent_id) and parent in by_id:
            found.append(by_id[parent])
        return [] if parent else [entry.name for entry in found]

    return wait_until(names, PATIENCE, "a trace without gaps")


def newest_trace(collector: Collector, last: Callable[[Collector], list[SeenSpan]]) -> SeenSpan:
    """The last span of the newest trace that has one; it is sent within a second or two."""
    return max(wait_until(lambda: last(collector), PATIENCE, "the last span"), key=lambda span: span.begin)


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Deployment, Collector]]:
    with collecting() as (collector, port), pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPROFILEIMPORTTIME", "1")
        settings = f'{STATIC}[tracing]\nendpoint = "http://127.0.0.1:{port}"\n'
        with deployed(tmp_path_factory.mktemp("traced"), settings) as deployment:
            submit(deployment)
            yield deployment, collector


def test_a_node_given_and_taken_is_one_trace_each(traced: tuple[Deployment, Collector]) -> None:
    deployment, collector = traced
    take_n3(deployment)

    def released(collector: Collector) -> list[SeenSpan]:
        return collector.named("supervisor.end_workers", node="n3")

    end = newest_trace(collector, released)
    assert ancestors(collector, end) == list(PATH_OF_A_RELEASE), tree(collector.spans, end.trace_id)
    (change,) = [span for span in collector.named("job_manager.change_job") if span.trace_id == end.trace_id]
    assert change.attributes["malletrain.cause"] == "leave"
    assert change.attributes["malletrain.confirmed"]
    assert change.end >= end.end
    (drain,) = [span for span in collector.named("scavenger.drain") if span.trace_id == end.trace_id]
    assert drain.attributes["malletrain.released"] == 1
    assert drain.begin <= end.begin <= end.end <= drain.end

    give_n3(deployment)

    def grown(collector: Collector) -> list[SeenSpan]:
        roots = {span.trace_id for span in collector.named("scavenger.resume")}
        return [span for span in collector.named("supervisor.start_workers") if span.trace_id in roots]

    start = newest_trace(collector, grown)
    assert ancestors(collector, start) == list(PATH_OF_A_GROWTH), tree(collector.spans, start.trace_id)
    own = [span for span in collector.spans if span.trace_id == start.trace_id]
    services = {f"malletrain-{name}" for name in ("scavenger", "allocator", "job_manager", "supervisor")}
    assert {span.service for span in own} == services
    (plan,) = [span for span in own if span.name == "allocator.plan"]
    expected = {"jobs": 1, "nodes": 3, "solver": "dp", "status": "OPTIMAL", "applied": True, "events": 1}
    assert (
        expected.items() <= {name.removeprefix("malletrain."): value for name, value in plan.attributes.items()}.items()
    )
    (taken,) = [span for span in own if span.name == "job_manager.take_plan"]
    assert taken.attributes["malletrain.accepted"]
    assert not [span for span in collector.spans if span.error]


def idle(*nodes: str) -> str:
    """What sinfo answers."""
    return "".join(f"idle|{node}\n" for node in nodes)


def test_a_trace_begins_with_the_schedulers_answer(tmp_path: Path) -> None:
    commands = RecordedCommands(tmp_path / "slurm")
    commands.folder.mkdir()
    paths = {name: commands.add(name) for name in ("squeue", "scontrol")} | {"sinfo": commands.add("sinfo", idle(*ALL))}
    settings = SLURM.format(paths="\n".join(f'{name} = "{path}"' for name, path in paths.items()))
    with collecting() as (collector, port):
        tracing = f'[tracing]\nendpoint = "http://127.0.0.1:{port}"\n'
        with deployed(tmp_path / "up", settings + tracing) as deployment:
            submit(deployment)
            commands.says("sinfo", f"{idle('n1', 'n2')}allocated|n3\n")
            wait_for_nodes(deployment, "n1", "n2")
            end = newest_trace(collector, lambda found: found.named("supervisor.end_workers", node="n3"))
            check_begin(collector, end, PATH_OF_A_RELEASE[:-1])

            def grown(collector: Collector) -> list[SeenSpan]:
                roots = {span.trace_id for span in collector.named("scavenger.event", joined__nodes=["n3"])}
                return [span for span in collector.named("supervisor.start_workers") if span.trace_id in roots]

            commands.says("sinfo", idle(*ALL))
            wait_for_nodes(deployment, *ALL)
            check_begin(collector, newest_trace(collector, grown), PATH_OF_A_GROWTH[:-1])


def check_begin(collector: Collector, last: SeenSpan, path: tuple[str, ...]) -> None:
    """The trace of a span begins with an event that follows from an answer of Slurm, and with the query for it."""
    assert ancestors(collector, last) == list(path), tree(collector.spans, last.trace_id)

    def own(name: str) -> list[SeenSpan]:
        return [span for span in collector.named(name) if span.trace_id == last.trace_id]

    (event,) = own("scavenger.event")
    (query,) = wait_until(lambda: own("scavenger.query"), PATIENCE, "the query, which may be sent apart")
    assert event.parent_id == ""
    assert event.attributes["malletrain.cause"] == "source"
    assert query.parent_id == event.span_id
    assert (query.attributes["malletrain.source"], query.attributes["malletrain.query"]) == ("slurm", "nodes")
    assert event.begin == query.begin < query.end <= last.begin


def test_spans_hold_no_command_environment_path_or_token(traced: tuple[Deployment, Collector]) -> None:
    deployment, collector = traced
    text = repr(collector.spans)
    assert "j000001" in text
    assert "n3" in text
    for secret in (SECRET, "PLAIN_NAME", "time.sleep", str(deployment.folder), "Bearer"):
        assert secret not in text


def test_nothing_of_opentelemetry_is_imported_where_nothing_is_traced(
    traced: tuple[Deployment, Collector], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    with deployed(tmp_path / "untraced", STATIC) as deployment:
        submit(deployment)
        (supervisor,) = (deployment.folder / "jobs").glob("*/supervisor.log")
        assert json.loads((supervisor.parent / "launch.json").read_text())["traceparent"] == ""
        assert set(IMPORTED.findall(supervisor.read_text(errors="replace"))) == {"grpc"}
    assert set(IMPORTED.findall(logs(deployment))) == {"grpc"}
    assert set(IMPORTED.findall(logs(traced[0]))) == {"grpc", "opentelemetry"}


def test_services_go_on_while_the_collector_is_away(tmp_path: Path) -> None:
    port = free_port()
    settings = f'{STATIC}[tracing]\nendpoint = "http://127.0.0.1:{port}"\nqueue_spans = 64\n'
    with deployed(tmp_path / "away", settings) as deployment:
        submit(deployment)
        take_n3(deployment)
        give_n3(deployment)
        allocator = deployment.folder / "logs/allocator.log"
        wait_until(lambda: "spans can't be sent" in allocator.read_text(), PATIENCE, "a warning")
        take_n3(deployment)
        give_n3(deployment)
        with collecting(port) as (collector, _):

            def sent() -> list[SeenSpan]:
                take_n3(deployment)
                give_n3(deployment)
                return collector.named("allocator.plan")

            wait_until(sent, PATIENCE, "spans once the collector is there")
            wait_until(lambda: "spans are sent again" in allocator.read_text(), PATIENCE, "a word in the log")
        assert allocator.read_text().count("spans can't be sent") == 1
        assert "Traceback" not in logs(deployment)
