"""Replicas of two stages of two workers each (pipeline and tensor parallelism), over changes of scale and losses."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch")

from tests.support.generations import Launcher
from tests.support.waiting import wait_until
from tests.training.accounts import lines_in
from tests.training.parallel import STEP, check_samples, curve, farthest, noting_copy
from tests.training.test_fsdp import VARIABLES, complete, said

pytestmark = [pytest.mark.training, pytest.mark.timeout(1200)]

PATIENCE = 400.0
MODULES = ("malletrain.client.fsdp", "malletrain.client.replicas", "torch.distributed.pipelining")
CLOSE = 1e-3
"""Largest difference of a step's loss to that of an undisturbed training: float32, summed in another order."""


def launcher(folder: Path, per_replica: int = 4) -> Launcher:
    folder.mkdir(exist_ok=True)
    variables = {**VARIABLES, "MALLETRAIN_NODES_PER_REPLICA": str(per_replica)}
    return Launcher(noting_copy(folder), folder, variables, MODULES)


def train_until(one: Launcher, workers: int, samples: int, *arguments: str) -> None:
    """Train until so many samples have been reached, then have all save and leave."""
    with one.generation(workers, *arguments) as running:
        wait_until(lambda: reached(one.folder) >= samples, PATIENCE, f"{samples} samples")
        assert running.stop() == [0] * workers, said(one.folder)


def reached(folder: Path) -> int:
    return max((line["reached"] for line in lines_in(folder)), default=0)


def test_a_training_does_not_depend_on_how_its_model_is_divided(tmp_path: Path) -> None:
    apart = launcher(tmp_path / "apart")
    train_until(apart, 4, 6 * STEP)
    # The same job with shards besides: what stages and parts of layers have saved is divided anew.
    more = launcher(tmp_path / "apart", 8)
    train_until(more, 8, 12 * STEP, "--shard", "2")
    train_until(apart, 8, 18 * STEP)
    # And the whole model in one process.
    train_until(launcher(tmp_path / "apart", 1), 1, 22 * STEP, "--pipeline", "1", "--tensor", "1")
    whole = launcher(tmp_path / "whole", 1)
    train_until(whole, 1, reached(apart.folder), "--pipeline", "1", "--tensor", "1")
    lines, expected = lines_in(apart.folder), curve(lines_in(whole.folder))
    assert {line["size"] for line in lines} == {4, 8, 1}
    assert check_samples(lines, 4) == reached(apart.folder)
    found = curve(lines)
    distance = farthest(found, {before: expected[before] for before in found})
    print(f"largest difference of a step's loss to one process: {distance:.2g} in {len(found)} steps")
    assert distance < CLOSE


@pytest.mark.parametrize("lost", [(1,), (6,), (4, 5, 6, 7)])
def test_a_lost_replica_costs_no_step_of_the_other(tmp_path: Path, lost: tuple[int, ...]) -> None:
    one = launcher(tmp_path / "job")
    # Without copies: what counts is what the other replica writes.
    with one.generation(8, "--step-seconds", "0.2") as running:
        wait_until(lambda: reached(one.folder) >= 4 * STEP, PATIENCE, "steps")
        codes = running.lose(*lost)
    assert {code for rank, code in enumerate(codes) if rank not in lost} == {0}, said(one.folder)
    before = reached(one.folder)
    assert complete(one.folder)[-1] >= before, said(one.folder)
    train_until(one, 4, before + 3 * STEP)
    lines = lines_in(one.folder)
    assert {line["before"] for line in lines if line["size"] == 4} >= {before}
    assert check_samples(lines, 4) == reached(one.folder)


def test_sizes_that_are_no_replica_are_refused(tmp_path: Path) -> None:
    one = launcher(tmp_path / "job")
    with one.generation(4, "--tensor", "3") as running:
        assert running.join(PATIENCE) == [1] * 4
    expected = "tensor: expected a divisor of 2, of 4 workers of a replica (nodes_per_replica × slots), got 3"
    assert expected in said(one.folder)
