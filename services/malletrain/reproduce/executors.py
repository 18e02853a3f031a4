"""Spreads simulations over the cores of this machine or over a Dask cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING, TypeVar

from malletrain.runtime.errors import InvalidInputError

if TYPE_CHECKING:
    from distributed import Client

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
LOCAL, DASK = "local", "dask://"


def spread(where: str, workers: int, work: Callable[[_Item], _Result], items: Sequence[_Item]) -> Iterator[_Result]:
    """Do the same work on many items, and yield the results in order.

    Args:
        where: `local`, or `dask://HOST:PORT` of a Dask scheduler whose workers have MalleTrain installed.
        workers: Processes on this machine, at least 1; a Dask cluster has its own.
        work: A function of a module, also with some of its arguments given by `functools.partial`.
        items: What can be pickled.

    Raises:
        InvalidInputError: `where` is neither, Dask is not installed, or its scheduler does not answer.
    """
    return _spread_on_dask(_client(where), work, items) if where != LOCAL else _spread_locally(workers, work, items)


def _spread_locally(workers: int, work: Callable[[_Item], _Result], items: Sequence[_Item]) -> Iterator[_Result]:
    if workers == 1:
        yield from map(work, items)
        return
    # Not fork: other threads, such as those of progress bars, may hold locks.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from pool.map(work, items)


def _spread_on_dask(client: Client, work: Callable[[_Item], _Result], items: Sequence[_Item]) -> Iterator[_Result]:
    with client:
        # Sent once to each worker: its arguments may be large.
        place = client.scatter(work, broadcast=True, hash=False)
        futures = [client.submit(_call, place, item, pure=False) for item in items]
        for future in futures:
            yield future.result()
            future.release()


def _call(work: Callable[[_Item], _Result], item: _Item) -> _Result:
    return work(item)


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
