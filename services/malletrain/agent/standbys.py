"""The standby processes of an agent: one of its own, or one for each owner whose job runs on the node."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from malletrain.agent.environment import worker_environment
from malletrain.agent.session import SupervisorSession
from malletrain.common import environment as env
from malletrain.common.accounts import Account
from malletrain.common.standby.keeper import StandbyKeeper
from malletrain.common.standby.recipe import recipe_for


class Standbys:
    """One keeper for each user as whom workers run here. Use from the agent's main thread only."""

    def __init__(self, memory_bytes: int, say: Callable[[str], None]) -> None:
        """Start nothing before `tick`.

        Args:
            memory_bytes: Largest share of memory of each; 0: there are none.
            say: Called with a line of text about what happens.
        """
        self._memory_bytes = memory_bytes
        self._say = say
        self._keepers: dict[int, StandbyKeeper] = {os.geteuid(): self._open(None)}

    @property
    def pids(self) -> set[int]:
        """Process ids of the standby processes."""
        return {keeper.pid for keeper in self._keepers.values() if keeper.pid}

    def of(self, account: Account | None) -> StandbyKeeper:
        """The keeper for workers of an account; None: for those of the agent's own.

        Where workers run as their owners, the agent needs no standby process of its own.
        """
        user_id = os.geteuid() if account is None else account.user_id
        if account is not None:
            self._end({os.geteuid()})
        if user_id not in self._keepers:
            self._keepers[user_id] = self._open(account)
        return self._keepers[user_id]

    def tick(self, sessions: Iterable[SupervisorSession]) -> None:
        """Look after them. Those of owners end with the last session for their workers."""
        present = list(sessions)
        served = {session.user_id for session in present}
        self._end({user_id for user_id in self._keepers if user_id not in served and user_id != os.geteuid()})
        busy = any(session.is_booting for session in present)
        for keeper in self._keepers.values():
            keeper.tick(busy=busy)

    def kill(self) -> None:
        """Kill all, and start none any more. They may end a moment later."""
        self._memory_bytes = 0
        for keeper in self._keepers.values():
            keeper.kill()

    def close(self) -> None:
        """End all; none is started any more."""
        self._memory_bytes = 0
        self._end(set(self._keepers))

    def _open(self, account: Account | None) -> StandbyKeeper:
        variables = usual_environment(os.environ, account)
        recipe = recipe_for(sys.executable, variables)
        return StandbyKeeper(self._say, recipe=recipe, account=account, memory_bytes=self._memory_bytes)

    def _end(self, user_ids: Iterable[int]) -> None:
        for user_id in user_ids:
            if (keeper := self._keepers.pop(user_id, None)) is not None:
                keeper.close()


def usual_environment(own: Mapping[str, str], account: Account | None) -> dict[str, str]:
    """What workers have in their environment, as far as it is known before there is a job.

    Args:
        own: Environment of the agent.
        account: As whom they run; None: as the agent.
    """
    # How many threads a worker may have is known here; the rest comes from its supervisor.
    told = {name: value for name, value in env.TRAINER_DEFAULTS.items() if name != "OMP_NUM_THREADS"}
    programs, cpus = str(Path(sys.executable).parent), len(os.sched_getaffinity(0))
    return worker_environment(own, told, programs, cpus, account)
