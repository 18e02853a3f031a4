"""The process beside the trainer: `python -m malletrain.client.sidecar RING ...`.

It takes records out of the ring, keeps the stream to Monitor, and brings commands back. It ends with the trainer.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

import grpc

from malletrain.client.commands import Command, CommandType, put_command
from malletrain.client.link import Ended, Event, Link, Received, open_channel
from malletrain.client.messages import Identity, message_of
from malletrain.client.outbox import Outbox
from malletrain.client.ring import CLOSED, DROPPED, FLOOR, Record, Ring, RingReader, open_ring
from malletrain.v1 import monitor_pb2, monitor_pb2_grpc

_POLL_SECONDS = 0.05
# A message costs more than the records in it.
_SEND_SECONDS = 0.1
_SIGN_OF_LIFE_SECONDS = 1.0
_ACKNOWLEDGEMENT_SECONDS = 10.0
_ENDING_SECONDS = 3.0
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 2.0
_BATCH_RECORDS = 2048
_WINDOW_RECORDS = 8 * _BATCH_RECORDS
_KNOWN_COMMANDS = 256


class Sidecar:
    """Everything happens in `run`, in one thread; only the queue of events is shared with gRPC's."""

    def __init__(
        self,
        ring: Ring,
        identity: Identity,
        stub: monitor_pb2_grpc.MonitorServiceStub,
        trainer_lives: Callable[[], bool],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Go on where a sidecar of the same ring left off.

        Args:
            ring: The trainer's ring.
            identity: Who reports.
            stub: Monitor.
            trainer_lives: Whether the trainer is still there.
            monotonic: Seconds.
        """
        self.asked_to_end = False
        self._ring = ring
        self._identity = identity
        self._stub = stub
        self._trainer_lives = trainer_lives
        self._monotonic = monotonic
        self._outbox = Outbox(ring.words[FLOOR], ring.words[DROPPED])
        self._reader = RingReader(ring.words, after=self._outbox.floor)
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._link: Link | None = None
        self._pause = _FIRST_PAUSE_SECONDS
        self._connect_at = self._sent_at = self._batch_at = self._progress_at = monotonic()
        self._known: deque[str] = deque(maxlen=_KNOWN_COMMANDS)

    def run(self) -> None:
        """Work until the trainer has ended and its records are delivered, or 3 s have passed since."""
        end_at: float | None = None
        while True:
            over = not self._trainer_lives() or self._ring.words[CLOSED] != 0
            now = self._monotonic()
            if end_at is None and (over or self.asked_to_end):
                end_at = now + _ENDING_SECONDS
            self._turn(now, final=over)
            if end_at is not None and (now >= end_at or (over and not self._outbox)):
                break
            self._wait()
        if self._outbox:
            _say(f"{len(self._outbox)} records could not be delivered")
        if self._link is not None:
            self._link.close()

    def _turn(self, now: float, final: bool) -> None:
        self._outbox.add(*self._reader.read(final=final))
        if self._link is None and now >= self._connect_at:
            self._connect(now)
        if self._link is not None:
            self._send(self._link, now, final)
            if self._outbox.under_way and now - self._progress_at > _ACKNOWLEDGEMENT_SECONDS:
                self._disconnect(now, "no acknowledgement")
        self._note_state()

    def _wait(self) -> None:
        try:
            event = self._events.get(timeout=_POLL_SECONDS)
            while True:
                self._handle(event)
                event = self._events.get_nowait()
        except Empty:
            return

    def _handle(self, event: Event) -> None:
        if event.link is not self._link:
            return
        now = self._monotonic()
        match event:
            case Received(response=response):
                self._pause = _FIRST_PAUSE_SECONDS
                self._progress_at = now
                self._outbox.acknowledge(response.acknowledged_sequence)
                for command in response.commands:
                    self._pass_on(command)
            case Ended(refused=refused, reason=reason):
                if refused:
                    _say(f"Monitor refused {self._outbox.under_way} records: {reason}")
                    self._outbox.refuse()
                self._disconnect(now, reason)

    def _connect(self, now: float) -> None:
        self._link = Link(self._stub, self._events)
        self._progress_at = now
        # A first message without records makes the reporter known, so that commands find it.
        self._post(self._link, [], now)

    def _disconnect(self, now: float, reason: str) -> None:
        if self._link is not None:
            self._link.close()
        self._link = None
        self._outbox.rewind()
        if self._pause == _FIRST_PAUSE_SECONDS:
            _say(f"the stream to Monitor is lost, trying again: {reason}")
        self._connect_at = now + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)

    def _send(self, link: Link, now: float, final: bool) -> None:
        if (final or now - self._batch_at >= _SEND_SECONDS) and self._send_batches(link, now):
            self._batch_at = now
        elif now - self._sent_at >= _SIGN_OF_LIFE_SECONDS:
            self._post(link, [], now)

    def _send_batches(self, link: Link, now: float) -> bool:
        sent = False
        while self._outbox.under_way < _WINDOW_RECORDS:
            if not self._outbox.under_way:
                self._progress_at = now
            records = self._outbox.take(_BATCH_RECORDS)
            if not records:
                break
            self._post(link, records, now)
            sent = True
        return sent

    def _post(self, link: Link, records: Sequence[Record], now: float) -> None:
        link.send(message_of(self._identity, records, self._outbox.dropped))
        self._sent_at = now

    def _pass_on(self, command: monitor_pb2.Command) -> None:
        known_types = {int(kind) for kind in CommandType}
        # After a reconnect Monitor may repeat itself; a newer Monitor may know more than this client.
        if command.id in self._known or command.type not in known_types:
            return
        self._known.append(command.id)
        put_command(self._ring, Command(command.id, CommandType(command.type)))

    def _note_state(self) -> None:
        """For a sidecar that may have to take over."""
        self._ring.words[DROPPED] = self._outbox.dropped
        self._ring.words[FLOOR] = self._outbox.floor


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a sidecar for the parent process; exit code 1 if the ring can't be opened."""
    parser = argparse.ArgumentParser(prog="python -m malletrain.client.sidecar", description=__doc__)
    parser.add_argument("ring", help="path of the ring, e.g. /dev/fd/7")
    parser.add_argument("--monitor", required=True, help="HOST:PORT of Monitor")
    parser.add_argument("--job", required=True, help="job identifier")
    parser.add_argument("--reporter", required=True, help="identifier of the reporting process")
    parser.add_argument("--slots-per-node", type=int, default=1, help="worker processes per node")
    parser.add_argument("--trainer", type=int, required=True, help="process id of the trainer, which is the parent")
    options = parser.parse_args(arguments)
    try:
        ring = open_ring(options.ring)
    except (OSError, ValueError) as error:
        _say(str(error))
        return 1
    identity = Identity(options.job, options.reporter, options.slots_per_node)
    with open_channel(options.monitor) as channel:
        _serve(ring, identity, channel, lambda: os.getppid() == options.trainer)
    return 0


def _serve(ring: Ring, identity: Identity, channel: grpc.Channel, trainer_lives: Callable[[], bool]) -> None:
    sidecar = Sidecar(ring, identity, monitor_pb2_grpc.MonitorServiceStub(channel), trainer_lives)

    def end(signum: int, frame: object) -> None:
        del signum, frame
        sidecar.asked_to_end = True

    # The terminal's Ctrl-C goes to the trainer, too: its end decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, end)
    sidecar.run()


def _say(message: str) -> None:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S")
    print(f"{stamp} sidecar {os.getpid()}: {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
