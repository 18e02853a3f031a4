"""Loops over numbers, compiled by Numba: the same Python, some hundred times faster."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

from numba import njit

_P = ParamSpec("_P")
_T = TypeVar("_T")


def compiled(signature: str) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Compile a function when its module is imported, so that no decision waits for it.

    The machine code is kept beside the source or in the user's cache; where neither can be written it is made anew in
    each process, which takes about a second.

    Args:
        signature: Numba's types of the result and of the arguments.
    """

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        try:
            made = njit(signature, cache=True, nogil=True)(function)
        except RuntimeError:  # no place for the cache
            made = njit(signature, nogil=True)(function)
        return cast(Callable[_P, _T], made)

    return decorate
