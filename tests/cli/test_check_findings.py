"""What a check says, from what it has seen: without any process."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from malletrain.cli.check.command import (
    CheckRequest,
    backends_for,
    observing_environment,
    trainer_python,
)
from malletrain.cli.check.findings import best_of, judge
from malletrain.cli.check.observations import (
    CheckPart,
    End,
    Report,
    ScriptTrial,
    Step,
    awaits_save,
    commit_pause,
)
from malletrain.cli.check.trying import Limits
from malletrain.common.environment import PREIMPORT
from malletrain.common.script_reading import read_script

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
        together=workers,
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
        ("first", phase((), end=End.SILENT, busy=True), "no_batch_seen"),
        ("resumed", phase(range(20, 40, 2), overwritten=("/job/state.pt",)), "saves_in_place"),
        ("first", phase(range(0, 20, 2), stop_seconds=1.0, evaluated=(119.0, 140.0)), "long_evaluation"),
        ("grown", with_steps(phase(range(40, 80, 4), workers=2), together=1), "separate_models"),
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


def warming_up(numbers: Sequence[int], changed_by: float, **changed: object) -> CheckPart:
    """A part whose first two steps change the fingerprint of the weights by so little, in parts of it."""
    steps = list(phase(numbers).steps)
    first = steps[0].before
    steps[0] = dataclasses.replace(steps[0], after=first * (1 + changed_by))
    steps[1] = dataclasses.replace(steps[1], before=first * (1 + changed_by), after=first * (1 + 2 * changed_by))
    return phase(numbers, steps=tuple(steps), **changed)


@pytest.mark.parametrize("changed_by", [0.0, 1e-11])
def test_a_beginning_that_hardly_changes_the_weights_is_still_a_beginning(changed_by: float) -> None:
    """A warm-up begins with a tiny learning rate: the first steps are no checkpoint to go on from."""
    first = warming_up(range(0, 20, 2), changed_by, stop_seconds=1.0)
    assert codes(dataclasses.replace(GOOD, first=first, resumed=phase(range(0, 20, 2)))) == ["does_not_resume"]
    assert codes(dataclasses.replace(GOOD, first=first)) == []
    if changed_by:  # otherwise nothing tells the second step from the beginning
        second = with_steps(phase(range(2, 22, 2)), before=1 + changed_by)
        assert codes(dataclasses.replace(GOOD, first=first, resumed=second)) == ["save_on_stop"]


def test_a_training_that_changes_no_weights_goes_on() -> None:
    still = [with_steps(part, before=1.0, after=1.0) for part in (GOOD.first, GOOD.resumed, GOOD.grown) if part]
    trial = dataclasses.replace(GOOD, first=still[0], resumed=still[1], grown=still[2])
    assert judge(trial).answers["resumes"] == "yes"


def test_what_begins_again_is_told_whether_it_had_saved() -> None:
    again = dataclasses.replace(GOOD, resumed=phase(range(0, 20, 2)))
    assert "no save was seen" in judge(again).findings[0].what
    assert "once in an epoch" in judge(again).findings[0].change
    saving = dataclasses.replace(again, first=dataclasses.replace(GOOD.first, saves=("/run/last.pt",)))
    assert "it had saved /run/last.pt" in judge(saving).findings[0].what
    assert "load the newest" in judge(saving).findings[0].change


def test_a_script_that_can_only_save_in_intervals_is_stopped_some_steps_after_a_save() -> None:
    steps = [step(number, heeds_stop=False) for number in range(10)]
    assert awaits_save(steps, (), 3)
    assert awaits_save(steps, (106.5,), 4)
    assert not awaits_save(steps, (106.5,), 3)
    assert not awaits_save(steps, (102.5, 108.5), 3), "a later save does not make it begin again"
    assert not awaits_save([step(number) for number in range(10)], (), 3), "it saves when it is asked to leave"
    assert not awaits_save([], (), 3), "nothing is known of it"


def test_a_rate_that_a_warm_up_hides_follows_the_batch() -> None:
    assert GOOD.grown is not None
    assert GOOD.reference is not None
    hidden = {"rates": (0.001,)}
    grown = with_steps(GOOD.grown, **hidden, base_rates=(2 * RATE,))
    reference = with_steps(GOOD.reference, **hidden, base_rates=(RATE,))
    verdict = judge(dataclasses.replace(GOOD, grown=grown, reference=reference))
    assert verdict.findings == ()
    assert verdict.answers["learning rate follows the batch"].startswith("yes: before the schedule 0.1 with 1 worker")
    same = with_steps(GOOD.grown, **hidden, base_rates=(RATE,))
    assert codes(dataclasses.replace(GOOD, grown=same, reference=reference)) == ["learning_rate"]


def test_an_error_of_the_script_with_two_workers_is_named_and_no_other_fault_is_guessed() -> None:
    traceback = """[rank0]: Traceback (most recent call last):
