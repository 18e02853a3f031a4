"""The process beside the trainer: `python -m malletrain.client.sidecar RING ...`.

It reads records from the ring, sends them to Monitor, and writes commands from Monitor to the ring. It ends when the
trainer has ended.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue

import grpc

from malletrain.client.commands import Command, CommandType, put_command
from malletrain.client.monitor_stream import (
    MetricOutbox,
    MonitorStream,
    Outbox,
    ReporterIdentity,
    ResponseReceived,
    StreamEnded,
    StreamEvent,
    open_channel,
    read_job_token,
)
from malletrain.client.ring import (
    CHECKPOINT_NANOSECONDS,
    CLOSED,
    DROPPED,
    FEED_NANOSECONDS,
    FEED_PREPARED,
    FEED_PROCESSES,
    FEED_RATES,
    FEED_RECEIVED,
    FEED_RUNNING,
    FLOOR,
    METRICS_TAKEN,
    SAVE_ERROR,
    SAVE_FAILURES,
    SAVES,
    MetricReader,
    PhaseReader,
    Ring,
    RingPhase,
    RingReader,
    RingRecord,
    open_ring,
    rate_of,
)
from malletrain.client.step_times import StepTimesReader
from malletrain.common import environment as env
from malletrain.common.backoff import Backoff
from malletrain.common.job_folder import (
    DELIVERY_SECONDS,
    LAST_DELIVERY_SECONDS,
    STOP_REQUESTS_FOLDER,
    undelivered_mark,
)
from malletrain.tls.files import CertificateFileError
from malletrain.v1 import monitor_pb2, monitor_pb2_grpc

_POLL_SECONDS = 0.05
_KEEP_ALIVE_SECONDS = 1.0
_ACKNOWLEDGEMENT_SECONDS = 10.0
_METRICS_SECONDS = 1.0
"""Least time between two messages with logged values: each of them is a row of Monitor's database."""
_FIRST_PAUSE_SECONDS = 0.1
_MAX_PAUSE_SECONDS = 2.0
_BATCH_RECORDS = 2048
_WINDOW_RECORDS = 8 * _BATCH_RECORDS
_KNOWN_COMMANDS = 256
_MAX_ERRORS = 4096
"""More than any number of an error that the system knows."""


