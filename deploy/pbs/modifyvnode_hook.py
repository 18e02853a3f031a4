"""PBS hook (event modifyvnode): takes a node back from MalleTrain as soon as its state changes from free.

    qmgr -c "create hook malletrain_reclaim event=modifyvnode,order=10"
    qmgr -c "import hook malletrain_reclaim application/x-python default modifyvnode_hook.py"
    qmgr -c "import hook malletrain_reclaim application/x-config default malletrain_reclaim.json"

The configuration is JSON, every entry optional:

    {"scavenger": "127.0.0.1:7701", "grpcurl": "/usr/local/bin/grpcurl", "hold_seconds": 60,
     "options": ["-cacert", "/etc/malletrain/ca.pem"], "token_file": "/etc/malletrain/hook.token"}

The file contains a token of an operator, which `malletrain token --user pbs --role operator --lifespan 30d` prints; it
must be readable by root only. By a copy of `ca.pem` in the state folder, the Scavenger is known before it is shown.
Off loopback, its name is needed, too:

    ["-cacert", "/etc/malletrain/ca.pem", "-authority", "scavenger.malletrain.internal"]

The server waits for its hooks. This one only starts `grpcurl`, which asks ScavengerService/ReclaimNodes, in a process
of its own, and goes on: a MalleTrain that is down costs the server nothing. It runs in the Python that PBS brings, so
that it needs nothing but the standard library. Placeholders in a preemptible queue need no hook.

A vnode that a job uses only in part stays free for PBS, and there is no event: such a node leaves with the next poll.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from typing import Any

DEFAULTS: dict[str, Any] = {
    "scavenger": "127.0.0.1:7701",
    "grpcurl": "/usr/local/bin/grpcurl",
    "options": ["-cacert", "/etc/malletrain/ca.pem"],
    "hold_seconds": 60,
    "token_file": "/etc/malletrain/hook.token",
}
DEADLINE_SECONDS = 10
METHOD = "malletrain.v1.ScavengerService/ReclaimNodes"
_NAME = re.compile(r"[A-Za-z0-9._\[\]-]+\Z")


def settings(path: str | None) -> dict[str, Any]:
    """The defaults, overridden by a JSON file where there is one."""
    if not path:
        return dict(DEFAULTS)
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - hooks see little more than builtins
        return {**DEFAULTS, **json.load(file)}


def is_taken(before: int, after: int) -> bool:
    """Whether a vnode that was free is no longer: states are sets of bits, and `free` is none of them."""
    return before == 0 and after != 0


def command(node: str, chosen: dict[str, Any]) -> list[str]:
    """What asks for the node.

    Raises:
        ValueError: the name is none.
    """
    if not _NAME.match(node):
        raise ValueError("unexpected name of a vnode: %r" % node)  # noqa: UP031 - PBS may bring an older Python
    request = json.dumps({"nodes": [node], "hold_seconds": chosen["hold_seconds"]})
    limit = ["-max-time", str(DEADLINE_SECONDS)]
    shown = ["-expand-headers", "-H", "authorization: Bearer ${MALLETRAIN_TOKEN}"]
    return [chosen["grpcurl"], *chosen["options"], *shown, *limit, "-d", request, chosen["scavenger"], METHOD]


def reclaim(node: str, chosen: dict[str, Any]) -> None:
    """Ask, without waiting for the answer: our child's child is nobody's zombie.

    Raises:
        OSError: the token can't be read, or the program can't be started.
        ValueError: the name of the node is none.
    """
    quoted = ["/bin/sh", "-c", '"$@" </dev/null >/dev/null 2>&1 &', "sh", *command(node, chosen)]
    with open(chosen["token_file"], encoding="ascii") as file:  # noqa: PTH123 - as above
        # A command line could be read by everybody.
        environment = {**os.environ, "MALLETRAIN_TOKEN": file.read().strip()}
    subprocess.run(quoted, check=True, start_new_session=True, timeout=DEADLINE_SECONDS, env=environment)


def host_of(vnode: Any) -> str:
    """The node as MalleTrain calls it: several vnodes may be one host."""
    try:
        return str(vnode.resources_available["host"] or vnode.name)
    except (AttributeError, KeyError, TypeError):
        return str(vnode.name)


def main(pbs: Any) -> None:
    """What PBS runs. The event is accepted whatever happens: the server's own work goes on."""
    event = pbs.event()
    try:
        vnode, before = event.vnode, event.vnode_o
        if is_taken(int(before.state), int(vnode.state)):
            reclaim(host_of(vnode), settings(os.environ.get("PBS_HOOK_CONFIG_FILE") or pbs.hook_config_filename))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, subprocess.SubprocessError) as error:
        pbs.logmsg(pbs.LOG_WARNING, "malletrain_reclaim: %s" % error)  # noqa: UP031
    event.accept()


try:
    import pbs as _pbs
except ImportError:
    # Outside of PBS: a test imports what is above.
    _pbs = None
if _pbs is not None:
    main(_pbs)
