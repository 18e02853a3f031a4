"""A process that prepares samples, killed at once after its answers."""

from __future__ import annotations

import os
import select
import signal

import pytest

from malletrain.client.feeding.codec import decode
from malletrain.client.feeding.preparing import PreparingProcess
from malletrain.client.feeding.schedule import Task
from malletrain.client.feeding.seeding import Preparation


class DiesAt:
    """A dataset whose process ends at one sample."""

    def __init__(self, index: int) -> None:
        self.index = index

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index == self.index:
            os.kill(os.getpid(), signal.SIGKILL)
        return index


def test_what_a_process_has_answered_before_its_end_is_not_lost() -> None:
    process = PreparingProcess(Preparation(DiesAt(1), 0, 8), [])
    try:
        process.give(Task(0, 0))
        process.give(Task(1, 1))
        # It has gone before its first answer is read.
        assert os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT) is not None
        assert select.select([process.connection], [], [], 10)[0]
        (prepared,) = process.receive()
        assert prepared.task == Task(0, 0)
        assert decode(prepared.content) == 0
        assert 0 < prepared.cpu_seconds < 10
        assert list(process.tasks) == [Task(1, 1)]
        with pytest.raises(EOFError):
            process.receive()
    finally:
        process.end()
