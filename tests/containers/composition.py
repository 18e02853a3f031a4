"""The services as containers of a compose project of the test's own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
SERVICES = ("scavenger", "monitor", "job_manager", "profiler", "allocator")
_DEADLINE_SECONDS = 120.0
_TRAINING_SECONDS = 240.0
# Every listing starts a container.
_POLL_SECONDS = 2.0


def missing_images(*names: str) -> str:
    """What tests with some images would need; empty if everything is there."""
    if shutil.which("docker") is None or _fails("info"):
        return "no container engine answers"
    absent = [name for name in names if _fails("image", "inspect", f"localhost/malletrain-{name}:latest")]
    return f"no image of {', '.join(absent)}: make images" if absent else ""


def _fails(*arguments: str) -> bool:
    return subprocess.run(["docker", *arguments], capture_output=True, check=False).returncode != 0


@dataclass(frozen=True)
class Job:
    """What is listed of a job.

    Attributes:
        state: Its state, without the prefix.
        samples: What it has trained on.
        restarts: How often it was started again after a failure.
    """

    state: str
    samples: int
    restarts: int


@dataclass(frozen=True)
class Composition:
    """A compose project.

    Attributes:
        project: Its name.
        variables: Variables of docker-compose.yml.
        options: Options of `docker compose`.
    """

    project: str
    variables: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()

    def run(self, *arguments: str) -> str:
        """Output of a `docker compose` command that succeeds.

        Raises:
            AssertionError: it does not succeed.
        """
        command = ["docker", "compose", "--project-name", self.project, *self.options, *arguments]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, **self.variables},
            capture_output=True,
            text=True,
            timeout=_DEADLINE_SECONDS,
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout

    def up(self, *services: str) -> None:
        """Start services, by default all, and wait until they are healthy."""
        self.run("up", "--no-build", "--detach", "--wait", *services)

    def down(self, *options: str) -> None:
        """Stop the containers in good order, and remove them."""
        self.run("down", *options)

    def cli(self, *arguments: str) -> str:
        """Output of `malletrain` in a container of its own."""
        return self.run("run", "--rm", "--no-TTY", "cli", *arguments)

    def submit(self, samples: int, most: int) -> str:
        """Submit a training on digits; returns its identifier. On a crowded machine it may take several calls."""
        options = ("--max", str(most), "--env", "OMP_NUM_THREADS=1", "--request-id", uuid.uuid4().hex)
        train = ("python", "digits/train.py", "--samples", str(samples), "--step-seconds", "0.06")
        return self.submit_command(*options, "--", *train)

    def submit_command(self, *arguments: str) -> str:
        """Submit a job with a request_id of its own, so that it may be repeated; returns its identifier."""

        def submitted() -> str:
            try:
                return self.cli("submit", *arguments).strip()
            except AssertionError as error:
                if "does not answer" not in str(error):
                    raise
                return ""

        return wait_until(submitted, _DEADLINE_SECONDS, "a submission")

    def jobs(self) -> dict[str, Job]:
        """All jobs, by identifier.

        Raises:
            AssertionError: JobManager does not answer.
        """
        listed = json.loads(self.cli("jobs", "--json"))
        return {
            job["id"]: Job(job["state"].removeprefix("JOB_STATE_"), int(job["samples"]), int(job["restarts"]))
            for job in listed
        }

    def samples_lost(self, job: str) -> int:
        """What a job has trained on and lost, as Monitor knows it."""
        found = json.loads(self.cli("job", job, "--json"))
        return int(found["progress"]["samplesLost"])

    def wait_for_jobs(self, condition: Callable[[dict[str, Job]], bool], what: str) -> dict[str, Job]:
        """All jobs, as soon as they meet a condition. On a crowded machine a call may fail; it is then made again."""
        pause = threading.Event()

        def found() -> dict[str, Job] | None:
            pause.wait(_POLL_SECONDS)
            try:
                jobs = self.jobs()
            except AssertionError as error:
                if "does not answer" not in str(error):
                    raise
                return None
            return jobs if condition(jobs) else None

        return wait_until(found, _TRAINING_SECONDS, what) or {}

    def inspect(self, service: str) -> dict[str, Any]:
        """What the engine says of a service's container."""
        identifier = self.run("ps", "--all", "--quiet", service).strip()
        done = subprocess.run(["docker", "inspect", identifier], capture_output=True, text=True, check=True)
        found: dict[str, Any] = json.loads(done.stdout)[0]
        return found

    def wait_until_healthy(self, service: str) -> None:
        """Wait until a service's container is healthy."""

        def healthy() -> bool:
            return bool(self.inspect(service)["State"]["Health"]["Status"] == "healthy")

        wait_until(healthy, _DEADLINE_SECONDS, f"health of {service}")
