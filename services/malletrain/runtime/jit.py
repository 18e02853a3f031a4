"""Functions over arrays of numbers, compiled to machine code by Numba where it is installed (extra `sim`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

try:
    from numba import njit
except ImportError:
    njit = None

_P = ParamSpec("_P")
_T = TypeVar("_T")


def jit(
    signature: str, otherwise: Callable[..., object] | None = None
) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Compile the decorated function when its module is imported, so that no decision waits for the compiler.

    Numba caches the machine code beside the source or in the user's cache folder. Where neither is writable, every
    process compiles again, which takes about a second. Without Numba, `otherwise` takes the function's place, or Python
    runs the function itself.

    Args:
        signature: Numba's types of the result and of the arguments.
        otherwise: The same function in operations on whole arrays: same arguments, same results.
    """

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        if njit is None:
            return cast(Callable[_P, _T], otherwise or function)
        try:
            made = njit(signature, cache=True, nogil=True)(function)
        except RuntimeError:  # no folder for the cache
            made = njit(signature, nogil=True)(function)
        return cast(Callable[_P, _T], made)

    return decorate
