"""The images and docker-compose.yml: five services in containers train, survive kills, and go on after an end."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator

import pytest

from tests.containers.browsing import Browser, make_certificate
from tests.containers.composition import SERVICES, Composition, Job, missing_images
from tests.support.ports import free_port
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.containers, pytest.mark.timeout(480)]

_MOST_HEAD_BYTES = 400_000_000


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
    )
    made.down("--volumes")
    try:
        made.up()
        yield made
    finally:
        made.down("--volumes")


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
    assert int(subprocess.run(ask, capture_output=True, text=True, check=True).stdout) < _MOST_HEAD_BYTES


def test_only_the_account_of_the_services_reads_their_state(composition: Composition) -> None:
    listing = composition.run("exec", "--no-TTY", "scavenger", "stat", "--format", "%U %a", "/var/lib/malletrain")
    assert listing.split() == ["malletrain", "700"]


def test_the_dashboard_shows_nodes_to_viewers_only(composition: Composition, browser: Browser) -> None:
    assert browser.get("/csv/now/nodes")[0] == 401
    token = composition.cli("token", "--user", "ada", "--role", "viewer").strip()
    assert browser.get(f"/login?token={token}")[0] == 200
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
    assert (own["user"], own["role"]) == ("malletrain-dashboard", "ROLE_VIEWER")


def test_prometheus_gets_the_metrics_of_all_services(composition: Composition) -> None:
    def scraped() -> bool:
        found = composition.run(
            *("exec", "--no-TTY", "prometheus"), *("promtool", "query", "instant", "http://localhost:9090", "up == 1")
        )
        return set(re.findall(r'service="(\w+)"', found)) == set(SERVICES)

    wait_until(scraped, 60, "metrics of all services")


def test_no_job_is_lost_when_each_service_is_killed_in_turn(composition: Composition) -> None:
    submitted = [composition.submit(20_000, most) for most in (2, 2, 3)]
    composition.wait_for_jobs(lambda jobs: "RUNNING" in _states(jobs), "a running job")
    # JobManager first, while all jobs train.
    for service in sorted(SERVICES, key=lambda name: name != "job_manager"):
        composition.run("kill", service)
        composition.up(service)

    def ended(jobs: dict[str, Job]) -> bool:
        assert not {"FAILED", "CANCELLED"} & _states(jobs), jobs
        return all(jobs[job].state == "COMPLETED" for job in submitted)

    jobs = composition.wait_for_jobs(ended, "the end of all jobs")
    assert all(jobs[job].samples >= 20_000 for job in submitted)


def test_a_service_that_dies_is_started_again(composition: Composition) -> None:
    before = composition.inspect("job_manager")
    # All processes but the first one, which is docker's init; it then ends, too.
    subprocess.run(
        ["docker", "exec", before["Id"], "sh", "-c", "kill -9 -1"], capture_output=True, timeout=30, check=False
    )
    wait_until(lambda: composition.inspect("job_manager")["RestartCount"] > before["RestartCount"], 30, "a restart")
    composition.wait_until_healthy("job_manager")


def test_a_training_goes_on_after_down_and_up(composition: Composition) -> None:
    job = composition.submit(15_000, 2)
    before = composition.wait_for_jobs(lambda jobs: jobs[job].samples > 2_000, "some samples")
    composition.down()
    composition.up()
    after = composition.wait_for_jobs(lambda jobs: jobs[job].samples > 0, "the jobs after the new start")
    assert [name for name in before if name != job and after[name] != before[name]] == []
    ended = composition.wait_for_jobs(lambda jobs: jobs[job].state == "COMPLETED", "the end of the job")
    assert ended[job].samples >= 15_000


def _states(jobs: dict[str, Job]) -> set[str]:
    return {job.state for job in jobs.values()}
