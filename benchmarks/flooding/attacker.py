"""One flood, until this process is killed: `python -m benchmarks.flooding.attacker CONFIG FLOOD TOKEN JOB`."""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc

from malletrain.cli.shared.settings import AllSettings, load
from malletrain.cli.shared.stubs import ServiceStubs
from malletrain.runtime.access.credentials import FixedToken
from malletrain.v1 import job_manager_pb2 as pb
from tests.hostile import floods

_CALL_SECONDS = 30.0
_FOLLOWERS = 32
_TOO_MANY_JOBS = 9_999


@dataclass(frozen=True)
class Attacker:
    """Who floods.

    Attributes:
        settings: Where the services are.
        token: What it shows.
        job_id: A job that it may read the log of.
    """

    settings: AllSettings
    token: str
    job_id: str = ""

    @property
    def port(self) -> int:
        """Of JobManager."""
        return int(self.settings.addresses.of("job_manager").rpartition(":")[2])

    @property
    def stubs(self) -> ServiceStubs:
        """Channels to the services."""
        return ServiceStubs(self.settings, FixedToken(self.token))


def halves_without_a_token(attacker: Attacker) -> None:
    """Largest messages without their last bytes, of a stranger."""
    for connection in floods.hold_back_last_bytes(attacker.port, floods.SUBMIT):
        connection.close()


def halves_with_a_token(attacker: Attacker) -> None:
    """The same of a user."""
    for connection in floods.hold_back_last_bytes(attacker.port, floods.SUBMIT, attacker.token):
        connection.close()


def health(attacker: Attacker) -> None:
    """Thousands of Health.Watch."""
    for connection in floods.watch_health(attacker.port):
        connection.close()


def many_specs(attacker: Attacker) -> None:
    """Submissions of 9,999 jobs."""
    with contextlib.closing(attacker.stubs) as stubs:
        request = pb.SubmitJobsRequest(specs=[floods.spec(f"m{index}") for index in range(_TOO_MANY_JOBS)])
        _submit(stubs, request)


def large_environments(attacker: Attacker) -> None:
    """Submissions of 124 jobs with environments of 120 kB."""
    with contextlib.closing(attacker.stubs) as stubs:
        request = pb.SubmitJobsRequest(specs=[floods.large(f"m{index}") for index in range(floods.PER_SUBMISSION)])
        for _ in range(10):
            _submit(stubs, request)


def submit_and_cancel(attacker: Attacker) -> None:
    """Jobs that are cancelled at once."""
    with contextlib.closing(attacker.stubs) as stubs:
        for _ in range(1000):
            for job in _submit(stubs, pb.SubmitJobsRequest(specs=[floods.spec("m")])):
                with contextlib.suppress(grpc.RpcError):
                    stubs.job_manager.CancelJob(pb.CancelJobRequest(job_id=job), timeout=_CALL_SECONDS)


def follow_logs(attacker: Attacker) -> None:
    """32 followers of a log of 20,000 files."""
    with contextlib.closing(attacker.stubs) as stubs:
        request = pb.StreamLogsRequest(job_id=attacker.job_id, follow=True)
        followers = [threading.Thread(target=_follow, args=(stubs, request)) for _ in range(_FOLLOWERS)]
        for follower in followers:
            follower.start()
        for follower in followers:
            follower.join()


def large_reports(attacker: Attacker) -> None:
    """400,000 records in each message, on four streams."""
    floods.send_reports(attacker.settings.peer("monitor"), attacker.token, 400_000, 8).join()


def many_reports(attacker: Attacker) -> None:
    """16,000 records in each message, on four streams."""
    floods.send_reports(attacker.settings.peer("monitor"), attacker.token, 16_000, 200).join()


FLOODS: dict[str, Callable[[Attacker], None]] = {
    flood.__name__.replace("_", " "): flood
    for flood in (
        halves_without_a_token,
        halves_with_a_token,
        health,
        many_specs,
        large_environments,
        submit_and_cancel,
        follow_logs,
        large_reports,
        many_reports,
    )
}


def _submit(stubs: ServiceStubs, request: pb.SubmitJobsRequest) -> list[str]:
    """The jobs, or none where they are refused: no call says when to try again that a flood cares for."""
    try:
        return [job.id for job in stubs.job_manager.SubmitJobs(request, timeout=_CALL_SECONDS).jobs]
    except grpc.RpcError:
        return []


def _follow(stubs: ServiceStubs, request: pb.StreamLogsRequest) -> None:
    with contextlib.suppress(grpc.RpcError):
        for _ in stubs.job_manager.StreamLogs(request, timeout=_CALL_SECONDS):
            pass


def main() -> None:
    """Flood, again and again."""
    config, name, token, *job = sys.argv[1:]
    attacker = Attacker(load(Path(config)), token, *job)
    for count in itertools.count(1):
        with contextlib.suppress(OSError, AssertionError):  # connections are refused: that is what the limits are for
            FLOODS[name](attacker)
        print(count, flush=True)


if __name__ == "__main__":
    main()
