"""Where replays run: on this machine's cores, or spread over a Dask cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.replay.evaluation import Evaluated, Scene
from malletrain.simulator.reproduce.experiments import Experiment, perform

if TYPE_CHECKING:
    from distributed import Client

LOCAL, DASK = "local", "dask://"
Execute = Callable[[Scene, Sequence[Experiment]], Iterator[Evaluated]]
"""Performs experiments; results come in their order."""


def executor(where: str, workers: int) -> Execute:
    """How to perform experiments.

    Args:
        where: `local`, or `dask://HOST:PORT` of a Dask scheduler whose workers have MalleTrain installed.
        workers: Processes on this machine, at least 1; a Dask cluster has its own.

    Raises:
        InvalidInputError: it is neither, or Dask is not installed.
    """
    if where == LOCAL:
        return partial(_locally, workers)
    if not where.startswith(DASK) or not where.removeprefix(DASK).rpartition(":")[2].isdigit():
        raise InvalidInputError("--executor", "local or dask://HOST:PORT", where)
    try:
        from distributed import Client
    except ImportError as error:
        raise InvalidInputError("--executor", "Dask to be installed (pip install 'malletrain[dask]')", where) from error

    try:
        client = Client(f"tcp://{where.removeprefix(DASK)}", timeout="10s")
    except (OSError, TimeoutError) as error:
        raise InvalidInputError("--executor", f"a Dask scheduler that answers ({error})", where) from error
    return partial(_on_dask, client)


def _locally(workers: int, scene: Scene, experiments: Sequence[Experiment]) -> Iterator[Evaluated]:
    if workers == 1:
        yield from (perform(scene, experiment) for experiment in experiments)
        return
    # Not fork: other threads (progress bars, plots) may hold locks.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from pool.map(partial(perform, scene), experiments)


def _on_dask(client: Client, scene: Scene, experiments: Sequence[Experiment]) -> Iterator[Evaluated]:
    with client:
        place = client.scatter(scene, broadcast=True, hash=False)
        futures = [client.submit(perform, place, experiment, pure=False) for experiment in experiments]
        for future in futures:
            yield future.result()
            future.release()
