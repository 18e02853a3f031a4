"""Standby processes of several interpreters and accounts on one machine, within one limit of memory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from malletrain.common.accounts import Account
from malletrain.common.cgroups import Cgroup
from malletrain.common.standby.config import StandbyConfig, parse_forkable, same_interpreter, standby_config_for
from malletrain.common.standby.manager import StandbyManager
from malletrain.common.standby.preload import RefusedError, differing_variables

_MAX_STANDBYS = 8
_KEPT_SECONDS = 30.0
"""A process that was just started or used is not ended for another: two jobs in turn would end each other's."""
_LOOK_SECONDS = 10.0
_MAX_NAMES = 256


class WorkerForks(Protocol):
    """Forks workers where it can."""

    def is_worth_waiting(self, command: Sequence[str], folder: str, environment: Mapping[str, str]) -> bool:
        """Whether a worker that is to be started now had better wait; arguments as for `StandbyManager`."""

    def fork(
        self, command: Sequence[str], folder: str, environment: Mapping[str, str], log: int, pipes: tuple[int, ...]
    ) -> int | None:
        """Process id of a worker that has been forked; None if it must be started as a new interpreter."""


@dataclass
class _Kept:
    """A manager, whose it is, and when it was opened or used last."""

    manager: StandbyManager
    user_id: int
    used: float


