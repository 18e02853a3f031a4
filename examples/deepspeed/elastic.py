"""A small GPT with DeepSpeed's ZeRO learns two pages of Python's manual: `deepspeed plain.py`, or by torchrun."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from pydoc_data.topics import topics
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from malletrain.client.deepspeed import DeepSpeedTraining, init

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


def manual(device: torch.device) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The text in pieces of one byte more than is predicted: those to train with, and every twentieth for testing."""
    text = torch.frombuffer(bytearray("\n".join(topics[page] for page in PAGES).encode()), dtype=torch.uint8)
    pieces = [piece.long().to(device) for piece in text.split(LENGTH + 1) if len(piece) == LENGTH + 1]
    return [piece for number, piece in enumerate(pieces) if number % 20], pieces[::20]


def train(engine: Any, loader: Iterable[torch.Tensor], step: Callable[[], None], step_seconds: float) -> None:
    """Train with all batches."""
    for batch in loader:
        started = time.monotonic()
        engine.backward(engine(batch))
        step()
        time.sleep(max(0.0, step_seconds - (time.monotonic() - started)))


def main() -> None:
    """Train and say what has been learned."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stage", type=int, default=3, choices=(1, 2, 3), help="of ZeRO")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--step-seconds", type=float, default=0.0, help="shortest time of a step")
    parser.add_argument("--local_rank", type=int, help="given by the command deepspeed")
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "zero_optimization": {"stage": arguments.stage},
        "zero_allow_untested_optimizer": True,
    }
    init()
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    pieces, test = manual(engine.device)
    training = DeepSpeedTraining(engine, dataset_size=len(pieces), batch_per_worker=BATCH, reference_batch=16)
    loader = DataLoader(pieces, batch_sampler=training.batches(arguments.epochs * len(pieces)))
    training.run(lambda: train(engine, loader, training.step, arguments.step_seconds))
    with torch.no_grad():
        loss = float(engine(torch.stack(test)))
    if dist.get_rank() == 0:
        print(f"test loss {loss:.3f}", flush=True)
    training.finish({"loss": loss})


if __name__ == "__main__":
    main()
