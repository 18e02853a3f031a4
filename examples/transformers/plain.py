"""A small encoder with Hugging Face Transformers: which page of Python's manual is a piece of text from?"""

from __future__ import annotations

import argparse
import tempfile
import time
import zlib
from pydoc_data.topics import topics
from typing import Any

import torch
from torch.utils.data import random_split
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

PAGES = ("specialnames", "compound", "types", "formatstrings")
WORDS = 16
VOCABULARY = 1000


class Classifier(BertForSequenceClassification):
    """BERT in small."""

    # Its loss is the mean over the batch, and takes no notice of how many samples are in a step.
    accepts_loss_kwargs = False
    step_seconds = 0.0

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        """As BERT, but a pass of the training takes at least `step_seconds`."""
        started = time.monotonic()
        outputs = super().forward(input_ids, labels=labels)
        if self.training:
            time.sleep(max(0.0, self.step_seconds - (time.monotonic() - started)))
        return outputs


def pieces() -> list[dict[str, Any]]:
    """Pieces of `WORDS` words, each a number by its checksum, with the number of their page."""
    found = []
    for label, page in enumerate(PAGES):
        words = [zlib.crc32(word.encode()) % VOCABULARY for word in topics[page].split()]
        ends = range(WORDS, len(words) + 1, WORDS)
        found += [{"input_ids": words[end - WORDS : end], "labels": label} for end in ends]
    return found


def accuracy(predicted: Any) -> dict[str, float]:
    """Share of the pieces whose page is found."""
    return {"accuracy": float((predicted.predictions.argmax(1) == predicted.label_ids).mean())}


def main() -> None:
    """Train and say what has been learned."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--step-seconds", type=float, default=0.0, help="shortest time of a step")
    arguments = parser.parse_args()
    set_seed(arguments.seed)
    train, test = random_split(pieces(), [0.8, 0.2], torch.Generator().manual_seed(0))
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    config = BertConfig(vocab_size=VOCABULARY, max_position_embeddings=WORDS, num_labels=len(PAGES), **shape)
    model = Classifier(config)
    model.step_seconds = arguments.step_seconds
    options = TrainingArguments(
        output_dir=tempfile.gettempdir(),
        num_train_epochs=arguments.epochs,
        per_device_train_batch_size=32,
        learning_rate=5e-4,
        warmup_steps=50,
        seed=arguments.seed,
        eval_strategy="epoch",
        save_strategy="no",
        logging_strategy="epoch",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(model, options, train_dataset=train, eval_dataset=test, compute_metrics=accuracy)
    trainer.train()


if __name__ == "__main__":
    main()
