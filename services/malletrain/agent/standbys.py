"""The standby processes of an agent: its own, or those of each owner whose job runs on the node."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from malletrain.agent.environment import worker_environment
from malletrain.agent.node_cgroups import NodeCgroups
from malletrain.agent.session import SupervisorSession
from malletrain.common import environment as env
from malletrain.common.accounts import Account
from malletrain.common.standby.config import standby_config_for
from malletrain.common.standby.processes import StandbyProcesses, WorkerForks


class Standbys:
    """Those of each user as whom workers run here. Use from the agent's main thread only.

    The first one of a user has the agent's interpreter and what workers usually have in their environment. Others
    follow as workers need them.
    """

    def __init__(self, memory_bytes: int, say: Callable[[str], None], groups: NodeCgroups) -> None:
        """Start nothing before `tick`.

        Args:
            memory_bytes: Largest share of memory of all together; 0: there are none.
            say: Called with a line of text about what happens.
            groups: Their cgroups.
        """
        self._groups = groups
        self._standbys = StandbyProcesses(memory_bytes, say, group_of=groups.of_standbys)
        self._open(None)

    @property
    def pids(self) -> set[int]:
        """Process ids of the standby processes."""
        return self._standbys.pids

    def of(self, account: Account | None) -> WorkerForks:
        """What forks the workers of an account; None: of the agent's own.

        Where workers run as their owners, the agent needs no standby process of its own.
        """
        if account is not None:
            self._standbys.end({os.geteuid()})
        if (os.geteuid() if account is None else account.user_id) not in self._standbys.user_ids:
            self._open(account)
        return self._standbys.of(account)

    def tick(self, sessions: Iterable[SupervisorSession]) -> None:
        """Look after them. Those of owners end with the last session for their workers."""
        present = list(sessions)
        served = {session.user_id for session in present}
        for user_id in self._standbys.user_ids - served - {os.geteuid()}:
            self._standbys.end({user_id})
            self._groups.end_standbys(user_id)
        self._standbys.tick(busy=any(session.is_booting for session in present))

    def kill(self) -> None:
        """Kill all, and start none any more. They may end a moment later."""
        self._standbys.kill()

    def close(self) -> None:
        """End all; none is started any more."""
        self._standbys.close()

    def _open(self, account: Account | None) -> None:
        self._standbys.open(account, standby_config_for(sys.executable, usual_environment(os.environ, account)))


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
