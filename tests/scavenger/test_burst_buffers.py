from __future__ import annotations

import pytest

from malletrain.scavenger.sources.base import SourceError
from malletrain.scavenger.sources.schedulers.availability import UnreadableError
from malletrain.scavenger.sources.schedulers.burst_buffers import (
    BYTES_PER_GB,
    BufferRequest,
    BurstBufferPool,
    parse_amount,
    parse_burst_buffers,
    parse_directives,
)

# After the example of the lua plugin in Slurm's Burst Buffer Guide.
LUA = """\
Name=lua DefaultPool=(null) Granularity=1 TotalSpace=0 FreeSpace=0 UsedSpace=0
  PoolName[0]=fast Granularity=1TiB TotalSpace=100TiB FreeSpace=90TiB UsedSpace=30TiB
  PoolName[1]=slow Granularity=1 TotalSpace=5GB FreeSpace=4GB UsedSpace=1GB
  Flags=DisablePersistent
  StageInTimeout=86400 StageOutTimeout=86400 ValidateTimeout=5 OtherTimeout=300
  GetSysState=(null)
  GetSysStatus=(null)
  Allocated Buffers:
    JobID=17_3(19) CreateTime=2026-11-22T10:13:38 Pool=fast Size=2TiB State=staged-in UserID=alan(1000)
    JobID=18 CreateTime=2026-11-22T10:13:38 Pool=fast Size=3TiB State=allocated UserID=alan(1000)
    JobID=18 CreateTime=2026-11-22T10:13:38 Pool=slow Size=1GB State=allocated UserID=alan(1000)
    Name=alpha CreateTime=2026-11-22T10:12:06 Pool=fast Size=1TiB State=allocated UserID=alan(1000)
  Per User Buffer Use:
    UserID=alan(1000) Used=6TiB
"""
# After the same guide's example of older releases, which name neither free space nor pools.
OLD = """\
Name=generic Granularity=100GB TotalSpace=50TB UsedSpace=42TB
  JobSizeLimit=10TB UserSizeLimit=40TB
    JobID=18 Size=10TB State=staged-in StateTime=2014-11-19T09:17:21 UserID=alan(1000)
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("17", 17),
        ("1K", 1024),
        ("1KB", 1000),
        ("200G", 200 * 2**30),
        ("200GiB", 200 * 2**30),
        ("200gb", 200 * 10**9),
        ("3TiB", 3 * 2**40),
        ("1P", 2**50),
        ("174416M", 174416 * 2**20),
    ],
)
def test_amounts(text: str, expected: int) -> None:
    assert parse_amount(text) == expected


@pytest.mark.parametrize("text", ["", "-5GB", "1.5TB", "2N", "3 TB", "GB", "5XB", "INFINITE", "9" * 19, "1e3G", "+5G"])
def test_other_amounts_are_refused(text: str) -> None:
    with pytest.raises(UnreadableError, match="expected a whole amount"):
        parse_amount(text)


def test_directives_without_a_capacity_ask_for_nothing() -> None:
    lines = (
        "#DW persistentdw name=a",
        "#DW stage_in type=file source=/a destination=/b",
        "#BB destroy_persistent name=a",
    )
    assert parse_directives(lines) == ()
    assert parse_directives(()) == ()


def test_directives() -> None:
    lines = ("#BB create_persistent name=a capacity=1GiB", "#BB_LUA pool=fast capacity=2K", "#DW swap 4GiB")
    assert parse_directives(lines) == (
        BufferRequest(2**30),
        BufferRequest(2048, "fast"),
        BufferRequest(4 * 2**30, per_node=True),
    )


@pytest.mark.parametrize(
    "line",
    ["capacity=1GB", "17|PD|main", "#DW jobdw capacity=1.5TB", "#DW jobdw capacity=1G capacity=2G", "#DW swap -1"],
)
def test_other_directives_are_refused(line: str) -> None:
    with pytest.raises(UnreadableError, match="expected"):
        parse_directives((line,))


def test_pools_and_who_has_what() -> None:
    fast, slow = parse_burst_buffers(LUA)
    assert (fast.name, slow.name) == ("lua/fast", "lua/slow")
    # 100 - 30 is less than the 90 that Slurm calls free.
    assert (fast.total_bytes, fast.free_bytes) == (100 * 2**40, 70 * 2**40)
    assert (slow.total_bytes, slow.free_bytes) == (5 * 10**9, 4 * 10**9)
    assert fast.held_bytes == {"17_3": 2 * 2**40, "18": 3 * 2**40}
    assert slow.held_bytes == {"18": 10**9}
    assert fast.takes(BufferRequest(1, "fast"))
    assert not fast.takes(BufferRequest(1))


def test_an_old_answer_without_free_space() -> None:
    (pool,) = parse_burst_buffers(OLD)
    assert (pool.name, pool.free_bytes) == ("generic", 8 * 10**12)
    assert pool.held_bytes == {"18": 10**13}
    assert pool.takes(BufferRequest(1))


def test_the_default_pool_is_also_known_by_its_name() -> None:
    (pool,) = parse_burst_buffers("Name=datawarp DefaultPool=w Granularity=1 TotalSpace=2G FreeSpace=1G UsedSpace=1G\n")
    assert pool.name == "datawarp/w"
    assert pool.takes(BufferRequest(1))
    assert pool.takes(BufferRequest(1, "w"))
    assert not pool.takes(BufferRequest(1, "x"))


@pytest.mark.parametrize(
    "text",
    ["", "No burst buffer information available\n", "scontrol: error: No burst buffer information available\n"],
)
def test_no_burst_buffer(text: str) -> None:
    assert parse_burst_buffers(text) == ()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (LUA[:-1], "scontrol show burst, last line: expected an answer that ends with a line break"),
        (LUA.replace("TotalSpace=100TiB", "TotalSpace=-1TiB"), "line 2: expected a whole amount"),
        (LUA.replace("FreeSpace=90TiB", "FreeSpace=90.5TiB"), "line 2: expected a whole amount"),
        (LUA.replace("FreeSpace=4GB", "FreeSpace=6GB"), "line 3: expected FreeSpace of at most TotalSpace"),
        (LUA.replace(" UsedSpace=1GB", ""), r"line 3: expected PoolName\[…\]="),
        (LUA.replace("Name=lua ", "Title=lua "), "line 1: expected Name="),
        (LUA.replace("Pool=slow", "Pool=other"), "line 11: expected one of the pools of lua"),
        (LUA.replace("Size=3TiB", ""), "line 10: expected JobID=… Size=… State=…"),
        ("  Flags=EnablePersistent\n", "line 1: expected Name=… of a burst buffer first"),
        ("slurm_load_burst_buffer_info error: Unable to contact slurm controller\n", "line 1: expected Name="),
    ],
)
def test_strange_answers_name_the_line(text: str, error: str) -> None:
    with pytest.raises(SourceError, match=error):
        parse_burst_buffers(text)


def test_sizes_are_rounded_up_to_the_granularity_and_to_whole_gb() -> None:
    pool = BurstBufferPool("a", "", True, 100 * BYTES_PER_GB, 100 * BYTES_PER_GB, 3 * BYTES_PER_GB)
    requests = (BufferRequest(BYTES_PER_GB), BufferRequest(2 * BYTES_PER_GB, per_node=True))
    assert pool.size_gb(requests, nodes=2) == 3 + 6
    assert BurstBufferPool("a", "", True, 1, 1).size_gb((BufferRequest(1),), nodes=1) == 1
    assert pool.size_gb((), nodes=4) == 0