class StandbyProcesses:
    """One manager for each account and config that its workers show. Use from one thread.

    All standby processes together have so much memory at most. For another one, those that were used least recently are
    ended.

    Attributes:
        memory_bytes: That memory; 0: none is kept.
    """

    def __init__(
        self,
        memory_bytes: int,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        group_of: Callable[[int], Cgroup | None] = lambda _: None,
    ) -> None:
        """Start nothing before `tick`.

        Args:
            memory_bytes: Largest share of memory of all together; 0: there are none.
            say: Called with a line of text about what happens.
            clock: Monotonic time in seconds.
            group_of: Returns the cgroup of a user's standby processes; None: that of this process.
        """
        self.memory_bytes = memory_bytes
        self._say = say
        self._clock = clock
        self._group_of = group_of
        self._kept: list[_Kept] = []
        self._names: set[str] = set()
        self._looked = clock()

    @property
    def is_open(self) -> bool:
        """Whether there may be standby processes."""
        return self.memory_bytes > 0

    @property
    def is_ready(self) -> bool:
        """Whether one of the standby processes would fork now."""
        return any(entry.manager.is_ready for entry in self._kept)

    @property
    def pids(self) -> set[int]:
        """Process ids of the standby processes."""
        return {entry.manager.pid for entry in self._kept if entry.manager.pid}

    @property
    def user_ids(self) -> set[int]:
        """Users whose standby processes are kept."""
        return {entry.user_id for entry in self._kept}

    def open(self, account: Account | None, config: StandbyConfig) -> bool:
        """Keep one more standby process; whether there is room for it.

        Args:
            account: As whom it runs; None: as this process.
            config: How to start it.
        """
        if not self._make_room():
            return False

        def spread(other: StandbyConfig, names: Sequence[str]) -> bool:
            if len(self._names) + len(names) > _MAX_NAMES:
                self._names.clear()  # workers show again what matters
            self._names.update(names)
            return self.open(account, other)

        manager = StandbyManager(
            self._say,
            config=config,
            account=account,
            memory_bytes=self.memory_bytes,
            clock=self._clock,
            spread=spread,
            group=lambda: self._group_of(_user_of(account)),
        )
        self._kept.append(_Kept(manager, _user_of(account), self._clock()))
        return True

    def of(self, account: Account | None) -> WorkerForks:
        """What forks the workers of an account; None: of this process's own."""
        return _OfAccount(self, account)

    def choose(
        self, account: Account | None, command: Sequence[str], folder: str, environment: Mapping[str, str]
    ) -> StandbyManager | None:
        """The manager for a worker, which is opened if needed; None where there is no room for it.

        Raises:
            RefusedError: no standby process can run its command.
        """
        _, interpreter = parse_forkable(command, folder, environment)
        return self.choose_for(account, interpreter, environment)

    def choose_for(
        self, account: Account | None, interpreter: str, environment: Mapping[str, str], *, may_open: bool = True
    ) -> StandbyManager | None:
        """The manager for processes of an interpreter, which is opened if needed; None where there is no room for it.

        Args:
            account: As whom they run; None: as this process.
            interpreter: Path of the interpreter.
            environment: Their whole environment.
            may_open: Whether one may be opened; if not, None where none fits.
        """
        for _ in range(2):
            for entry in self._kept:
                config = entry.manager.config
                if (
                    entry.user_id == _user_of(account)
                    and config is not None
                    and same_interpreter(interpreter, config.interpreter)
                    and not differing_variables(environment, config.environment, self._names)
                ):
                    entry.used = self._clock()
                    return entry.manager
            if not may_open or not self.is_open or not self.open(account, standby_config_for(interpreter, environment)):
                break
        return None

    def say(self, text: str) -> None:
        """Pass a line of a manager on to the owner's log."""
        self._say(text)

    def tick(self, *, busy: bool) -> None:
        """Look after all; see `StandbyManager.tick`."""
        for entry in self._kept:
            entry.manager.tick(busy=busy)
        if self._clock() - self._looked >= _LOOK_SECONDS:
            self._looked = self._clock()
            while len(self._kept) > 1 and self.memory_used() > self.memory_bytes:
                self._drop(min(self._kept, key=lambda entry: entry.used))

    def end(self, user_ids: Collection[int]) -> None:
        """End those of some users."""
        for entry in [entry for entry in self._kept if entry.user_id in user_ids]:
            self._kept.remove(entry)
            entry.manager.close()

    def kill(self) -> None:
        """Kill all, and start none any more. They may end a moment later."""
        self.memory_bytes = 0
        for entry in self._kept:
            entry.manager.kill()

    def close(self) -> None:
        """End all; none is started any more."""
        self.memory_bytes = 0
        self.end(self.user_ids)

    def memory_used(self) -> int:
        """Memory that all of them take, in bytes."""
        return sum(entry.manager.memory_used() for entry in self._kept)

    def _make_room(self) -> bool:
        """Have room for one more, which may take as much as the largest; whether there is."""
        while self._kept:
            largest = max(entry.manager.memory_used() for entry in self._kept)
            if len(self._kept) < _MAX_STANDBYS and self.memory_used() + largest <= self.memory_bytes:
                return True
            oldest = min(self._kept, key=lambda entry: entry.used)
            if self._clock() - oldest.used < _KEPT_SECONDS:
                return False
            self._drop(oldest)
        return True

    def _drop(self, entry: _Kept) -> None:
        self._say(f"standby process {entry.manager.pid} is ended: others need its memory")
        self._kept.remove(entry)
        entry.manager.close()


class _OfAccount:
    """The standby processes of one account, for who starts workers."""

    def __init__(self, standbys: StandbyProcesses, account: Account | None) -> None:
        self._standbys = standbys
        self._account = account

    def is_worth_waiting(self, command: Sequence[str], folder: str, environment: Mapping[str, str]) -> bool:
        try:
            manager = self._standbys.choose(self._account, command, folder, environment)
        except RefusedError:
            return False
        return manager is not None and manager.is_worth_waiting(command, folder, environment)

    def fork(
        self, command: Sequence[str], folder: str, environment: Mapping[str, str], log: int, pipes: tuple[int, ...]
    ) -> int | None:
        if not self._standbys.is_open:
            return None
        try:
            manager = self._standbys.choose(self._account, command, folder, environment)
            if manager is None:
                raise RefusedError("there is no memory for another standby process")
        except RefusedError as error:
            self._standbys.say(f"a worker is started as a new interpreter: {error}")
            return None
        return manager.fork(command, folder, environment, log, pipes)


def _user_of(account: Account | None) -> int:
    return os.geteuid() if account is None else account.user_id
