"""A log that is read on from positions: no line twice, none left out, whatever the files hold and whoever asks."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from malletrain.job_manager.launching.folder import JobFolder
from malletrain.job_manager.logs import LogPart, LogReader, check_positions, file_key, stream
from malletrain.runtime.errors import InvalidInputError


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    return folder


def no() -> bool:
    return False


async def taken(parts: AsyncIterator[LogPart], most: int = 1_000_000) -> tuple[list[str], dict[str, int], bool]:
    """The lines of the first parts, where they end, and whether the job has ended."""
    lines: list[str] = []
    positions: dict[str, int] = {}
    async for part in parts:
        lines += part.lines
        positions.update(part.positions)
        most -= 1
        if part.ended or most <= 0:
            return lines, positions, part.ended
    return lines, positions, False


def content(random_: random.Random) -> bytes:
    """Lines of all kinds: empty, long, torn, not UTF-8."""
    kinds: list[Callable[[], bytes]] = [
        lambda: b"",
        lambda: b"\xff\xfe",
        lambda: b"x" * random_.choice([1, 65_535, 65_536, 65_537, 200_000]),
        lambda: f"line {random_.random()}\r".encode(),
    ]
    return b"\n".join(random_.choice(kinds)() for _ in range(random_.randrange(1, 40)))


@pytest.mark.parametrize("seed", range(8))
async def test_breaking_off_anywhere_loses_and_repeats_nothing(tmp_path: Path, logs: Path, seed: int) -> None:
    random_ = random.Random(seed)
    for node in ("n1.0", "n2.0", "n 3 %.1"):
        (logs / f"{node}.log").write_bytes(b"\n" * random_.choice([0, 1500]) + content(random_))
    folder = JobFolder(tmp_path)
    whole, _, ended = await taken(stream(folder, 0, True, {}, lambda: True, no))
    assert ended
    lines: list[str] = []
    positions: dict[str, int] = {}
    ended = False
    while not ended:
        found, seen, ended = await taken(stream(folder, 0, True, positions, lambda: True, no), random_.randrange(1, 4))
        lines += found
        positions.update(check_positions(seen, "positions"))
    assert sorted(lines) == sorted(whole)
    for writer in ("n1", "n2", "n 3 %"):
        own = f"{writer} | "
        assert [line for line in lines if line.startswith(own)] == [line for line in whole if line.startswith(own)]


async def test_half_a_line_is_left_for_the_next_jobmanager(tmp_path: Path, logs: Path) -> None:
    (logs / "n1.0.log").write_text("one\nha")
    before, positions, ended = await taken(stream(JobFolder(tmp_path), 0, True, {}, no, lambda: True))
    assert (before, ended) == (["n1 | one"], False)
    with (logs / "n1.0.log").open("a") as file:
        file.write("lf\nlast")
    after, _, ended = await taken(stream(JobFolder(tmp_path), 0, True, positions, lambda: True, no))
    assert (after, ended) == (["n1 | half", "n1 | last"], True)


async def test_the_last_lines_say_what_was_left_out_before_them(tmp_path: Path, logs: Path) -> None:
    (logs / "n1.0.log").write_text("".join(f"{number}\n" for number in range(2000)))
    lines, positions, _ = await taken(stream(JobFolder(tmp_path), 2, True, {}, lambda: True, no), 1)
    assert lines == [], "the first part has none"
    rest, _, ended = await taken(stream(JobFolder(tmp_path), 0, True, positions, lambda: True, no))
    assert (rest, ended) == (["n1 | 1998", "n1 | 1999"], True)


def test_a_file_that_is_shorter_than_its_position_is_a_new_one(tmp_path: Path, logs: Path) -> None:
    (logs / "n1.0.log").write_text("new\n")
    reader = LogReader(JobFolder(tmp_path), {file_key("n1.0.log"): 1000})
    assert reader.read() == [("n1 | new", "n1.0.log", 4)]


@pytest.mark.usefixtures("logs")
def test_positions_of_files_that_are_not_there_open_nothing(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret\n")
    positions = {file_key(name): 0 for name in ("../secret", "/etc/passwd", "secret")}
    assert LogReader(JobFolder(tmp_path), check_positions(positions, "positions")).read() == []


@pytest.mark.parametrize(
    ("positions", "field"),
    [
        ({"../n1.0.log": 0}, "positions.key"),
        ({"": 0}, "positions.key"),
        ({"a" * 766: 0}, "positions.key"),
        ({"n1\n": 0}, "positions.key"),
        ({"n1.0.log": -1}, r"positions\[n1.0.log\]"),
        ({"n1.0.log": 1 << 61}, r"positions\[n1.0.log\]"),
        ({str(number): 0 for number in range(20_001)}, "positions: expected at most"),
    ],
)
def test_positions_that_were_never_sent_are_refused_by_name(positions: dict[str, int], field: str) -> None:
    with pytest.raises(InvalidInputError, match=field):
        check_positions(positions, "positions")
