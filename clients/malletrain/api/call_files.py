"""Calls of functions and their results as files, in folders that only their owner can write.

What is unpickled is executed. So neither side reads a file that anybody else could have written: the file and all that
is on the way to it have to belong to this account or to root, and nobody else may be able to write them
(`malletrain.common.trusted_files`).
"""

from __future__ import annotations

import os
import pickle
import secrets
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from malletrain.common.trusted_files import UntrustedFileError, check_trusted
from malletrain.runtime.errors import MalleTrainError

CALL_FILE = "call.pickle"
RESULT_FILE = "result.pickle"
MAX_BYTES = 2**30
"""Of a call or a result: data belong in files of their own."""
_PRIVATE = 0o600


class CallFileError(MalleTrainError):
    """The file of a call or of its result can't be used; the message says why."""


@dataclass(frozen=True)
class FunctionCall:
    """What a job is to call.

    Attributes:
        function: The function, or anything that can be called.
        arguments: Its arguments by position.
        keywords: Its arguments by name.
        timeout_seconds: Longest run, from one start of the job's process; 0: no limit.
    """

    function: Callable[..., Any]
    arguments: Sequence[Any] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)
    timeout_seconds: float = 0.0


@dataclass(frozen=True)
class CallResult:
    """What came of a call.

    Attributes:
        value: What the function has returned.
        error: What it has raised; None: nothing.
        traceback: The traceback of that, as text.
    """

    value: Any = None
    error: BaseException | None = None
    traceback: str = ""


def cloudpickle() -> ModuleType:
    """The package that pickles functions of notebooks, too.

    Raises:
        ImportError: it is not installed; the message says how it is.
    """
    try:
        import cloudpickle as imported
    except ModuleNotFoundError:
        raise ImportError("functions as jobs need cloudpickle: pip install 'malletrain[functions]'") from None
    module: ModuleType = imported
    return module


def write_call(folder: Path, call: FunctionCall) -> None:
    """Write a call into a folder of its own, which only this account can write.

    Raises:
        CallFileError: it can't be pickled, or is too large.
        OSError: the file can't be written.
    """
    pickler = cloudpickle()
    try:
        inner = pickler.dumps((call.function, tuple(call.arguments), dict(call.keywords), call.timeout_seconds))
    except Exception as error:
        raise CallFileError(f"the function or its arguments can't be pickled: {error}") from error
    # Modules of the submitter have to be found before the function is unpickled.
    _write(folder / CALL_FILE, pickle.dumps(([entry for entry in sys.path if entry], inner)))


def read_call(folder: Path) -> FunctionCall:
    """Read a call. Folders in which its submitter has modules are looked into from now on, after all others.

    Raises:
        CallFileError: there is none, others could have written it, or it can't be unpickled here.
    """
    path = folder / CALL_FILE
    try:
        modules, inner = pickle.loads(_read(path))
        sys.path.extend(entry for entry in modules if entry not in sys.path)
        function, arguments, keywords, seconds = pickle.loads(inner)
    except CallFileError:
        raise
    except Exception as error:
        raise CallFileError(f"{path} can't be read: {type(error).__name__}: {error}") from error
    return FunctionCall(function, arguments, keywords, seconds)


def write_result(folder: Path, result: CallResult) -> None:
    """Write what came of a call; of an exception that can't be pickled, how it looks.

    Raises:
        CallFileError: the value can't be pickled, or is too large.
        OSError: the file can't be written.
    """
    pickler = cloudpickle()
    try:
        content = pickler.dumps((result.value, result.error, result.traceback))
        if result.error is not None:
            pickle.loads(content)  # an exception may be pickled and yet not be made again
    except Exception as failure:
        if result.error is None:
            raise CallFileError(f"what the function returned can't be pickled: {failure}") from failure
        content = pickle.dumps((None, CallFileError(repr(result.error)[:1000]), result.traceback))
    _write(folder / RESULT_FILE, content)


def read_result(folder: Path) -> CallResult | None:
    """Read what came of a call; None: there is nothing yet.

    Raises:
        CallFileError: others could have written it, or it can't be unpickled here.
    """
    path = folder / RESULT_FILE
    try:
        value, error, trace = pickle.loads(_read(path))
    except FileNotFoundError:
        return None
    except CallFileError:
        raise
    except Exception as failure:
        raise CallFileError(f"{path} can't be read: {type(failure).__name__}: {failure}") from failure
    return CallResult(value, error, trace)


def _write(path: Path, content: bytes) -> None:
    """Make a file in one step, which only this account can read.

    Raises:
        CallFileError: it is too large.
    """
    if len(content) > MAX_BYTES:
        raise CallFileError(
            f"{path.name} would have {len(content)} bytes, more than {MAX_BYTES}: hand on a path instead"
        )
    new = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with open(new, "xb", opener=lambda name, flags: os.open(name, flags, _PRIVATE)) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def _read(path: Path) -> bytes:
    """The content of a file that nobody else could have written.

    Raises:
        CallFileError: others could have, or it is too large.
        OSError: it can't be read.
    """
    try:
        check_trusted(path)
    except UntrustedFileError as error:
        raise CallFileError(
            f"{path} is not believed, since what is unpickled is executed: {error.strerror}. Functions as jobs need "
            "jobs that run as their owners"
        ) from error
    # Of a way that only this account can change, the file that is opened is the one that was looked at.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
            raise CallFileError(f"{path}: expected a plain file of at most {MAX_BYTES} bytes")
        return file.read(MAX_BYTES + 1)
