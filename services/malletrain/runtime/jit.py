"""Functions over arrays of numbers, compiled to machine code by Numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

from numba import njit

_P = ParamSpec("_P")
_T = TypeVar("_T")


def jit(signature: str) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Compile the decorated function when its module is imported, so that no decision waits for the compiler.

    Numba caches the machine code beside the source or in the user's cache folder. Where neither is writable, every
    process compiles again, which takes about a second.

    Args:
        signature: Numba's types of the result and of the arguments.
    """

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        try:
            made = njit(signature, cache=True, nogil=True)(function)
        except RuntimeError:  # no folder for the cache
            made = njit(signature, nogil=True)(function)
        return cast(Callable[_P, _T], made)

    return decorate
