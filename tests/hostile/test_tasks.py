"""No task or thread that lasts ends without anybody noticing: the process ends, or it is repaired."""

from __future__ import annotations

import ast
import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from malletrain.common.tasks import DEFECT_STATUS, Crew, TaskEndedError, ending, lasting, start_task, start_thread
from tests.hostile import tasks_made_to_fail as made
from tests.hostile.defects import SOURCES, names_begun
from tests.support.certificates import certificate
from tests.support.waiting import wait_until, wait_until_async

ROOT = Path(__file__).parents[2] / "services" / "malletrain"
_AWAITED = "the function that creates it awaits it, and raises what has ended it"
_CALL = "belongs to one call, which ends with it and says why"
_ONE_COMMAND = "belongs to a command of a user, which ends when this does or after a time"
# By file: how many tasks or threads are begun there without the helpers, and why that is no risk.
BARE = {
    "agent/report_forwarder.py": (1, _CALL),
    "agent/supervisor_server.py": (1, _CALL),
    "cli/check/job_run.py": (1, _ONE_COMMAND),
    "cli/operate/dashboard.py": (1, _AWAITED),
    "cli/demo/recorder.py": (1, _ONE_COMMAND),
    "cli/simulate/shadow.py": (2, _AWAITED),
    "cli/top/command.py": (1, _AWAITED),
    "common/tasks.py": (2, "the helpers themselves"),
    "job_manager/launching/processes.py": (5, _AWAITED),
    "monitor/service.py": (1, _CALL),
    "runtime/kernel/write_behind.py": (1, _AWAITED),
    "runtime/plain_reports.py": (2, "belongs to one connection, which ends with it"),
    "runtime/process.py": (2, _AWAITED),
    "scavenger/acquisition/agent_registry.py": (1, _CALL),
    "scavenger/sources/mixed.py": (2, _AWAITED),
    "supervisor/rendezvous/guarded_store.py": (2, _AWAITED),
    "tls/channels.py": (1, "closes a channel that nobody uses any more; whoever closes all awaits it"),
}
# Tasks of groups: an error ends the group, and with it the service; these may also end without one.
MAY_END = {
    "allocator/service.py": {"self._tuner.run()"},
    "observer/watching.py": {"task"},
    "job_manager/effect_runner.py": {
        "self._peers.notify(job_id, notice, nodes)",
        "self._perform(effect)",
        "reporting",
    },
    "job_manager/storage/retention.py": {"self._by_age()"},
    "job_manager/service.py": {"self._retention.run()"},
    "scavenger/idle_events.py": {"self._follow_source()"},
}
_GROUPS = {"group", "self._group"}


def begun(source: str) -> tuple[int, set[str]]:
    """How many tasks and threads a source begins without the helpers, and what its groups do that may end."""
    bare, ending = 0, set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        if name.endswith(".create_task") and name.removesuffix(".create_task") in _GROUPS:
            work = node.args[0]
            helper = ast.unparse(work.func) if isinstance(work, ast.Call) else ""
            if helper == "ending" and isinstance(work, ast.Call):
                ending.add(ast.unparse(work.args[0]))
            elif helper != "lasting":
                bare += 1
        elif name.rpartition(".")[2] in {"create_task", "ensure_future", "Thread"}:
            bare += 1
    return bare, ending


def test_every_task_and_thread_is_begun_by_the_helpers_or_awaited() -> None:
    bare, ending = {}, {}
    for path in sorted(ROOT.rglob("*.py")):
        count, may_end = begun(path.read_text(encoding="utf-8"))
        name = str(path.relative_to(ROOT))
        bare |= {name: count} if count else {}
        ending |= {name: may_end} if may_end else {}
    assert bare == {name: count for name, (count, _) in BARE.items()}, "use malletrain.common.tasks"
    assert ending == MAY_END, "wrap what lasts in lasting(), the rest in ending()"


def test_the_check_sees_what_is_begun() -> None:
    assert begun("loop.create_task(x())") == (1, set())
    assert begun("asyncio.ensure_future(x)") == (1, set())
    assert begun("threading.Thread(target=x).start()") == (1, set())
    assert begun("group.create_task(self.run(), name='a')") == (1, set())
    assert begun("group.create_task(ending(self.run(), 'a'))") == (0, {"self.run()"})
    assert begun("group.create_task(lasting(self.run(), 'a'))") == (0, set())


async def _fails() -> None:
    await asyncio.sleep(0)
    raise RuntimeError("a defect")


async def _returns() -> None:
    await asyncio.sleep(0)


@pytest.mark.parametrize(("work", "error"), [(_fails, RuntimeError), (_returns, TaskEndedError)])
async def test_a_crew_is_told_of_the_end_of_a_member(work: object, error: type[Exception]) -> None:
    told: list[bool] = []
    crew = Crew(lambda: told.append(True))
    crew.start(asyncio.Event().wait(), "waits")
    crew.start(work(), "ends")  # type: ignore[operator]
    await wait_until_async(lambda: told, 10, "that it is told")
    with pytest.raises(error):
        crew.check()
    assert crew.working == 1
    await crew.close()
    assert crew.working == 0
    assert told == [True], "those that are cancelled have not ended by themselves"


async def test_what_may_end_ends_without_a_word() -> None:
    crew = Crew(lambda: pytest.fail("told"))
    crew.start(_returns(), "ends", may_end=True)
    await wait_until_async(lambda: crew.working == 0, 10, "its end")
    crew.check()


