"""A log that is read on from positions: no line twice, none left out, whatever the files hold and whoever asks."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from malletrain.job_manager.launching.folder import JobFolder
from malletrain.job_manager.log_reader import LogReader, file_key
from malletrain.job_manager.logs import LogPart, check_positions, stream, tail
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
    assert reader.read() == [("n1 | new", "n1.0.log", 4, 0)]


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


BAR = "\r".join(["", *(f"Epoche 1: {percent:3d}%|{'█' * (percent // 5):<20}| übrig" for percent in range(101))])


def test_of_a_progress_bar_one_state_is_a_line(tmp_path: Path, logs: Path) -> None:
    (logs / "n1.0.log").write_text(f"begins\r\n{BAR}\n{BAR}\r\nends\r\n")
    last = BAR.rpartition("\r")[2]
    lines = ["n1 | begins", f"n1 | {last}", f"n1 | {last}", "n1 | ends"]
    assert [line.text for line in LogReader(JobFolder(tmp_path)).read()] == lines
    assert tail(JobFolder(tmp_path), 3) == lines[1:]


@pytest.mark.parametrize("after", [False, True], ids=["return before each state", "return after each state"])
def test_a_bar_that_moves_is_seen_before_its_line_has_an_end(tmp_path: Path, logs: Path, after: bool) -> None:
    def state(percent: int) -> str:
        return f"{percent} % ≈\r" if after else f"\r{percent} % ≈"

    reader, seen = LogReader(JobFolder(tmp_path)), []
    with (logs / "n1.0.log").open("a") as file:
        for percent in range(0, 100, 10):
            file.write(state(percent) + state(percent + 1))
            file.flush()
            assert reader.read() == []
            seen += [line.text for line in reader.read(states=True)]
            assert reader.read(states=True) == [], "once each"
        file.write("\nnext\n")
        file.flush()
        assert seen == [f"n1 | {percent + 1} % ≈" for percent in range(0, 100, 10)]
        assert [line.text for line in reader.read()] == ["n1 | next"], "the last state has been seen"
        file.write(state(1) + state(2) + "\n" + "plain, half of it")
        file.flush()
        assert [line.text for line in reader.read(states=True)] == ["n1 | 2 % ≈"]
        file.write(", whole\n")
        file.flush()
        assert [line.text for line in reader.read()] == ["n1 | plain, half of it, whole"]


async def test_who_follows_sees_a_bar_move(tmp_path: Path, logs: Path) -> None:
    (logs / "n1.0.log").write_text("\r1 %\r2 %")
    ends = False
    stream_ = stream(JobFolder(tmp_path), 0, True, {}, lambda: ends, no)
    lines: list[str] = []
    async for part in stream_:
        lines += part.lines
        if lines == ["n1 | 2 %"] and not ends:
            ends = True
            with (logs / "n1.0.log").open("a") as file:
                file.write("\r3 %\n")
    assert lines == ["n1 | 2 %", "n1 | 3 %"]


@pytest.mark.parametrize("letter", ["y", "ä", "█", "😀"])
def test_a_line_without_an_end_comes_in_parts_with_whole_letters(tmp_path: Path, logs: Path, letter: str) -> None:
    text = "x" + letter * 100_000
    (logs / "n1.0.log").write_text(text)
    reader = LogReader(JobFolder(tmp_path))
    parts = reader.read() + reader.read(to_the_end=True)
    assert "".join(line.text.removeprefix("n1 | ") for line in parts) == text
    assert all(len(line.text.encode()) <= 65_536 + len("n1 | ") for line in parts)


def test_the_last_lines_before_a_line_without_an_end_are_short(tmp_path: Path, logs: Path) -> None:
    (logs / "n1.0.log").write_text("first\n" + "y" * 5_000_000)
    (line,) = tail(JobFolder(tmp_path), 3)
    assert line == "n1 | " + "y" * 2000
