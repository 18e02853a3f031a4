"""What a check says, from what it has seen: without any process."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest

from malletrain.cli.check.findings import best_of, judge
from malletrain.cli.check.observations import CheckPart, End, Report, ScriptTrial, Step, commit_pause
from malletrain.cli.check.running import CheckRequest, backends_for, observed_command, trainer_python
from malletrain.cli.check.trying import Limits

BATCH = 2
RATE = 0.1


def step(number: int, rank: int = 0, workers: int = 1, **changed: object) -> Step:
    """A step of a faultless training: the weights are the samples trained before and after it."""
    first = number + rank * BATCH
    plain = Step(
        rank=rank,
        workers=workers,
        seconds=100.0 + number,
        size=BATCH,
        rows=tuple(range(first, first + BATCH)),
        loss=1.0,
        rates=(RATE * workers,),
        before=float(number + 1),
        after=float(number + 1 + BATCH * workers),
        sharded=False,
    )
    return dataclasses.replace(plain, **changed)  # type: ignore[arg-type]


def report(number: int, workers: int = 1) -> Report:
    return Report(100.0 + number, BATCH * workers, number + BATCH * workers, workers)


def phase(numbers: Sequence[int], workers: int = 1, **changed: object) -> CheckPart:
    steps = tuple(step(number, rank, workers) for number in numbers for rank in range(workers))
    plain = CheckPart(End.DONE, tuple(report(number, workers) for number in numbers), steps, boot_seconds=1.0)
    return dataclasses.replace(plain, **changed)  # type: ignore[arg-type]


def apart() -> tuple[Step, ...]:
    """Two workers whose weights differ."""
    return tuple(
        step(number, rank, 2, after=float(number + 5 + 10 * rank)) for number in range(40, 80, 4) for rank in range(2)
    )


def elsewhere() -> tuple[Step, ...]:
    """Two workers with samples that others had before."""
    return tuple(
        step(number, rank, 2, rows=(number + 2 * rank - 20, number + 2 * rank - 19))
        for number in range(40, 80, 4)
        for rank in range(2)
    )


GOOD = ScriptTrial(
    "torchrun",
    phase(range(0, 20, 2), stop_seconds=1.0),
    phase(range(20, 40, 2)),
    phase(range(40, 80, 4), workers=2),
    phase(range(0, 100, 2)),
)


def codes(trial: ScriptTrial) -> list[str]:
    return [finding.code for finding in judge(trial).findings]


def with_steps(part: CheckPart, **changed: object) -> CheckPart:
    return dataclasses.replace(part, steps=tuple(dataclasses.replace(one, **changed) for one in part.steps))  # type: ignore[arg-type]


def test_a_good_script_has_no_findings() -> None:
    verdict = judge(GOOD)
    assert verdict.findings == ()
    assert verdict.fits
    assert {text.partition(":")[0] for text in verdict.answers.values()} <= {"yes", "unknown"}
    assert verdict.answers["goes on with the next sample"] == "yes"


@pytest.mark.parametrize(
    ("part", "changed", "code"),
    [
        ("first", phase((), end=End.ENDED), "ends"),
        ("first", phase((), end=End.SILENT), "hangs"),
        ("first", phase(range(0, 20, 2), reports=(), stop_seconds=1.0), "no_report"),
        ("first", phase(range(0, 20, 2), stop_seconds=30.0, killed=True), "does_not_stop"),
        ("first", phase(range(0, 6, 2), end=End.ENDED), "too_few_batches"),
        ("first", phase(range(0, 6, 2), end=End.SILENT), "too_few_batches"),
        ("resumed", phase(range(20, 24, 2), end=End.ENDED), "too_few_batches"),
        ("resumed", phase((), end=End.ENDED), "does_not_resume"),
        ("resumed", phase(range(0, 20, 2)), "does_not_resume"),
        ("resumed", with_steps(phase(range(20, 40, 2)), before=-1.0), "weights_not_restored"),
        ("resumed", phase(range(16, 36, 2)), "save_on_stop"),
        ("grown", phase((), end=End.ENDED), "two_workers"),
        ("grown", with_steps(phase(range(40, 80, 4), workers=2), rates=(RATE,)), "learning_rate"),
        ("grown", with_steps(phase(range(40, 80, 4), workers=2), rows=(1, 2)), "same_samples"),
        ("grown", with_steps(phase(range(40, 80, 4), workers=2), loss=50.0), "losses"),
        ("resumed", phase(range(20, 40, 2), reports=tuple(report(number) for number in range(0, 20, 2))), "position"),
        ("grown", phase(range(40, 80, 4), workers=2, steps=apart()), "not_synchronised"),
        ("grown", phase(range(40, 80, 4), workers=2, steps=elsewhere()), "samples_at_two_workers"),
    ],
)
def test_one_fault_is_one_finding(part: str, changed: CheckPart, code: str) -> None:
    parts = ("first", "resumed", "grown")
    # What ends by itself is not tried any further.
    later = parts[parts.index(part) + 1 :] if changed.end is not End.DONE else ()
    found: dict[str, CheckPart | None] = {part: changed, **dict.fromkeys(later)}
    trial = dataclasses.replace(GOOD, **found)  # type: ignore[arg-type]
    assert codes(trial) == [code]
    assert all(finding.change for finding in judge(trial).findings)


def sharded(part: CheckPart | None) -> CheckPart:
    """The same with divided weights: two workers see other parts of them than one did."""
    assert part is not None
    return with_steps(part, sharded=True, **({"before": -1.0, "after": -2.0} if part.steps[0].workers > 1 else {}))


SHARDED = ScriptTrial(
    "torchrun", sharded(GOOD.first), sharded(GOOD.resumed), sharded(GOOD.grown), sharded(GOOD.reference)
)


def test_divided_weights_are_followed_by_the_position_to_two_workers() -> None:
    assert judge(SHARDED).answers == judge(GOOD).answers
    grown = dataclasses.replace(phase(range(40, 80, 4), workers=2), steps=elsewhere())
    assert codes(dataclasses.replace(SHARDED, grown=sharded(grown))) == ["samples_at_two_workers"]
    assert codes(dataclasses.replace(SHARDED, resumed=sharded(phase(range(16, 36, 2))))) == ["save_on_stop"]
    silent = dataclasses.replace(sharded(GOOD.grown), reports=())
    answers = judge(dataclasses.replace(SHARDED, grown=silent)).answers
    assert answers["goes on with the next sample"] == "yes after a stop; after the growth unknown"


def test_a_local_batch_is_told_from_a_constant_one() -> None:
    grown = phase(range(40, 80, 4), workers=2)
    local = tuple(dataclasses.replace(one, samples=BATCH) for one in grown.reports)
    assert codes(dataclasses.replace(GOOD, grown=dataclasses.replace(grown, reports=local))) == ["local_batch"]
    halves = tuple(
        step(number, rank, 2, size=1, rows=(number + rank,), rates=(RATE,), after=float(number + 3))
        for number in range(40, 60, 2)
        for rank in range(2)
    )
    held = dataclasses.replace(grown, steps=halves, reports=tuple(report(number) for number in range(40, 60, 2)))
    assert codes(dataclasses.replace(GOOD, grown=held)) == []


def test_data_that_begin_again_are_a_finding_and_a_random_order_is_unknown() -> None:
    again = phase(range(20, 40, 2))
    rows = [one.rows for one in GOOD.first.steps]
    begun = tuple(dataclasses.replace(one, rows=old) for one, old in zip(again.steps, rows, strict=True))
    trial = dataclasses.replace(GOOD, resumed=dataclasses.replace(again, steps=begun))
    assert codes(trial) == ["loader_not_resumed"]
    other = with_steps(phase(range(0, 100, 2)), rows=(7, 8))
    verdict = judge(dataclasses.replace(trial, reference=other))
    assert verdict.findings == ()
    assert verdict.answers["goes on with the next sample"].startswith("unknown: the order")


def test_a_pause_counts_only_if_it_follows_each_request() -> None:
    times = [0.0, 1.0, 2.0, 3.0, 6.0, 7.0, 8.0, 9.0, 10.0, 13.0, 14.0]
    steps = tuple(step(number, seconds=seconds) for number, seconds in enumerate(times))
    assert commit_pause(CheckPart(End.DONE, (), steps, commits=(2.5, 9.5)), 1.5) == pytest.approx(2.0)
    assert commit_pause(CheckPart(End.DONE, (), steps, commits=(2.5, 6.5)), 1.5) == pytest.approx(0.0)
    assert commit_pause(CheckPart(End.DONE, (), steps), 1.5) is None


def test_the_backend_that_fits_wins() -> None:
    bad = judge(dataclasses.replace(GOOD, backend="horovod", first=phase((), end=End.ENDED)))
    best = best_of([bad, judge(GOOD)])
    assert best is not None
    assert best.backend == "torchrun"
    assert not bad.fits


def test_python_is_run_under_observation_and_other_programs_as_they_are() -> None:
    command, observed = observed_command(["python", "-u", "train.py", "--epochs", "3"])
    assert command == ("python", "-u", "-m", "malletrain.client.observe", "script", "train.py", "--epochs", "3")
    assert observed
    assert observed_command(["./train.sh", "3"]) == (("./train.sh", "3"), False)
    assert trainer_python(["/opt/env/bin/python", "train.py"]) == "/opt/env/bin/python"
    assert Path(trainer_python(["python", "train.py"])).is_absolute()


ANY, ONLY_TORCHRUN, ONLY_HOROVOD = ("torchrun", "horovod"), ("torchrun",), ("horovod",)


@pytest.mark.parametrize(
    ("text", "backends"),
    [
        ("import torch", ONLY_TORCHRUN),
        ("from malletrain.client.elastic import init", ANY),
        ("from malletrain.client import elastic", ANY),
        ("import malletrain.client.elastic as elastic", ANY),
        ("def train():\n    import horovod.torch as hvd", ONLY_HOROVOD),
        ("import horovod", ONLY_HOROVOD),
        ("from horovod import torch as hvd", ONLY_HOROVOD),
        ("from malletrain.client.horovod import ElasticTraining", ONLY_HOROVOD),
        ("# not for horovod, nor malletrain.client.elastic\nimport torch", ONLY_TORCHRUN),
        ("print('import horovod')", ONLY_TORCHRUN),
        ("import horovods", ONLY_TORCHRUN),
        ("from .horovod import a", ONLY_TORCHRUN),
        ("import horovod as (", ONLY_TORCHRUN),
    ],
)
def test_the_imports_of_a_script_say_for_which_backends_it_is_made(
    tmp_path: Path, text: str, backends: tuple[str, ...]
) -> None:
    pytest.importorskip("horovod", reason="needs Horovod")
    (tmp_path / "train.py").write_text(text)
    assert backends_for(CheckRequest(("python", "train.py"), tmp_path, Limits(10, 1.0, 1.0))) == backends
