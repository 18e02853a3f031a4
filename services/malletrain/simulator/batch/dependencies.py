"""Jobs that wait for others: they do not enter the queue before those have ended (BBSched, §3.1). Pure."""

from __future__ import annotations

from collections.abc import Sequence

from malletrain.simulator.batch.wait_queue import WaitQueue
from malletrain.simulator.batch.workload import BatchJob


class HeldJobs:
    """Which submitted jobs are held back, by their indices in the order of submission.

    A number stands for the newest job before with that number; one that no job before has is of a job that ended before
    the log begins.
    """

    def __init__(self, jobs: Sequence[BatchJob]) -> None:
        """Find out who waits for whom."""
        self._open: dict[int, int] = {}
        self._behind: dict[int, list[int]] = {}
        self._held: set[int] = set()
        newest: dict[int, int] = {}
        for index, job in enumerate(jobs):
            before = {newest[number] for number in job.after if number in newest}
            if before:
                self._open[index] = len(before)
            for earlier in before:
                self._behind.setdefault(earlier, []).append(index)
            newest[job.number] = index

    def __bool__(self) -> bool:
        """Whether any job waits for another, or still may."""
        return bool(self._behind)

    def holds(self, index: int) -> bool:
        """Whether a job that is submitted now is held back."""
        if index not in self._open:
            return False
        self._held.add(index)
        return True

    def end(self, index: int) -> list[int]:
        """A job has ended: the submitted jobs that nothing holds back any more, ascending."""
        free = []
        for later in self._behind.pop(index, ()):
            self._open[later] -= 1
            if not self._open[later]:
                del self._open[later]
                if later in self._held:
                    self._held.remove(later)
                    free.append(later)
        return free


def add_submitted(waiting: WaitQueue, held: HeldJobs, jobs: Sequence[BatchJob], first: int, end: int) -> None:
    """Put jobs that are submitted now into the queue, but for those that are held back.

    Args:
        waiting: The queue.
        held: Who is held back.
        jobs: All jobs.
        first: Index of the first job that is submitted now.
        end: Index after the last one.
    """
    if not held:
        waiting.add(first, jobs[first:end])
        return
    for index in range(first, end):
        if not held.holds(index):
            waiting.insert(index, jobs[index])
