"""Monitor as a machine: stimuli in, effects out; without I/O, and without a clock of its own."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from malletrain.monitor.machine.progress import ReportedBatch
from malletrain.monitor.machine.stimuli import (
    BatchesReported,
    CountRecords,
    CountRescales,
    Effect,
    JobsForgotten,
    JobsKept,
    JobsPlaced,
    PublishDue,
    PublishProgress,
    PublishScaling,
    ScalesCommanded,
    Stimulus,
    StoreJobs,
)
from malletrain.monitor.machine.trackers import JobScaling, JobTrackers
from malletrain.runtime.kernel.recording import Moment

Effects = tuple[Effect, ...]


@dataclass
class MonitorMachine:
    """Decides what is counted, stored and published. The state changes in place.

    No job matters to another one: a machine with one job only treats that one as a machine with all of them does.

    Attributes:
        trackers: What is known of each job.
    """

    trackers: JobTrackers
    _published: dict[str, JobScaling] = field(default_factory=dict)

    def part(self, job_ids: Collection[str]) -> MonitorMachine:
        """A copy with these jobs only. Nothing of it changes with this one."""
        published = {job_id: self._published[job_id] for job_id in job_ids if job_id in self._published}
        return MonitorMachine(self.trackers.part(job_ids), published)

    def advance(self, stimulus: Stimulus, now: Moment) -> Effects:
        """Handle a stimulus; returns what is to be done, in this order.

        Raises:
            Exception: a defect of this machine. Where it is about a job, `trackers.at` names that.
        """
        self.trackers.at = ""
        match stimulus:
            case BatchesReported():
                counted = [effect for batch in stimulus.batches for effect in self._count(batch, now.monotonic)]
                return (*counted, StoreJobs(tuple(self.trackers.take_unstored())))
            case ScalesCommanded():
                return self._note_commands(stimulus)
            case JobsPlaced():
                for job_id, span in stimulus.spans:
                    self.trackers.place(job_id, span)
                return ()
            case JobsKept():
                self.trackers.keep_commands(stimulus.job_ids)
                return ()
            case JobsForgotten():
                self.trackers.forget(stimulus.job_ids)
                for job_id in stimulus.job_ids:
                    self._published.pop(job_id, None)
                return (StoreJobs(forgotten=stimulus.job_ids),)
            case PublishDue():
                return self._publish(now.monotonic)

    def _count(self, batch: ReportedBatch, now: float) -> Effects:
        before = self.trackers.find(batch.job_id)
        dropped = before.dropped_records if before else 0
        last = before.stalls.last_number if before else 0
        self.trackers.add(batch, now)
        tracker = self.trackers.find(batch.job_id)
        if tracker is None:
            return ()
        counted = CountRecords(len(batch.records), tracker.dropped_records - dropped)
        rescales = tracker.stalls.after(last)
        return (counted, CountRescales(rescales)) if rescales else (counted,)

    def _note_commands(self, stimulus: ScalesCommanded) -> Effects:
        effects: list[Effect] = []
        for job_id, command in stimulus.commands:
            tracker = self.trackers.find(job_id)
            last = tracker.stalls.last_number if tracker else 0
            self.trackers.note_command(job_id, command)
            if tracker is not None and (rescales := tracker.stalls.after(last)):
                effects.append(CountRescales(rescales))
        unstored = self.trackers.take_unstored()
        return (*effects, StoreJobs(tuple(unstored))) if unstored else tuple(effects)

    def _publish(self, now: float) -> Effects:
        changed = self.trackers.take_changed(now)
        if not changed:
            return ()
        progress = PublishProgress(tuple(tracker.job_id for tracker in changed))
        records = []
        for tracker in changed:
            self.trackers.at = tracker.job_id
            records.append(tracker.scaling())
        fresh = tuple(record for record in records if self._published.get(record.job_id) != record)
        self._published |= {record.job_id: record for record in fresh}
        return (progress, PublishScaling(fresh)) if fresh else (progress,)