async def test_a_group_does_not_go_on_without_what_should_last() -> None:
    async def together() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.Event().wait())
            group.create_task(lasting(_returns(), "the control loop"))

    with pytest.raises(BaseExceptionGroup) as caught:
        await together()
    assert "the control loop has ended by itself" in str(caught.value.exceptions[0])


async def _reads_a_cancelled_call() -> None:
    """As reading a gRPC call does that another task cancels, or whose channel is closed."""
    call = asyncio.get_running_loop().create_future()
    call.get_loop().call_soon(call.cancel)
    await call


async def test_a_cancellation_that_nobody_has_asked_for_is_noticed() -> None:
    """asyncio takes it for a cancellation of the task itself, of which neither groups nor callbacks are told."""

    async def together(wrapper: Callable[..., Any]) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.Event().wait())
            group.create_task(wrapper(_reads_a_cancelled_call(), "one"))

    for wrapper in (lasting, ending):
        with pytest.raises(BaseExceptionGroup) as caught:
            await together(wrapper)
        assert "one has ended by the cancellation of something else" in str(caught.value.exceptions[0])
    told: list[BaseException] = []
    kept = start_task(_reads_a_cancelled_call(), "one", told.append)
    await asyncio.wait([kept])
    assert [type(error) for error in told] == [TaskEndedError]
    asked_for = start_task(asyncio.Event().wait(), "two", told.append)
    await asyncio.sleep(0)
    asked_for.cancel()
    await asyncio.wait([asked_for])
    assert asked_for.cancelled()
    assert len(told) == 1


async def test_a_task_and_a_thread_tell_what_has_ended_them() -> None:
    told: list[BaseException] = []
    kept = [start_task(_fails(), "fails", told.append), start_task(_returns(), "ends", told.append)]
    await asyncio.wait(kept)
    start_thread(lambda: 1 / 0, "fails", told.append).join()
    assert [type(error) for error in told] == [RuntimeError, ZeroDivisionError]
    assert threading.current_thread() is threading.main_thread()


_DEFECTS = {
    "a task": "async def main():\n kept = start_task(fails(), 'x')\n await asyncio.sleep(600)\nasyncio.run(main())",
    "a thread": "start_thread(lambda: 1 / 0, 'x')\ntime.sleep(600)",
}


@pytest.mark.parametrize("defect", _DEFECTS.values(), ids=_DEFECTS)
def test_by_default_the_process_ends_and_says_why(defect: str) -> None:
    head = "import asyncio, time\nfrom malletrain.common.tasks import *\nasync def fails(): 1 / 0\n"
    done = subprocess.run(
        [sys.executable, "-c", head + defect], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == DEFECT_STATUS
    assert "ZeroDivisionError" in done.stderr


_AGENT = """
import os, runpy, subprocess, sys
from malletrain.agent import agent, registration
target, member, how = sys.argv.pop(1), sys.argv.pop(1), sys.argv.pop(1)
owner = {"agent": agent.Agent, "registration": registration.Registration}[target]
async def ends(*_):
    # As a worker does, it begins a session, and ignores what asks it to end.
    program = "import signal, time; signal.pthread_sigmask(signal.SIG_BLOCK, {15}); print(flush=True); time.sleep(600)"
    left = subprocess.Popen([sys.executable, "-c", program], start_new_session=True, stdout=subprocess.PIPE)
    left.stdout.readline()
    print("left behind", left.pid, file=sys.stderr, flush=True)
    if how == "raises":
        raise RuntimeError("a defect")
setattr(owner, member, ends)
runpy.run_module("malletrain.agent", run_name="__main__")
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("how", ["raises", "returns"])
@pytest.mark.parametrize("task", ["agent._poll", "registration.run"])
@pytest.mark.processes
def test_an_agent_one_of_whose_tasks_has_ended_leaves_its_node(tmp_path: Path, task: str, how: str) -> None:
    owner, member = task.split(".")
    command = [sys.executable, "-c", _AGENT, owner, member, how, "--node", "n1", "--head", "127.0.0.1:9"]
    shown = str(certificate(tmp_path, "agent"))
    process = subprocess.Popen([*command, "--certificate", shown], stderr=subprocess.PIPE, text=True)
    try:
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == DEFECT_STATUS, said
    assert "ends by a defect" in said
    left = int(said.partition("left behind ")[2].split()[0])
    wait_until(lambda: not _runs(left), 10, "the end of what was left behind")


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_every_task_and_thread_that_is_begun_has_a_test() -> None:
    sources = (path for path in SOURCES.rglob("*.py") if path != SOURCES / "common/tasks.py")
    begun = {f"{path.relative_to(SOURCES)}:{name}" for path in sources for name in names_begun(path.read_text())}
    tested = [key for keys in made.OF_SERVICES.values() for key in keys]
    tested += [made.EFFECT, *made.OF_AGENTS, *made.OF_REGISTRATIONS]
    tested += [key for _, key in made.END_SUPERVISORS] + [*made.TOLD_BY_SUPERVISORS, *made.REPAIRED_BY_SUPERVISORS]
    assert begun == {*tested, *made.ELSEWHERE}, (
        "make it raise in test_defects.py, or say in tasks_made_to_fail.py why not"
    )
    assert not set(tested) & made.ELSEWHERE.keys()


def test_names_are_found() -> None:
    assert names_begun("start_task(lasting(x(), 'a'), 'b')") == {"a", "b"}
    assert names_begun("start_thread(work, f'of {user} x')") == {"of * x"}
    assert names_begun("self._crew.start(work(), 'a', may_end=True)\nthread.start(x, 'b')") == {"a"}
    assert names_begun("group.create_task(lasting(x(), 'a'))\nself._group.create_task(self.y.run())") == {"a", "run()"}
