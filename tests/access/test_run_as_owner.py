"""Jobs that run as their owners: a real `malletrain up` of root, two other Unix users, and what they try."""

from __future__ import annotations

import json
import os
import pwd
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from malletrain.common.cgroups import open_cgroups
from malletrain.common.environment import JOB_DIR
from malletrain.common.processes import find_processes
from malletrain.runtime.access.munge import Munge
from malletrain.v1 import job_manager_pb2, resources_pb2
from tests.access.munged import munged
from tests.support.everybody import folder_of_everybody, python_of_everybody, run_as
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed

pytestmark = [
    pytest.mark.long,
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can run jobs as their owners"),
]
ANN, BOB = "www-data", "games"
"""Accounts that every Debian has, and that no test needs for anything else."""
PATIENCE = 60.0

SETTINGS = """
[scavenger]
source = "static"
nodes = ["n1", "n2", "n3", "n4"]
debounce_seconds = 0
[job_manager]
backend = "command"
run_as = "owner"
min_uid = 5
jobs_dir = "{jobs}"
trainer_python = "{python}"
[access]
munge = "on"
munge_socket = "{munge}"
"""
TRIES = """
import json, os, socket, subprocess, sys, time
from pathlib import Path
def attempt(action):
    try:
        action()
        return "done"
    except OSError as error:
        return type(error).__name__
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
state, other = sys.argv[1:3]
folder = Path(os.environ["MALLETRAIN_JOB_DIR"])
umask = os.umask(0o077)
print(json.dumps({
    "ids": os.getresuid() + os.getresgid(), "groups": sorted(os.getgroups()), "umask": umask,
    "new_privileges": status["NoNewPrivs"].strip(), "capabilities": int(status["CapEff"], 16),
    "permitted": int(status["CapPrm"], 16),
    "home": os.environ["HOME"], "user": os.environ["USER"], "secret": os.environ.get("ROOTS_SECRET", "none"),
    "become root": attempt(lambda: os.setuid(0)), "become other": attempt(lambda: os.setuid(int(other))),
    "key": attempt(lambda: Path(state, "keys/token.key").read_text()),
    "ca": attempt(lambda: Path(state, "keys/ca.key").read_text()),
    "database": attempt(lambda: Path(state, "job_manager.sqlite").read_bytes()),
    "jobs": attempt(lambda: os.listdir(folder.parent)),
    "own": attempt(lambda: (folder / "report.token").read_text()),
    "mode": oct(folder.stat().st_mode & 0o777),
    "manager": attempt(lambda: os.kill(int(sys.argv[3]), 0)),
}), flush=True)
from malletrain.client import report
while True:
    report(8)
    time.sleep(0.05)
"""


