"""The images and docker-compose.yml: five services in containers train, survive kills, and go on after an end."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers.browsing import Browser, make_certificate
from tests.containers.composition import SERVICES, Composition, missing_images
from tests.containers.training import WITH_TRAINER, train
from tests.monitoring.prometheus import Prometheus, dashboard_problems
from tests.support.ports import free_port
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.containers, pytest.mark.timeout(900)]

_MAX_HEAD_BYTES = 400_000_000
MAX_LOST = 1_000
"""Samples of one training that may be lost with JobManager's container: what it trains on in 5 s at its fastest."""
WITHOUT_DATA = {
    "malletrain_allocator_utilization_efficiency": "what a minute was used for is known a minute after its end",
    "malletrain_scavenger_queries_total": "a trace asks no scheduler",
    "malletrain_scavenger_last_query_seconds": "a trace asks no scheduler",
    "malletrain_scavenger_answer_age_seconds": "a trace asks no scheduler",
}
"""Metrics of which nothing is measured here, and why; tests/monitoring has a scheduler."""
MAY_BE_NAN = {"agent_left": "no node is held by a placeholder"}
"""Parts of results that may be NaN, a quantile of nothing, and why."""
RECLAIM = """
from malletrain.cli.shared.stubs import connect
from malletrain.v1 import job_manager_pb2, scavenger_pb2

with connect() as stubs:
    jobs = stubs.job_manager.ListJobs(job_manager_pb2.ListJobsRequest(), timeout=20).jobs
    nodes = [node for job in jobs for node in job.confirmed_nodes][:1]
    assert nodes
    stubs.scavenger.ReclaimNodes(scavenger_pb2.ReclaimNodesRequest(nodes=nodes, hold_seconds=20), timeout=30)
"""
"""Takes a node from a training, as a scheduler's hook does."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Browser:
    certificate, _ = make_certificate(tmp_path_factory.mktemp("secrets"))
    return Browser(free_port(), certificate)


@pytest.fixture(scope="module")
def composition(browser: Browser) -> Iterator[Composition]:
    if missing := missing_images("head", "trainer", "dashboard", "prometheus"):
        pytest.skip(missing)
    made = Composition(
        "malletrain-test",
        {
            "COMPOSE_PROFILES": "monitoring,dashboard",
            "PROMETHEUS_PORT": str(free_port()),
            "DASHBOARD_ADDRESS": f"127.0.0.1:{browser.port}",
            "DASHBOARD_CERTIFICATE": str(browser.certificate),
            "DASHBOARD_KEY": str(browser.certificate.with_suffix(".key")),
        },
        WITH_TRAINER,
    )
    made.down("--volumes")
    try:
        made.up()
        yield made
    finally:
        made.down("--volumes")


@pytest.fixture
def prometheus(composition: Composition) -> Prometheus:
    return Prometheus(int(composition.variables["PROMETHEUS_PORT"]))


def test_containers_have_no_privileges(composition: Composition) -> None:
    for service in (*SERVICES, "dashboard"):
        found = composition.inspect(service)
        host = found["HostConfig"]
        assert found["Config"]["User"] == "malletrain", service
        assert host["ReadonlyRootfs"], service
        assert host["CapDrop"] == ["ALL"], service
        assert not host["CapAdd"], service
        assert "no-new-privileges:true" in host["SecurityOpt"], service
        assert host["Memory"] > 0, service
        assert host["PidsLimit"] > 0, service
        assert [bound["HostIp"] for port in (host["PortBindings"] or {}).values() for bound in port] == (
            ["127.0.0.1"] if service == "dashboard" else []
        ), service


def test_the_image_of_the_services_is_small() -> None:
    if missing := missing_images("head"):
        pytest.skip(missing)
    ask = ["docker", "image", "inspect", "--format", "{{.Size}}", "localhost/malletrain-head:latest"]
    assert int(subprocess.run(ask, capture_output=True, text=True, check=True).stdout) < _MAX_HEAD_BYTES


def test_only_the_account_of_the_services_reads_their_state(composition: Composition) -> None:
    """Others only pass through the folder, to the CA's certificate."""
    look = ("find", "/var/lib/malletrain", "-maxdepth", "1", "-printf", "%U %m %f\n")
    listing = [line.split() for line in composition.run("exec", "--no-TTY", "scavenger", *look).splitlines()]
    assert ["10001", "711", "malletrain"] in listing
    open_to_others = {name for _, mode, name in listing if int(mode, 8) & 0o007}
    assert open_to_others == {"malletrain", "ca.pem"}


