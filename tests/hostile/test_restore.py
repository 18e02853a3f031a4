"""After a restore, and among folders of others, nobody gets another job's log, outcome or checkpoints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from malletrain.cli.shared.settings import load
from malletrain.cli.shared.stubs import ServiceStubs
from malletrain.common import job_folder
from malletrain.common.accounts import account_named
from malletrain.job_manager.launching.accounts import AccountsOfOwners, CommonAccount
from malletrain.job_manager.launching.folder import SupervisorStartError
from malletrain.job_manager.launching.folder_identity import JobIdentity
from malletrain.job_manager.launching.launch_settings import LaunchSettings, MonitorAddress
from malletrain.job_manager.launching.launcher import SupervisorLauncher
from malletrain.job_manager.launching.starting import LaunchOrder
from malletrain.job_manager.machine.jobs import JobSpec
from malletrain.runtime.access.credentials import FixedToken
from malletrain.v1 import job_manager_pb2, resources_pb2
from tests.hostile.strangers import STRANGER, give
from tests.job_manager.stand_in import make_python
from tests.support.everybody import folder_of_everybody
from tests.support.job_secrets import job_secrets
from tests.support.stranger import needs_another_account
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed, run_command, start

pytestmark = pytest.mark.long

SETTINGS = """
[access]
munge = "off"
[scavenger]
source = "static"
nodes = ["n1", "n2"]
debounce_seconds = 0
[job_manager]
backend = "command"
"""
SECRET = "the answer of ada's job"


def stubs_of(system: Deployment, user: str) -> ServiceStubs:
    """Stubs of a user who is no operator."""
    done = system.command("token", "--user", user, "--role", "user")
    assert done.returncode == 0, done.stderr
    return ServiceStubs(load(system.config), FixedToken(done.stdout.strip()))


def submit(stubs: ServiceStubs, name: str, *command: str) -> str:
    spec = resources_pb2.JobSpec(name=name, command=command, working_directory="/", min_nodes=1, max_nodes=1)
    (job,) = stubs.job_manager.SubmitJobs(job_manager_pb2.SubmitJobsRequest(specs=[spec]), timeout=20).jobs
    return job.id


def log_of(stubs: ServiceStubs, job_id: str) -> str:
    parts = stubs.job_manager.StreamLogs(job_manager_pb2.StreamLogsRequest(job_id=job_id), timeout=20)
    return "\n".join(line for part in parts for line in part.lines)


@pytest.mark.system
@pytest.mark.timeout(300)
def test_a_number_is_not_given_out_again_after_a_restore(tmp_path: Path) -> None:
    folder, archive = tmp_path / "up", str(tmp_path / "backup.tar.gz")
    with deployed(folder, SETTINGS) as system:
        assert system.command("backup", archive, timeout=60).returncode == 0
        with closing(stubs_of(system, "ada")) as ada:
            old = submit(
                ada, "secret", "sh", "-c", f"echo \"{SECRET}\"; echo '{{}}' > $MALLETRAIN_JOB_DIR/completed.json"
            )
        wait_until(lambda: system.state(old) == "COMPLETED", 60, "the first job's end")
    restored = run_command("restore", archive, "--force", cwd=folder, timeout=60)
    assert restored.returncode == 0, restored.stderr
    system = start(folder)
    try:
        wait_until(system.serves, 60, "all services serving")
        with closing(stubs_of(system, "grace")) as grace:
            new = submit(grace, "another", "sh", "-c", "echo mine; exec sleep 1000")
            assert new > old
            wait_until(lambda: "mine" in log_of(grace, new), 60, "what the new job itself prints")
            assert SECRET not in log_of(grace, new)
            wait_until(lambda: system.state(new) == "RUNNING", 60, "the new job running")
        assert (folder / "jobs" / old / "completed.json").exists(), "ada's folder is as it was"
    finally:
        system.process.terminate()
        system.process.wait(30)


ORDER = LaunchOrder(
    "j000001",
    1,
    "ada",
    JobSpec(name="job", command=("sleep", "60"), working_directory="/", min_nodes=1, max_nodes=4),
    1,
    ("n1",),
)


@pytest.fixture
def launcher(tmp_path: Path) -> SupervisorLauncher:
    """A launcher whose job j000001 has the identifier "new"."""
    settings = LaunchSettings(tmp_path, tmp_path / "jobs", str(make_python(tmp_path)), MonitorAddress("127.0.0.1:1"))
    found = SupervisorLauncher(settings, os.environ, job_secrets(tmp_path / "own.pem"), CommonAccount())
    found.identify_jobs(lambda job_id: JobIdentity("ada", "new") if job_id == ORDER.job_id else None)
    found.update_hosts({})
    return found


def lay_remains(folder: Path, instance_id: str | None) -> dict[str, bytes]:
    """What another job has left, with its identifier; returns the content of all its files."""
    (folder / "logs").mkdir(parents=True)
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "newest").write_text("a model")
    (folder / "logs" / "n1.0.log").write_text(SECRET + "\n")
    (folder / job_folder.COMPLETION_FILE).write_text(json.dumps({"samples": 7}))
    (folder / job_folder.OUTCOME_FILE).write_text(json.dumps({"outcome": "finished"}))
    (folder / job_folder.LAUNCH_FILE).write_text(json.dumps({"incarnation": 1, "slots_per_node": 1}))
    if instance_id is not None:
        (folder / job_folder.INSTANCE_FILE).write_text(instance_id)
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def check_untouched(launcher: SupervisorLauncher, path: Path, before: dict[str, bytes], reason: str) -> None:
    """Nothing of a folder is believed, nothing is started in it, and nothing of it is changed or deleted."""
    folder = launcher.folder(ORDER.job_id)
    assert reason in folder.fault
    assert (folder.is_done, folder.is_launched, folder.outcome(), folder.completion()) == (False, False, None, None)
    with pytest.raises(SupervisorStartError, match="nothing is started in it"):
        await launcher.start(ORDER.job_id, 1, lambda: ORDER)
    with pytest.raises(PermissionError):
        folder.remove_own_files()
    ended = await launcher.collect(ORDER.job_id, 1)
    assert (ended.message, ended.log_tail, ended.completion) == ("it was not started", (), None)
    assert {str(found): found.read_bytes() for found in path.rglob("*") if found.is_file()} == before


@pytest.mark.parametrize("other", ["old", None], ids=["of another job", "of an earlier version's job"])
async def test_the_remains_of_another_job_with_the_same_number_are_not_adopted(
    launcher: SupervisorLauncher, tmp_path: Path, other: str | None
) -> None:
    path = tmp_path / "jobs" / ORDER.job_id
    before = lay_remains(path, other)
    await check_untouched(launcher, path, before, "with the same number")


@needs_another_account
async def test_a_folder_of_another_account_is_not_adopted(launcher: SupervisorLauncher, tmp_path: Path) -> None:
    path = tmp_path / "jobs" / ORDER.job_id
    before = lay_remains(path, "new")
    give(STRANGER, path)
    await check_untouched(launcher, path, before, f"belongs to user id {STRANGER}")


@needs_another_account
async def test_under_owners_the_folder_must_be_the_owners_before_anything_is_read() -> None:
    with folder_of_everybody() as above:
        settings = LaunchSettings(above, above / "jobs", sys.executable, MonitorAddress("127.0.0.1:1"))
        accounts = AccountsOfOwners(1000)
        accounts.make_jobs_folder(settings.jobs_dir)
        launcher = SupervisorLauncher(settings, os.environ, job_secrets(above / "own.pem"), accounts)
        path = settings.jobs_dir / ORDER.job_id
        lay_remains(path, "new")
        give(account_named("nobody").user_id, path, *path.rglob("*"))
        identity = JobIdentity("nobody", "new")
        launcher.identify_jobs(lambda _: identity)
        assert launcher.folder(ORDER.job_id).fault == ""
        assert launcher.folder(ORDER.job_id).is_done
        identity = JobIdentity("root", "new")
        assert "not to the job's owner, root" in launcher.folder(ORDER.job_id).fault
        identity = JobIdentity("nobody", "another")
        assert "another job with the same number" in launcher.folder(ORDER.job_id).fault
        give(STRANGER, path)
        identity = JobIdentity("nobody", "new")
        launcher = SupervisorLauncher(settings, os.environ, job_secrets(above / "own.pem"), accounts)
        launcher.identify_jobs(lambda _: identity)
        folder = launcher.folder(ORDER.job_id)
        assert f"belongs to user id {STRANGER}" in folder.fault
        assert (folder.is_done, folder.launched()) == (False, None)


@needs_another_account
async def test_a_folder_in_which_something_is_mounted_is_not_looked_at() -> None:
    """A file system of the owner's own could keep whoever looks at it waiting for ever."""
    with folder_of_everybody() as above:
        settings = LaunchSettings(above, above / "jobs", sys.executable, MonitorAddress("127.0.0.1:1"))
        accounts = AccountsOfOwners(1)
        accounts.make_jobs_folder(settings.jobs_dir)
        launcher = SupervisorLauncher(settings, os.environ, job_secrets(above / "own.pem"), accounts)
        path = settings.jobs_dir / ORDER.job_id
        lay_remains(path, "new")
        give(account_named("www-data").user_id, path, *path.rglob("*"))
        launcher.identify_jobs(lambda _: JobIdentity("www-data", "new"))
        assert launcher.folder(ORDER.job_id).is_done
        order = replace(ORDER, owner="www-data")
        for place in (path / job_folder.LOGS_FOLDER, path):
            place.mkdir(exist_ok=True)
            if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], check=False).returncode:
                pytest.skip("may not mount a file system")
            try:
                with pytest.raises(SupervisorStartError, match="is mounted in"):
                    await launcher._start(order)
                folder = launcher.folder(ORDER.job_id)
                if place != path:
                    assert folder.is_done, "jobs may mount what they like in it"
                    continue
                assert folder.fault == f"a file system is mounted in {path}"
                assert (folder.is_done, folder.launched(), folder.supervisor()) == (False, None, None)
                assert folder.account == account_named("www-data"), "whose processes are ended"
                await launcher.release(order.job_id, 1, ("n1",), 0.0)
            finally:
                subprocess.run(["umount", "--lazy", place], check=True)
            assert launcher.folder(ORDER.job_id).is_done
        await launcher.close()


