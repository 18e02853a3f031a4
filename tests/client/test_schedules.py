"""Schedules of the learning rate follow the sample counter, whatever the number of workers."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="needs torch")

import torch
from torch.optim import lr_scheduler

from malletrain.client.schedules import SampleSchedule, move_to

STEPS, BATCH = 40, 32


def optimizer(rate: float = 1.0) -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=rate)


def one_cycle(steps: int = STEPS) -> lr_scheduler.LRScheduler:
    return lr_scheduler.OneCycleLR(optimizer(), max_lr=1.0, total_steps=steps)


def cosine(steps: int) -> lr_scheduler.LRScheduler:
    """A function, as many scripts have it."""
    return lr_scheduler.LambdaLR(optimizer(), lambda step: 0.5 * (1 + math.cos(math.pi * step / steps)))


def rate(scheduler: lr_scheduler.LRScheduler) -> float:
    return float(scheduler.get_last_lr()[0])


def follow(scheduler: lr_scheduler.LRScheduler, said: list[str] | None = None, batch: int = BATCH) -> SampleSchedule:
    scheduler.optimizer.step()
    return SampleSchedule(scheduler, batch, ([] if said is None else said).append)


@given(st.lists(st.sampled_from([1, 5, 16, 32, 48, 64, 200]), min_size=1, max_size=60))
def test_a_schedule_of_a_fixed_length_is_a_function_of_the_samples(batches: list[int]) -> None:
    schedule, plain = follow(one_cycle()), one_cycle()
    plain.optimizer.step()
    for batch in batches:
        schedule.step(batch)
    for _ in range(min(STEPS, sum(batches) // BATCH)):
        plain.step()
    assert rate(schedule.scheduler) == pytest.approx(rate(plain))


def test_no_step_is_made_beyond_the_end_and_a_wrong_length_is_told() -> None:
    said: list[str] = []
    schedule = follow(one_cycle(), said)
    for _ in range(STEPS):
        schedule.step(BATCH)
    schedule.step(BATCH)
    schedule.say_if_apart((STEPS + 1) * BATCH)
    assert said == [], "a last batch may go beyond the end"
    for _ in range(STEPS):
        schedule.step(BATCH)
    schedule.say_if_apart(2 * STEPS * BATCH)
    assert "40 steps of 32 samples" in said[0]
    assert "2560 samples" in said[0]


def restarted(
    before: SampleSchedule, made: lr_scheduler.LRScheduler, global_batch: int, said: list[str]
) -> SampleSchedule:
    """The same after a checkpoint, with a scheduler that the script has made anew."""
    state: dict[str, Any] = before.scheduler.state_dict()
    after = SampleSchedule(made, BATCH, said.append)
    own = after.rates_by_step
    made.load_state_dict(state)
    after.load_state_dict(before.state_dict())
    after.go_on(own, global_batch)
    return after


@pytest.mark.parametrize("made_for", [STEPS, 2 * STEPS, STEPS // 2])
def test_a_function_that_is_made_anew_for_the_present_scale_goes_on_at_its_place(made_for: int) -> None:
    said: list[str] = []
    global_batch = BATCH * STEPS // made_for
    before = follow(cosine(STEPS))
    for _ in range(10):
        before.step(BATCH)
    after = restarted(before, cosine(made_for), global_batch, said)
    for _ in range(10 * BATCH // global_batch):
        after.step(global_batch)
    assert after.batch == global_batch
    assert rate(after.scheduler) == pytest.approx(rate(cosine(STEPS)) / 2, abs=0.01), "half of the way is done"
    assert said == []


def test_a_function_whose_length_is_the_same_at_every_scale_goes_on_by_samples() -> None:
    before = follow(cosine(STEPS))
    for _ in range(10):
        before.step(BATCH)
    after = restarted(before, cosine(STEPS), BATCH // 2, [])
    for _ in range(20):
        after.step(BATCH // 2)
    assert after.batch == BATCH
    assert rate(after.scheduler) == pytest.approx(0.5, abs=0.01)


def test_another_function_than_before_is_told() -> None:
    said: list[str] = []
    before = follow(cosine(STEPS))
    restarted(before, cosine(5 * STEPS), BATCH, said)
    assert "schedule_batch" in said[0]


def test_functions_that_fail_at_steps_for_which_they_are_not_made_are_followed() -> None:
    table = [1.0 - step / 50 for step in range(50)]
    schedule = follow(lr_scheduler.LambdaLR(optimizer(), lambda step: table[step]))
    for _ in range(10):
        schedule.step(BATCH)
    assert rate(schedule.scheduler) == pytest.approx(0.8)


TRAININGS = """
import json, math, sys, tempfile
from pathlib import Path
import torch
from torch.optim import lr_scheduler
from malletrain.client.elastic import ElasticTraining, init

