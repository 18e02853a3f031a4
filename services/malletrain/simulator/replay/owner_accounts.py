"""What the owners of a replay's jobs use, kept with JobManager's ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from malletrain.job_manager.machine.fair_share import OwnerUse, settled, weighed
from malletrain.simulator.replay.running_job import RunningJob


class OwnerAccounts:
    """The ledger of a replay by the fast engine; `malletrain.job_manager.machine.sharing` keeps the production one."""

    def __init__(self, half_life_s: float) -> None:
        """Begin without any use.

        Args:
            half_life_s: Half-life of the uses in seconds; 0: no fair share.
        """
        self._half_life_s = half_life_s
        self._ledger: dict[str, OwnerUse] = {}

    def uses(self, now_s: float) -> dict[str, float] | None:
        """Decayed use of each owner in node-seconds; None without fair share."""
        if self._half_life_s <= 0:
            return None
        return {owner: use.at(now_s, self._half_life_s) for owner, use in self._ledger.items()}

    def settle(self, now_s: float, jobs: Sequence[RunningJob], *, weigh: bool) -> None:
        """Charge the owners up to now.

        Args:
            now_s: The time in seconds.
            jobs: All admitted jobs.
            weigh: Whether the jobs get the weights of the moment.
        """
        if self._half_life_s <= 0:
            return
        held: Counter[str] = Counter()
        for run in jobs:
            held[run.job.owner] += run.count
        self._ledger = settled(self._ledger, held, now_s, self._half_life_s)
        if weigh:
            self._ledger = weighed(self._ledger, frozenset(held), now_s, self._half_life_s)
            for run in jobs:
                run.share_weight = self._ledger[run.job.owner].weight