async def test_a_job_without_identifier_finds_its_folder_as_before(
    launcher: SupervisorLauncher, tmp_path: Path
) -> None:
    """It was submitted to an earlier version, or has been taken on by one since."""
    launcher.identify_jobs(lambda _: JobIdentity("ada", ""))
    for number, instance_id in enumerate((None, "given"), 1):
        lay_remains(tmp_path / "jobs" / f"j{number:06}", instance_id)
        folder = launcher.folder(f"j{number:06}")
        assert folder.fault == ""
        assert folder.is_done
        assert folder.launched() is not None


async def test_a_job_keeps_its_folder_with_its_identifier_and_the_feeds_of_its_fleet(
    launcher: SupervisorLauncher, tmp_path: Path
) -> None:
    path = tmp_path / "jobs" / ORDER.job_id
    (path / job_folder.FEEDS_FOLDER).mkdir(parents=True)
    launcher.folder(ORDER.job_id).prepare()
    assert (path / job_folder.INSTANCE_FILE).read_text() == "new\n"
    (path / job_folder.COMPLETION_FILE).write_text("{}")
    folder = launcher.folder(ORDER.job_id)
    assert folder.fault == ""
    assert folder.is_done
    folder.remove_own_files()
    assert not path.exists() or [entry.name for entry in path.iterdir()] == [job_folder.FEEDS_FOLDER]
