"""Calls and results as files: what is read is what was written, and nothing that anybody else could have written."""

from __future__ import annotations

import os
import pickle
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from malletrain.api.call_files import (
    CALL_FILE,
    RESULT_FILE,
    CallFileError,
    CallResult,
    FunctionCall,
    read_call,
    read_result,
    write_call,
)
from malletrain.api.run_call import run_call


class OfTwoArgumentsError(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)

    def __reduce__(self) -> tuple[Any, ...]:  # said here, since some packages change how all exceptions are pickled
        return OfTwoArgumentsError, self.args


def divide(first: float, second: float) -> float:
    return first / second


def fail() -> None:
    raise OfTwoArgumentsError("a", "b")


def wait_for_ever() -> None:
    threading.Event().wait()


def call(folder: Path, function: Any, *arguments: Any, **keywords: Any) -> CallResult:
    write_call(folder, FunctionCall(function, arguments, keywords))
    run_call(folder)
    found = read_result(folder)
    assert found is not None
    return found


def test_a_call_and_its_result(tmp_path: Path) -> None:
    factor = 3
    found = call(tmp_path, lambda value, plus: value * factor + plus, 2, plus=1)
    assert (found.value, found.error) == (7, None)
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in (CALL_FILE, RESULT_FILE)}
    assert modes == {0o600}
    assert sorted(path.name for path in tmp_path.iterdir()) == [CALL_FILE, RESULT_FILE]


def test_what_a_call_raises(tmp_path: Path) -> None:
    found = call(tmp_path, divide, 1, 0)
    assert isinstance(found.error, ZeroDivisionError)
    assert "divide" in found.traceback


def test_an_exception_that_can_not_be_made_again_is_told(tmp_path: Path) -> None:
    found = call(tmp_path, fail)
    assert isinstance(found.error, CallFileError)
    assert "OfTwoArgumentsError('a')" in str(found.error)
    assert "fail" in found.traceback


def test_a_value_that_can_not_be_pickled_is_an_error(tmp_path: Path) -> None:
    found = call(tmp_path, lambda: (value for value in "ab"))
    assert isinstance(found.error, CallFileError)
    assert "can't be pickled" in str(found.error)


def test_a_function_that_can_not_be_pickled_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "open").open("w") as file, pytest.raises(CallFileError, match="can't be pickled"):
        write_call(tmp_path, FunctionCall(print, (file, sys._getframe())))
    assert not (tmp_path / CALL_FILE).exists()


def test_only_the_first_rank_writes_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    write_call(tmp_path, FunctionCall(divide, (4, 2)))
    assert run_call(tmp_path) == 0
    assert read_result(tmp_path) is None
    monkeypatch.setenv("RANK", "0")
    assert run_call(tmp_path) == 0
    assert read_result(tmp_path) == CallResult(2.0)


class Attack:
    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return Path.touch, (self.place,)


@pytest.mark.parametrize("kind", ["folder", "file", "link", "owner"])
@pytest.mark.parametrize("read", [read_result, read_call], ids=["result", "call"])
def test_what_others_could_have_written_is_not_unpickled(tmp_path: Path, kind: str, read: Any) -> None:
    folder, executed = tmp_path / "call", tmp_path / "executed"
    folder.mkdir(mode=0o700)
    for name in (CALL_FILE, RESULT_FILE):
        content = pickle.dumps(Attack(executed))
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o600)
        if kind == "file":
            (folder / name).chmod(0o666)
        elif kind == "link":
            (folder / name).rename(tmp_path / name)
            (tmp_path / name).chmod(0o602)
            (folder / name).symlink_to(tmp_path / name)
        elif kind == "owner":
            if os.geteuid() != 0:
                pytest.skip("needs root, to give a file to another account")
            os.chown(folder / name, 4321, 4321)
    if kind == "folder":
        folder.chmod(0o777)
    with pytest.raises(CallFileError, match="not believed"):
        read(folder)
    assert not executed.exists()


@pytest.mark.parametrize("content", [b"", b"no pickle", pickle.dumps(3)])
def test_a_file_that_is_no_call(tmp_path: Path, content: bytes) -> None:
    for name in (CALL_FILE, RESULT_FILE):
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(0o600)
    for read in (read_call, read_result):
        with pytest.raises(CallFileError, match="can't be read"):
            read(tmp_path)


def test_modules_of_the_submitter_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules, folder = tmp_path / "modules", tmp_path / "call"
    modules.mkdir()
    folder.mkdir()
    (modules / "of_the_submitter.py").write_text("def answer():\n    return 42\n")
    monkeypatch.syspath_prepend(str(modules))
    from of_the_submitter import answer  # type: ignore[import-not-found]

    write_call(folder, FunctionCall(answer))
    command = [sys.executable, "-m", "malletrain.api.run_call", str(folder)]
    assert subprocess.run(command, cwd=tmp_path, timeout=100, check=False).returncode == 0
    assert read_result(folder) == CallResult(42)


def test_a_call_that_takes_too_long_ends(tmp_path: Path) -> None:
    write_call(tmp_path, FunctionCall(wait_for_ever, timeout_seconds=0.2))
    command = [sys.executable, "-m", "malletrain.api.run_call", str(tmp_path)]
    assert subprocess.run(command, stderr=subprocess.DEVNULL, timeout=100, check=False).returncode == 1
    found = read_result(tmp_path)
    assert found is not None
    assert isinstance(found.error, TimeoutError)
