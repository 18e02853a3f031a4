"""Fair share: what each owner has used lately, and how much that makes its jobs weigh. Pure.

The use of an owner is the sum of the node-seconds that its jobs have held, of each of which half is left after every
half-life. The weight follows the classic fair-share formula of Slurm (docs/sharing.md), F = 2^(-U/S), with an owner's
part U of all use and equal shares S. Twice that is used here, so that the weight of an owner with just its share is 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import exp, expm1, log, log2

_STEP = 0.25
"""Weights are powers of 2 with exponents that are multiples of this."""
_MIN_EXPONENT = -3.0
"""No weight is below 1/8: with many owners, the formula's value could be so small that rounding would decide."""
_NEGLIGIBLE_NODE_SECONDS = 1.0


@dataclass(frozen=True)
class OwnerUse:
    """What an owner has used, and the nodes that it uses now. Nothing has to be written while these stay the same.

    Attributes:
        node_seconds: Decayed use at `since`.
        nodes: Nodes that its jobs hold from then on.
        since: Seconds since the epoch.
        weight: Weight of its jobs.
    """

    node_seconds: float = 0.0
    nodes: int = 0
    since: float = 0.0
    weight: float = 1.0

    def at(self, now: float, half_life: float) -> float:
        """Decayed use in node-seconds.

        Args:
            now: Seconds since the epoch; before `since`, nothing is added.
            half_life: In seconds, above 0.
        """
        decay = log(2.0) / half_life
        passed = max(0.0, now - self.since) * decay
        return self.node_seconds * exp(-passed) - self.nodes * expm1(-passed) / decay


def settle_ledger(
    ledger: Mapping[str, OwnerUse], held: Mapping[str, int], now: float, half_life: float
) -> dict[str, OwnerUse]:
    """The ledger after the numbers of held nodes have changed.

    Args:
        ledger: Use of each owner.
        held: Nodes held now, by owner, of all who take part in plans. Others are kept as long as their use counts.
        now: Seconds since the epoch.
        half_life: In seconds, above 0.
    """
    after = {}
    for owner in [*ledger, *(owner for owner in held if owner not in ledger)]:
        use, nodes = ledger.get(owner, OwnerUse(since=now)), held.get(owner, 0)
        if use.nodes != nodes:
            use = replace(use, node_seconds=use.at(now, half_life), nodes=nodes, since=now)
        if owner in held or use.at(now, half_life) >= _NEGLIGIBLE_NODE_SECONDS:
            after[owner] = use
    return after


def exponents(uses: Mapping[str, float]) -> dict[str, float]:
    """Logarithm to base 2 of the exact weight of each owner: 1 - U/S.

    Args:
        uses: Decayed use of each owner who takes part in plans; the shares of these are equal.
    """
    total = sum(uses.values())
    if len(uses) < 2 or total <= 0:
        return dict.fromkeys(uses, 0.0)
    return {owner: max(_MIN_EXPONENT, 1.0 - len(uses) * use / total) for owner, use in uses.items()}


def next_weight(present: float, exponent: float) -> float:
    """The weight for an exact exponent. It stays as it is until that is a whole step away.

    Args:
        present: The weight so far.
        exponent: Of the exact weight.
    """
    if abs(exponent - log2(present)) < _STEP * (1.0 - 1e-9):
        return present
    return float(2.0 ** (round(exponent / _STEP) * _STEP))


def weigh_owners(
    ledger: Mapping[str, OwnerUse], owners: frozenset[str], now: float, half_life: float
) -> dict[str, OwnerUse]:
    """The ledger with the weights of the moment.

    Args:
        ledger: Use of each owner.
        owners: Owners who take part in plans; the weight of all others is 1.
        now: Seconds since the epoch.
        half_life: In seconds, above 0.
    """
    exponent_of = exponents({owner: use.at(now, half_life) for owner, use in ledger.items() if owner in owners})
    alone = len(exponent_of) < 2
    weights = {
        owner: 1.0 if alone else next_weight(ledger[owner].weight, value) for owner, value in exponent_of.items()
    }
    return {
        owner: use if use.weight == weights.get(owner, 1.0) else replace(use, weight=weights.get(owner, 1.0))
        for owner, use in ledger.items()
    }


def changed_uses(
    before: Mapping[str, OwnerUse], after: Mapping[str, OwnerUse]
) -> tuple[dict[str, OwnerUse], frozenset[str]]:
    """Entries that are new or differ, and owners whose entry is gone."""
    if before is after:
        return {}, frozenset()
    return {owner: use for owner, use in after.items() if before.get(owner) != use}, frozenset(before) - frozenset(
        after
    )
