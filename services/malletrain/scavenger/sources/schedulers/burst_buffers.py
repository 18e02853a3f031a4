"""Slurm's burst buffers: `scontrol show burst`, and the directives by which jobs ask for space. Pure.

Amounts are whole bytes here. Slurm reads `K` and `KiB` as 2^10, `KB` as 10^3, and so on up to `P`; without a unit it is
bytes. It rounds each request up to the granularity of its pool.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from malletrain.scavenger.sources.base import SourceError
from malletrain.scavenger.sources.schedulers.availability import UnreadableError
from malletrain.scavenger.sources.schedulers.slurm_text import NOTHING, lines_of

BYTES_PER_GB = 2**30
"""Slurm prints G for 2^30 bytes; so do we."""

_AMOUNT = re.compile(r"(\d{1,18})([A-Za-z]{0,3})")
_UNITS: dict[str, int] = {
    "": 1,
    **{name + ending: 1024**power for power, name in enumerate("kmgtp", 1) for ending in ("", "ib")},
    **{name + "b": 1000**power for power, name in enumerate("kmgtp", 1)},
}
_SPACE = (
    r"Granularity=(?P<granularity>\S+) TotalSpace=(?P<total>\S+)(?: FreeSpace=(?P<free>\S+))? UsedSpace=(?P<used>\S+)"
)
_PLUGIN = re.compile(rf"Name=(?P<plugin>\S+)(?: DefaultPool=(?P<pool>\S+))? {_SPACE}\s*")
_POOL = re.compile(rf"\s+(?:Alt)?PoolName\[\d+\]=(?P<pool>\S+) {_SPACE}\s*")
_JOB = re.compile(r"\s+JobID=(?P<job>\d+(?:_\d+(?=\())?)(?:\(\d+\))? (?P<others>.*)")
_PAIR = re.compile(r"(\w+)=(\S+)")
_NO_ANSWER = "No burst buffer information available"


@dataclass(frozen=True, slots=True)
class BufferRequest:
    """What one directive of a job asks for.

    Attributes:
        size_bytes: How much.
        pool: From which pool; None: the default.
        per_node: Whether it is for each node of the job (swap).
    """

    size_bytes: int
    pool: str | None = None
    per_node: bool = False


@dataclass(frozen=True)
class BurstBufferPool:
    """A burst buffer, or one of several pools of it.

    Attributes:
        plugin: Slurm's name of the burst buffer.
        pool: Name of the pool; empty: it has no name.
        default: Whether requests that name no pool are for this one.
        total_bytes: All space.
        free_bytes: What no job, also no waiting one, and no persistent buffer has.
        granularity_bytes: Each request is rounded up to a multiple of it.
        held_bytes: What jobs have, by their identifiers as squeue prints them. Waiting jobs may have some already.
    """

    plugin: str
    pool: str
    default: bool
    total_bytes: int
    free_bytes: int
    granularity_bytes: int = 1
    held_bytes: Mapping[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the source for people and options."""
        return f"{self.plugin}/{self.pool}" if self.pool else self.plugin

    def takes(self, request: BufferRequest) -> bool:
        """Whether a request is for this pool."""
        return self.default if request.pool is None else request.pool == self.pool

    def size_gb(self, requests: Iterable[BufferRequest], nodes: int) -> int:
        """What requests of a job on so many nodes take of this pool, in whole GB, rounded up."""
        total = 0
        for request in requests:
            size = request.size_bytes * (nodes if request.per_node else 1)
            total += -(-size // self.granularity_bytes) * self.granularity_bytes
        return -(-total // BYTES_PER_GB)


def parse_amount(text: str) -> int:
    """Bytes of an amount such as `200GB`, `5800GiB`, `174416M` or `0`.

    Raises:
        UnreadableError: it is negative, fractional, in nodes, or has an unknown unit.
    """
    match = _AMOUNT.fullmatch(text)
    if not match or match[2].lower() not in _UNITS:
        raise UnreadableError("a whole amount such as 200GB, 5TiB or 0", text)
    return int(match[1]) * _UNITS[match[2].lower()]


def parse_directives(lines: Iterable[str]) -> tuple[BufferRequest, ...]:
    """What the directives of a job ask for, e.g. `#DW jobdw capacity=200GB` or `#BB_LUA pool=fast capacity=1T`.

    Directives without a capacity, such as `stage_in`, ask for nothing. `#DW swap 4GiB` is for each node.

    Raises:
        UnreadableError: a line is no directive, or its amount can't be read.
    """
    requests = []
    for line in lines:
        words = line.split()
        if not words or not words[0].startswith("#"):
            raise UnreadableError("a directive such as #DW jobdw capacity=200GB", line)
        named: dict[str, list[str]] = {"capacity": [], "pool": []}
        for word in words[1:]:
            name, separator, value = word.partition("=")
            if separator and name.lower() in named:
                named[name.lower()].append(value)
        if any(len(values) > 1 for values in named.values()):
            raise UnreadableError("at most one capacity and one pool in a directive", line)
        swap = words[1:2] == ["swap"]
        amounts = words[2:3] if swap else named["capacity"]
        pool = named["pool"][0] if named["pool"] else None
        requests += [BufferRequest(parse_amount(amount), pool, per_node=swap) for amount in amounts]
    return tuple(request for request in requests if request.size_bytes)


def parse_burst_buffers(text: str) -> tuple[BurstBufferPool, ...]:
    """The answer to `scontrol show burst`: every pool with space; none where Slurm knows of no burst buffer.

    Of what is free and what is total less used, the smaller counts.

    Raises:
        SourceError: the text has another form. Names the line.
    """
    pools: list[BurstBufferPool] = []
    plugin, first = "", 0
    for number, line in _number_lines(text):
        try:
            if not line[0].isspace():
                if line.removeprefix("scontrol: error: ").strip() == _NO_ANSWER:
                    continue
                fields = _fields(_PLUGIN, line, "Name=… Granularity=… TotalSpace=… FreeSpace=… UsedSpace=…")
                plugin, first = fields["plugin"], len(pools)
                pool = fields.get("pool", "")
                pools.append(_pool(plugin, "" if pool in NOTHING else pool, fields, default=True))
            elif not plugin:
                raise UnreadableError("Name=… of a burst buffer first", line)
            elif line.split("[")[0].strip() in ("PoolName", "AltPoolName"):
                fields = _fields(_POOL, line, "PoolName[…]=… Granularity=… TotalSpace=… FreeSpace=… UsedSpace=…")
                pools.append(_pool(plugin, fields["pool"], fields, default=False))
            elif line.lstrip().startswith("JobID="):
                _hold(pools, first, line)
        except UnreadableError as error:
            raise SourceError(f"scontrol show burst, line {number}: {error}") from error
    return tuple(pool for pool in pools if pool.total_bytes)


def _number_lines(text: str) -> list[tuple[int, str]]:
    try:
        lines_of(text)
    except UnreadableError as error:
        raise SourceError(f"scontrol show burst, last line: {error}") from error
    return [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def _fields(form: re.Pattern[str], line: str, expected: str) -> dict[str, str]:
    match = form.fullmatch(line)
    if not match:
        raise UnreadableError(expected, line)
    return {name: value for name, value in match.groupdict().items() if value is not None}


def _pool(plugin: str, pool: str, fields: Mapping[str, str], *, default: bool) -> BurstBufferPool:
    total, used = parse_amount(fields["total"]), parse_amount(fields["used"])
    free = parse_amount(fields.get("free", fields["total"]))
    if free > total:
        raise UnreadableError("FreeSpace of at most TotalSpace", f"{fields['free']} of {fields['total']}")
    granularity = max(1, parse_amount(fields["granularity"]))
    return BurstBufferPool(plugin, pool, default, total, max(0, min(free, total - used)), granularity)


def _hold(pools: list[BurstBufferPool], first: int, line: str) -> None:
    """Note what a job has, from a line of Allocated Buffers; `first` is the plugin's own pool."""
    match = _JOB.fullmatch(line)
    pairs = dict(_PAIR.findall(match["others"])) if match else {}
    if not match or "Size" not in pairs:
        raise UnreadableError("JobID=… Size=… State=…", line)
    name = pairs.get("Pool")
    index = next((at for at in range(first, len(pools)) if pools[at].pool == name), None if name else first)
    if index is None:
        raise UnreadableError(f"one of the pools of {pools[first].plugin}", line)
    held = dict(pools[index].held_bytes)
    held[match["job"]] = held.get(match["job"], 0) + parse_amount(pairs["Size"])
    pools[index] = replace(pools[index], held_bytes=held)
