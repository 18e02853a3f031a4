"""The client in the training loop: one line, standard library only.

    from malletrain.client import report
    ...
    report(batch_size)

Outside MalleTrain every function does nothing.
"""

from __future__ import annotations

from malletrain.client.commands import Command, CommandType
from malletrain.client.job_context import JobContext
from malletrain.client.session import Client

# The only global state of this package: a process has one rank in one job.
_client = Client()

report = _client.report
log_metrics = _client.log_metrics
commands = _client.commands
should_commit = _client.should_commit
should_stop = _client.should_stop
done = _client.done
current_job = _client.current_job
phase = _client.phase
refresh = _client.refresh
note_feed = _client.note_feed
note_save = _client.note_save
seconds_to_leave = _client.seconds_to_leave
install_signal_handler = _client.install_signal_handler

__all__ = [
    "Command",
    "CommandType",
    "JobContext",
    "commands",
    "current_job",
    "done",
    "install_signal_handler",
    "log_metrics",
    "note_save",
    "phase",
    "refresh",
    "report",
    "should_commit",
    "should_stop",
]
