"""`malletrain doctor --source SCHEDULER --try`: one placeholder is submitted, watched, and deleted again."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from malletrain.cli.operate.doctor_checks import CommandResult, Finding, judge, run_query
from malletrain.cli.operate.doctor_slurm import size_of_a_placeholder
from malletrain.cli.shared.output import one_line
from malletrain.scavenger.sources.schedulers.availability import UnreadableError
from malletrain.scavenger.sources.schedulers.pbs_json import QSTAT_FULL, read_jobs
from malletrain.scavenger.sources.schedulers.settings import HoldSettings, PbsSettings, SlurmSettings

_NAME = "malletrain-try"
"""Not the name of placeholders: no Scavenger takes it for one."""
_PROGRAM = "import malletrain.agent"
_LIMIT_SECONDS = 120
_IMPORT_SECONDS = 45.0
_POLL_SECONDS = 0.5
_ID = re.compile(r"\d+(\[\])?(\.[\w.-]+)?")
_PAIR = re.compile(r"(\S+?)=(\S*)")
_PBS_ATTRIBUTES = ("job_state", "comment", "exec_host", "Exit_status")
_UNFINISHED = frozenset({"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED"})


@dataclass(frozen=True)
class TrialState:
    """How far the placeholder is, by the scheduler.

    Attributes:
        node: Where it runs or ran; empty before it has started.
        ended: Whether it has.
        status: Its exit status, where the scheduler tells it.
        reason: What the scheduler says about it.
    """

    node: str = ""
    ended: bool = False
    status: int | None = None
    reason: str = ""


class TrialClient(Protocol):
    """Submits, looks at and deletes a placeholder."""

    def submit(self) -> CommandResult:
        """Submit one that imports the agent and ends."""

    def look(self, identifier: str) -> TrialState | None:
        """How far it is; None if the scheduler does not say."""

    def delete(self, identifier: str) -> CommandResult:
        """Delete it, if it has not ended."""


@dataclass(frozen=True)
class SlurmTrial:
    """A trial placeholder, by Slurm's commands."""

    section: SlurmSettings

    def submit(self) -> CommandResult:
        """Submit a placeholder that imports the agent and ends."""
        hold = self.section.hold
        work = shlex.join(["srun", hold.python, "-c", _PROGRAM])
        where = [f"--partition={hold.queue}", f"--job-name={_NAME}", f"--output={hold.log}", "--no-requeue", "--time=2"]
        size = ["--nodes=1", *size_of_a_placeholder(self.section)]
        return run_query(["sbatch", "--parsable", *where, *size, *hold.options, f"--wrap={work}"])

    def look(self, identifier: str) -> TrialState | None:
        """By `scontrol show job`."""
        answer = run_query([self.section.scontrol, "-o", "show", "job", identifier])
        return parse_slurm_trial(answer.text) if answer.ok else None

    def delete(self, identifier: str) -> CommandResult:
        """By scancel."""
        return run_query(["scancel", identifier])


@dataclass(frozen=True)
class PbsTrial:
    """A trial placeholder, by the commands of PBS."""

    section: PbsSettings

    def submit(self) -> CommandResult:
        """Submit a placeholder that imports the agent and ends."""
        hold = self.section.hold
        by_gpu = self.section.units == "gpus"
        chunk = f"select=1:ncpus={self.section.gpu_share.cpus or 1}:ngpus=1" if by_gpu else "select=1:ncpus=1"
        how = ["-q", hold.queue, "-N", _NAME, "-r", "n", "-j", "oe", "-o", hold.log, "-l", chunk]
        limit = ["-l", f"place={'shared' if by_gpu else 'exclhost'}", "-l", f"walltime={_LIMIT_SECONDS}"]
        return run_query(["qsub", *how, *limit, *hold.options, "--", hold.python, "-c", _PROGRAM])

    def look(self, identifier: str) -> TrialState | None:
        """By qstat; ended jobs are told of only with `job_history_enable`."""
        answer = run_query([self.section.qstat, "-x", *QSTAT_FULL, identifier])
        return parse_pbs_trial(answer.text, identifier) if answer.ok else None

    def delete(self, identifier: str) -> CommandResult:
        """By qdel."""
        return run_query(["qdel", identifier])