[rank0]:   File "train.py", line 3, in <module>
[rank0]:     wrap(model)
[rank0]: ValueError: device_ids only work with GPU modules
"""
    failed = phase((), end=End.ENDED, log=traceback)
    finding = judge(dataclasses.replace(GOOD, grown=failed)).findings[0]
    assert finding.code == "two_workers"
    assert finding.what.endswith("an error of its own: ValueError: device_ids only work with GPU modules")
    assert "mend that error" in finding.change
    soon = phase(range(0, 20, 2), end=End.ENDED, log=traceback, stop_seconds=0.0)
    early = judge(dataclasses.replace(GOOD, first=soon, resumed=None, grown=None, reference=None)).findings[0]
    assert early.code == "fails"
    assert early.what == (
        "after 10 batches it ended with an error of its own: ValueError: device_ids only work with GPU modules"
    )
    for part in ("first", "resumed"):
        later = {"grown": None, "reference": None}
        named = judge(dataclasses.replace(GOOD, **{**later, part: failed})).findings[0]  # type: ignore[arg-type]
        assert named.what.endswith(": ValueError: device_ids only work with GPU modules")
    lost = phase((), end=End.ENDED, log=traceback.replace("device_ids only", "TCPStore: failed to recv"))
    assert "process group" in judge(dataclasses.replace(GOOD, grown=lost)).findings[0].change


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


def test_python_imports_the_observer_and_what_other_programs_start_does(tmp_path: Path) -> None:
    def environment(backend: str, *words: str, **own: str) -> dict[str, str]:
        return observing_environment(CheckRequest(words, tmp_path, Limits(10, 1.0, 1.0), environment=own), backend)

    assert environment("torchrun", "python", "train.py", A="1") == {"A": "1", PREIMPORT: "malletrain.client.observing"}
    for backend, words in (("command", ("python", "train.py")), ("torchrun", ("./train.sh", "3"))):
        site, *others = environment(backend, *words, PYTHONPATH="/mine")["PYTHONPATH"].split(":")
        assert Path(site, "sitecustomize.py").is_file()
        assert others == ["/mine"]
    assert trainer_python([sys.executable, "train.py"], Path("/")) == sys.executable
    assert Path(trainer_python(["python", "train.py"], Path("/"))).is_absolute()
    for python in ("/opt/none/bin/python", "bin/python"):  # none, and one that can't run a supervisor
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin/python").write_text("#!/bin/false\n")
        (tmp_path / "bin/python").chmod(0o755)
        assert trainer_python([python, "train.py"], tmp_path) == sys.executable


def scheduled(part: CheckPart, speed: float) -> CheckPart:
    """The same with a schedule that makes some steps per step of the optimizer."""
    numbers = sorted({one.seconds for one in part.steps})
    steps = [dataclasses.replace(one, schedule=(100, int(speed * numbers.index(one.seconds)))) for one in part.steps]
    return dataclasses.replace(part, steps=tuple(steps))


@pytest.mark.parametrize(("speed", "found"), [(1.0, ["schedule"]), (2.0, []), (4.0, ["schedule"])])
def test_a_schedule_of_a_fixed_length_has_to_follow_the_samples(speed: float, found: list[str]) -> None:
    grown = GOOD.grown
    assert grown is not None
    trial = dataclasses.replace(GOOD, first=scheduled(GOOD.first, 1.0), grown=scheduled(grown, speed))
    assert codes(trial) == found


def test_reports_that_did_not_arrive_before_the_end_are_no_fault() -> None:
    first = dataclasses.replace(GOOD.first, reports=GOOD.first.reports[:-3])
    assert codes(dataclasses.replace(GOOD, first=first)) == []
    unseen = dataclasses.replace(first, steps=())
    resumed = dataclasses.replace(phase(range(20, 40, 2)), steps=())
    answers = judge(dataclasses.replace(GOOD, first=unseen, resumed=resumed)).answers
    assert answers["resumes"].startswith("yes, by the position")
    back = dataclasses.replace(phase(range(10, 30, 2)), steps=())
    assert "save_on_stop" in codes(dataclasses.replace(GOOD, first=unseen, resumed=back))


def test_reports_that_have_not_arrived_yet_are_no_fault() -> None:
    first = dataclasses.replace(with_steps(GOOD.first, reported=1), reports=())
    verdict = judge(dataclasses.replace(GOOD, first=first))
    assert verdict.findings == ()
    assert verdict.answers["reports"].startswith("yes")


def test_of_a_script_without_steps_of_torch_nothing_is_said_but_by_its_reports() -> None:
    def unseen(part: CheckPart | None) -> CheckPart | None:
        return None if part is None else dataclasses.replace(part, steps=())

    trial = dataclasses.replace(
        GOOD,
        first=phase(range(0, 20, 2), stop_seconds=1.0, steps=()),
        resumed=unseen(GOOD.resumed),
        grown=unseen(GOOD.grown),
        reference=unseen(GOOD.reference),
    )
    verdict = judge(trial)
    assert not verdict.findings
    known = {question for question, answer in verdict.answers.items() if not answer.startswith("unknown")}
    assert known == {"trains", "reports", "trains for long enough", "stops", "resumes"}
    assert not verdict.unsure
    mute = dataclasses.replace(
        GOOD.first, reports=tuple(dataclasses.replace(one, position=None) for one in GOOD.first.reports)
    )
    assert judge(dataclasses.replace(trial, first=dataclasses.replace(mute, steps=()))).unsure.startswith(
        "not known: whether"
    )
    ends = dataclasses.replace(trial, grown=CheckPart(End.ENDED, log="boom"))
    assert [finding.code for finding in judge(ends).findings] == ["two_workers"]


def test_a_program_that_stays_on_one_node_is_not_asked_for_two() -> None:
    trial = dataclasses.replace(GOOD, backend="command", grown=None, alone=True, kind="a.py is one process")
    verdict = judge(trial)
    assert verdict.findings == ()
    assert verdict.answers["runs as"] == "a.py is one process"
    assert "works with 2 workers" not in verdict.answers


BOTH, TORCHRUN, HOROVOD, COMMAND = ("torchrun", "horovod"), ("torchrun",), ("horovod",), ("command",)


@pytest.mark.parametrize(
    ("text", "backends"),
    [
        ("import torch", COMMAND),
        ("import torch.distributed as dist\ndist.init_process_group('gloo')", TORCHRUN),
        ("from malletrain.client.elastic import init", BOTH),
        ("def train():\n    import horovod.torch as hvd\n    hvd.init()", HOROVOD),
        ("from malletrain.client.horovod import ElasticTraining", HOROVOD),
        ("print('import horovod')", COMMAND),
        ("import horovod as (", ("torchrun", "command")),
    ],
)
def test_the_kind_of_a_script_says_which_backends_are_tried(
    tmp_path: Path, text: str, backends: tuple[str, ...]
) -> None:
    pytest.importorskip("horovod", reason="needs Horovod")
    (tmp_path / "train.py").write_text(text)
    assert backends_for(read_script(("python", "train.py"), tmp_path)) == backends
