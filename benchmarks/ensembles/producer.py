"""TensorSocket's producer, until it is ended: `producer.py LOG WORKERS PORT,ACK_PORT,HEART_PORT,HEART_PORT`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
from tensorsocket import TensorProducer
from torch.utils.data import DataLoader

from benchmarks.ensembles.networks import BATCH, SIDE, SIZE
from benchmarks.feeding.pictures import costly


def main() -> None:
    log, workers, ports = sys.argv[1:]
    port, ack_port, heart_in, heart_out = map(int, ports.split(","))
    torch.manual_seed(0)
    dataset: Any = costly(SIZE, log, SIDE)
    loader = DataLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=int(workers))
    producer = TensorProducer(loader, port, ack_port, (heart_in, heart_out))
    while True:
        for _ in producer:
            pass


if __name__ == "__main__":
    main()
