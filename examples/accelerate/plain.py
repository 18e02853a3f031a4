"""A small encoder with Hugging Face Accelerate: which page of Python's manual is a piece of text from?"""

from __future__ import annotations

import argparse
import time
import zlib
from pydoc_data.topics import topics

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset, random_split

PAGES = ("specialnames", "compound", "types", "formatstrings")
WORDS = 16
VOCABULARY = 1000


class Classifier(nn.Module):
    """Two layers of an encoder; the words' order is left out."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.page = nn.Linear(64, len(PAGES))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Scores of the pages."""
        scores: torch.Tensor = self.page(self.encoder(self.words(words)).mean(1))
        return scores


def pieces() -> TensorDataset:
    """Pieces of `WORDS` words, each a number by its checksum, with the number of their page."""
    found, labels = [], []
    for label, page in enumerate(PAGES):
        words = [zlib.crc32(word.encode()) % VOCABULARY for word in topics[page].split()]
        ends = range(WORDS, len(words) + 1, WORDS)
        found += [words[end - WORDS : end] for end in ends]
        labels += [label] * len(ends)
    return TensorDataset(torch.tensor(found), torch.tensor(labels))


def main() -> None:
    """Train and say what has been learned."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--step-seconds", type=float, default=0.0, help="shortest time of a step")
    arguments = parser.parse_args()
    set_seed(arguments.seed)
    train, test = random_split(pieces(), [0.8, 0.2], torch.Generator().manual_seed(0))
    loader = DataLoader(train, batch_size=32, shuffle=True)
    accelerator = Accelerator(cpu=True)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(arguments.epochs):
        model.train()
        for words, labels in loader:
            started = time.monotonic()
            loss = functional.cross_entropy(model(words), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(max(0.0, arguments.step_seconds - (time.monotonic() - started)))
        model.eval()
        words, labels = test[:]
        with torch.no_grad():
            scores = model(words.to(accelerator.device)).cpu()
        accuracy = (scores.argmax(1) == labels).float().mean()
        accelerator.log(
            {"accuracy": float(accuracy), "loss": float(functional.cross_entropy(scores, labels))}, step=epoch
        )
        accelerator.print(f"epoch {epoch}: accuracy {accuracy:.3f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
