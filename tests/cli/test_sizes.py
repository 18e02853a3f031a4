"""Sizes of memory, and amounts that jobs need of their nodes, as options."""

from __future__ import annotations

import pytest

from malletrain.caller.job_request import JobRequest, needs_of, parse_memory
from malletrain.runtime.errors import InvalidInputError

MOST = 1 << 30


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("40G", 40960),
        ("40 g", 40960),
        ("40GB", 40960),
        ("40GiB", 40960),
        ("1.5T", 1572864),
        ("0.5G", 512),
        ("512M", 512),
        ("1024T", MOST),
        ("1m", 1),
        ("0.1M", 1),
        ("1.0001G", 1025),
        ("0.4T", 419431),
    ],
)
def test_sizes(text: str, mib: int) -> None:
    assert parse_memory("--memory", text, MOST) == mib


@pytest.mark.parametrize(
    "text",
    ["", "40", "40X", "-1", "-40G", "G", "1e3G", "0G", "1025T", "9" * 40 + "G", "40Gi", "nan", "٤G"],
)
def test_what_is_no_size_is_refused_by_its_option(text: str) -> None:
    with pytest.raises(InvalidInputError, match="a size such as 40G") as caught:
        parse_memory("--memory", text, MOST)
    assert caught.value.field == "--memory"


def test_amounts_become_needs() -> None:
    needs = needs_of(JobRequest(command=["x"], gpu_memory="40G", gpus=4, cores=32, memory="256G"))
    assert needs is not None
    assert (needs.gpu_memory_mib, needs.gpus, needs.cores, needs.memory_mib) == (40960, 4, 32, 262144)
    assert needs_of(JobRequest(command=["x"])) is None
    by_kind = needs_of(JobRequest(command=["x"], gpu="4090"))
    assert by_kind is not None
    assert by_kind.gpu == "4090", "a kind of GPU, not a number of them"


@pytest.mark.parametrize(
    ("asked", "option"),
    [
        (JobRequest(command=["x"], gpus=0), "--gpus"),
        (JobRequest(command=["x"], gpus=1025), "--gpus"),
        (JobRequest(command=["x"], cores=0), "--cores"),
        (JobRequest(command=["x"], cores=-1), "--cores"),
        (JobRequest(command=["x"], cores=1 << 70), "--cores"),
        (JobRequest(command=["x"], gpu_memory="40X"), "--gpu-memory"),
        (JobRequest(command=["x"], memory="-1"), "--memory"),
    ],
)
def test_amounts_that_can_not_be_meant_are_refused_by_their_option(asked: JobRequest, option: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        needs_of(asked)
    assert caught.value.field == option
