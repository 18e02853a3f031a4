"""Checkpoints of compiled and of plain models: each is read by the other."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch")

import torch
import torch.distributed as dist
from torch import nn

from malletrain.client.distributed import ElasticTraining, init
from malletrain.client.replica import plain_state, state_for


def test_names_are_those_of_the_plain_model() -> None:
    assert plain_state({"_orig_mod.a.weight": 1, "b._orig_mod.bias": 2}) == {"a.weight": 1, "b.bias": 2}
    plain = {"a.weight": 1}
    assert plain_state(plain) is plain


@pytest.mark.parametrize("saved", ["a.weight", "_orig_mod.a.weight", "a._orig_mod.weight"])
@pytest.mark.parametrize("own", ["a.weight", "_orig_mod.a.weight", "a._orig_mod.weight"])
def test_a_state_gets_the_names_of_the_model_that_reads_it(saved: str, own: str) -> None:
    assert state_for({saved: 1}, {own: 0}) == {own: 1}


def test_a_name_that_the_model_does_not_have_is_left_for_it_to_refuse() -> None:
    assert state_for({"other": 1}, {"_orig_mod.a": 0}) == {"other": 1}


def network(form: str) -> nn.Module:
    """Two layers; the compiler only follows them, which needs no compiler of C++."""
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    if form == "in parts":
        model[0] = torch.compile(model[0], backend="eager")
    return torch.compile(model, backend="eager") if form == "whole" else model


@pytest.mark.parametrize("first", ["plain", "whole", "in parts"])
@pytest.mark.parametrize("second", ["plain", "whole", "in parts"])
def test_a_checkpoint_of_any_form_is_read_by_any(first: str, second: str, tmp_path: Path) -> None:
    init()
    try:
        weights = [train(form, tmp_path) for form in (first, second)]
    finally:
        dist.destroy_process_group()
    assert weights[0][1] == weights[1][0] != weights[0][0]


def train(form: str, folder: Path) -> tuple[list[float], list[float]]:
    """One step, and the checkpoint of the end; the weights before and after it."""
    model = network(form)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = ElasticTraining(model, optimizer, dataset_size=8, batch_per_worker=4, checkpoint_folder=folder)
    before = weights_of(model)

    @training.run
    def step() -> None:
        training.model(torch.ones(4, 2)).sum().backward()
        training.step()

    training.finish()
    return before, weights_of(model)


def weights_of(model: nn.Module) -> list[float]:
    return [value for weight in model.parameters() for value in weight.flatten().tolist()]
