"""Functions over arrays of numbers, compiled to machine code by Numba where it is installed (extra `sim`).

Numba and what it imports take some 120 MiB. A service that has had no job yet does without: a function is compiled, or
its machine code loaded, when it is called for the first time.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, Generic, ParamSpec, TypeVar, cast

_P = ParamSpec("_P")
_T = TypeVar("_T")


class CompiledFunction(Generic[_P, _T]):
    """A function that is compiled at its first call.

    Any thread may call it: Numba compiles for one thread at a time, and a second one finds the machine code.
    """

    def __init__(self, function: Callable[_P, _T], signature: str, otherwise: Callable[..., object] | None) -> None:
        self.__doc__ = function.__doc__
        self._function = cast(FunctionType, function)
        self._signature = signature
        self._otherwise = otherwise
        self._made: Callable[_P, _T] | None = None

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call the machine code, or what takes its place where Numba is not installed."""
        made = self._made or self.compiled()
        return made(*args, **kwargs)

    def compiled(self) -> Callable[_P, _T]:
        """What is called, made now if it is not yet: loading it takes half a second, compiling it seconds."""
        if self._made is None:
            self._made = cast(Callable[_P, _T], self._make())
        return self._made

    def _make(self) -> Callable[..., object]:
        try:
            from numba import njit
        except ImportError:
            return self._otherwise or self._function
        function = self._with_compiled_callees()
        try:
            return cast(Callable[..., object], njit(self._signature, cache=True, nogil=True)(function))
        except RuntimeError:  # no folder for the cache
            return cast(Callable[..., object], njit(self._signature, nogil=True)(function))

    def _with_compiled_callees(self) -> FunctionType:
        """The function with what Numba made of the functions that it calls, which it could not call otherwise."""
        names: dict[str, Any] = dict(self._function.__globals__)
        for name in self._function.__code__.co_names:
            if isinstance(callee := names.get(name), CompiledFunction):
                names[name] = callee.compiled()
        copy = FunctionType(self._function.__code__, names, self._function.__name__, self._function.__defaults__)
        copy.__qualname__ = self._function.__qualname__
        return copy


def jit(
    signature: str, otherwise: Callable[..., object] | None = None
) -> Callable[[Callable[_P, _T]], CompiledFunction[_P, _T]]:
    """Compile the decorated function at its first call.

    Numba caches the machine code beside the source or in the user's cache folder. Where neither is writable, every
    process compiles again, which takes about a second. Without Numba, `otherwise` takes the function's place, or Python
    runs the function itself.

    Args:
        signature: Numba's types of the result and of the arguments.
        otherwise: The same function in operations on whole arrays: same arguments, same results.
    """
    return lambda function: CompiledFunction(function, signature, otherwise)
