"""The images and docker-compose.yml: five services in containers train, survive kills, and go on after an end."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest

from tests.containers.composition import SERVICES, Composition, Job, missing_images
from tests.support.ports import free_port
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.containers, pytest.mark.timeout(480)]


@pytest.fixture(scope="module")
def composition() -> Iterator[Composition]:
    if missing := missing_images("head", "trainer", "prometheus"):
        pytest.skip(missing)
    made = Composition("malletrain-test", {"COMPOSE_PROFILES": "monitoring", "PROMETHEUS_PORT": str(free_port())})
    made.down("--volumes")
    try:
        made.up()
        yield made
    finally:
        made.down("--volumes")


def test_containers_have_no_privileges(composition: Composition) -> None:
    for service in SERVICES:
        found = composition.inspect(service)
        host = found["HostConfig"]
        assert found["Config"]["User"] == "malletrain", service
        assert host["ReadonlyRootfs"], service
        assert host["CapDrop"] == ["ALL"], service
        assert not host["CapAdd"], service
        assert "no-new-privileges:true" in host["SecurityOpt"], service
        assert host["Memory"] > 0, service
        assert host["PidsLimit"] > 0, service
        assert not host["PortBindings"], service


def test_only_the_account_of_the_services_reads_their_state(composition: Composition) -> None:
    listing = composition.run("exec", "--no-TTY", "scavenger", "stat", "--format", "%U %a", "/var/lib/malletrain")
    assert listing.split() == ["malletrain", "700"]


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
