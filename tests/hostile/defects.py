"""Has a task or thread of a real process raise, as a defect would: `with_defects` makes the environment for that.

Python imports `sitecustomize` when it starts. That of a test's folder wraps what begins tasks and threads that last, so
that one of them raises once a file says so; the code of services, agents and supervisors has nothing of this.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import fnmatch
import json
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from typing import Any

from typing_extensions import override

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "services" / "malletrain"
FOLDER = "TEST_DEFECTS_FOLDER"
_ORDER, _DONE = "order.json", "raised.json"
_LOOK_SECONDS = 0.05
_HELPERS = ("lasting", "ending", "start_task", "start_thread")


class InjectedError(Exception):
    """What the defect raises."""


def names_begun(source: str) -> set[str]:
    """What a source begins by `malletrain.common.tasks` or in groups: the name, or for a group the function called."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        owner, _, called = ast.unparse(node.func).rpartition(".")
        if called in _HELPERS or (called == "start" and owner.endswith("crew")):
            found.add(_pattern(node.args[1]))
        elif called == "create_task" and owner.endswith("group"):
            work = node.args[0]
            name = ast.unparse(work.func).rpartition(".")[2] if isinstance(work, ast.Call) else ast.unparse(work)
            if name not in _HELPERS:
                found.add(f"{name}()")
    return found


def _pattern(name: ast.expr) -> str:
    if isinstance(name, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "*" for part in name.values)  # type: ignore[misc]
    return str(ast.literal_eval(name))


class Defects:
    """Orders defects of processes that were started with its environment."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "sitecustomize.py").write_text("from tests.hostile.defects import install\ninstall()\n")
        self._folder = folder

    @property
    def environment(self) -> dict[str, str]:
        """Variables for the processes."""
        return {FOLDER: str(self._folder), "PYTHONPATH": f"{self._folder}:{ROOT}"}

    def order(self, key: str, program: str = "") -> None:
        """Have a task raise.

        Args:
            key: FILE:NAME, the source below services/malletrain and what `names_begun` finds there.
            program: A word of the command of the process that is meant; empty: any.
        """
        (self._folder / _DONE).unlink(missing_ok=True)
        draft = self._folder / "draft"
        draft.write_text(json.dumps({"key": key, "program": program}))
        draft.rename(self._folder / _ORDER)

    @property
    def raised_in(self) -> int:
        """Process in which the ordered defect has happened; 0: it has not."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            return int((self._folder / _DONE).read_text())
        return 0


def install() -> None:
    """Wrap what begins tasks and threads in this process, which has not imported anything of ours yet."""
    from malletrain.common import tasks

    crew_start, lasting, ending = tasks.Crew.start, tasks.lasting, tasks.ending
    start_task, start_thread, in_group = tasks.start_task, tasks.start_thread, asyncio.TaskGroup.create_task

    def new_lasting(work: Coroutine[Any, Any, object], name: str) -> Any:
        return lasting(_Defective(work, _key(name)), name)

    def new_ending(work: Coroutine[Any, Any, object], name: str) -> Any:
        key = _key(name)
        return ending(_Defective(work, key) if _is_ours(key) else work, name)

    def new_start_task(work: Any, name: str, *more: Any, **named: Any) -> Any:
        key = _key(name)
        return start_task(_Defective(work, key) if _is_ours(key) else work, name, *more, **named)

    def new_start(self: tasks.Crew, work: Any, name: str, *, may_end: bool = False) -> None:
        crew_start(self, _Defective(work, _key(name)), name, may_end=may_end)

    def new_start_thread(work: Callable[[], object], name: str, *more: Any, **named: Any) -> Any:
        return start_thread(_defective(work, _key(name)), name, *more, **named)

    def new_create_task(self: asyncio.TaskGroup, work: Any, **named: Any) -> Any:
        key = _key(f"{work.__name__}()")
        is_new = _is_ours(key) and work.__name__ not in _HELPERS
        return in_group(self, _Defective(work, key) if is_new else work, **named)

    tasks.lasting, tasks.start_task, tasks.start_thread = new_lasting, new_start_task, new_start_thread  # type: ignore[assignment]
    tasks.Crew.start, tasks.ending = new_start, new_ending  # type: ignore[method-assign]
    asyncio.TaskGroup.create_task = new_create_task  # type: ignore[assignment]


def _key(name: str) -> str:
    """By the file of whoever called the wrapper."""
    file = Path(sys._getframe(2).f_code.co_filename)
    return f"{file.relative_to(SOURCES) if file.is_relative_to(SOURCES) else file}:{name}"


def _is_ours(key: str) -> bool:
    """Not what the helpers begin for others: these have been wrapped."""
    return not key.startswith(("/", "common/tasks.py"))


def _is_due(key: str) -> bool:
    """Whether the defect of a task is ordered of this process; it happens once."""
    folder = Path(os.environ[FOLDER])
    try:
        order = json.loads((folder / _ORDER).read_text())
    except (FileNotFoundError, ValueError):
        return False
    # A process that was forked from another Python has its command in /proc only.
    words = Path("/proc/self/cmdline").read_bytes().decode(errors="replace").split("\0")
    if not fnmatch.fnmatchcase(key, order["key"].replace("[", "[[]")) or order["program"] not in [*words, ""]:
        return False
    try:
        (folder / _ORDER).rename(folder / f"taken-{os.getpid()}")
    except FileNotFoundError:
        return False
    (folder / _DONE).write_text(str(os.getpid()))
    return True


class _Defective(Coroutine[Any, Any, object]):
    """A coroutine that ends by an error when that is ordered, after it has cleaned up as at a cancellation."""

    def __init__(self, work: Any, key: str) -> None:
        self._work = work
        self._key = key
        self._task: asyncio.Task[Any] | None = None
        self._due = False
        self.__name__ = self.__qualname__ = getattr(work, "__name__", "work")

    def _look(self) -> None:
        if self._task is None or self._task.done():
            return
        if _is_due(self._key):
            self._due = True
            self._task.cancel()
        else:
            self._task.get_loop().call_later(_LOOK_SECONDS, self._look)

    @override
    def send(self, value: Any) -> Any:
        if self._task is None:
            self._task = asyncio.current_task()
            self._look()
        return self._step(lambda: self._work.send(value))

    @override
    def throw(self, kind: Any, value: Any = None, traceback: Any = None) -> Any:
        return self._step(lambda: self._work.throw(kind if value is None else value))

    def _step(self, go_on: Callable[[], Any]) -> Any:
        try:
            return go_on()
        except asyncio.CancelledError:  # at once, or after it has waited for what it had begun itself
            if not self._due:
                raise
            if self._task is not None:
                self._task.uncancel()
            raise InjectedError(self._key) from None

    @override
    def close(self) -> None:
        self._work.close()

    @override
    def __await__(self) -> Generator[Any, Any, object]:
        return self  # type: ignore[return-value]

    def __iter__(self) -> _Defective:
        return self

    def __next__(self) -> Any:
        return self.send(None)


def _defective(work: Callable[[], object], key: str) -> Callable[[], object]:
    """The work of a thread, which goes on in another one: no thread can be made to raise while it waits."""

    def run() -> None:
        error: list[BaseException] = []

        def real() -> None:
            try:
                work()
            except BaseException as caught:  # noqa: BLE001 - it is raised below
                error.append(caught)

        thread = threading.Thread(target=real, daemon=True, name=f"real {key}")
        thread.start()
        while thread.is_alive():
            if _is_due(key):
                raise InjectedError(key)
            thread.join(_LOOK_SECONDS)
        if error:
            raise error[0]

    return run
