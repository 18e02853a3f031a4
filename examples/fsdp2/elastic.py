"""A small GPT with FSDP2 learns two pages of Python's manual: `torchrun --nproc-per-node 2 plain.py`."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterable
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.utils.data import DataLoader

from malletrain.client.fsdp import ShardedTraining

PAGES = ("specialnames", "compound")
LENGTH, WIDTH, HEADS, LAYERS = 64, 64, 4, 2
BATCH = 8
"""Pieces of text per worker and step."""


class Block(nn.Module):
    """Attention to what comes before, and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_layers = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.keys = nn.Linear(WIDTH, 3 * WIDTH)
        self.merged = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, found: torch.Tensor) -> torch.Tensor:
        """What is found out about each byte so far, and more."""
        parts = self.keys(self.before_attention(found)).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(*parts, is_causal=True)
        found = found + self.merged(attended.transpose(1, 2).flatten(2))
        added: torch.Tensor = self.layers(self.before_layers(found))
        return found + added


class GPT(nn.Module):
    """A transformer that predicts the next byte."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, WIDTH)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.scores = nn.Linear(WIDTH, 256)

    def forward(self, pieces: torch.Tensor) -> torch.Tensor:
        """Mean loss of a batch of pieces."""
        scores = self.scores(self.blocks(self.bytes(pieces[:, :-1]) + self.places))
        return functional.cross_entropy(scores.flatten(0, 1), pieces[:, 1:].flatten())


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


def train(model: nn.Module, loader: Iterable[torch.Tensor], step: Callable[[], None], step_seconds: float) -> None:
    """Train with all batches."""
    for batch in loader:
        started = time.monotonic()
        model.zero_grad()
        model(batch).backward()
        step()
        time.sleep(max(0.0, step_seconds - (time.monotonic() - started)))


def main() -> None:
    """Train and say what has been learned."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--step-seconds", type=float, default=0.0, help="shortest time of a step")
    parser.add_argument("--collectives", help="as for init_process_group: cpu:gloo,cuda:gloo where workers share a GPU")
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    device = own_device()
    pieces, test = manual(device)
    dist.init_process_group(arguments.collectives)
    model = GPT().to(device)
    for part in (*model.blocks, model):
        fully_shard(part)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    training = ShardedTraining(model, optimizer, dataset_size=len(pieces), batch_per_worker=BATCH, reference_batch=16)
    loader = DataLoader(pieces, batch_sampler=training.batches(arguments.epochs * len(pieces)))
    training.run(lambda: train(model, loader, training.step, arguments.step_seconds))
    with torch.no_grad():
        loss = float(model(torch.stack(test)))
    if dist.get_rank() == 0:
        print(f"test loss {loss:.3f}", flush=True)
    training.finish({"loss": loss})


if __name__ == "__main__":
    main()
