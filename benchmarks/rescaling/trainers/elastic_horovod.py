"""Elastic Horovod as its manual has it: a state, a commit after every batch. It knows nothing of MalleTrain."""

from __future__ import annotations

import time

import horovod.torch as hvd
import torch

from benchmarks.rescaling.trainers.noting import BATCH, BATCH_SECONDS, SAMPLES, Noting, loss_of, small_model

hvd.init()
model = small_model()
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), named_parameters=model.named_parameters()
)


@hvd.elastic.run  # type: ignore[untyped-decorator]  # Horovod has no types
def train(state: hvd.elastic.TorchState) -> None:
    noting = Noting(hvd.rank(), hvd.size())
    while True:
        optimizer.zero_grad()
        loss_of(model, torch.randint(0, SAMPLES, (BATCH,))).backward()
        optimizer.step()
        state.batch += 1
        noting.batch(state.batch)
        time.sleep(BATCH_SECONDS)
        state.commit()


train(hvd.elastic.TorchState(model, optimizer, batch=0))
