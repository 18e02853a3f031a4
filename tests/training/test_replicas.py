"""Replicas of several workers (HSDP) over changes of scale and losses: a lost one costs no step of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch")

from tests.support.generations import Launcher
from tests.support.waiting import wait_until
from tests.training.test_fsdp import (
    PATIENCE,
    SCRIPT,
    VARIABLES,
    complete,
    notes,
    resumed,
    said,
    same_bits,
    stepped,
    train_at,
)

pytestmark = [pytest.mark.training, pytest.mark.timeout(300)]

# Far apart, so that a kill comes between two steps.
SLOW = ("--step-seconds", "0.15", "--checkpoint-seconds", "600")


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    variables = {**VARIABLES, "MALLETRAIN_NODES_PER_REPLICA": "2"}
    return Launcher(SCRIPT, tmp_path, variables, ("malletrain.client.fsdp", "malletrain.client.replicas"))


def test_replicas_come_and_go_bit_by_bit(launcher: Launcher) -> None:
    from tests.training.fsdp_reference import Unsharded
    from tests.training.fsdp_trainer import BATCH

    for workers in (4, 2, 6):
        train_at(launcher, workers, 5, "--exact")
    steps = sorted(
        (line for line in notes(launcher.folder) if line["event"] == "stepped"), key=lambda line: line["samples"]
    )
    assert [line["samples"] for line in steps] == list(range(0, len(steps) * BATCH, BATCH))
    reference = Unsharded(exact=True)
    for number, line in enumerate(steps):
        assert same_bits(line, reference.step(number)), f"step {number}"
    joined = [line for line in notes(launcher.folder) if line["event"] == "loaded"]
    assert {line["bytes"] for line in joined if line["workers"] == 6} == {
        line["bytes"] for line in joined if line["workers"] == 2
    }, "a worker's part does not depend on the number of replicas"


@pytest.mark.parametrize("copies", [(), ("--copy-seconds", "0.1")])
@pytest.mark.parametrize("lost", [(0,), (2,), (3,), (0, 1)])
def test_a_lost_replica_costs_no_step_of_the_other(
    launcher: Launcher, lost: tuple[int, ...], copies: tuple[str, ...]
) -> None:
    from tests.training.fsdp_trainer import BATCH

    folder = launcher.folder
    with launcher.generation(4, *SLOW, *copies) as running:
        wait_until(lambda: len(stepped(folder, 4)) >= 5, PATIENCE, "steps")
        codes = running.lose(*lost)
    assert {code for rank, code in enumerate(codes) if rank not in lost} == {0}, said(folder)
    before = stepped(folder, 4)
    last = max(before)
    saved = complete(folder)[-1]
    assert saved >= last + BATCH, "the last step that was noted is there"
    loaded = resumed(launcher, 2)
    assert {line["samples"] for line in loaded} == {saved}
    if saved == last + BATCH:
        assert {line["digest"] for line in loaded} == {before[last]["digest"]}


@pytest.mark.parametrize("lost", [(0, 3), (0, 2), (0, 1, 2)])
def test_a_loss_in_each_replica_costs_the_steps_since_the_last_copy(launcher: Launcher, lost: tuple[int, ...]) -> None:
    folder = launcher.folder
    with launcher.generation(4, "--checkpoint-seconds", "600", "--copy-seconds", "0.1") as running:
        wait_until(lambda: len(stepped(folder, 4)) >= 40, PATIENCE, "steps with copies")
        running.lose(*lost)
    found = complete(folder)
    assert found, said(folder)
    assert {line["samples"] for line in resumed(launcher, 2)} == {found[-1]}


def test_workers_that_are_no_whole_replicas_are_refused(launcher: Launcher) -> None:
    with launcher.generation(3) as running:
        assert running.join(PATIENCE) == [1, 1, 1]
    assert "workers_per_replica: expected a divisor of the 3 workers, got 2" in said(launcher.folder)
