"""A small GPT whose copies are divided by layers and within layers learns two pages of Python's manual.

`malletrain submit --backend torchrun --nodes-per-replica 4 --max 8 -- python train.py`
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterable
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional
from torch.utils.data import DataLoader

from malletrain.client.fsdp import ShardedTraining, init
from malletrain.client.replicas import replica_mesh

PAGES = ("specialnames", "compound")
LENGTH, WIDTH, HEADS, LAYERS = 64, 64, 4, 2
GLOBAL_BATCH, BATCH, MICRO_BATCHES = 24, 12, 2
"""Pieces of text of a step, at most so many of them per replica and pass, in so many parts for the pipeline."""


class Block(nn.Module):
    """Attention to what comes before, and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_layers = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.merged = nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """What is found out about each byte so far, and more."""
        attending = self.before_attention(hidden)
        # A worker has some of the heads.
        parts = [layer(attending).unflatten(2, (-1, WIDTH // HEADS)) for layer in (self.query, self.key, self.value)]
        attended = functional.scaled_dot_product_attention(*(part.transpose(1, 2) for part in parts), is_causal=True)
        hidden = hidden + self.merged(attended.transpose(1, 2).flatten(2))
        added: torch.Tensor = self.narrow(functional.gelu(self.wide(self.before_layers(hidden))))
        return hidden + added


class Stage(nn.Module):
    """A stage of a transformer that predicts the next byte. Its parameters have the names of the whole model's."""

    def __init__(self, number: int, stages: int) -> None:
        super().__init__()
        # All stages draw the same numbers: the model does not depend on how many there are.
        blocks = [Block() for _ in range(LAYERS)]
        own = range(LAYERS * number // stages, LAYERS * (number + 1) // stages)
        embeddings = nn.ModuleDict({"bytes": nn.Embedding(256, WIDTH), "places": nn.Embedding(LENGTH, WIDTH)})
        scores = nn.Linear(WIDTH, 256)
        self.embeddings = embeddings if number == 0 else None
        self.blocks = nn.ModuleDict({str(index): blocks[index] for index in own})
        self.scores = scores if number == stages - 1 else None

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """From bytes, or what the stage before has found out, to what the next one needs, or scores."""
        if self.embeddings is not None:
            places = torch.arange(LENGTH, device=hidden.device).expand_as(hidden)
            hidden = self.embeddings["bytes"](hidden) + self.embeddings["places"](places)
        for block in self.blocks.values():
            hidden = block(hidden)
        # FSDP2 wants no view.
        return hidden if self.scores is None else self.scores(hidden).clone()


def plan(stage: Stage) -> dict[str, ParallelStyle]:
    """How the layers of a stage are divided: between them, each worker has some places of each piece of text."""
    styles: dict[str, ParallelStyle] = {}
    if stage.embeddings is not None:
        for name in stage.embeddings:
            styles[f"embeddings.{name}"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
    for name in ("before_attention", "before_layers"):
        styles[f"blocks.*.{name}"] = SequenceParallel(use_local_output=True)
    for name in ("query", "key", "value", "wide"):
        styles[f"blocks.*.{name}"] = ColwiseParallel(input_layouts=Shard(1))
    for name in ("merged", "narrow"):
        styles[f"blocks.*.{name}"] = RowwiseParallel(output_layouts=Shard(1))
    if stage.scores is not None:
        styles["scores"] = ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())
    return styles


def own_device() -> torch.device:
    """The GPU of this worker; the CPU where there is none."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def manual(device: torch.device) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The text in pieces of one byte more than is predicted: those to train with, and every twentieth for testing."""
    text = torch.frombuffer(bytearray("\n".join(topics[page] for page in PAGES).encode()), dtype=torch.uint8)
    pieces = [piece.long().to(device) for piece in text.split(LENGTH + 1) if len(piece) == LENGTH + 1]
    return [piece for number, piece in enumerate(pieces) if number % 20], pieces[::20]


class Pipeline:
    """The stages of a replica, which work on parts of a batch at the same time."""

    def __init__(self, stage: PipelineStage) -> None:
        self.stage = stage
        self.weight = 1.0
        # torch would divide gradients after each pass, those of the passes before as well.
        self.schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=self.loss, scale_grads=False)

    def loss(self, scores: torch.Tensor, pieces: torch.Tensor) -> torch.Tensor:
        """This part's share of the mean loss."""
        mean = functional.cross_entropy(scores.flatten(0, 1), pieces[:, 1:].flatten())
        return mean * self.weight / MICRO_BATCHES

    def inputs(self, pieces: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """What the first stage is fed."""
        return (pieces[:, :-1],) if self.stage.is_first else ()

    def train(self, pieces: torch.Tensor, weight: float) -> None:
        """Add up the gradients of a batch."""
        self.weight = weight
        losses: list[torch.Tensor] = []
        self.schedule.step(*self.inputs(pieces), target=pieces if self.stage.is_last else None, losses=losses)

    def test(self, pieces: torch.Tensor, group: dist.ProcessGroup) -> float:
        """Mean loss of a batch, at each stage."""
        self.weight = 1.0
        losses: list[torch.Tensor] = []
        self.schedule.eval(*self.inputs(pieces), target=pieces if self.stage.is_last else None, losses=losses)
        total = torch.stack(losses).sum().detach() if losses else torch.zeros((), device=pieces.device)
        dist.broadcast(total, group=group, group_src=dist.get_world_size(group) - 1)
        return float(total)


def train(training: ShardedTraining, pipeline: Pipeline, loader: Iterable[torch.Tensor], step_seconds: float) -> None:
    """Train with all batches."""
    for passes, batch in enumerate(loader, start=1):
        started = time.monotonic()
        pipeline.train(batch, training.loss_weight(len(batch)))
        if passes % training.micro_steps == 0:
            training.step()
            training.optimizer.zero_grad()
        time.sleep(max(0.0, step_seconds / training.micro_steps - (time.monotonic() - started)))


def main() -> None:
    """Train and say what has been learned."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pipeline", type=int, default=2, help="stages of a replica")
    parser.add_argument("--tensor", type=int, default=2, help="workers that each layer is divided among")
    parser.add_argument("--shard", type=int, default=1, help="workers that FSDP2 divides weights among, besides")
    parser.add_argument("--step-seconds", type=float, default=0.0, help="shortest time of a step")
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    device = own_device()
    pieces, test = manual(device)
    init()
    mesh = replica_mesh(pipeline=arguments.pipeline, shard=arguments.shard, tensor=arguments.tensor)
    number = mesh.get_local_rank("pipeline")
    model = Stage(number, arguments.pipeline).to(device)
    parallelize_module(model, mesh["tensor"], plan(model))
    for part in (*model.blocks.values(), model):
        fully_shard(part, mesh=mesh["replicate", "shard"])
    group = mesh.get_group("pipeline")
    pipeline = Pipeline(PipelineStage(model, number, arguments.pipeline, device, group=group))
    training = ShardedTraining(
        model,
        torch.optim.AdamW(model.parameters(), lr=1e-3),
        mesh=mesh,
        dataset_size=len(pieces),
        batch_per_worker=BATCH,
        reference_batch=GLOBAL_BATCH,
        hold_batch=True,
    )
    loader = DataLoader(pieces, batch_sampler=training.batches(arguments.epochs * len(pieces)))
    training.run(lambda: train(training, pipeline, loader, arguments.step_seconds))
    # A schedule takes batches of one size.
    size = GLOBAL_BATCH // (mesh.size(0) * arguments.shard * training.micro_steps)
    batches = [torch.stack(test[first : first + size]) for first in range(0, len(test) - size + 1, size)]
    loss = sum(pipeline.test(batch, group) for batch in batches) / len(batches)
    if dist.get_rank() == 0:
        print(f"test loss {loss:.3f}", flush=True)
    training.finish({"loss": loss})


if __name__ == "__main__":
    main()
