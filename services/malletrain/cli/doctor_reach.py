"""Whether this machine and the nodes can reach each other, as far as the settings say."""

from __future__ import annotations

from malletrain.cli.doctor_findings import Finding, judge
from malletrain.cli.settings import AllSettings
from malletrain.scavenger.sources.schedulers.settings import HoldSettings

_LOOPBACK = ("127.", "localhost", "[::1]", "::1")


def judge_reach(scheduler: str, hold: HoldSettings, settings: AllSettings) -> Finding:
    """Either everything is on loopback, as where one machine plays all nodes, or nothing is. Pure.

    Args:
        scheduler: "slurm" or "pbs".
        hold: How nodes are held.
        settings: All settings.
    """
    section = f"scavenger.{scheduler}.hold"
    addresses = {
        f"{section}.head": hold.head or hold.agents_address,
        f"{section}.listen": hold.listen,
        "job_manager.head_address": settings.job_manager.head_address,
        "addresses.monitor_gate": settings.addresses.monitor_gate,
    }
    inside = [name for name, address in addresses.items() if address.startswith(_LOOPBACK)]
    outside = [name for name, address in addresses.items() if address and name not in inside]
    if not outside:
        return Finding("reach", True, "loopback only: all nodes are this machine")
    if settings.job_manager.interfaces == ("lo",):
        inside.append("job_manager.interfaces")
    missing = [name for name in addresses if name not in (*inside, *outside)]
    return judge(
        "reach",
        not inside and not missing,
        f"on loopback: {', '.join(inside) or 'none'}; not set: {', '.join(missing) or 'none'}",
        "give each of these an address or interface by which this machine and the nodes see each other",
    )
