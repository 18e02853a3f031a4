"""TPE against random search at the same number of trials: `python benchmarks/studies/search.py [--seeds 10]`.

Run from the repository's root. The driver of `malletrain.search` chooses cells of NAS-Bench-101's space and a learning
rate, four trials at a time; each network is really trained, on scikit-learn's digits for one pass over 1,024 of them,
and judged by 512 others. Jobs are trained in this process instead of being submitted, so no nodes and no waiting are
part of it: what is compared is what the samplers choose. Both begin each seed with the same seed; weights and order of
samples are the same in all trials of a seed. A cell in which no path leads to the output is a failed trial, and
counts. Prints the best accuracy after so many trials; `docs/search.md` has the figures.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.arguments import positive
from examples.nasbench.space import MAX_EDGES, MAX_VERTICES, Cell, Operation, pruned
from malletrain.caller.job_request import JobRequest
from malletrain.caller.searching.decisions import SearchPlan, TrialJob
from malletrain.caller.searching.driver import SearchDriver, SearchListeners, SearchSetup
from malletrain.caller.searching.space import parse_space
from malletrain.caller.searching.studies import distributions_of, open_study, sampler_of
from malletrain.model.job_state import JobState
from malletrain.v1 import resources_pb2

SAMPLERS = ("random", "tpe")
AT_ONCE = 4
PAIRS = tuple(combinations(range(MAX_VERTICES), 2))
_TRAINED, _JUDGED, _BATCH = 1024, 512, 64


def space() -> dict[str, object]:
    """Nine edges out of 21 (the same one again is no further edge), five operations and a learning rate."""
    edges = {f"edge{place}": list(range(len(PAIRS))) for place in range(MAX_EDGES)}
    operations = {f"operation{place}": [str(name) for name in Operation] for place in range(MAX_VERTICES - 2)}
    return {**edges, **operations, "lr": (0.003, 1.0, "log")}


def cell_of(values: Mapping[str, str]) -> Cell | None:
    """The cell that the values of a trial describe; None: no path leads to its output."""
    edges = [PAIRS[int(values[f"edge{place}"])] for place in range(MAX_EDGES)]
    operations = [Operation(values[f"operation{place}"]) for place in range(MAX_VERTICES - 2)]
    return pruned(sorted(set(edges)), operations)


@dataclass
class TrainedHere:
    """Jobs that are trained at once, in this process.

    Attributes:
        seed: Of weights and order.
        ended: What came of each, by identifier.
    """

    seed: int
    ended: dict[str, TrialJob] = field(default_factory=dict)

    def submit(self, spec: resources_pb2.JobSpec, request_id: str) -> str:
        values = dict(word.split("=", 1) for word in spec.command[1:])
        cell = cell_of(values)
        if cell is None:
            self.ended[request_id] = TrialJob(JobState.FAILED, {}, "no path leads to the output")
        else:
            accuracy = accuracy_of(cell, float(values["lr"]), self.seed)
            self.ended[request_id] = TrialJob(JobState.COMPLETED, {"accuracy": accuracy})
        return request_id

    def look(self, job_id: str, name: str) -> TrialJob | None:
        del name
        return self.ended[job_id]

    def logged(self, job_id: str, metric: str) -> Mapping[int, float]:
        """Nothing: a value is known at the end only."""
        del job_id, metric
        return {}

    def cancel(self, job_id: str) -> None:
        """Do nothing: jobs end where they are submitted."""

    def find(self, name: str) -> str:
        """No job: none is known by its name."""
        del name
        return ""


def accuracy_of(cell: Cell, learning_rate: float, seed: int) -> float:
    """Share of the judged digits that a network of this cell tells right after its training."""
    import torch
    from sklearn.datasets import load_digits
    from torch.nn import functional

    from examples.nasbench.cost import SMALL
    from examples.nasbench.network import Network

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None].repeat(1, 3, 1, 1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels))
    trained, judged = order[:_TRAINED], order[_TRAINED : _TRAINED + _JUDGED]
    network = Network(cell, SMALL)
    optimizer = torch.optim.SGD(network.parameters(), lr=learning_rate, momentum=0.9)
    for batch in trained.split(_BATCH):
        optimizer.zero_grad()
        functional.cross_entropy(network(images[batch]), labels[batch]).backward()
        optimizer.step()
    network.eval()
    with torch.no_grad():
        return float((network(images[judged]).argmax(1) == labels[judged]).float().mean())


def best_by_trial(sampler: str, seed: int, trials: int) -> list[float]:
    """The best accuracy after each trial of a search, 0 before the first one that is complete."""
    import optuna

    study, study_id = open_study("s", optuna.storages.InMemoryStorage(), "maximize", "accuracy")
    study.sampler = sampler_of(sampler, seed)
    command = ["train", *(f"{name}={{{name}}}" for name in space())]
    setup = SearchSetup(
        request=JobRequest(command=command, name="s", backend="command"),
        distributions=distributions_of(parse_space(space())),
        plan=SearchPlan("accuracy", trials, AT_ONCE),
        study_id=study_id,
        failures=0,
        cancel_on_exit=False,
    )
    SearchDriver(study, setup, TrainedHere(seed), SearchListeners(), pause=lambda _: None).run()
    values = [trial.value or 0.0 if trial.state.name == "COMPLETE" else 0.0 for trial in study.trials]
    return [max(values[: count + 1]) for count in range(len(values))]


def table(found: Mapping[str, Sequence[Sequence[float]]], trials: int) -> str:
    """Mean and standard deviation over seeds of the best accuracies, after one and two thirds of the trials and all."""
    counts = sorted({max(1, trials * part // 3) for part in (1, 2, 3)})
    lines = ["| sampler | " + " | ".join(f"after {count} trials" for count in counts) + " |"]
    lines.append("| --- |" + " ---: |" * len(counts))
    for sampler, runs in found.items():
        cells = []
        for count in counts:
            best = [run[count - 1] for run in runs]
            spread = statistics.stdev(best) if len(best) > 1 else 0.0
            cells.append(f"{statistics.mean(best):.3f} ± {spread:.3f}")
        lines.append(f"| {sampler} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=positive, default=10, help="seeds (10)")
    parser.add_argument("--trials", type=positive, default=30, help="trials of each search (30)")
    parser.add_argument("--processes", type=positive, default=2, help="searches at the same time (2)")
    parser.add_argument("--json", action="store_true", help="print all values")
    options = parser.parse_args()
    found: dict[str, list[list[float]]] = {sampler: [] for sampler in SAMPLERS}
    with ProcessPoolExecutor(options.processes) as pool:
        started = [
            (sampler, seed, pool.submit(best_by_trial, sampler, seed, options.trials))
            for seed in range(options.seeds)
            for sampler in SAMPLERS
        ]
        for sampler, seed, search in started:
            found[sampler].append(search.result())
            print(f"seed {seed}, {sampler}: {json.dumps(found[sampler][-1])}", file=sys.stderr, flush=True)
    if options.json:
        print(json.dumps(found))
    else:
        print(table(found, options.trials))
        better = sum(tpe[-1] > other[-1] for tpe, other in zip(found["tpe"], found["random"], strict=True))
        equal = sum(tpe[-1] == other[-1] for tpe, other in zip(found["tpe"], found["random"], strict=True))
        print(f"\nTPE is better on {better} of {options.seeds} seeds at the end, equal on {equal}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
