from __future__ import annotations

import random

import pytest

pytest.importorskip("torch", reason="needs torch")

import numpy
import torch

from malletrain.client.feed import SharedSamples
from malletrain.client.feeding.seeding import Preparation, seed_of
from malletrain.client.sampling import EpochOrder, plain_batches


class Drawn:
    """A dataset whose samples are random numbers only."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[float, float, float]:
        return random.random(), float(numpy.random.rand()), torch.rand(()).item()


def test_the_random_numbers_of_a_sample_depend_on_seed_pass_and_number_only() -> None:
    one = [Preparation(Drawn(), 3, 10).prepare(number, 0) for number in range(20)]
    torch.rand(7)
    other = [Preparation(Drawn(), 3, 10).prepare(number, 5) for number in reversed(range(20))]
    assert one == other[::-1]
    assert len(set(one)) == 20
    assert set(one).isdisjoint(Preparation(Drawn(), 4, 10).prepare(number, 0) for number in range(20))


def test_the_trainings_own_random_numbers_stay_as_they_are() -> None:
    assert drawn_after(None) == drawn_after(0) == drawn_after(1)


def drawn_after(workers: int | None) -> tuple[float, float, float]:
    """Random numbers after samples have been read with so many processes; None: without any."""
    random.seed(1)
    numpy.random.seed(1)
    torch.manual_seed(1)
    if workers is not None:
        list(SharedSamples(Drawn(), plain_batches(EpochOrder(10), 4, 0, 10), workers=workers))
    return random.random(), float(numpy.random.rand()), torch.rand(()).item()


def test_seeds_differ() -> None:
    seeds = {
        seed_of(*where) for where in [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (0, 11, 1), (0, 1, 11), (-1, 0, 0)]
    }
    assert len(seeds) == 7
    assert all(0 <= seed < 1 << 63 for seed in seeds)


def test_wrong_arguments_are_named() -> None:
    batches = plain_batches(EpochOrder(9), 4)
    with pytest.raises(ValueError, match="dataset: expected 9 samples, as in the order of samples, got 10"):
        SharedSamples(Drawn(), batches)
    batches = plain_batches(EpochOrder(10), 4)
    with pytest.raises(ValueError, match="workers: expected at least 0, got -1"):
        SharedSamples(Drawn(), batches, workers=-1)
    for patience in (0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="patience_seconds: expected a finite number above 0"):
            SharedSamples(Drawn(), batches, patience_seconds=patience)


def test_a_malformed_variable_is_reported_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLETRAIN_FEED", "nonsense")
    with pytest.raises(ValueError, match="MALLETRAIN_FEED: expected MODULE:FUNCTION, got 'nonsense'"):
        SharedSamples(Drawn(), plain_batches(EpochOrder(10), 4), feed="data:f")
