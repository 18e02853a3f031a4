"""The supervisor's event loop: it takes in commands and workers' ends one by one, and makes all decisions.

It runs in the main thread, which starts every worker: the kernel kills a worker when the thread that started it ends.
"""

from __future__ import annotations

import logging
import math
import shutil
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from google.protobuf.timestamp_pb2 import Timestamp

from malletrain.common.activity import IdleReport
from malletrain.common.job_folder import (
    COMPLETION_FILE,
    LAST_DELIVERY_SECONDS,
    STOP_REQUESTS_FOLDER,
    UNDELIVERED_FOLDER,
)
from malletrain.common.launch_file import AgentAddress
from malletrain.common.trace_context import parse_traceparent
from malletrain.supervisor.context import Context
from malletrain.supervisor.loop.call_queue import CallQueue
from malletrain.supervisor.loop.releases import Release, Releases
from malletrain.supervisor.loop.view import UNDECIDED, Outcome, Seen, State, view
from malletrain.supervisor.workers.root_cause import Failure
from malletrain.supervisor.workers.slot import Slot
from malletrain.supervisor.workers.worker_exit import Consequence, ExitFacts, Verdict, WorkerExit
from malletrain.supervisor.workers.worker_group import WorkerGroup
from malletrain.supervisor.workers.worker_pool import DELIVERY_SECONDS
from malletrain.v1 import resources_pb2, supervisor_pb2

_LOOK_SECONDS = 0.02
_KEPT_LOOK_SECONDS = 0.25
_OTHERS_SECONDS = 10.0
"""How long the others may take to end after rank 0."""
log = logging.getLogger(__name__)