@dataclass
class Site:
    """An installation whose jobs run as their owners.

    Attributes:
        deployment: The services, which are root's.
        folder: A folder that every user can enter, outside of the state folder.
        python: An interpreter that users can run.
        munge: Vouches for users.
    """

    deployment: Deployment
    folder: Path
    python: Path
    munge: Munge

    def as_user(self, user: str, verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `malletrain` as a user, who shows a MUNGE credential."""
        return run_as(
            user,
            [str(self.python), "-m", "malletrain.cli.main", verb, *arguments],
            {"COLUMNS": "200", "PATH": f"{os.defpath}:/usr/sbin"},
            self.folder / "users",
        )

    def json(self, user: str, verb: str, *arguments: str) -> Any:
        done = self.as_user(user, verb, "--json", *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def submit(self, user: str, script: str, *arguments: str) -> str:
        """Submit a job as a user; returns its identifier."""
        path = self.folder / f"{user}-{time.monotonic_ns()}.py"
        path.write_text(script)
        command = [str(self.python), str(path), *arguments]
        job = self.json(user, "submit", "--name", "try", "--max", "1", "--", *command)
        return str(job[0]["id"])

    def job(self, user: str, job_id: str) -> Any:
        return self.json(user, "job", job_id)

    def state(self, job_id: str) -> str:
        found = self.deployment.stubs.job_manager.GetJob(job_manager_pb2.GetJobRequest(job_id=job_id), timeout=10).job
        return resources_pb2.JobState.Name(found.state).removeprefix("JOB_STATE_")

    def wait(self, job_id: str, *states: str) -> None:
        wait_until(lambda: self.state(job_id) in states, PATIENCE, f"{job_id} in {states}")

    def jobs_folder(self, job_id: str) -> Path:
        return self.folder / "jobs" / job_id

    def processes(self, job_id: str) -> list[psutil.Process]:
        path = str(self.jobs_folder(job_id))
        return [psutil.Process(found.id.pid) for found in find_processes(lambda env: env.get(JOB_DIR) == path)]

    def said(self, user: str, job_id: str) -> dict[str, Any]:
        """The first line of its log, as its owner reads it."""

        def first_line() -> str:
            lines = self.as_user(user, "logs", job_id).stdout.splitlines()
            return next((line for line in lines if "{" in line), "")

        found: dict[str, Any] = json.loads(wait_until(first_line, PATIENCE, "a log").partition("| ")[2])
        return found


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with (
        tempfile.TemporaryDirectory(prefix="munge-") as key_folder,
        munged(Path(key_folder)) as munge,
        folder_of_everybody() as folder,
    ):
        python = python_of_everybody(folder, ANN)
        settings = SETTINGS.format(jobs=folder / "jobs", python=python, munge=munge.socket)
        os.environ["ROOTS_SECRET"] = "root's"
        try:
            with deployed(folder / "state", settings) as deployment:
                # As the service makes it itself where it is not there before: others get to the CA's certificate.
                deployment.folder.chmod(0o711)
                (folder / "users").mkdir()
                (folder / "users/malletrain.toml").write_text(deployment.config.read_text())
                yield Site(deployment, folder, python, munge)
        finally:
            del os.environ["ROOTS_SECRET"]


def test_all_of_a_job_is_its_owners_and_it_gets_no_further(site: Site) -> None:
    bob = pwd.getpwnam(BOB)
    job_manager = site.deployment.pids()["job_manager"]
    job_id = site.submit(ANN, TRIES, str(site.deployment.folder), str(bob.pw_uid), str(job_manager))
    site.wait(job_id, "RUNNING")
    entry = pwd.getpwnam(ANN)
    found = site.said(ANN, job_id)
    assert found.pop("mode") == "0o700"
    assert found == {
        "ids": [entry.pw_uid] * 3 + [entry.pw_gid] * 3,
        "groups": sorted(os.getgrouplist(ANN, entry.pw_gid)),
        "umask": 0o077,
        "new_privileges": "1",
        "capabilities": 0,
        "permitted": 0,
        "home": entry.pw_dir,
        "user": ANN,
        "secret": "none",
        "become root": "PermissionError",
        "become other": "PermissionError",
        "key": "PermissionError",
        "ca": "PermissionError",
        "database": "PermissionError",
        "jobs": "PermissionError",
        "own": "done",
        "manager": "PermissionError",
    }
    wait_until(lambda: len(site.processes(job_id)) >= 3, PATIENCE, "supervisor, worker and sidecar")
    assert {(process.uids(), process.gids()) for process in site.processes(job_id)} == {
        ((entry.pw_uid,) * 3, (entry.pw_gid,) * 3)
    }
    wait_until(
        lambda: int((site.job(ANN, job_id)["progress"] or {}).get("samples", 0)), PATIENCE, "progress at Monitor"
    )
    for path in (site.jobs_folder(job_id), *site.jobs_folder(job_id).rglob("*")):
        assert path.lstat().st_uid == entry.pw_uid, path
        assert not stat.S_IMODE(path.lstat().st_mode) & 0o077, path
    assert stat.S_IMODE(site.deployment.folder.stat().st_mode) == 0o711, "users still get to the CA's certificate"
    look = f"import os; os.listdir({str(site.jobs_folder(job_id))!r})"
    assert "PermissionError" in run_as(BOB, [str(site.python), "-c", look]).stderr
    assert "not permitted" in site.as_user(BOB, "logs", job_id).stderr
    assert site.as_user(ANN, "cancel", job_id).returncode == 0
    site.wait(job_id, "CANCELLED")
    assert site.processes(job_id) == []


def test_two_owners_train_side_by_side_and_survive_a_kill_of_job_manager(site: Site) -> None:
    script = "import time\nfrom malletrain.client import report\nwhile True:\n    report(8)\n    time.sleep(0.05)\n"
    jobs = {user: site.submit(user, script) for user in (ANN, BOB)}
    for job_id in jobs.values():
        site.wait(job_id, "RUNNING")
    before = {job_id: {process.pid for process in site.processes(job_id)} for job_id in jobs.values()}
    killed = site.deployment.pids()["job_manager"]
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: site.deployment.pids().get("job_manager", killed) != killed, PATIENCE, "another JobManager")

    def answers() -> bool:
        try:
            return all(site.state(job_id) == "RUNNING" for job_id in jobs.values())
        except grpc.RpcError:
            return False

    wait_until(answers, PATIENCE, "both jobs running")
    for user, job_id in jobs.items():
        assert before[job_id] <= {process.pid for process in site.processes(job_id)}
        assert {process.username() for process in site.processes(job_id)} == {user}
        assert site.as_user(user, "cancel", job_id).returncode == 0
        site.wait(job_id, "CANCELLED")
    assert not any(site.processes(job_id) for job_id in jobs.values())


LEAVES_A_DAEMON = """
import json, os, subprocess, time
from pathlib import Path
folder = Path(os.environ["MALLETRAIN_JOB_DIR"])
tries = []
own = Path("/proc/self/cgroup").read_text().rpartition("0::/")[2].strip()
mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines() if " - cgroup2 " in line]
for mount in mounts:
    place = Path(mount, own)
    for above in (place, *place.parents[:4]):
        try:
            (above / "cgroup.procs").write_text(str(os.getpid()))
            tries.append(above.name)
        except OSError:
            pass
