"""Whether PBS is set up so that single GPUs can be used beside main jobs. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from malletrain.cli.operate.doctor_checks import Finding, judge

_RESOURCES = re.compile(r'^resources:\s*"([^"\n]*)"', re.MULTILINE)
_HOOK = re.compile(r"^Hook (\S+)$", re.MULTILINE)
_ENABLED = re.compile(r"^\s+enabled = true$", re.MULTILINE | re.IGNORECASE)
_CGROUPS = "pbs_cgroups"


_WITHOUT = {
    "devices": "no job is told its GPUs, and our workers do not start",
    "cpuset": "jobs on a node use each other's cores",
    "memory": "a job can use up the memory of the others on its node",
}
"""What follows where a part of the hook is off."""


def judge_gpus(
    nodes: Mapping[str, Mapping[str, Any]], scheduler_file: str | None, hooks: str, cgroups: str = ""
) -> Iterator[Finding]:
    """Checks for `units = "gpus"`.

    Args:
        nodes: `pbsnodes -av -F json`, by name of the vnode.
        scheduler_file: The text of sched_config; None where it can't be read.
        hooks: `qmgr -c 'list pbshook'` and `'list hook'`; empty where this user may not ask.
        cgroups: `qmgr -c 'export hook pbs_cgroups application/x-config default'`; the same.
    """
    tables = [entry.get("resources_available") for entry in nodes.values()]
    having = sum(1 for table in tables if isinstance(table, dict) and table.get("ngpus"))
    remedy = "qmgr -c 'set node NODE resources_available.ngpus = 4', or the hook pbs_cgroups, which counts them"
    yield judge("GPUs of vnodes", having > 0, f"{having} of {len(nodes)} vnodes have ngpus", remedy)
    if scheduler_file is None:
        yield Finding("ngpus", True, "can't be asked for: see that ngpus is in `resources:` of sched_config")
    else:
        lines = _RESOURCES.findall(scheduler_file)
        listed = bool(lines) and "ngpus" in {word.strip() for word in lines[-1].split(",")}
        remedy = "add ngpus to `resources:` in sched_config, then kill -HUP the scheduler: else GPUs are given twice"
        yield judge("ngpus", listed, f"{'in' if listed else 'not in'} `resources:` of sched_config", remedy)
    if not hooks.strip():
        yield Finding("hook of GPUs", True, f"can't be asked for: see that {_CGROUPS} is enabled, with `devices`")
        return
    enabled = enabled_hooks(hooks)
    remedy = (
        f"enable {_CGROUPS} with `devices` (qmgr -c 'set hook {_CGROUPS} enabled = true'): else nothing keeps jobs "
        "on a node from the GPUs, CPUs, memory of others; workers start only where a hook sets CUDA_VISIBLE_DEVICES"
    )
    others = [name for name in enabled if name != _CGROUPS]
    found = f"{_CGROUPS} {'on' if _CGROUPS in enabled else 'off'}" + (
        f", others: {', '.join(others)}" if others else ""
    )
    yield judge("hook of GPUs", _CGROUPS in enabled, found, remedy)
    if _CGROUPS in enabled:
        yield _judge_cgroups(cgroups)


def _judge_cgroups(text: str) -> Finding:
    """To what the hook keeps jobs on one node."""
    name = f"{_CGROUPS}: what is kept apart"
    remedy = f"qmgr -c 'export hook {_CGROUPS} application/x-config default' >FILE; edit it; `import` it again"
    if not text.strip():
        return Finding(name, True, f"can't be asked for: see that {', '.join(_WITHOUT)} are enabled in its file")
    try:
        parts = json.loads(text)["cgroup"]
        off = [part for part in _WITHOUT if parts.get(part, {}).get("enabled") is not True]
        left_out = sorted({str(host) for part in _WITHOUT for host in parts.get(part, {}).get("exclude_hosts", ())})
    except (ValueError, TypeError, KeyError, AttributeError):
        return Finding(name, False, "its file can't be read", remedy)
    if off:
        said = "; ".join(f"{part} off: {_WITHOUT[part]}" for part in off)
        return Finding(name, False, said, remedy)
    if left_out:
        return Finding(name, False, f"nothing on {', '.join(left_out[:10])} (exclude_hosts)", remedy)
    return Finding(name, True, "GPUs, cores and memory")


def enabled_hooks(text: str) -> list[str]:
    """Names of the enabled hooks that `qmgr -c 'list hook'` prints."""
    _, *pieces = _HOOK.split(text)
    return [name for name, said in zip(pieces[::2], pieces[1::2], strict=True) if _ENABLED.search(said)]
