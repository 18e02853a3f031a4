"""Runs replays on the cores of this machine or on a Dask cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING, TypeVar

from malletrain.reproduce.bftrainer.experiments import Experiment, perform
from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.replay.evaluation import Evaluation, Scenario

if TYPE_CHECKING:
    from distributed import Client

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
LOCAL, DASK = "local", "dask://"
Execute = Callable[[Scenario, Sequence[Experiment]], Iterator[Evaluation]]
"""Runs experiments on a scenario and yields their results in order."""


def executor(where: str, workers: int) -> Execute:
    """A function that runs experiments.

    Args:
        where: `local`, or `dask://HOST:PORT` of a Dask scheduler whose workers have MalleTrain installed.
        workers: Processes on this machine, at least 1; a Dask cluster has its own.

    Raises:
        InvalidInputError: `where` is neither, Dask is not installed, or its scheduler does not answer.
    """
    if where == LOCAL:
        return partial(_locally, workers)
    return partial(_on_dask, _client(where))


def spread(where: str, workers: int, work: Callable[[_Item], _Result], items: Sequence[_Item]) -> Iterator[_Result]:
    """Do the same work on many items, and yield the results in order.

    Args:
        where: As in `executor`.
        workers: As in `executor`.
        work: A function of a module.
        items: What can be pickled.

    Raises:
        InvalidInputError: as in `executor`.
    """
    return _spread_on_dask(_client(where), work, items) if where != LOCAL else _spread_locally(workers, work, items)


def _spread_locally(workers: int, work: Callable[[_Item], _Result], items: Sequence[_Item]) -> Iterator[_Result]:
    if workers == 1:
        yield from map(work, items)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from pool.map(work, items)


def _spread_on_dask(client: Client, work: Callable[[_Item], _Result], items: Sequence[_Item]) -> Iterator[_Result]:
    with client:
        futures = [client.submit(work, item, pure=False) for item in items]
        for future in futures:
            yield future.result()
            future.release()


def _client(where: str) -> Client:
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
    return client


def _locally(workers: int, scenario: Scenario, experiments: Sequence[Experiment]) -> Iterator[Evaluation]:
    if workers == 1:
        yield from (perform(scenario, experiment) for experiment in experiments)
        return
    # Not fork: other threads, such as those of progress bars, may hold locks.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from pool.map(partial(perform, scenario), experiments)


def _on_dask(client: Client, scenario: Scenario, experiments: Sequence[Experiment]) -> Iterator[Evaluation]:
    with client:
        place = client.scatter(scenario, broadcast=True, hash=False)
        futures = [client.submit(perform, place, experiment, pure=False) for experiment in experiments]
        for future in futures:
            yield future.result()
            future.release()
