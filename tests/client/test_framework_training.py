"""Trainings that a framework drives, in one process: positions, accumulation, rates, the loader's plan."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch")

import torch
import torch.distributed.fsdp
import torch.distributed.tensor.parallel
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler

from malletrain.client.framework_training import FrameworkTraining, LoaderPlan, TrainingOptions
from malletrain.client.lr_scaling import SteppedRates
from malletrain.client.sampling import EpochBatches, EpochOrder, WorkerShare, partition_per_worker

SIZE = 20


def loader(batch: int = 4, *, shuffle: bool = True) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(SIZE, dtype=torch.float32)), batch_size=batch, shuffle=shuffle)


def started(folder: Path, *, batch: int = 4, micro_steps: int = 1, **options: Any) -> FrameworkTraining:
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    plan = LoaderPlan(loader(batch))
    training = FrameworkTraining(model, optimizer, plan, micro_steps, checkpoint_folder=folder, **options)
    training.begin()
    return training


def test_the_noise_of_gradients_is_not_measured_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MALLETRAIN_GRADIENT_NOISE", "1")
    training = started(tmp_path)
    assert "the gradient noise scale is not measured in this kind of training" in capsys.readouterr().err
    weight = training.model.weight
    assert not weight._post_accumulate_grad_hooks


@pytest.fixture
def group() -> Iterator[None]:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("way", ["fsdp2", "fsdp1", "tensor parallel"])
def test_what_workers_have_parts_of_is_refused_by_name(way: str, tmp_path: Path) -> None:
    """Rank 0 would save its part for all."""
    model: torch.nn.Module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    mesh = torch.distributed.init_device_mesh("cpu", (1,))
    if way == "fsdp2":
        torch.distributed.fsdp.fully_shard(model, mesh=mesh)
    elif way == "fsdp1":
        model = torch.distributed.fsdp.FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    else:
        parallel = torch.distributed.tensor.parallel
        parallel.parallelize_module(model, mesh, {"0": parallel.ColwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"^model: expected whole parameters in each worker, got \w+: .*client\.fsdp"):
        FrameworkTraining(model, optimizer, LoaderPlan(loader()), checkpoint_folder=tmp_path)


def epoch(training: FrameworkTraining) -> list[list[int]]:
    """One pass over the loader, each pass counted; the indices of each."""
    seen = []
    for batch in EpochBatches(lambda: training):
        seen.append(batch)
        training.passed()
    return seen


class Standing:
    """A training at a position."""

    def __init__(self, samples: int, workers: int, rank: int, batch: int, micro_steps: int = 1) -> None:
        self.order = EpochOrder(SIZE)
        self.samples = samples
        self.share = WorkerShare(0, rank, partition_per_worker(batch, workers, micro_steps))


@pytest.mark.parametrize(("workers", "batch", "micro_steps"), [(1, 4, 1), (2, 3, 1), (3, 4, 2), (2, 16, 1), (1, 3, 3)])
def test_epochs_use_each_sample_once_over_any_scale(workers: int, batch: int, micro_steps: int) -> None:
    ranks = [Standing(0, workers, rank, batch, micro_steps) for rank in range(workers)]
    used: list[int] = []
    ends = []
    while ranks[0].samples < 3 * SIZE:
        passes = [list(EpochBatches(lambda one=one: one)) for one in ranks]
        for first in range(0, len(passes[0]), micro_steps):
            for own in passes:
                used += [index for part in own[first : first + micro_steps] for index in part]
        for one in ranks:
            one.samples = len(used)
        ends.append(len(used))
    # An epoch ends with the first global batch that reaches a multiple of the size.
    step = workers * batch * micro_steps
    assert all(end // SIZE > (end - step) // SIZE for end in ends)
    order = EpochOrder(SIZE)
    assert used == order.span(0, len(used))
    assert all(sorted(order.span(number * SIZE, SIZE)) == list(range(SIZE)) for number in range(3))


def test_an_epoch_goes_on_where_the_training_stands() -> None:
    standing = Standing(12, 1, 0, 4)
    assert list(EpochBatches(lambda: standing)) == [standing.order.span(12, 4), standing.order.span(16, 4)]
    assert list(EpochBatches(lambda: standing, until=16)) == [standing.order.span(12, 4)]
    assert list(EpochBatches(lambda: standing, until=12)) == []


def test_a_step_of_several_passes_is_counted_once(tmp_path: Path) -> None:
    training = started(tmp_path, batch=2, micro_steps=3)
    assert training.global_batch == 6
    counted = []
    for _ in range(6):
        last = training.is_last_pass
        training.passed()
        counted.append((last, training.samples))
    assert counted == [(False, 0), (False, 0), (True, 6), (False, 6), (False, 6), (True, 12)]


def test_a_held_batch_keeps_gradient_and_rates_whatever_fits_into_a_pass(tmp_path: Path) -> None:
    held = started(tmp_path / "held", batch=4, reference_batch=10, hold_batch=True)
    assert (held.global_batch, held.micro_steps) == (10, 3)
    values = torch.arange(SIZE, dtype=torch.float32)
    indices = []
    for batch in list(EpochBatches(lambda: held))[:3]:
        indices += batch
        # As a framework does: the mean of each pass, divided by the number of passes.
        loss = (held.model(values[batch, None]) - values[batch, None]).square().mean() * held.pass_factor()
        (loss / held.micro_steps).backward()
        held.passed()
    weight = torch.zeros(1, requires_grad=True)
    (weight * values[indices] - values[indices]).square().mean().backward()
    assert held.model.weight.grad is not None
    assert weight.grad is not None
    assert held.model.weight.grad.item() == pytest.approx(weight.grad.item(), rel=1e-6)
    assert held.samples == 10


def test_a_held_batch_takes_no_accumulation_of_the_script(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^hold_batch: expected no accumulation of the script's own, got 2 passes"):
        started(tmp_path, micro_steps=2, reference_batch=8, hold_batch=True)


def is_consistent(training: FrameworkTraining) -> bool:
    return training._consistent


@pytest.mark.parametrize("arguments", [(), (None,)], ids=["no closure", "None for a closure"])
def test_weights_are_inconsistent_from_the_step_on_until_it_is_counted(tmp_path: Path, arguments: tuple[None]) -> None:
    training = started(tmp_path)
    assert is_consistent(training)
    training.optimizer.step(*arguments)
    assert not is_consistent(training)
    training.passed()
    assert is_consistent(training)


def test_a_closure_may_fail_before_the_weights_change(tmp_path: Path) -> None:
    training = started(tmp_path)

    def fails() -> float:
        raise RuntimeError("another worker is lost")

    with pytest.raises(RuntimeError, match="lost"):
        training.optimizer.step(fails)
    assert is_consistent(training)


def test_the_next_process_goes_on_at_the_sample_with_the_same_weights(tmp_path: Path) -> None:
    first = started(tmp_path)
    torch.nn.init.ones_(first.model.weight)
    begun = epoch(first)
    first.finish()
    second = started(tmp_path)
    assert (second.samples, second.model.weight.item()) == (first.samples, 1.0) == (SIZE, 1.0)
    for passes in (begun, epoch(second)):
        assert sorted(index for batch in passes for index in batch) == list(range(SIZE))


def scaled(optimizer: torch.optim.Optimizer, factor: float) -> SteppedRates:
    rates = SteppedRates(optimizer, 32, "linear", 0)
    rates.apply(optimizer.param_groups, factor)
    return rates


def test_rates_are_scaled_in_the_step_only() -> None:
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.5)
    scaled(optimizer, 3.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.1)
    for stepped, rate in ((-1.5, 0.05), (-1.65, 0.005)):
        weight.grad = torch.ones(1)
        optimizer.step()
        scheduler.step()
        assert weight.item() == pytest.approx(stepped)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(rate)


def test_a_step_that_has_failed_leaves_the_rates_as_they_were() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    rates = scaled(optimizer, 3.0)

    def fails() -> float:
        raise RuntimeError("another worker is lost")

    with pytest.raises(RuntimeError, match="lost"):
        optimizer.step(fails)
    rates.unscale()
    assert optimizer.param_groups[0]["lr"] == 0.5
    rates.unscale()
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_without_a_reference_batch_rates_are_never_changed() -> None:
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.5)
    SteppedRates(optimizer, None, "linear", 0).apply(optimizer.param_groups, 3.0)
    weight.grad = torch.ones(1)
    optimizer.step()
    assert weight.item() == -0.5


class Endless(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(())


@pytest.mark.parametrize(
    "refused",
    [
        DataLoader(Endless(), batch_size=2),
        DataLoader(TensorDataset(torch.zeros(4)), sampler=WeightedRandomSampler([1.0] * 4, 4), batch_size=2),
        DataLoader(TensorDataset(torch.zeros(4)), batch_sampler=[[0, 1], [2, 3]]),
        DataLoader(TensorDataset(torch.zeros(4)), batch_size=None),
    ],
    ids=["iterable", "own sampler", "own batches", "no batches"],
)
def test_loaders_without_positions_are_refused(refused: DataLoader[Any]) -> None:
    with pytest.raises(ValueError, match=r"^loader: expected"):
        LoaderPlan(refused)


def test_a_loader_keeps_its_order_if_it_does_not_shuffle(tmp_path: Path) -> None:
    plan = LoaderPlan(loader(shuffle=False))
    sampler = plan.sampler(0, None, 1)
    assert sampler.order.span(0, SIZE + 2) == [*range(SIZE), 0, 1]
    training = started(tmp_path)
    values = [value for (batch,) in plan.loader(EpochBatches(lambda: training)) for value in batch.tolist()]
    assert values == [float(index) for index in training.order.span(0, SIZE)]


def test_what_is_kept_is_an_option_of_all_adapters(tmp_path: Path) -> None:
    training = started(tmp_path, checkpoints_kept=3, max_checkpoint_bytes=10**9)
    state = {"model": {}, "optimizer": {}}
    for _ in range(5):
        training.passed()
        training.checkpoints.save_and_wait(training.samples, lambda: {**state, "samples": training.samples})
    assert len(list(tmp_path.glob("samples-*.pt"))) == 3
    with pytest.raises(ValueError, match=r"max_checkpoint_bytes: expected .*, got 0"):
        started(tmp_path, max_checkpoint_bytes=0)
    # Accelerate's adapter takes these options out of its own.
    assert {"checkpoints_kept", "max_checkpoint_bytes"} <= TrainingOptions.__annotations__.keys()
