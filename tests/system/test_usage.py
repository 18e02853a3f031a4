"""Who used what, of live services: trainings that count what they did, JobManager killed in between, nodes taken."""

from __future__ import annotations

import csv
import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import grpc
import pytest

from malletrain.cli.shared.settings import load
from malletrain.cli.shared.stubs import ServiceStubs
from malletrain.runtime.access.credentials import FixedToken
from malletrain.runtime.access.installation import own_user
from malletrain.v1 import job_manager_pb2 as pb
from malletrain.v1 import resources_pb2, scavenger_pb2
from tests.job_manager.journal_usage import JournalRow, journal_usage
from tests.support.builders import spec_message
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed

pytestmark = [pytest.mark.system, pytest.mark.long, pytest.mark.timeout(600)]

OWNER = own_user()
SETTINGS = f"""
[scavenger]
source = "static"
nodes = ["n1", "n2", "n3"]
debounce_seconds = 0
[job_manager]
max_parallel = 4
backend = "command"
trainer_python = "{sys.executable}"
restart_backoff_seconds = 0.1
currency = "EUR"
[[job_manager.charge_rates]]
from_month = "2020-01"
node_hour = 3600.0
discount = 0.75
[job_manager.projects]
bio = ["{OWNER}", "ada"]
chem = ["{OWNER}"]
closed = ["somebody-else"]
"""
TRAINER = """
import os, sys, time
from pathlib import Path
from malletrain.client import report
path = Path(os.environ["MALLETRAIN_JOB_DIR"]) / "steps"
step = int(path.read_text()) if path.exists() else 0
while not Path(sys.argv[1]).exists():
    time.sleep(0.01)
    step += 1
    path.with_suffix(".new").write_text(str(step))
    path.with_suffix(".new").replace(path)
    report(32, position=32 * step)
"""
BATCH = 32


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("usage"), SETTINGS) as deployment:
        (deployment.folder / "trainer.py").write_text(TRAINER)
        wait_until(lambda: len(deployment.json("nodes")) == 3, 30, "the nodes")
        yield deployment


def submit(system: Deployment, name: str, *options: str) -> str:
    command = [sys.executable, str(system.folder / "trainer.py"), str(system.folder / f"end-{name}")]
    done = system.command("submit", "--name", name, "--max", "1", *options, "--", *command)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def rows_of(system: Deployment, *keys: pb.UsageKey.ValueType) -> tuple[list[pb.UsageRow], float]:
    with closing(system.stubs) as stubs:
        request = pb.GetUsageRequest(group_by=keys)
        parts = list(stubs.job_manager.GetUsage(request, timeout=60, wait_for_ready=True))
    return [row for part in parts for row in part.rows], parts[-1].as_of_time.ToNanoseconds() / 1e9


def journal(system: Deployment) -> list[JournalRow]:
    found, token = list[JournalRow](), ""
    with closing(system.stubs) as stubs:
        while True:
            page = stubs.job_manager.ListJobEvents(pb.ListJobEventsRequest(page_token=token), timeout=60)
            for event in page.events:
                code = resources_pb2.JobReason.Name(event.reason_code).removeprefix("JOB_REASON_")
                found.append(JournalRow(event.unix_seconds, event.job_id, code, tuple(event.nodes)))
            token = page.next_page_token
            if not token:
                return found


def kill_job_manager(system: Deployment) -> None:
    before = system.pids()["job_manager"]
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: system.pids().get("job_manager", before) != before, 60, "another JobManager")


def check_journal(system: Deployment) -> None:
    """Usage of each job and of all is that of the journal, to the second."""
    rows, now = rows_of(system, pb.USAGE_KEY_JOB)
    expected = journal_usage([row for row in journal(system) if row.time <= now], now)
    used = {row.job_id: row for row in rows}
    for job_id, seconds in expected.node_seconds.items():
        found = used.get(job_id, pb.UsageRow())
        assert found.node_seconds == pytest.approx(seconds, abs=0.5), job_id
        assert found.preemptions == expected.preemptions[job_id]
    assert sum(row.node_seconds for row in rows) == pytest.approx(expected.total, abs=0.5)


def test_usage_is_what_trainings_have_counted_and_what_the_journal_says(system: Deployment) -> None:
    jobs = {name: submit(system, name, *options) for name, *options in (("a", "--project", "bio"), ("b",), ("c",))}

    def steps(name: str) -> int:
        path = system.folder / "jobs" / jobs[name] / "steps"
        return int(path.read_text()) if path.exists() else 0

    def go_on() -> None:
        before = {name: steps(name) for name in jobs}
        wait_until(lambda: all(steps(name) > before[name] + 20 for name in jobs), 120, "steps of all")

    for node in ("n1", "n2", "n3"):
        go_on()
        with closing(system.stubs) as stubs:
            stubs.scavenger.DrainNodes(scavenger_pb2.DrainNodesRequest(nodes=[node]), timeout=30)
            kill_job_manager(system)
            check_journal(system)
            stubs.scavenger.ResumeNodes(scavenger_pb2.ResumeNodesRequest(nodes=[node]), timeout=30)
    go_on()
    for name in jobs:
        (system.folder / f"end-{name}").touch()
    wait_until(lambda: all(system.job(job_id).HasField("end_time") for job_id in jobs.values()), 60, "all ends")

    def counted() -> bool:
        rows, _ = rows_of(system, pb.USAGE_KEY_JOB)
        used = {row.job_id: row.samples for row in rows}
        return all(used[job_id] == BATCH * steps(name) for name, job_id in jobs.items())

    wait_until(counted, 30, "the samples that the trainings have counted")
    check_journal(system)
    rows, _ = rows_of(system, pb.USAGE_KEY_JOB)
    assert sum(row.preemptions for row in rows) >= 1
    for name, job_id in jobs.items():
        row = next(row for row in rows if row.job_id == job_id)
        # A step takes 0.01 s at least; what trains on in the grace of a node that was taken is not charged.
        assert row.node_seconds + 2.0 * row.preemptions >= 0.01 * steps(name)
        assert 0 < row.lost_node_seconds <= row.node_seconds


