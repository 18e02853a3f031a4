"""How a journal and its agreement with the replay are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from math import isfinite

import typer

from malletrain.allocator.utilization.definition import Utilization, utilization_of
from malletrain.cli.shared.output import print_table
from malletrain.simulator.journal.conversion import JournalInput, journal_input
from malletrain.simulator.journal.decided import AGREEMENT, JobAgreement, agreement, relative
from malletrain.simulator.journal.record import Journal
from malletrain.simulator.journal.utilization import recorded_minutes


@dataclass(frozen=True)
class JournalReport:
    """What a journal has, and how well the replay of what was decided agrees with it.

    Attributes:
        begin_unix: Begin of the time that is replayed, in seconds since the epoch.
        end_unix: Its end.
        jobs: Jobs that are replayed.
        nodes: Nodes that were idle in this time.
        agreement: Each job that was measured, over its whole life.
        notes: What could not be taken over.
        used: U of this time as it was, by minute; None where it is not known.
    """

    begin_unix: float
    end_unix: float
    jobs: int
    nodes: int
    agreement: tuple[JobAgreement, ...]
    notes: tuple[str, ...]
    used: Utilization | None = None

    @property
    def recorded(self) -> float:
        """Samples that were processed, of all these jobs."""
        return sum(job.recorded for job in self.agreement)

    @property
    def replayed(self) -> float:
        """Samples of the replay of what was decided, of all these jobs."""
        return sum(job.replayed for job in self.agreement)

    def to_json(self) -> dict[str, object]:
        """Figures for scripts; an infinite difference is null."""
        difference = relative(self.replayed, self.recorded)
        return {
            **asdict(self),
            "agreement": [asdict(job) | {"difference": _finite(job.difference)} for job in self.agreement],
            "recorded_samples": self.recorded,
            "decided_samples": self.replayed,
            "difference": _finite(difference),
        }


def report_on(
    journal: Journal, span: tuple[float, float], reading_notes: Sequence[str]
) -> tuple[JournalReport, JournalInput]:
    """What is said about a part of a journal, and the input of its replay."""
    past = journal_input(journal, *span)
    notes = (*reading_notes, *past.notes)
    used = utilization_of(recorded_minutes(journal, *span))
    report = JournalReport(*span, len(past.jobs), len(past.trace.nodes), tuple(agreement(journal)), notes, used)
    return report, past


def print_report(report: JournalReport) -> None:
    """Print what was read of a journal, and what its replay says."""
    begin, end = (datetime.fromtimestamp(at, UTC) for at in (report.begin_unix, report.end_unix))
    hours = (report.end_unix - report.begin_unix) / 3600
    typer.echo(f"journal: {begin:%Y-%m-%d %H:%M:%S} to {end:%Y-%m-%d %H:%M:%S} UTC, {hours:.2f} h")
    typer.echo(f"{report.nodes} nodes, {report.jobs} jobs to replay")
    typer.echo(_used_in_words(report.used))
    for note in report.notes:
        typer.echo(f"note: {note}")
    if not report.agreement:
        typer.echo("Monitor has measured no job: whether replay and reality agree is not known.")
        return
    rows = [
        (job.job_id, f"{job.recorded:,.0f}", f"{job.replayed:,.0f}", f"{job.difference:+.1%}", "; ".join(job.reasons))
        for job in report.agreement
    ]
    difference = relative(report.replayed, report.recorded)
    rows.append(("all", f"{report.recorded:,.0f}", f"{report.replayed:,.0f}", f"{difference:+.1%}", ""))
    print_table(("job", "samples", "replay of what was decided", "difference", "why"), rows)
    verdict = "agrees" if abs(difference) <= AGREEMENT else "does not agree"
    typer.echo(f"The replay of what was decided {verdict} with what happened, within {AGREEMENT:.0%}.")


def _used_in_words(used: Utilization | None) -> str:
    if used is None or used.efficiency is None or used.bound is None:
        return "U of what happened: not known, or there was nothing to train"
    return (
        f"U of what happened: {used.efficiency:.1%}, {used.bound:.1%} if rescaling were free; of "
        f"{used.seconds / 3600:.2f} h, as on the dashboard"
    )


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None
