"""`malletrain logs`: since when, which lines, with which times and colours."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from malletrain.caller.log_lines import LogLine, matching, since_ms_of
from malletrain.cli.jobs.logs import style_of
from malletrain.runtime.errors import InvalidInputError

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("since", "ms"),
    [
        ("", 0),
        (None, 0),
        ("90s", 90_000),
        ("5m", 300_000),
        ("1.5h", 5_400_000),
        ("2d", 172_800_000),
        ("1w", 604_800_000),
        (30, 30_000),
        (timedelta(minutes=1), 60_000),
    ],
)
def test_how_long_ago(since: str | float | timedelta | None, ms: int) -> None:
    assert since_ms_of(since, NOW, "--since") == (int(NOW * 1000) - ms if since else 0)


def test_a_moment() -> None:
    at = datetime(2026, 11, 28, 9, 30, tzinfo=UTC)
    assert (
        since_ms_of(at, NOW, "since") == since_ms_of("2026-11-28T09:30:00+00:00", NOW, "since") == at.timestamp() * 1000
    )
    local = datetime(2026, 11, 28, 9, 30)  # in the zone of this machine
    assert since_ms_of("2026-11-28 09:30", NOW, "since") == local.timestamp() * 1000
    assert since_ms_of("9999999w", NOW, "since") == 1, "before all times"


@pytest.mark.parametrize("since", ["5 minutes", "yesterday", "m", "-5m", -1, float("nan"), "99999-01-01"])
def test_what_is_no_time_is_named(since: str | float) -> None:
    with pytest.raises(InvalidInputError, match="--since"):
        since_ms_of(since, NOW, "--since")


def test_lines_that_match() -> None:
    lines = [LogLine("n1 | loss 0.5"), LogLine("n2 | saved")]
    assert list(matching(lines, r"loss \d", "--grep")) == lines[:1]
    with pytest.raises(InvalidInputError, match="--grep"):
        matching(lines, "(", "--grep")


def test_times_are_those_of_this_machines_clock() -> None:
    at = datetime(2026, 11, 28, 9, 30, 5)  # in the zone of this machine
    assert LogLine("n1 | x", int(at.timestamp() * 1000) + 999).with_time == "2026-11-28 09:30:05  n1 | x"
    for unknown in (0, -5, 1 << 53):
        assert LogLine("n1 | x", unknown).with_time == "-------------------  n1 | x"


@pytest.mark.parametrize(
    ("text", "style"),
    [
        ("2026-11-28 09:30:05,123 ERROR root: no", "red"),
        ("[rank0]:E1128 09:30:05.123456 12 x.cpp:1] no", ""),
        ("E1128 09:30:05.123456 12 x.cpp:1] no", "red"),
        ("Traceback (most recent call last):", "red"),
        ("torch.OutOfMemoryError: CUDA out of memory", "red"),
        ("KeyboardInterrupt", "red"),
        ("fatal: no", "red"),
        ("WARNING:root:no", "yellow"),
        ("/x.py:3: UserWarning: no", "yellow"),
        ("[warning] no", "yellow"),
        ("DEBUG x", "dim"),
        ("mean squared error 0.5", ""),
        ("step 3 loss 0.5, no errors so far", ""),
        ("x" * 400 + " ERROR", ""),
        ("", ""),
    ],
)
def test_lines_have_the_colours_of_their_levels(text: str, style: str) -> None:
    assert style_of(f"n1 | {text}") == style