class EventLoop:
    """Drives the workers of one job, whatever their launcher backend."""

    def __init__(self, context: Context, group: WorkerGroup, calls: CallQueue[State], *, usable_hosts: int = 0) -> None:
        """Take a job; nothing is started before `run`.

        Args:
            context: The job, and what its supervisor works with.
            calls: What is to be done in the main thread; `run` closes it at the end.
            usable_hosts: Most hosts that the program can use; 0: not known.
        """
        self._job_id = context.launch.job_id
        self._usable_hosts = usable_hosts
        self._first_command = context.launch.sequence, dict(context.launch.hosts)
        self._keep_after_release = Keep(context.launch.keep_seconds) if context.launch.keep_seconds > 0 else None
        # After the others, rank 0 may evaluate and save.
        self._longest_ending = context.launch.limits.evaluation + context.launch.limits.save
        self._group = group
        self._calls = calls
        self._agents = context.agents
        self._record = context.record
        self._publish = context.publish
        self._completed = context.folder / COMPLETION_FILE
        self._stop_requests = context.folder / STOP_REQUESTS_FOLDER
        self._undelivered = context.folder / UNDELIVERED_FOLDER
        for marks in (self._stop_requests, self._undelivered):
            shutil.rmtree(marks, ignore_errors=True)
        self._idle_report = IdleReport(context.launch.idle_report_seconds)
        self._releases = Releases(group)
        self._reports = CommandReports()
        self._first_traceparent = context.launch.traceparent
        self._stop_expected = False
        self._winding_down_since: float | None = None
        self._finishing_at: float | None = None
        self._kill_all_at: float | None = None
        self._failed_at: float | None = None
        self._keeping = Keeping()
        self._stops: list[Future[State]] = []
        self._message = ""
        self._outcome: Outcome = UNDECIDED
        self._published = State()

    @property
    def failure(self) -> Failure | None:
        """Why the workers have failed; None: they have not, or it is not known."""
        return self._group.failure if self._outcome == supervisor_pb2.SUPERVISOR_OUTCOME_FAILED else None

    # -- called from other threads ---------------------------------------------------------------------------------

    def set_hosts(
        self, sequence: int, hosts: dict[str, int], agents: Mapping[str, AgentAddress], traceparent: str = ""
    ) -> State:
        """Use these hosts from now on; returns once the command is taken.

        Args:
            sequence: Grows with every command.
            hosts: Host to worker processes there.
            agents: Where the agents are of those that are not this machine.
            traceparent: The command as a span; empty where nothing is traced.
        """

        def act(done: Future[State]) -> None:
            self._agents.update(agents)
            self._set_hosts(sequence, hosts, done, traceparent)

        return self._calls.ask(act)

    def release_hosts(self, hosts: frozenset[str], grace: float, traceparent: str = "") -> State:
        """Take hosts out of the job; returns once no process of it is left on them."""
        return self._calls.ask(lambda done: self._release_hosts(hosts, grace, done, traceparent))

    def stop(self, grace: float, traceparent: str = "", keep: Keep | None = None) -> State:
        """End every worker; returns once none is left.

        Args:
            grace: Seconds that they have to save and end.
            traceparent: The command as a span; empty where nothing is traced.
            keep: How long this process stays then; None: it ends, too.
        """
        return self._calls.ask(lambda done: self._stop(grace, done, traceparent, keep))

    def expect_stop(self) -> None:
        """A stop will follow: workers that end from now on may have been asked to, as this process was.

        Safe in a signal handler.
        """
        self._stop_expected = True

    # -- the loop --------------------------------------------------------------------------------------------------

    def run(self) -> State:
        """Work until every worker has ended; returns the last state."""
        assert threading.current_thread() is threading.main_thread()
        self._announce()
        self._set_hosts(*self._first_command, Future(), self._first_traceparent)
        while self._outcome == UNDECIDED:
            self._calls.handle(_LOOK_SECONDS if self._keeping.until is None else _KEPT_LOOK_SECONDS)
            now = time.monotonic()
            self._see_ends(now)
            if not self._finishing:
                self._group.trainers.kill_leftovers(now)
            self._advance(now)
            self._finish_releases(now)
            self._announce()
        self._group.close()
        self._agents.close()
        self._reports.close()
        self._announce()
        self._calls.close(self._published)
        return self._published

    # -- commands --------------------------------------------------------------------------------------------------

    def _set_hosts(self, sequence: int, hosts: dict[str, int], done: Future[State], traceparent: str) -> None:
        hosts = {host: slots for host, slots in hosts.items() if host not in self._releases.hosts}
        if hosts and self._keeping.takes(sequence) and not (self._stopping or self._finishing or self._failing):
            log.info("command %d: %s", sequence, hosts)
            self._keeping = self._keeping.end()
            if sequence > self._group.progress.sequence:
                self._reports.begin(SET_HOSTS, traceparent, hosts, sequence)
            try:
                self._group.command(sequence, hosts, time.monotonic())
            except OSError as error:
                self._fail(f"a worker can't be started: {error}")
        done.set_result(self._state())

    def _release_hosts(self, hosts: frozenset[str], grace: float, done: Future[State], traceparent: str) -> None:
        log.info("release of %s within %.2f s", sorted(hosts), grace)
        self._reports.begin(RELEASE_HOSTS, traceparent, dict.fromkeys(hosts, 0))
        if self._group.progress.commanded and self._group.progress.commanded.keys() <= hosts and not self._stopping:
            self._message = "all hosts were released"
            self._stop(grace, done, keep=self._keep_after_release)
            return
        self._releases.add(Release(hosts, self._group.release(hosts, grace, time.monotonic()), done))

    def _stop(self, grace: float, done: Future[State], traceparent: str = "", keep: Keep | None = None) -> None:
        """End all; whoever asked is answered when no worker is left."""
        if keep is not None and 0 < keep.sequence < self._group.progress.sequence:
            log.info("the stop after command %d has been overtaken", keep.sequence)
            done.set_result(self._state())
            return
        log.info("stop within %.2f s", grace)
        self._stops.append(done)
        self._keeping = self._keeping.stop(keep, under_way=self._stopping)
        self._reports.begin(STOP, traceparent, dict.fromkeys((slot.host for slot, _ in self._group.pids()), 0))
        kill_at = time.monotonic() + grace
        if self._kill_all_at is not None:
            self._kill_all_at = min(self._kill_all_at, kill_at)
            return
        self._kill_all_at = kill_at
        self._group.begin_stop(grace)

    @property
    def _stopping(self) -> bool:
        """Whether all are being ended on command."""
        return self._kill_all_at is not None

    @property
    def _failing(self) -> bool:
        """Whether the job can't go on, and what its workers have reported is still delivered."""
        return self._failed_at is not None

    @property
    def _finishing(self) -> bool:
        """Whether the training is over."""
        return self._finishing_at is not None

    # -- workers' ends ---------------------------------------------------------------------------------------------

    def _see_ends(self, now: float) -> None:
        for ended in self._group.reap():
            log.info("worker %d on %s ended with %d", ended.pid, ended.slot.host, ended.code)
            verdict = self._group.see_end(ended, self._facts(ended), now)
            if verdict is not None:
                self._carry_out(verdict, now)
        self._group.see_started()

    def _facts(self, ended: WorkerExit) -> ExitFacts:
        requested = (self._stop_requests / str(ended.pid)).exists()
        return ExitFacts(
            over=self._stopping or self._finishing or self._failing,
            asked=self._stopping or self._stop_expected or requested,
            leaving=self._agents.leaving,
            completed=self._completed.exists(),
        )

    def _carry_out(self, verdict: Verdict, now: float) -> None:
        match verdict.consequence:
            case Consequence.FINISH:
                self._begin_finish(verdict.message, now)
            case Consequence.FAIL:
                self._fail(verdict.message)
            case Consequence.NOTE:
                self._message = verdict.message

    def _begin_finish(self, message: str, now: float) -> None:
        """The training is over, whatever happens from here on; the workers that are left get a short time to end.

        The outcome is written at once, so that it outlives a kill of this process.
        """
        log.info("the training is over: %s", message)
        self._finishing_at = now
        self._message = message
        try:
            self._record(supervisor_pb2.SUPERVISOR_OUTCOME_EXITED, message)
        except OSError as error:
            log.warning("the outcome can't be written yet: %s", error)

    def _fail(self, message: str) -> None:
        """The job can't go on. The first reason counts; the workers that are left are killed."""
        if self._failing:
            return
        self._failed_at, self._message = time.monotonic(), message
        self._group.begin_stop(0)

    # -- what follows ----------------------------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        if self._failed_at is not None:  # nothing is started any more
            self._advance_failure(now, self._failed_at)
        elif self._finishing_at is not None:
            self._advance_finish(now, self._finishing_at)
        elif self._kill_all_at is not None:
            late = now >= self._kill_all_at
            if self._group.advance_stop(now, late) and (late or not self._group.trainers.leftovers()):
                self._end_stop(now)
        elif self._keeping.until is not None:
            if now >= self._keeping.until:
                self._outcome, self._message = supervisor_pb2.SUPERVISOR_OUTCOME_STOPPED, "it got no nodes any more"
        else:
            self._limit_winding_down(now)
            try:
                can_go_on = self._group.advance(now, self._agents.leaving)
            except (OSError, ImportError) as error:
                self._fail(f"a worker can't be started: {error}")
            else:
                if not can_go_on:
                    failure = self._group.failure
                    self._fail(failure.message if failure else self._message or "every worker has ended")

    def _advance_failure(self, now: float, since: float) -> None:
        """End once what the workers have reported is delivered; nobody who wants nodes back waits longer for that."""
        until = min(self._delivered_by(since), self._releases.deadline, self._kill_all_at or math.inf)
        gone = self._group.advance_stop(now, kill=True)
        if now >= until or (gone and not self._group.trainers.leftovers()):
            self._outcome = supervisor_pb2.SUPERVISOR_OUTCOME_FAILED

    def _advance_finish(self, now: float, since: float) -> None:
        kill_at = since + _OTHERS_SECONDS
        if self._kill_all_at is not None:
            kill_at = min(kill_at, self._kill_all_at)
        gone = self._group.advance_finish(now >= kill_at)
        until = min(self._delivered_by(since), self._kill_all_at or math.inf)
        if gone and (now >= until or not self._group.trainers.leftovers()):
            self._outcome = supervisor_pb2.SUPERVISOR_OUTCOME_EXITED

    def _delivered_by(self, since: float) -> float:
        """When to stop waiting for the last reports, in monotonic seconds: later while Monitor can't be reached.

        What is not delivered then is in no later report.
        """
        wanted = self._stopping or bool(self._releases.hosts)
        longer = not wanted and _has_entries(self._undelivered)
        return since + DELIVERY_SECONDS + (LAST_DELIVERY_SECONDS if longer else 0.0)

    def _end_stop(self, now: float) -> None:
        """No worker is left: end, or stay for a while."""
        if self._keeping.keep is None or self._stop_expected or self._completed.exists():
            self._outcome = supervisor_pb2.SUPERVISOR_OUTCOME_STOPPED
            return
        self._group.reset()
        self._agents.close()
        self._reports.close()
        self._keeping = self._keeping.begin(now)
        self._kill_all_at, self._message = None, ""
        log.info("no worker is left: this process stays for a while")
        for done in self._stops:
            done.set_result(self._state())
        self._stops.clear()

    def _limit_winding_down(self, now: float) -> None:
        if not self._group.progress.winding_down:
            self._winding_down_since = None
        elif self._winding_down_since is None:
            self._winding_down_since = now
        elif now >= self._winding_down_since + self._longest_ending:
            limit = self._longest_ending
            self._fail(f"rank 0 has not ended within {limit:g} s after other workers had, with exit status 0")

    def _finish_releases(self, now: float) -> None:
        if self._releases.kill_due(now):
            self._group.killed_late(now)
        for release in self._releases.finished(now):
            self._reports.note_released(release.hosts)
            release.done.set_result(self._state())

    # -- what others see -------------------------------------------------------------------------------------------

    def _announce(self) -> None:
        if self._group.progress.fulfilled and not (self._stopping or self._finishing or self._failing):
            self._message = ""  # what went wrong has been mended
        if self._reports.following:
            self._reports.follow(self._group.pids(), self._group.progress.confirmed_sequence)
        state = self._state()
        if state != self._published:
            self._published = state
            self._publish(state)

    def _state(self) -> State:
        # Workers that end one after the other at the end of a training, or of a job that fails, are no loss of hosts.
        progress = self._group.progress
        ending = self._finishing or self._failing or progress.winding_down
        confirmed = self._published.confirmed_hosts if ending else progress.confirmed_hosts
        without_workers = self._keeping.until is not None and not self._keeping.awaits_stop
        pids, overtaken = tuple(self._group.pids()), self._keeping.overtaken
        seen = Seen(progress, tuple(confirmed), pids, dict(self._group.failures), without_workers, overtaken)
        stopping = self._stopping or self._keeping.awaits_stop
        state = view(self._job_id, seen, stopping, self._outcome, self._message)
        self._idle_report = self._idle_report.after_look(self._group.idleness(now := time.monotonic()), now)
        state.idle_seconds, state.deadlocked = self._idle_report.seconds, self._idle_report.deadlocked
        state.usable_hosts = self._usable_hosts
        state.command_reports.extend(self._reports.finished)
        return state


