"""TensorSocket's producer, until it is ended: `producer.py LOG SIDE WORKERS PORT,ACK_PORT,HEART_PORT,HEART_PORT`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

import torch
from tensorsocket import TensorProducer
from torch.utils.data import DataLoader

from benchmarks.feeding.pictures import costly
from benchmarks.studies.ensembles.networks import BATCH, SIZE

_LOOK_SECONDS = 0.05


class Producer(TensorProducer):
    """A producer that goes on when a consumer has left.

    That of TensorSocket 0.0.5 waits before each epoch until all consumers are at its beginning, for ever if one has
    left just before.
    """

    def __iter__(self) -> Iterator[Any]:
        while any(self.hb.heart_progress[name] for name in self.consumers):
            time.sleep(_LOOK_SECONDS)
            for name in [name for name in self.consumers if name not in self.hb.consumers]:
                self.consumers.pop(name)
        for consumer in self.consumers.values():
            consumer.reset()
        return self


def main() -> None:
    log, side, workers, ports = sys.argv[1:]
    port, ack_port, heart_in, heart_out = map(int, ports.split(","))
    torch.manual_seed(0)
    dataset: Any = costly(SIZE, log, int(side))
    loader = DataLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=int(workers))
    producer = Producer(loader, port, ack_port, (heart_in, heart_out))
    while True:
        for _ in producer:
            pass


if __name__ == "__main__":
    main()