class Sidecar:
    """Everything happens in `run`, in one thread. Only the queue of events is shared with gRPC's threads."""

    def __init__(
        self,
        ring: Ring,
        identity: ReporterIdentity,
        stub: monitor_pb2_grpc.MonitorServiceStub,
        trainer_lives: Callable[[], bool],
        stopping: Callable[[], None],
        read_token: Callable[[], str] = str,
        step_times: StepTimesReader | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        time_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Continue where an earlier sidecar of the same ring ended.

        Args:
            trainer_lives: Returns whether the trainer still runs.
            stopping: Called before the trainer gets STOP.
            read_token: Returns the job's token, which may have been renewed; empty: there is none.
            step_times: Reads what the workers tell of their steps; None: nobody does.
            monotonic: Monotonic clock in seconds.
            time_ns: The trainer's clock in nanoseconds since the epoch.
        """
        self._time_ns = time_ns
        self.asked_to_end = False
        self._ring = ring
        self._identity = identity
        self._stub = stub
        self._trainer_lives = trainer_lives
        self._stopping = stopping
        self._read_token = read_token
        self._monotonic = monotonic
        self._outbox = Outbox(ring.words[FLOOR], ring.words[DROPPED])
        self._reader = RingReader(ring.words, after=self._outbox.floor)
        self._phase_reader = PhaseReader(ring)
        self._metric_reader = MetricReader(ring)
        self._metrics = MetricOutbox(ring.words[METRICS_TAKEN])
        self._metrics_at = -math.inf
        self._phases = PhaseTimes()
        self._step_times = step_times or StepTimesReader(None)
        self._told_phase = ""
        self._events: SimpleQueue[StreamEvent] = SimpleQueue()
        self._stream: MonitorStream | None = None
        self._finished: MonitorStream | None = None
        self._backoff = Backoff(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
        self._connect_at = self._sent_at = self._batch_at = self._progress_at = monotonic()
        self._known: deque[str] = deque(maxlen=_KNOWN_COMMANDS)

    def run(self) -> None:
        """Work until the trainer has ended and its records are delivered.

        After the trainer's end it goes on for 3 s at most; where records are left then, because Monitor can't be
        reached, for 30 s, unless it was asked to end.
        """
        ended_at: float | None = None
        while True:
            over = not self._trainer_lives() or self._ring.words[CLOSED] != 0
            now = self._monotonic()
            if ended_at is None and (over or self.asked_to_end):
                ended_at = now
            self._turn(now, final=over)
            if ended_at is not None:
                if over and not self._outbox and not self._metrics:
                    break
                late = now >= ended_at + DELIVERY_SECONDS
                if late and (self.asked_to_end or not self._outbox or now >= ended_at + LAST_DELIVERY_SECONDS):
                    break
            self._wait()
        if self._outbox:
            _log(f"{len(self._outbox)} records could not be delivered")
        if self._stream is not None:
            self._stream.close()

    def _turn(self, now: float, final: bool) -> None:
        records, lost = self._reader.read(final=final)
        self._phases.see(self._phase_reader.read())
        self._phases.take(records, self._outbox.floor)
        self._outbox.add(records, lost)
        self._metrics.add(self._metric_reader.read())
        if records:
            self._step_times.look(records[-1].workers, now)
        if self._stream is None and now >= self._connect_at:
            self._connect(now)
        if self._stream is not None:
            self._send(self._stream, now, final)
            waits = self._outbox.waiting or self._metrics.may_send
            if final and self._finished is not self._stream and not waits:
                self._finished = self._stream
                self._stream.finish()
            if self._outbox.in_flight and now - self._progress_at > _ACKNOWLEDGEMENT_SECONDS:
                self._disconnect(now, "no acknowledgement")
        self._save_state()

    def _wait(self) -> None:
        try:
            event = self._events.get(timeout=_POLL_SECONDS)
            while True:
                self._handle(event)
                event = self._events.get_nowait()
        except Empty:
            return

    def _handle(self, event: StreamEvent) -> None:
        if event.stream is not self._stream:
            return
        now = self._monotonic()
        match event:
            case ResponseReceived(response=response):
                self._backoff.succeed()
                self._progress_at = now
                self._outbox.acknowledge(response.acknowledged_sequence)
                self._metrics.acknowledge(response.acknowledged_metrics)
                for command in response.commands:
                    self._deliver(command)
            case StreamEnded(refused=False) if event.stream is self._finished and not self._outbox:
                self._metrics.clear()  # a Monitor of an earlier version acknowledges none
                return  # as it was asked to
            case StreamEnded(refused=refused, reason=reason):
                if refused:
                    _log(f"Monitor refused {self._outbox.in_flight} records: {reason}")
                    self._outbox.refuse()
                    self._metrics.refuse()
                self._disconnect(now, reason)

    def _connect(self, now: float) -> None:
        self._stream = MonitorStream(self._stub, self._events, self._read_token())
        self._progress_at = now
        # The first message makes the reporter known to Monitor, so that commands reach it.
        self._post(self._stream, [], now)

    def _disconnect(self, now: float, reason: str) -> None:
        if self._stream is not None:
            self._stream.close()
        self._stream = None
        self._outbox.rewind()
        self._metrics.rewind()
        if not self._backoff.active:
            _log(f"the stream to Monitor is lost, trying again: {reason}")
        self._connect_at = now + self._backoff.fail()

    def _send(self, stream: MonitorStream, now: float, final: bool) -> None:
        if (final or self._outbox.is_due(now - self._batch_at)) and self._send_batches(stream, now):
            self._batch_at = now
        elif final and self._metrics.may_send:
            self._metrics_at = -math.inf
            self._post(stream, [], now)
        elif now - self._sent_at >= _KEEP_ALIVE_SECONDS or self._present_phase().name != self._told_phase:
            self._post(stream, [], now)

    def _send_batches(self, stream: MonitorStream, now: float) -> bool:
        sent = False
        while self._outbox.in_flight < _WINDOW_RECORDS:
            if not self._outbox.in_flight:
                self._progress_at = now
            records = self._outbox.take(_BATCH_RECORDS)
            if not records:
                break
            self._post(stream, records, now)
            sent = True
        return sent

    def _post(self, stream: MonitorStream, records: Sequence[RingRecord], now: float) -> None:
        phase, feed, saves = self._present_phase(), feed_report(self._ring), save_report(self._ring)
        present = phase if phase.name else None
        told = self._step_times.take()
        values = self._metrics.take() if now - self._metrics_at >= _METRICS_SECONDS else ()
        if values:
            self._metrics_at = now
        phases = self._phases.in_steps
        stream.send(self._identity, records, self._outbox.dropped, feed, saves, present, phases, told, values)
        self._sent_at, self._told_phase = now, phase.name

    def _present_phase(self) -> monitor_pb2.PhaseReport:
        """The phase that the trainer is in; without a name: none."""
        name, seconds = self._phases.present(self._time_ns()) or ("", 0.0)
        return monitor_pb2.PhaseReport(name=name, seconds=seconds)

    def _deliver(self, command: monitor_pb2.Command) -> None:
        known_types = {int(kind) for kind in CommandType}
        # After a reconnect Monitor may repeat commands. A newer Monitor may have types that this client does not know.
        if command.id in self._known or command.type not in known_types:
            return
        self._known.append(command.id)
        if CommandType(command.type) is CommandType.STOP:
            self._stopping()
        put_command(self._ring, Command(command.id, CommandType(command.type), command.nodes))

    def _save_state(self) -> None:
        """Write to the ring what another sidecar needs to continue."""
        self._ring.words[DROPPED] = self._outbox.dropped
        self._ring.words[FLOOR] = self._outbox.floor
        self._ring.words[METRICS_TAKEN] = self._metrics.floor


def feed_report(ring: Ring) -> monitor_pb2.FeedReport | None:
    """What a feed does for the trainer, as it has written that to the ring; None: it shares no samples."""
    words = ring.words
    received, prepared = words[FEED_RECEIVED], words[FEED_PREPARED]
    if received + prepared <= 0:
        return None
    seconds, processes = words[FEED_NANOSECONDS] / 1e9, words[FEED_PROCESSES]
    rates = [rate_of(words[place]) for place in FEED_RATES]
    return monitor_pb2.FeedReport(
        received_samples=received,
        prepared_samples=prepared,
        cpu_seconds=seconds,
        processes=processes,
        running=words[FEED_RUNNING],
        rates=[monitor_pb2.PreparingRate(processes=number, rate=rate) for number, rate in rates if number and rate],
    )


def save_report(ring: Ring) -> monitor_pb2.SaveReport | None:
    """How the newest save went, as the trainer has written that to the ring; None: it has tried none."""
    words = ring.words
    if words[SAVES] <= 0:
        return None
    seconds = max(0, words[CHECKPOINT_NANOSECONDS]) / 1e9
    if words[SAVE_FAILURES] <= 0:
        return monitor_pb2.SaveReport(rescale_seconds=seconds)
    error = words[SAVE_ERROR]
    reason = os.strerror(error) if 0 < error < _MAX_ERRORS else "see its log"
    return monitor_pb2.SaveReport(failures=words[SAVE_FAILURES], reason=reason, rescale_seconds=seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a sidecar for the parent process; returns 1 if the ring can't be opened."""
    parser = argparse.ArgumentParser(prog="python -m malletrain.client.sidecar", description=__doc__)
    parser.add_argument("ring", help="path of the ring, e.g. /dev/fd/7")
    parser.add_argument("--monitor", required=True, help="HOST:PORT of Monitor")
    parser.add_argument("--job", required=True, help="job identifier")
    parser.add_argument("--reporter", required=True, help="identifier of the reporting process")
    parser.add_argument("--lineage", default="", help="which processes hand the model on in memory")
    parser.add_argument("--slots-per-node", type=int, default=1, help="worker processes per node")
    parser.add_argument("--token-file", type=Path, help="file with the job's token")
    parser.add_argument("--trainer", type=int, required=True, help="process id of the trainer, which is the parent")
    options = parser.parse_args(arguments)
    try:
        ring = open_ring(options.ring)
    except (OSError, ValueError) as error:
        _log(str(error))
        return 1
    identity = ReporterIdentity(options.job, options.reporter, options.slots_per_node, options.lineage)
    try:
        opened = open_channel(options.monitor, os.environ)
    except CertificateFileError as error:
        _log(str(error))
        return 1
    with opened as channel:
        _serve(ring, identity, channel, options.trainer, options.token_file)
    return 0


def _serve(
    ring: Ring, identity: ReporterIdentity, channel: grpc.Channel, trainer: int, token_file: Path | None
) -> None:
    sidecar = Sidecar(
        ring,
        identity,
        monitor_pb2_grpc.MonitorServiceStub(channel),
        lambda: os.getppid() == trainer,
        _note_stop,
        lambda: read_job_token(token_file),
        StepTimesReader(_job_folder()),
    )

    def end(signum: int, frame: object) -> None:
        del signum, frame
        sidecar.asked_to_end = True

    # Ctrl-C in a terminal reaches the trainer as well: the sidecar ends after it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, end)
    sidecar.run()
    if (job_folder := _job_folder()) is not None:
        with suppress(OSError):
            undelivered_mark(job_folder, identity.reporter_id).unlink()


def _note_stop() -> None:
    """Tell the supervisor that the trainer was asked to stop, so that it is not taken for done when it ends.

    It knows the worker's process, which leads the session; the trainer may have been started by a wrapper.
    """
    if (job_folder := _job_folder()) is None:
        return
    folder = job_folder / STOP_REQUESTS_FOLDER
    try:
        folder.mkdir(exist_ok=True)
        (folder / str(os.getsid(0))).touch()
    except OSError as error:
        _log(f"the supervisor can't be told that the trainer was asked to stop: {error}")


def _job_folder() -> Path | None:
    folder = os.environ.get(env.JOB_DIR)
    return Path(folder) if folder else None


def _log(message: str) -> None:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S")
    print(f"{stamp} sidecar {os.getpid()}: {message}", file=sys.stderr, flush=True)


TOLD_NS = 500_000_000
"""Shorter phases are not told while they last, in nanoseconds."""


class PhaseTimes:
    """Phases and records of one ring, in the order in which they were written.

    Attributes:
        in_steps: How long the training was in phases in the step that a record ends, in nanoseconds, by the record's
            sequence number; records without phases are left out.
    """

    def __init__(self) -> None:
        self.in_steps: dict[int, int] = {}
        self._ended: list[tuple[int, int]] = []
        self._covered_ns = 0
        self._record_ns = 0
        self._batch_ns = 0
        self._open: RingPhase | None = None

    def see(self, phases: Iterable[RingPhase]) -> None:
        """Take in phases that have begun or ended, in the order of their numbers.

        They must be read after the records that `take` is then called with.
        """
        for phase in phases:
            if not phase.end_ns:
                self._open = phase
                continue
            # The phase around another one goes on after it, from the same beginning: no time counts twice.
            begin = max(phase.begin_ns, self._covered_ns)
            if phase.end_ns > begin:
                self._ended.append((begin, phase.end_ns))
                self._covered_ns = phase.end_ns
            if self._open is not None and self._open.number <= phase.number:
                self._open = None

    def take(self, records: Iterable[RingRecord], floor: int) -> None:
        """Take in records, in order. The first ends no step, and so has no phase in it.

        Args:
            records: What was read before the phases that `see` was last called with.
            floor: Records up to this sequence number are not asked for any more.
        """
        for record in records:
            if inside := self._inside_step(record):
                self.in_steps[record.sequence] = inside
        if self.in_steps:
            self.in_steps = {sequence: inside for sequence, inside in self.in_steps.items() if sequence > floor}

    def _inside_step(self, record: RingRecord) -> int:
        before, self._record_ns = self._record_ns, record.unix_ns
        if record.samples > 0:
            self._batch_ns = record.unix_ns
        if not self._ended:
            return 0
        ended = self._ended
        self._ended = [(begin, end) for begin, end in ended if end > record.unix_ns]
        if not before:
            return 0
        return sum(max(0, min(end, record.unix_ns) - max(begin, before)) for begin, end in ended)

    def present(self, now_ns: int) -> tuple[str, float] | None:
        """Name of the phase that lasts, and for how long in seconds; None: there is none.

        One in which a batch has ended has not been left by mistake.
        """
        phase = self._open
        if phase is None or phase.begin_ns < self._batch_ns or now_ns - phase.begin_ns < TOLD_NS:
            return None
        return phase.name, (now_ns - phase.begin_ns) / 1e9


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    # Not `sys.exit`: gRPC's objects take a lock when they are collected at the end of the interpreter, which then waits
    # forever if a thread has been ended that held it.
    os._exit(status)