def test_the_dashboard_shows_nodes_to_viewers_only(composition: Composition, browser: Browser) -> None:
    assert browser.get("/csv/now/nodes")[0] == 401
    token = composition.cli("token", "--user", "ada", "--role", "viewer").strip()
    assert browser.log_in(token) == 200
    assert browser.get("/now")[0] == 200
    wait_until(lambda: len(browser.get("/csv/now/nodes")[1].splitlines()) > 1, 60, "nodes on the dashboard")


def test_the_dashboard_has_a_viewers_token_and_no_state(composition: Composition) -> None:
    mounts = {mount["Destination"]: mount for mount in composition.inspect("dashboard")["Mounts"]}
    assert "/var/lib/malletrain" not in {
        place for place, mount in mounts.items() if mount.get("Name", "").endswith("_state")
    }
    assert not mounts["/var/lib/malletrain-viewer"]["RW"]
    command = ("exec", "--no-TTY", "dashboard", "malletrain", "token", "--json")
    own = json.loads(composition.run(*command))
    assert (own["user"], own["role"]) == ("malletrain-dashboard", "VIEWER")


def test_prometheus_gets_the_metrics_of_all_services(composition: Composition) -> None:
    def scraped() -> bool:
        found = composition.run(
            *("exec", "--no-TTY", "prometheus"), *("promtool", "query", "instant", "http://localhost:9090", "up == 1")
        )
        return set(re.findall(r'service="(\w+)"', found)) == set(SERVICES)

    wait_until(scraped, 60, "metrics of all services")


def test_no_training_is_lost_when_each_service_is_killed_in_turn(composition: Composition, tmp_path: Path) -> None:
    trainings = [train(composition, tmp_path, most) for most in (2, 2)]
    # JobManager first: the trainings in its container end with it, and go on from their checkpoints.
    for service in sorted(SERVICES, key=lambda name: name != "job_manager"):
        before = [training.wait_for(MAX_LOST + 1) for training in trainings]
        starts = [len(training.starts()) for training in trainings]
        composition.run("kill", service)
        composition.up(service)
        for training, then, started in zip(trainings, before, starts, strict=True):
            now = training.wait_for(then.samples + 1)
            later = training.starts()[started:]
            if service == "job_manager":
                assert later, f"{training.id} did not end with JobManager's container"
                assert later[0] >= then.samples - MAX_LOST, (later, then)
            else:
                assert now.restarts == then.restarts, (service, now, then)
    for training in trainings:
        accounts = training.end()
        assert len(accounts.repeated) <= MAX_LOST, training.id
        assert composition.samples_lost(training.id) <= MAX_LOST


def test_every_query_of_the_dashboard_returns_data(
    composition: Composition, prometheus: Prometheus, tmp_path: Path
) -> None:
    """While a training runs that lost a node, at a Prometheus that is set up as `docker-compose.yml` says."""
    training = train(composition, tmp_path, 2)
    before = training.wait_for(1)
    composition.run("exec", "--no-TTY", "scavenger", "python", "-c", RECLAIM)
    with pytest.raises(AssertionError, match="j999999"):
        composition.cli("job", "j999999")
    training.wait_for(before.samples + 1)

    def complete() -> bool:
        missing[:] = dashboard_problems(prometheus, WITHOUT_DATA, MAY_BE_NAN, "10m")
        return not missing

    missing: list[object] = []
    try:
        wait_until(complete, 90, "figures of every query")
    except AssertionError as error:
        raise AssertionError(f"{error}: {missing}") from None
    training.end()


def test_a_service_that_dies_is_started_again(composition: Composition) -> None:
    before = composition.inspect("job_manager")
    # All processes but the first one, which is docker's init; it then ends, too.
    subprocess.run(
        ["docker", "exec", before["Id"], "sh", "-c", "kill -9 -1"], capture_output=True, timeout=30, check=False
    )
    wait_until(lambda: composition.inspect("job_manager")["RestartCount"] > before["RestartCount"], 30, "a restart")
    composition.wait_until_healthy("job_manager")


def test_a_training_goes_on_after_down_and_up(composition: Composition, tmp_path: Path) -> None:
    example = composition.submit(15_000, 2)
    training = train(composition, tmp_path, 2)
    before = training.wait_for(MAX_LOST + 1)
    others = {name: job for name, job in composition.jobs().items() if job.state == "COMPLETED"}
    started = len(training.starts())
    composition.down()
    composition.up()
    after = composition.wait_for_jobs(bool, "the jobs after the new start")
    assert {name: after[name] for name in others} == others
    training.wait_for(before.samples + 1)
    # A stop in good order loses nothing: the first workers of the new start have all that the last ones had trained on.
    assert training.starts()[started] >= before.samples
    assert training.end().repeated == []
    composition.wait_for_jobs(lambda jobs: jobs[example].state == "COMPLETED", "the end of the example")
    assert composition.samples_lost(example) == 0