daemon = subprocess.Popen(["setsid", "env", "-i", "/bin/sleep", "600"])
(folder / "part").write_text(json.dumps([daemon.pid, own, tries]))
(folder / "part").rename(folder / "daemon")
time.sleep(600)
"""


def test_what_an_owner_leaves_behind_ends_with_its_supervisor_and_can_not_get_out_of_the_cgroup(site: Site) -> None:
    if (open_cgroups("malletrain-tests", print)).folder is None:
        pytest.skip("this machine lets nobody make cgroups here")
    job_id = site.submit(ANN, LEAVES_A_DAEMON)
    site.wait(job_id, "RUNNING")
    file = site.jobs_folder(job_id) / "daemon"
    wait_until(file.exists, PATIENCE, "the daemon")
    pid, own, tries = json.loads(file.read_text())
    daemon = psutil.Process(pid)
    wait_until(lambda: daemon.environ() == {}, PATIENCE, "that it looks like nobody's")
    assert own.split("/")[-3:-1] == [f"{job_id}.1", "own"], own
    assert set(tries) <= {own.split("/")[-1], "own"}, "it moves only within what is the job's"
    (supervisor,) = [process for process in site.processes(job_id) if "malletrain.supervisor" in process.cmdline()]
    supervisor.kill()
    wait_until(lambda: not daemon.is_running() or daemon.status() == psutil.STATUS_ZOMBIE, PATIENCE, "its end")
    site.as_user(ANN, "cancel", job_id)


MISLEAD = """
import json, os, sys, time
from pathlib import Path
folder, victim_file, victim_pid, victim_start = Path(os.environ["MALLETRAIN_JOB_DIR"]), *sys.argv[1:4]
launch = json.loads((folder / "launch.json").read_text())
launch["socket"] = victim_file
(folder / "launch.json").write_text(json.dumps(launch))
(folder / "logs/n9.0.log").symlink_to(victim_file)
os.mkfifo(folder / "logs/n8.0.log")
(folder / "outcome.json").symlink_to(victim_file)
os.mkfifo(folder / "x")
(folder / "supervisor.json").write_text(json.dumps({"pid": int(victim_pid), "start_time": int(victim_start)}))
os.unlink(folder / "report.token")
(folder / "report.token").symlink_to(victim_file)
os.chmod(folder, 0)
os.chmod(folder, 0o700)
print("{}", flush=True)
time.sleep(3600)
"""


def test_a_job_that_plants_links_pipes_and_false_numbers_harms_nobody(site: Site) -> None:
    from malletrain.common.processes import identify

    with tempfile.TemporaryDirectory(prefix="victim-") as folder:
        victim_file = Path(folder) / "root's"
        victim_file.write_text('{"outcome": "EXITED", "message": "a secret of root"}')
        Path(folder).chmod(0o755)
        victim_file.chmod(0o600)
        victim = subprocess.Popen(["sleep", "600"])
        try:
            known = identify(victim.pid)
            assert known is not None
            job_id = site.submit(ANN, MISLEAD, str(victim_file), str(victim.pid), str(known.start_time))
            wait_until(lambda: "{}" in site.as_user(ANN, "logs", job_id).stdout, PATIENCE, "the trick")
            assert "secret" not in site.as_user(ANN, "logs", job_id).stdout
            manager = site.deployment.pids()["job_manager"]
            assert site.as_user(ANN, "cancel", job_id).returncode == 0
            site.wait(job_id, "CANCELLED", "FAILED")
            wait_until(lambda: not site.processes(job_id), PATIENCE, "the end of all its processes")
            assert "secret" not in json.dumps(site.job(ANN, job_id))
            assert site.deployment.pids()["job_manager"] == manager
            assert victim.poll() is None
            assert victim_file.stat().st_uid == 0
            assert "a secret of root" in victim_file.read_text()
        finally:
            victim.kill()
            victim.wait()


def test_who_has_no_account_here_gets_a_clear_answer(site: Site) -> None:
    done = site.deployment.command("submit", "--name", "x", "--", "/bin/sleep", "1")
    assert done.returncode == 1
    assert "'root' is root" in done.stderr
    shown = site.deployment.command("token", "--user", "nobody-here", "--role", "user").stdout.strip()
    command = ["submit", "--name", "x", "--", "/bin/sleep", "1"]
    environment = {"MALLETRAIN_TOKEN": shown}
    done = subprocess.run(
        [sys.executable, "-m", "malletrain.cli.main", *command],
        cwd=site.deployment.folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "'nobody-here' has no account on this machine" in done.stderr


def test_a_submission_tells_nothing_of_what_its_owner_can_not_see(site: Site) -> None:
    hidden = site.deployment.folder / "keys"
    assert (hidden / "token.key").exists()
    for name in ("token.key", "no-such-file"):
        done = site.as_user(ANN, "submit", "--name", "x", "--", str(site.python), str(hidden / name))
        assert done.returncode == 2, done.stderr
        assert "expected an existing script" in done.stderr
    program = site.as_user(ANN, "submit", "--name", "x", "--", "/root/.bashrc")
    assert "expected an executable file" in program.stderr


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ('run_as = "owner"', "job_manager.jobs_dir: expected the absolute path of a folder for the folders of jobs"),
        ('run_as = "owner"\njobs_dir = "{state}/jobs"', "job_manager.jobs_dir: expected a folder outside of state_dir"),
        ('run_as = "owner"\njobs_dir = "{open}/jobs"', "to be root's, and writable by root only"),
        ('run_as = "anybody"', "job_manager.run_as"),
    ],
)
def test_settings_that_would_not_be_safe_are_refused(tmp_path: Path, settings: str, said: str) -> None:
    from tests.system.deployment import run_command

    with folder_of_everybody() as folder:
        (folder / "open").mkdir()
        (folder / "open").chmod(0o777)
        text = settings.format(state=tmp_path, open=folder / "open")
        (tmp_path / "malletrain.toml").write_text(f'state_dir = "{tmp_path}"\n[job_manager]\n{text}\n')
        done = run_command("serve", "job_manager", cwd=tmp_path)
    assert done.returncode in (1, 2)
    assert said in done.stderr, done.stderr
