"""Burst buffer as the command reads and shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from malletrain.caller.job_request import parse_burst_buffer
from malletrain.cli.jobs.submit import read_specs
from malletrain.cli.shared.listing import ListingView
from malletrain.cli.shared.owner_output import print_owners, quota_in_words, request_in_words
from malletrain.runtime.errors import InvalidInputError
from malletrain.v1 import job_manager_pb2, resources_pb2
from tests.cli.test_replay import malletrain, write

QUOTA = job_manager_pb2.BurstBufferQuota(granted_gb=4000, held_gb=3500, free_gb=500)


@pytest.mark.parametrize(
    ("text", "gb"),
    [("2000", 2000), ("2TB", 2000), ("500GB", 500), ("1.5 tb", 1500), ("0", 0), ("0.001TB", 1), ("3.0", 3)],
)
def test_amounts(text: str, gb: int) -> None:
    assert parse_burst_buffer(text) == gb


@pytest.mark.parametrize("text", ["-1", "-2TB", "1.5", "0.5GB", "0.0001TB", "2 PB", "many", "", "1e3", "1 000", "nan"])
def test_other_amounts_are_refused(text: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_burst_buffer(text)
    assert caught.value.field == "--burst-buffer"


def test_a_job_file_has_whole_gb(tmp_path: Path) -> None:
    (spec,) = read_specs(write(tmp_path / "jobs.json", '[{"name": "a", "burstBufferGb": 2000}]'))
    assert spec.burst_buffer_gb == 2000
    for wrong in ("1.5", '"2TB"'):
        with pytest.raises(InvalidInputError, match="burstBufferGb"):
            read_specs(write(tmp_path / "jobs.json", f'[{{"name": "a", "burstBufferGb": {wrong}}}]'))


def test_the_quota_in_words() -> None:
    assert quota_in_words(QUOTA) == "burst buffer: jobs hold 3.5 TB of 4 TB, 500 GB are free"


@pytest.mark.parametrize(
    ("state", "admitted", "passed_over", "words"),
    [
        ("QUEUED", False, 0, "2 TB, not held yet"),
        ("QUEUED", False, 3, "2 TB, not held yet, passed over 3 times"),
        ("WAITING", True, 1, "2 TB, held until its end, passed over 1 time"),
        ("STOPPING", True, 0, "2 TB, held until its end"),
        ("COMPLETED", False, 0, "2 TB, given back"),
    ],
)
def test_what_a_job_asks_for_in_words(state: str, admitted: bool, passed_over: int, words: str) -> None:
    job = resources_pb2.Job(
        state=resources_pb2.JobState.Value(f"JOB_STATE_{state}"),
        admitted=admitted,
        passed_over=passed_over,
        spec=resources_pb2.JobSpec(burst_buffer_gb=2000),
    )
    assert request_in_words(job) == words


def test_owners_are_shown_with_what_they_hold_where_there_is_a_quota(capsys: pytest.CaptureFixture[str]) -> None:
    ada = job_manager_pb2.OwnerShare(owner="ada", burst_buffer_gb=3500, weight=1.0)
    print_owners(job_manager_pb2.ListOwnersResponse(owners=[ada], burst_buffer=QUOTA), ListingView())
    said = capsys.readouterr()
    shown = said.out
    assert "3.5 TB" in shown
    assert "500 GB are free" in said.err, "beside the rows"
    print_owners(job_manager_pb2.ListOwnersResponse(owners=[ada]), ListingView())
    assert "burst buffer" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["submit", "--burst-buffer", "-2TB", "--", "true"], "--burst-buffer: expected whole GB"),
        (["submit", "--burst-buffer", "1.5", "--", "true"], "--burst-buffer: expected whole GB"),
        (["replay", "--trace", "none.csv", "--burst-buffer", "0.5GB"], "--burst-buffer: expected whole GB"),
        (["replay", "--trace", "none.csv", "--window", "0"], "--window: expected 1 to 32, got 0"),
    ],
)
def test_wrong_use_ends_with_2_before_anything_runs(options: list[str], message: str) -> None:
    done = malletrain(*options)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr
