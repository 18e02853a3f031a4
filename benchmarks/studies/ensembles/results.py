"""What came of the trainings of the ensemble, and tables of it. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from benchmarks.studies.nas import table

REFERENCE = "list"
ALONE = "no-feed"
CHOSEN = "auto"
MAX_TIME = 1.05
"""The goal for the time of `auto` with a feed, over that of the best other way."""
WORDS = {
    "fleet": "`fleet`, feed",
    "makespan": "`makespan`, feed",
    "list": "`list`, feed",
    "milp": "`milp`, feed",
    "auto": "`auto`, feed",
    "no-feed": "`auto`, a DataLoader each",
    "list-no-feed": "`list`, a DataLoader each",
    "tensorsocket": "`auto`, TensorSocket",
    "list-tensorsocket": "`list`, TensorSocket",
}
HEADS = (
    "planner, samples from",
    "time to train, s",
    "of `list`",
    "of the bound",
    "members at once",
    "at one position",
    "samples prepared",
    "CPU of preparing, s",
    "of no feed",
    "rescales",
    "test loss",
    "test accuracy",
)


@dataclass(frozen=True)
class MemberResult:
    """What came of a member.

    Attributes:
        name: Its name.
        seconds: From the submission of the ensemble to its end.
        samples: Samples that it has trained on.
        test_loss: Mean loss on pictures that no member trains on; not a number: it has not said.
        test_accuracy: Share of these that it recognises; as before.
    """

    name: str
    seconds: float
    samples: int
    test_loss: float
    test_accuracy: float


@dataclass(frozen=True)
class EnsembleRun:
    """One training of the ensemble.

    Attributes:
        variant: In which way.
        seconds: From its submission to the end of its last member.
        prepared: Samples that were prepared.
        preparing_cpu_seconds: CPU time of that.
        members_at_once: Members that trained at the same time, on average.
        rescales: Changes of GPUs of members that trained.
        planners: Who divided the GPUs, one after the other.
        left: Processes that were there at the end, and had to be killed.
        members: The members.
        members_together: Members that trained at about one position, on average while any did; 0: not known.
    """

    variant: str
    seconds: float
    prepared: int
    preparing_cpu_seconds: float
    members_at_once: float
    rescales: int
    planners: tuple[str, ...]
    left: int
    members: tuple[MemberResult, ...]
    members_together: float = 0.0

    @staticmethod
    def of(content: Mapping[str, Any]) -> EnsembleRun:
        """The run of a JSON object."""
        members = tuple(MemberResult(**each) for each in content["members"])
        return EnsembleRun(**{**content, "planners": tuple(content["planners"]), "members": members})


@dataclass(frozen=True)
class Summary:
    """Runs of one variant, by their medians.

    Attributes:
        variant: The variant.
        seconds: Time to train.
        of_list: That time over that of `list`; None where it was not run.
        of_bound: That time over the lower bound.
        members_at_once: As of a run.
        members_together: As of a run.
        prepared: As of a run.
        preparing_cpu_seconds: As of a run.
        cpu_share: That time over that without a feed; None where it was not run.
        rescales: As of a run.
        test_loss: Mean of the members.
        test_accuracy: Mean of the members.
    """

    variant: str
    seconds: float
    of_list: float | None
    of_bound: float
    members_at_once: float
    members_together: float
    prepared: int
    preparing_cpu_seconds: float
    cpu_share: float | None
    rescales: int
    test_loss: float
    test_accuracy: float

    @property
    def max_cpu_share(self) -> float:
        """The goal for `cpu_share`: 1.2 divided by the number of members that can share.

        Members of a flotilla begin together. Those at other positions need other samples, so that nobody can share with
        them; where positions are not known, all that train at once count.
        """
        return 1.2 / (self.members_together or self.members_at_once)


def by_variant(runs: Iterable[EnsembleRun]) -> dict[str, list[EnsembleRun]]:
    """Runs of each variant, in the order of the first ones."""
    found: dict[str, list[EnsembleRun]] = {}
    for run in runs:
        found.setdefault(run.variant, []).append(run)
    return found


def summaries(runs: Iterable[EnsembleRun], bound: float) -> list[Summary]:
    """One line for each variant.

    Args:
        runs: All runs.
        bound: Seconds below which no schedule trains the ensemble.
    """
    groups = by_variant(runs)
    reference = statistics.median(run.seconds for run in groups[REFERENCE]) if REFERENCE in groups else None
    alone = statistics.median(run.preparing_cpu_seconds for run in groups[ALONE]) if ALONE in groups else None
    return [_summary(group, bound, reference, alone) for group in groups.values()]


def _summary(group: Sequence[EnsembleRun], bound: float, reference: float | None, alone: float | None) -> Summary:
    seconds = statistics.median(run.seconds for run in group)
    cpu = statistics.median(run.preparing_cpu_seconds for run in group)
    members = [member for run in group for member in run.members]
    return Summary(
        group[0].variant,
        seconds,
        seconds / reference if reference else None,
        seconds / bound,
        statistics.median(run.members_at_once for run in group),
        statistics.median(run.members_together for run in group),
        round(statistics.median(run.prepared for run in group)),
        cpu,
        cpu / alone if alone else None,
        round(statistics.median(run.rescales for run in group)),
        statistics.fmean(member.test_loss for member in members),
        statistics.fmean(member.test_accuracy for member in members),
    )


def table_of_variants(found: Sequence[Summary], missing: Mapping[str, str] | None = None) -> str:
    """A table in Markdown.

    Args:
        found: What was run.
        missing: Variants that were not, with the reason.
    """
    rows: list[tuple[object, ...]] = [_row(each) for each in found]
    rows += [(WORDS[variant], why, *[None] * (len(HEADS) - 2)) for variant, why in (missing or {}).items()]
    return table(HEADS, rows)


def _row(each: Summary) -> tuple[object, ...]:
    return (
        WORDS[each.variant],
        f"{each.seconds:.1f}",
        _ratio(each.of_list),
        _ratio(each.of_bound),
        f"{each.members_at_once:.1f}",
        f"{each.members_together:.1f}" if each.members_together else None,
        f"{each.prepared:,}",
        f"{each.preparing_cpu_seconds:.1f}",
        _ratio(each.cpu_share),
        each.rescales,
        f"{each.test_loss:.3f}",
        f"{each.test_accuracy:.2f}",
    )


def _ratio(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f}"


def table_of_members(runs: Iterable[EnsembleRun]) -> str:
    """Loss and accuracy of each member on pictures that none trains on, by variant; means of the repeats."""
    groups = by_variant(runs)
    names = [member.name for member in next(iter(groups.values()))[0].members]
    rows = [
        (WORDS[variant], *(_member(group, place) for place in range(len(names)))) for variant, group in groups.items()
    ]
    return table(("test loss, accuracy", *names), rows)


def _member(group: Sequence[EnsembleRun], place: int) -> str:
    found = [run.members[place] for run in group]
    loss, accuracy = (
        statistics.fmean(values) for values in zip(*((m.test_loss, m.test_accuracy) for m in found), strict=True)
    )
    return f"{loss:.3f}, {accuracy:.2f}"


@dataclass(frozen=True)
class Goal:
    """A goal, and whether it is met.

    Attributes:
        words: What was wanted and what was found, for people.
        met: Whether it is met.
    """

    words: str
    met: bool


def goals(found: Sequence[Summary]) -> list[Goal]:
    """Whether sharing pays, as docs/fleet.md wants it.

    Preparing costs at most 1.2 / N of its CPU time without a feed, for each variant that shares samples; and `auto`
    with the feed takes at most 1.05 times as long as the best other way.
    """
    shares = [each for each in found if each.cpu_share is not None and not each.variant.endswith(ALONE)]
    return [*(_cpu_goal(each, each.cpu_share) for each in shares if each.cpu_share is not None), *_time_goal(found)]


def _cpu_goal(each: Summary, share: float) -> Goal:
    return Goal(
        f"{WORDS[each.variant]}: {share:.2f} of the CPU time of preparing; the goal is at most "
        f"{each.max_cpu_share:.2f} with {_members(each)}",
        share <= each.max_cpu_share,
    )


def _members(each: Summary) -> str:
    at_once = f"{each.members_at_once:.1f} members at once"
    if not each.members_together:
        return at_once
    all_at_once = f"{1.2 / each.members_at_once:.2f} if all {at_once} were"
    return f"{each.members_together:.1f} members at one position, {all_at_once}"


def positions_apart(positions: Iterable[int], near: int) -> int:
    """How many groups of members there are, of which none is nearer to another than some samples.

    Args:
        positions: Samples that each member has trained on.
        near: Members that are at most so far from the next one are in one group.
    """
    ordered = sorted(positions)
    return sum(after - before > near for before, after in pairwise(ordered)) + bool(ordered)


def _time_goal(found: Sequence[Summary]) -> list[Goal]:
    chosen = next((each for each in found if each.variant == CHOSEN), None)
    others = [each for each in found if each.variant != CHOSEN]
    if chosen is None or not others:
        return []
    best = min(others, key=lambda each: each.seconds)
    ratio = chosen.seconds / best.seconds
    words = f"{WORDS[CHOSEN]}: {ratio:.2f} of the time of the best other way ({WORDS[best.variant]})"
    return [Goal(f"{words}; the goal is at most {MAX_TIME:.2f}", ratio <= MAX_TIME)]