def test_the_command_prints_tables_csv_and_json(system: Deployment) -> None:
    job_id = submit(system, "d", "--project", "chem")
    wait_until(lambda: system.job(job_id).samples > 0, 60, "a training")
    (system.folder / "end-d").touch()
    wait_until(lambda: system.job(job_id).HasField("end_time"), 60, "its end")
    by_project = system.json("usage", "--by", "project")
    assert {row["project"] for row in by_project["rows"]} >= {"chem"}
    row = next(row for row in by_project["rows"] if row["project"] == "chem")
    assert row["charge"] == pytest.approx(row["nodeSeconds"] * 0.25)
    assert row["fullCharge"] == pytest.approx(row["nodeSeconds"])
    table = system.command("usage", "--by", "owner", "--by", "project").stdout
    assert "charge in EUR" in table
    assert "chem" in table
    done = system.command("usage", "--csv", "--since", "2020-01")
    found = list(csv.DictReader(io.StringIO(done.stdout)))
    assert list(found[0]) == [
        *("month", "owner", "project", "job", "node_hours", "gpu_hours", "lost_node_hours"),
        *("samples", "preemptions", "full_charge", "charge", "currency"),
    ]
    chem = next(entry for entry in found if entry["project"] == "chem")
    assert (chem["owner"], chem["job"], chem["currency"]) == (OWNER, "", "EUR")
    assert float(chem["node_hours"]) * 3600 == pytest.approx(row["nodeSeconds"], abs=0.01)
    assert system.json("job", job_id)["spec"]["project"] == "chem"
    assert "chem" in system.command("job", job_id).stdout
    assert system.command("usage", "--until", "2020-01").stdout == "nothing was used\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--since", "last week"), "--since: expected a day such as 2026-07-15, or a month such as 2026-07"),
        (("--since", "2026-02-30"), "since: expected a day as 2026-07-01"),
        (("--since", "2026-08", "--until", "2026-07"), "until: expected a day after since"),
        (("--csv", "--json"), "--csv: expected one of --csv and --json"),
        (("--mine", "--owner", "ada"), "--mine: expected one of --mine and --owner"),
    ],
)
def test_wrong_use_is_told_in_a_sentence(system: Deployment, options: tuple[str, ...], said: str) -> None:
    done = system.command("usage", *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


# Others.


def of(system: Deployment, user: str, role: str) -> ServiceStubs:
    token = system.command("token", "--user", user, "--role", role).stdout.strip()
    return ServiceStubs(load(system.config), FixedToken(token))


def usage_seen_by(stubs: ServiceStubs, owner: str = "") -> list[pb.UsageRow]:
    request = pb.GetUsageRequest(group_by=[pb.USAGE_KEY_OWNER, pb.USAGE_KEY_PROJECT, pb.USAGE_KEY_JOB], owner=owner)
    return [row for part in stubs.job_manager.GetUsage(request, timeout=60) for row in part.rows]


def test_users_see_their_own_usage_and_viewers_that_of_all(system: Deployment) -> None:
    assert rows_of(system, pb.USAGE_KEY_OWNER)[0]
    with closing(of(system, "mallory", "user")) as mallory:
        assert usage_seen_by(mallory) == []
        with pytest.raises(grpc.RpcError) as refused:
            usage_seen_by(mallory, OWNER)
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED  # type: ignore[attr-defined]
    for user, role in (("mallory", "viewer"), ("mallory", "operator"), (OWNER, "user")):
        with closing(of(system, user, role)) as stubs:
            assert {row.owner for row in usage_seen_by(stubs)} == {OWNER}
            assert usage_seen_by(stubs, OWNER) != []


@pytest.mark.parametrize(
    ("project", "said"),
    [
        ("closed", "specs[1].project: expected one of bio (job_manager.projects), got 'closed'"),
        ("\x1b]52;c;aGk=\x07", "specs[1].project: expected 1 to 64 letters, digits and _.+@-"),
        ("=cmd()", "specs[1].project: expected 1 to 64 letters"),
        ("x" * 65, "specs[1].project: expected 1 to 64 letters"),
        ("bio\n", "specs[1].project: expected 1 to 64 letters"),
    ],
)
def test_nobody_charges_the_project_of_others(system: Deployment, project: str, said: str) -> None:
    with closing(of(system, "ada", "user")) as ada:
        specs = [spec_message("sleep", "1", project=name) for name in ("bio", project)]
        with pytest.raises(grpc.RpcError) as refused:
            ada.job_manager.SubmitJobs(pb.SubmitJobsRequest(specs=specs), timeout=30)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]
        assert said in (refused.value.details() or "")  # type: ignore[attr-defined]
        assert "\x1b" not in (refused.value.details() or "")  # type: ignore[attr-defined]
        assert not ada.job_manager.ListJobs(pb.ListJobsRequest(owner="ada"), timeout=30).jobs


def test_who_submits_what_is_not_theirs_is_told_by_the_command(system: Deployment, tmp_path: Path) -> None:
    specs = tmp_path / "jobs.json"
    specs.write_text(
        '[{"name": "a", "command": ["sleep", "1"], "workingDirectory": "/", "minNodes": 1, "maxNodes": 1, '
        '"project": "closed"}]'
    )
    done = system.command("submit", "--file", str(specs))
    assert done.returncode == 2
    assert "specs[0].project: expected one of bio, chem (job_manager.projects), got 'closed'" in done.stderr