def _has_entries(folder: Path) -> bool:
    try:
        return any(folder.iterdir())
    except OSError:  # there is none, or it can't be read now
        return False


_MAX_REPORTS = 16
_MAX_OPEN = 16
_MAX_STEPS = 256

Kind: TypeAlias = "supervisor_pb2.CommandKind.ValueType"
SET_HOSTS = supervisor_pb2.COMMAND_KIND_SET_HOSTS
RELEASE_HOSTS = supervisor_pb2.COMMAND_KIND_RELEASE_HOSTS
STOP = supervisor_pb2.COMMAND_KIND_STOP


@dataclass
class _OpenCommand:
    """A command that is being carried out.

    Attributes:
        report: What will be reported.
        sequence: Of SetHosts; 0 for others.
        waiting: Hosts where the workers are not yet as they shall be: name to workers that shall be there.
    """

    report: supervisor_pb2.CommandReport
    sequence: int
    waiting: dict[str, int] = field(default_factory=dict)


class CommandReports:
    """Follows commands. Used from the supervisor's main thread only; without trace contexts it does nothing.

    Attributes:
        finished: The newest commands that are over.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """
        Args:
            clock: Seconds since the epoch.
        """
        self._clock = clock
        self._open: list[_OpenCommand] = []
        self.finished: deque[supervisor_pb2.CommandReport] = deque(maxlen=_MAX_REPORTS)

    @property
    def following(self) -> bool:
        """Whether a command is being carried out that is reported."""
        return bool(self._open)

    def begin(self, kind: Kind, traceparent: str, hosts: Mapping[str, int], sequence: int = 0) -> None:
        """Follow a command that was just accepted, until all of it is done.

        Args:
            kind: What is commanded.
            traceparent: What came with it; anything but a trace context that is sampled is ignored.
            hosts: The hosts that it is about: name to workers that shall be there.
            sequence: Of SetHosts.
        """
        if kind == SET_HOSTS:
            self._end([command for command in self._open if command.sequence], done=False)
        context = parse_traceparent(traceparent)
        if context is None or not context.sampled or len(self._open) >= _MAX_OPEN:
            return
        report = supervisor_pb2.CommandReport(
            trace_context=resources_pb2.TraceContext(traceparent=context.traceparent),
            kind=kind,
            begin_time=self._now(),
        )
        self._open.append(_OpenCommand(report, sequence, dict(hosts)))

    def follow(self, workers: Iterable[tuple[Slot, int]], confirmed_sequence: int) -> None:
        """Note how far the open commands are.

        Args:
            workers: Slot and process id of each worker; 0 where it is being started.
            confirmed_sequence: Of the newest SetHosts that was carried out.
        """
        known = list(workers)
        there = Counter(slot.host for slot, _ in known)
        started = Counter(slot.host for slot, pid in known if pid > 0)
        for command in self._open:
            for host, wanted in list(command.waiting.items()):
                if (started[host] >= wanted) if wanted else not there[host]:
                    del command.waiting[host]
                    self._note(command.report, host, started=wanted > 0)
        done = [command for command in self._open if command.sequence and command.sequence <= confirmed_sequence]
        self._end(done, done=True)

    def note_released(self, hosts: frozenset[str]) -> None:
        """Note that no process is left on hosts, as was commanded."""
        self._end(
            [
                command
                for command in self._open
                if command.report.kind == RELEASE_HOSTS
                and hosts >= {*command.waiting, *(step.host for step in command.report.steps)}
            ],
            done=True,
        )

    def close(self) -> None:
        """End all that is open: no worker is left, and so nothing more can be done for it."""
        self._end([command for command in self._open if command.sequence], done=False)
        self._end(list(self._open), done=True)

    def _end(self, commands: list[_OpenCommand], *, done: bool) -> None:
        for command in commands:
            if not command.sequence:
                for host in list(command.waiting):
                    self._note(command.report, host, started=False)
            command.report.done = done
            command.report.end_time.CopyFrom(self._now())
            self._open.remove(command)
            self.finished.append(command.report)

    def _note(self, report: supervisor_pb2.CommandReport, host: str, *, started: bool) -> None:
        if len(report.steps) < _MAX_STEPS:
            report.steps.add(host=host, started=started, time=self._now())

    def _now(self) -> Timestamp:
        stamp = Timestamp()
        stamp.FromNanoseconds(round(self._clock() * 1e9))
        return stamp


@dataclass(frozen=True)
class Keep:
    """What a stop says of the supervisor itself.

    Attributes:
        seconds: How long it stays without workers.
        sequence: Sequence of the last command about hosts that the stop overrides; 0: the supervisor has stopped by
            itself after a release, and JobManager's stop is still to come.
    """

    seconds: float
    sequence: int = 0

    def shorter(self, other: Keep) -> Keep:
        """The stricter of both: it stays for the shorter time, and for the newest command."""
        return Keep(min(self.seconds, other.seconds), max(self.sequence, other.sequence))


@dataclass(frozen=True)
class Keeping:
    """Whether and how long the supervisor stays without hosts. Times are monotonic seconds.

    Attributes:
        keep: What the newest stop asks for; None: to end.
        until: When the supervisor ends if it gets no hosts; None while it has some, or its workers are being ended.
        overtaken: Commands up to this sequence came before a stop, and are not carried out any more.
    """

    keep: Keep | None = None
    until: float | None = None
    overtaken: int = 0

    @property
    def awaits_stop(self) -> bool:
        """Whether no worker is left after a release, and the stop that says what it overtakes has not come."""
        return self.until is not None and self.keep is not None and not self.keep.sequence

    def takes(self, sequence: int) -> bool:
        """Whether a command about hosts with this sequence may be carried out."""
        return sequence > self.overtaken and not self.awaits_stop

    def stop(self, keep: Keep | None, *, under_way: bool) -> Keeping:
        """The state after a stop. Of several that are under way, one that asks for the end holds.

        Args:
            keep: What it asks for.
            under_way: Whether workers are being ended already.
        """
        overtaken = max(self.overtaken, 0 if keep is None else keep.sequence)
        if under_way:
            keep = None if keep is None or self.keep is None else keep.shorter(self.keep)
        return Keeping(keep, None, overtaken)

    def begin(self, now: float) -> Keeping:
        """No worker is left: wait for hosts from now on."""
        return replace(self, until=now + (0.0 if self.keep is None else self.keep.seconds))

    def end(self) -> Keeping:
        """Wait no longer: there are hosts again."""
        return replace(self, keep=None, until=None)