WANTED = 1280
init()

def cosine(steps):
    return lambda step: 0.5 * (1 + math.cos(math.pi * step / steps))

SCHEDULERS = {
    "one cycle": lambda optimizer, steps: lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps),
    "cosine": lambda optimizer, steps: lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps),
    "function": lambda optimizer, steps: lr_scheduler.LambdaLR(optimizer, cosine(steps)),
}

def train(folder, batch, until, make, steps, reference):
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = ElasticTraining(model, optimizer, dataset_size=64, batch_per_worker=batch, checkpoint_folder=folder,
                               reference_batch=reference)
    scheduler = make(optimizer, steps or WANTED // training.global_batch)
    training.register("scheduler", scheduler)
    rates = []
    optimizer.register_step_pre_hook(lambda stepped, *_: rates.append(stepped.param_groups[0]["lr"]))

    @training.run
    def loop():
        while training.samples < until:
            training.optimizer.zero_grad()
            training.model(torch.ones(len(training.next_indices()), 1)).sum().backward()
            training.step(scheduler.step)

    training.finish()
    return rates

found = {}
for name, make in SCHEDULERS.items():
    for reference in (None, 32):
        for steps in (0, WANTED // 32):
            if reference and not steps:
                continue
            for batches in ((32, 32, 32), (32, 16, 64)):
                folder = Path(tempfile.mkdtemp(dir=sys.argv[1]))
                until = (WANTED // 4, WANTED // 2, WANTED)
                parts = [train(folder, batch, until[number], make, steps, reference)
                         for number, batch in enumerate(batches)]
                found[f"{name}, {reference}, {steps}, {batches}"] = parts
print(json.dumps(found))
"""


def test_trainings_that_go_on_at_other_scales_have_the_rates_of_their_samples(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TRAININGS, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[list[float]]] = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 18
    for name, parts in found.items():
        if not name.endswith("(32, 16, 64)"):
            continue
        same, half, double = parts
        expected = found[name.replace("(32, 16, 64)", "(32, 32, 32)")]
        by_factor = (0.5, 2.0) if ", 32, " in name else (1.0, 1.0)  # the rates follow the batch with reference_batch
        assert same == expected[0], name
        assert half[::2] == pytest.approx([rate * by_factor[0] for rate in expected[1]], rel=0.02, abs=1e-6), name
        assert double == pytest.approx([rate * by_factor[1] for rate in expected[2][::2]], rel=0.02, abs=1e-6), name
    assert "a step of OneCycleLR stands for 32 samples at every scale, so that its 40 steps" in done.stderr
    assert "took 1280 samples" not in done.stderr, "what is told at the end of a training that was cut short"


def test_a_scheduler_of_the_scripts_plain_optimizer_sets_the_rates_of_the_one_that_steps() -> None:
    weight = torch.zeros(1, requires_grad=True)
    plain, stepping = (torch.optim.SGD([weight], lr=0.1, momentum=0.9) for _ in range(2))
    scheduler = lr_scheduler.OneCycleLR(plain, max_lr=1.0, total_steps=STEPS)
    move_to(scheduler, stepping)
    stepping.step()
    for _ in range(STEPS // 2):
        scheduler.step()
    assert stepping.param_groups[0]["lr"] == rate(scheduler) > 0.1
    other = optimizer()
    apart = lr_scheduler.StepLR(other, 1)
    move_to(apart, stepping)
    assert apart.optimizer is other, "one of other weights stays what it is"
