"""Checks of `malletrain doctor` that both schedulers share, and what a check is."""

from __future__ import annotations

import asyncio
import errno
import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from malletrain.caller.credentials import caller_credential
from malletrain.cli.shared.output import one_line
from malletrain.cli.shared.settings import AllSettings
from malletrain.cli.shared.stubs import explain
from malletrain.runtime.channel import DEADLINE_SECONDS, open_blocking_channel
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.machine.observations import NodeFacts
from malletrain.scavenger.settings import ScavengerSettings
from malletrain.scavenger.sources.base import SourceError
from malletrain.scavenger.sources.schedulers.availability import NodeStates, UnreadableError
from malletrain.scavenger.sources.schedulers.polled import PolledSource
from malletrain.scavenger.sources.schedulers.query import Query
from malletrain.scavenger.sources.schedulers.settings import HoldSettings
from malletrain.v1 import scavenger_pb2, scavenger_pb2_grpc

_SECONDS = 20.0
_MAX_APART_SECONDS = 5.0
_LOOPBACK = ("127.", "localhost", "[::1]", "::1")
_MAX_HOSTS = 8
_SHOWN_NODES = 3
_TOLD_SLOW_NODES = 8


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        check: What was checked.
        ok: Whether it is as it should be.
        found: What was found.
        remedy: What to do; empty if it is ok.
    """

    check: str
    ok: bool
    found: str
    remedy: str = ""


def judge(check: str, ok: bool, found: object, remedy: str) -> Finding:
    """A finding with a remedy only if something is wrong."""
    return Finding(check, ok, str(found), "" if ok else remedy)


@dataclass(frozen=True)
class CommandResult:
    """What a command printed.

    Attributes:
        ok: False if it could not be run, failed, or took too long.
        text: Its standard output.
        error: Why it is not ok: its last line of text, or the error of the system.
    """

    ok: bool
    text: str
    error: str = ""


def run_query(argv: Sequence[str]) -> CommandResult:
    """Run a command, with times in UTC and in the C locale."""
    environment = os.environ | {"TZ": "UTC", "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False, env=environment
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return CommandResult(False, "", str(error))
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return CommandResult(done.returncode == 0, done.stdout, lines[-1] if lines and done.returncode else "")


def programs(names: Iterable[str], setting: str) -> Finding:
    """Whether all of these programs are installed."""
    missing = [name for name in names if shutil.which(name) is None]
    found = f"not found: {', '.join(missing)}" if missing else "all found"
    return judge("commands", not missing, found, f"install the scheduler's client package here, or set {setting}")


def clocks(ours: float, theirs: float | None) -> Finding:
    """Whether the scheduler's clock agrees with ours: planned starts are compared with our time.

    Args:
        ours: Seconds since the epoch.
        theirs: The same by the scheduler's clock; None if it did not say.
    """
    if theirs is None:
        return Finding("clocks", False, "the scheduler did not say its time", "see whether its commands answer")
    apart = ours - theirs
    found = f"{abs(apart):.0f} s {'ahead of' if apart > 0 else 'behind'} the scheduler"
    return judge("clocks", abs(apart) <= _MAX_APART_SECONDS, found, "run an NTP client (chrony) here and there")


def other_machines(hosts: Mapping[str, str]) -> list[str]:
    """Which nodes are not this machine, or not known here by name; of very many nodes, only some are looked at.

    Args:
        hosts: By node: its address or host name.
    """
    by_host = {host: node for node, host in sorted(hosts.items(), reverse=True)}
    looked_at = sorted(by_host.items(), key=lambda entry: entry[1])[:_MAX_HOSTS]
    return [f"{node} ({whereabouts})" for host, node in looked_at if (whereabouts := _elsewhere(host))]


def _elsewhere(host: str) -> str:
    """The address of a host; empty if it is one of this machine."""
    try:
        address = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError):
        return f"{one_line(host)}, which has no address here"
    try:
        with socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET):
            return ""
    except OSError as error:
        return "" if error.errno != errno.EADDRNOTAVAIL else address


def judge_reach(scheduler: str, hold: HoldSettings, settings: AllSettings, others: Sequence[str] = ()) -> Finding:
    """Whether this machine and the nodes can reach each other, by the settings and by where nodes are. Pure.

    Either everything is on loopback, as where one machine plays all nodes, or nothing is.

    Args:
        scheduler: "slurm" or "pbs".
        hold: How nodes are held.
        settings: All settings.
        others: Nodes that are other machines, by `other_machines`.
    """
    section = f"scavenger.{scheduler}.hold"
    addresses = {
        f"{section}.head": hold.head or hold.agents_address,
        f"{section}.listen": hold.listen,
        "job_manager.head_address": settings.job_manager.head_address,
        "addresses.monitor_for_nodes": settings.addresses.monitor_for_nodes,
    }
    inside = [name for name, address in addresses.items() if address.startswith(_LOOPBACK)]
    outside = [name for name, address in addresses.items() if address and name not in inside]
    if not outside:
        some = ", ".join(others[:_SHOWN_NODES]) + ", .." * (len(others) > _SHOWN_NODES)
        found = (
            f"loopback only, but other machines are: {some}" if others else "loopback only: all nodes are this machine"
        )
        remedy = f"set {', '.join(addresses)} and job_manager.interfaces: see docs/operators/several-machines.md"
        return judge("reach", not others or not hold.held, found, remedy)
    if settings.job_manager.interfaces == ("lo",):
        inside.append("job_manager.interfaces")
    missing = [name for name in addresses if name not in (*inside, *outside)]
    return judge(
        "reach",
        not inside and not missing,
        f"on loopback: {', '.join(inside) or 'none'}; not set: {', '.join(missing) or 'none'}",
        "give each of these an address or interface by which this machine and the nodes see each other: see "
        "docs/operators/several-machines.md",
    )


def judge_end(scheduler: str, hold: HoldSettings, settings: AllSettings) -> Finding:
    """Whether jobs and nodes are treated alike when the services end in good order. Pure."""
    stops, gives_back = settings.job_manager.stop_jobs_on_exit, hold.give_back_at_exit
    found = f"jobs {'are stopped' if stops else 'train on'}, nodes are {'given back' if gives_back else 'kept'}"
    remedy = (
        f"set scavenger.{scheduler}.hold.give_back_at_exit = {str(stops).lower()}, as job_manager.stop_jobs_on_exit"
    )
    return judge("end of services", stops == gives_back or not hold.held, found, remedy)


def examine_own_nodes(section: ScavengerSettings) -> Iterator[Finding]:
    """The check that agents make of their nodes, for nodes that are this machine; nothing where there are none.

    All of them are one machine, so that what fails is not left out, as a node of a cluster is, but told.
    """
    check, name = section.node_check, "nodes of this machine"
    if section.source not in ("static", "trace") or not check.enabled:
        return
    # Only a script tells one name from another.
    named = (
        section.nodes[:_MAX_HOSTS] if check.script and section.source == "static" else (section.nodes[:1] or ("this",))
    )
    for node in named:
        command = [sys.executable, "-P", "-m", "malletrain.agent.node_check", node, *check.agent_options(alone=False)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_SECONDS + check.seconds + check.script_seconds
            )
        except (OSError, subprocess.SubprocessError) as error:
            yield judge(name, False, one_line(str(error)), "see the message")
            return
        if done.returncode:
            output = one_line(done.stdout or done.stderr)
            yield judge(name, False, f"{node}: {output}", "mend it, or change scavenger.node_check")
            return
    yield judge(name, True, "nothing is known against this machine", "")


def examine_placeholders(settings: AllSettings) -> Iterator[Finding]:
    """How the placeholders of a running Scavenger fare; nothing if none runs."""
    try:
        channel = open_blocking_channel(settings.peer("scavenger"), caller_credential(settings))
    except InvalidInputError:
        return  # nothing has been started yet, or the check of the certificates says why
    try:
        stub = scavenger_pb2_grpc.ScavengerServiceStub(channel)
        status = stub.GetStatus(scavenger_pb2.GetStatusRequest(), timeout=DEADLINE_SECONDS)
    except grpc.RpcError as error:
        if error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
            yield Finding("placeholders", False, str(explain(error)), "see docs/access.md")
        return
    finally:
        channel.close()
    yield from map(judge_placeholders, status.placeholders)
    yield from judge_slow_nodes(status.slow)


def judge_slow_nodes(called: Iterable[scavenger_pb2.SlowNodeStatus]) -> Iterator[Finding]:
    """Which nodes count as slow; nothing where none does. Pure."""
    slow = [node for node in called if node.counts]
    if slow:
        reasons = "; ".join(f"{node.name}: {one_line(node.reason)}" for node in slow[:_TOLD_SLOW_NODES])
        found = f"{len(slow)} count{'s' * (len(slow) == 1)} as slow: {reasons}"
        yield judge("nodes", False, found, "look at clocks, cooling and other processes there; see docs/slow-nodes.md")


def judge_placeholders(status: scavenger_pb2.PlaceholderStatus) -> Finding:
    """Whether placeholders can be submitted and start. Pure."""
    ok = not status.failures_in_a_row
    found = f"{status.running} nodes held, {status.pending} placeholders wait"
    if not ok:
        times = f"{status.failures_in_a_row} time{'s' * (status.failures_in_a_row != 1)} in a row"
        where = f", last on node {status.node}" if status.node else ""
        found = f"failed {times}{', paused' * status.paused}{where}: {one_line(status.error)}"
    remedy = (
        f"see the message: account, quota and options in scavenger.{status.source}.hold, the state of its queue, and "
        "whether nodes can start its python and reach its head; it is tried again by itself"
    )
    return judge(f"placeholders of {status.source}", ok, found, remedy)


_SHOWN = 3
_WITHOUT = {
    "queue": "; without it planned starts stay hidden",
    "reservations": "; nodes with a reservation are not used while its begin is not known",
}


def examine_queries(build: Callable[[], PolledSource]) -> Iterator[Finding]:
    """Ask each query of a source once, as the source does, and say what was answered.

    Args:
        build: Makes the source; may raise InvalidInputError.
    """
    try:
        source = build()
    except InvalidInputError as error:
        yield Finding("queries", False, str(error), "correct this setting")
        return
    for query in source.queries.all():
        yield _examine(query)


def _examine(query: Query[Any]) -> Finding:
    check, command = f"query {query.name}", shlex.join(query.argv)
    try:
        answer = asyncio.run(query.read())
    except (SourceError, UnreadableError) as error:
        without = _WITHOUT.get(query.name, "")
        return Finding(check, False, one_line(str(error)), f"see what it prints for this user: {command}{without}")
    if not isinstance(answer, NodeStates):
        return Finding(check, True, _describe(query.name, answer))
    unclear = ", ".join(f"{node} {one_line(state)!r}" for node, state in list(answer.unclear.items())[:_SHOWN])
    remedy = f"tell us which states these are; such nodes are not used: {command}"
    if not answer.known:
        remedy = f"name partitions or queues that have nodes: {command}"
    found = f"{len(answer.known)} nodes, {len(answer.idle)} idle, {len(answer.offline)} out of use"
    if answer.unclear:
        found += f", {len(answer.unclear)} in a state that is not known: {unclear}"
    return judge(check, bool(answer.known) and not answer.unclear, found, remedy)


def _describe(name: str, answer: Any) -> str:
    if name == "classes":
        facts: Counter[NodeFacts] = Counter(answer.values())
        return f"{len(answer)} nodes of {len({entry.node_class for entry in facts})} kinds"
    if name == "topology":
        return f"{len(answer)} nodes in {len(set(answer.values()))} groups"
    return f"{len(answer)} {'planned starts' if name == 'queue' else name}"