def parse_slurm_trial(text: str) -> TrialState | None:
    """What `scontrol -o show job` says of one; None if that can't be read. Pure."""
    values = dict(_PAIR.findall(text))
    state = values.get("JobState", "")
    if not state:
        return None
    node = values.get("NodeList", "(null)").replace("(null)", "")
    status = values.get("ExitCode", "").partition(":")[0]
    ended = state not in _UNFINISHED
    reason = values.get("Reason", "None")
    reason_text = state if reason == "None" else f"{state} ({reason})"
    return TrialState(node, ended, int(status) if ended and status.isdigit() else None, reason_text)


def parse_pbs_trial(text: str, identifier: str) -> TrialState | None:
    """What `qstat -x -f -w` says of one; None if that can't be read. Pure."""
    try:
        job = read_jobs(text, _PBS_ATTRIBUTES).get(identifier, {})
    except UnreadableError:
        return None
    state, status = str(job.get("job_state", "")), str(job.get("Exit_status", ""))
    if not state:
        return None
    node = str(job.get("exec_host", "")).partition("/")[0]
    known = re.fullmatch(r"-?\d+", status)
    return TrialState(node, state in ("F", "X"), int(status) if known else None, str(job.get("comment", state)))


def examine_try(
    client: TrialClient,
    hold: HoldSettings,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Finding:
    """Submit a placeholder, say what becomes of it, and delete it.

    Args:
        client: Of the scheduler.
        hold: How nodes are held.
        monotonic: Seconds of a clock that only goes forward.
        sleep: Waits so many seconds.
    """
    check = "a placeholder"
    if not hold.queue:
        return Finding(check, True, "not tried: nodes are watched only")
    answer = client.submit()
    if not answer.ok:
        return Finding(check, False, f"refused: {one_line(answer.error)}", "see these words, and hold.options")
    submitted = _ID.match(answer.text.strip())
    if submitted is None:
        return Finding(check, False, f"submitted, but as which job? {one_line(answer.text)}", "see this user's jobs")
    identifier = submitted[0]
    try:
        return _watch(client, identifier, hold, monotonic, sleep)
    finally:
        client.delete(identifier)


def _watch(
    client: TrialClient,
    identifier: str,
    hold: HoldSettings,
    monotonic: Callable[[], float],
    sleep: Callable[[float], None],
) -> Finding:
    begin = monotonic()
    started: float | None = None
    state: TrialState | None = None
    while True:
        seen = client.look(identifier)
        passed = monotonic() - begin
        if seen is None and state is not None and state.node:
            return judge_trial(TrialState(state.node, ended=True), started, passed, hold)
        state = seen or state
        if state is not None and state.node and started is None:
            started = passed
        limit = hold.patience_seconds if started is None else started + _IMPORT_SECONDS
        if (state is not None and state.ended) or passed >= limit:
            return judge_trial(state or TrialState(reason="the scheduler does not list it"), started, passed, hold)
        sleep(_POLL_SECONDS)


def judge_trial(state: TrialState, started: float | None, passed: float, hold: HoldSettings) -> Finding:
    """Judge what has become of a placeholder. Pure.

    Args:
        state: What was seen of it last.
        started: When it was first seen on a node, in seconds after its submission; None if it was not.
        passed: For how many seconds it was watched.
        hold: How nodes are held.
    """
    check = "a placeholder"
    if started is None:
        found = f"not started after {passed:.0f} s: {one_line(state.reason)}"
        return Finding(check, False, found, "see the reason; where no node was free, try again when one is")
    place = f"on {state.node} {started:.1f} s after its submission"
    if not state.ended:
        remedy = f"see why {hold.python} hangs there: is its file system mounted?"
        return Finding(check, False, f"{place}, where python has not ended", remedy)
    if state.status is None:
        return Finding(check, True, f"was {place}; how it ended is not told")
    found = f"was {place}, where python ended with status {state.status}"
    remedy = f"{hold.python} must be on the nodes, readable by this user, with this version of malletrain; see hold.log"
    return judge(check, state.status == 0, found, remedy)
