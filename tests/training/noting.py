"""Notes what a real training does: imported by the first line of a copy of a script, which is otherwise as it was.

For each step, once the optimizer has stepped: the dataset indices that loaders have read for it (or that were asked of
the training, by scripts without a loader), the loss, and now and then this worker's memory. See
`tests.training.accounts`.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections import deque
from pathlib import Path
from typing import Any

import torch
from torch.distributed.pipelining.schedules import PipelineScheduleSingle
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from malletrain.client.training import Training

MEMORY_STEPS = 5
"""Memory is measured in each such step of a process."""

_read: deque[tuple[int, list[int]]] = deque()
_losses: list[float] = []
_parts: list[float] = []
"""In a pipeline, what each pass contributes to the mean loss of a step."""
_steps = itertools.count(1)


def _own_bytes(training: Training) -> tuple[int, int]:
    """Memory of this worker's part of the weights, and of the whole model."""
    parameters = [parameter for group in training.optimizer.param_groups for parameter in group["params"]]
    local = [one.to_local() if isinstance(one, DTensor) else one for one in parameters]
    return tuple(sum(one.numel() * one.element_size() for one in each) for each in (local, parameters))


def _memory(training: Training) -> dict[str, int]:
    """Bytes of this process: its share of what it has in memory, and what nobody shares."""
    lines = (line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    sizes = {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines}
    own, whole = _own_bytes(training)
    states = [part for state in training.optimizer.state.values() for part in state.values()]
    tensors = [part.to_local() if isinstance(part, DTensor) else part for part in states if torch.is_tensor(part)]
    moments = sum(part.numel() * part.element_size() for part in tensors)
    return {"pss": sizes["Pss"], "own": own, "whole": whole, "moments": moments}


def _note_step(training: Training) -> None:
    if not _read:
        # Horovod's optimizer steps within its step.
        return
    size, passes = training._sampler.order.size, []
    while len(passes) < training.micro_steps:
        length, indices = _read.popleft()
        if length == size:
            passes.append(indices)
    line = {
        "event": "batch",
        "time": time.time(),
        "pid": os.getpid(),
        "node": os.environ["MALLETRAIN_NODE"],
        "before": training.samples,
        "reached": training.samples + training.global_batch,
        # Where in the training its samples begin: workers that have different layers of one model share them.
        "first": training.samples + training._sampler.partition.span(training._sampler.share.rank)[0],
        "indices": [index for indices in passes for index in indices],
        "rank": training.rank,
        "size": training.workers,
        "dataset": size,
        # Of a pipeline, the last stage alone knows it.
        "loss": sum(_losses) / len(_losses) if _losses else sum(_parts) if _parts else None,
    }
    _losses.clear()
    _parts.clear()
    with Path(os.environ["MALLETRAIN_JOB_DIR"], f"notes-{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps(line | (_memory(training) if next(_steps) % MEMORY_STEPS == 0 else {})) + "\n")


def _follow() -> None:
    fetch, begin, backward = _MapDatasetFetcher.fetch, Training.__init__, torch.Tensor.backward
    schedule = PipelineScheduleSingle.step
    ask = Training.next_indices

    def reading(self: Any, indices: Any) -> Any:
        _read.append((len(self.dataset), list(indices)))
        return fetch(self, indices)

    def asking(self: Training) -> list[int]:
        # What a step that has failed has asked for is asked for again.
        _read.clear()
        _losses.clear()
        indices = ask(self)
        _read.append((self._sampler.order.size, indices))
        return indices

    def beginning(self: Training, *arguments: Any, **options: Any) -> None:
        begin(self, *arguments, **options)
        # Before it is counted: a worker that is killed then has trained with it.
        register_optimizer_step_post_hook(lambda *_: _note_step(self))

    def losing(self: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        _losses.append(float(self.detach()))
        return backward(self, *arguments, **options)

    def pipelining(self: Any, *arguments: Any, losses: list[torch.Tensor], **options: Any) -> Any:
        result = schedule(self, *arguments, losses=losses, **options)
        if losses:
            _parts.append(float(torch.stack(losses).sum().detach()))
        return result

    _MapDatasetFetcher.fetch = reading
    Training.next_indices = asking  # type: ignore[method-assign]
    Training.__init__ = beginning  # type: ignore[method-assign]
    torch.Tensor.backward = losing  # type: ignore[method-assign]
    PipelineScheduleSingle.step = pipelining  # type: ignore[method-assign]


_follow()
