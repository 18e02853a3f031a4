"""Stage-outs of an agent: checkpoints that workers have left in memory, copied once the workers have gone.

Each is copied by a process of its own, as the workers' user, that holds the memory; see `malletrain.common.stage_out`.
What a user can do with the memory, or to the process, concerns this user's own files and limits only.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from malletrain.common import environment as env
from malletrain.common.accounts import Account, account_environment
from malletrain.common.child_process import ChildProcess
from malletrain.common.stage_out import StageOutTerms, read_staged
from malletrain.common.start_process import start_process

_MAX_USERS = 2
"""One has just left the node, and its next one leaves it, too."""
_MAX_OF_USER = 64
"""Processes: workers of a node that leave a part each."""
_LATE_SECONDS = 2.0
"""How long a process may take to remove what it has copied, once its time is over."""
_LAST_SECONDS = 0.25
"""The same when the agent ends."""
_POLL_SECONDS = 0.005


@dataclass(frozen=True)
class _StageOut:
    process: ChildProcess
    user_id: int
    size: int
    kill_at: float


def has_room(held: Iterable[tuple[int, int]], user_id: int, size: int, max_bytes: int) -> bool:
    """Whether another checkpoint may be copied. Pure.

    Args:
        held: User and bytes of each that is being copied.
        user_id: Whose it is.
        size: Its bytes.
        max_bytes: Most bytes of a user.
    """
    known = list(held)
    own = [held_bytes for user, held_bytes in known if user == user_id]
    users = {user for user, _ in known} | {user_id}
    return sum(own) + size <= max_bytes and len(own) < _MAX_OF_USER and len(users) <= _MAX_USERS


class StageOuts:
    """Copies of checkpoints that one agent makes. Use from its main thread, with which the kernel ends them."""

    def __init__(self, terms: StageOutTerms | None, say: Callable[[str], object]) -> None:
        """Nothing is copied yet.

        Args:
            terms: How long and how much may be copied; None: nothing.
            say: Told what happens, in a line of text.
        """
        self.terms = terms
        self._say = say
        self._open: list[_StageOut] = []

    @property
    def under_way(self) -> bool:
        """Whether anything is being copied."""
        return bool(self._open)

    @property
    def pids(self) -> set[int]:
        """Process ids of those that have not been collected yet."""
        return {stage_out.process.pid for stage_out in self._open}

    def take(self, descriptor: int, job_folder: str, account: Account | None) -> None:
        """Have copied what workers have left in memory, if it is a checkpoint. The descriptor may be closed then.

        Args:
            descriptor: The memory.
            job_folder: The job's folder.
            account: As whom its workers ran; None: as the agent.
        """
        if self.terms is None:
            return
        user_id = os.geteuid() if account is None else account.user_id
        try:
            staged = read_staged(descriptor)
            if staged is None:
                return
            held = ((stage_out.user_id, stage_out.size) for stage_out in self._open)
            if not has_room(held, user_id, staged.size, self.terms.max_bytes):
                self._say(f"a checkpoint of {staged.size} bytes of user id {user_id} is not copied: it is too much")
                return
            program = (sys.executable, "-P", "-s", "-m", "malletrain.client.stage_out")
            arguments = (str(descriptor), job_folder, f"{self.terms.seconds:g}", str(os.getpid()))
            # It writes its log itself: where the job's folder does not answer, the agent does not wait.
            process = start_process(
                (*program, *arguments),
                "/",
                _environment(account),
                Path(os.devnull),
                pass_fds=(descriptor,),
                account=account,
            )
        except OSError as error:
            self._say(f"a checkpoint of user id {user_id} can't be copied: {error}")
            return
        kill_at = time.monotonic() + self.terms.seconds + _LATE_SECONDS
        self._open.append(_StageOut(process, user_id, staged.size, kill_at))
        self._say(f"a checkpoint of {staged.size} bytes of user id {user_id} is copied to {job_folder!r}")

    def poll(self, now: float) -> None:
        """Collect those that have ended, and kill those that are late.

        Args:
            now: Monotonic seconds.
        """
        for stage_out in list(self._open):
            status = stage_out.process.poll()
            if status is not None:
                self._open.remove(stage_out)
                self._say(f"copying a checkpoint of user id {stage_out.user_id} has ended with {status}")
            elif now >= stage_out.kill_at:
                stage_out.process.kill()

    def close(self) -> None:
        """End all: they get a moment to remove what they have copied. None is begun any more."""
        self.terms = None
        for stage_out in self._open:
            stage_out.process.terminate()
        deadline = time.monotonic() + _LAST_SECONDS
        while self._open and time.monotonic() < deadline:
            self.poll(time.monotonic())
            time.sleep(_POLL_SECONDS)
        for stage_out in self._open:
            stage_out.process.kill()


def _environment(account: Account | None) -> dict[str, str]:
    """Without the marks of a job: its processes are ended when it leaves the node."""
    own = os.environ if account is None else account_environment(os.environ, account)
    return {name: value for name, value in own.items() if not name.startswith(env.PREFIX)}
