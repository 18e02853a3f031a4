"""`malletrain replay --journal` and `malletrain tune` as a user calls them, on state folders without services."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from malletrain.allocator.history.idle_history import IdleRow, IdleRowKind
from malletrain.allocator.history.idle_store import IdleStore
from malletrain.cli.main import application
from malletrain.job_manager.storage.change import Change
from malletrain.job_manager.storage.store import JobStore
from malletrain.monitor.machine.progress import JobProgress
from malletrain.monitor.machine.throughput import MeasuredPoint
from malletrain.monitor.machine.trackers import StoredJob
from malletrain.monitor.store import MonitorStore
from malletrain.runtime.config import Settings
from malletrain.runtime.database.errors import SchemaVersionError
from malletrain.runtime.database.migrating import open_database
from malletrain.runtime.errors import InvalidInputError, MalleTrainError
from tests.simulator.journal.recorded import CURVE, recorded_job, rescaled, started

BEGIN = 1_700_000_000.0
HOUR, DAY = 3600.0, 86400.0


def idle_rows(days: int, nodes: int = 6) -> list[IdleRow]:
    """Nodes that leave and join by turns, one every ten minutes."""
    names = [f"n{number}" for number in range(nodes)]
    rows = [IdleRow(BEGIN, IdleRowKind.START, dict.fromkeys(names, BEGIN))]
    for turn in range(1, int(days * DAY / 600)):
        now, name = BEGIN + 600 * turn, names[(turn - 1) // 2 % nodes]
        joined, left = ({name: now}, ()) if turn % 2 == 0 else ({}, (name,))
        rows.append(IdleRow(now, IdleRowKind.CHANGE, joined, left))
    return rows


def make_state(folder: Path, days: int, jobs: int = 4) -> Path:
    """A working directory with settings, and a past in `state`: jobs without a target, one place."""
    settings = Settings(state_dir=folder / "state")
    end = BEGIN + days * DAY
    engines = {name: open_database(settings.database(name)) for name in ("allocator", "job_manager", "monitor")}
    IdleStore(engines["allocator"], 100_000).add(idle_rows(days))
    made = [
        recorded_job([*started(BEGIN, 1, BEGIN + 5), *rescaled(BEGIN + HOUR, 2, BEGIN + HOUR + 5)], number=number)
        for number in range(1, jobs + 1)
    ]
    store = JobStore(engines["job_manager"])
    store.save(Change([one.job for one in made], [event for one in made for event in one.events]))
    points = tuple(MeasuredPoint(point.nodes, point.rate, 10.0, 10, end, 0.01) for point in CURVE)
    MonitorStore(engines["monitor"]).write(
        StoredJob(one.job.id, JobProgress(1000, last_record_unix_seconds=end, nodes=2), 0, 0.1, {}, points, ())
        for one in made
    )
    for engine in engines.values():
        engine.dispose()
    (folder / "malletrain.toml").write_text(
        f'state_dir = "{folder}/state"\n[job_manager]\nmax_parallel = 1 # one place\n'
    )
    return folder


@pytest.fixture(scope="module")
def three_days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_state(tmp_path_factory.mktemp("three"), 3)


def run(folder: Path, *arguments: str) -> Result:
    """A verb of the command, in a working directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("COLUMNS", "200")
        return CliRunner().invoke(application(arguments[0]), arguments)


def in_json(done: Result) -> Any:
    assert done.exception is None, done.exception
    return json.loads(done.stdout)


def test_a_past_is_replayed_and_nothing_is_written_there(three_days: Path) -> None:
    before = {path: path.read_bytes() for path in (three_days / "state").glob("*.sqlite")}
    found = in_json(run(three_days, "replay", "--journal", "state", "--json", "--no-bound"))
    assert {path: path.read_bytes() for path in (three_days / "state").glob("*.sqlite")} == before
    hours = (BEGIN + 3 * DAY - BEGIN) / HOUR
    assert found["resource_integral_node_hours"] == pytest.approx(5.5 * hours, rel=0.01)
    journal = found["journal"]
    assert (journal["jobs"], journal["nodes"]) == (4, 6)
    assert journal["end_unix"] - journal["begin_unix"] == pytest.approx(3 * DAY)
    assert abs(journal["difference"]) > 0.03, "Monitor was told far too few samples"
    assert all(job["reasons"] for job in journal["agreement"])
    text = run(three_days, "replay", "--journal", "state", "--since", "7d", "--no-bound")
    assert "The idle set is known for the last 72.00 h only, and not for 7d." in text.stdout
    assert "does not agree with what happened" in text.stdout


def test_the_page_of_a_past_claims_no_share_of_all_nodes(three_days: Path) -> None:
    done = run(three_days, "replay", "--journal", "state", "--out", "results")
    assert done.exception is None, done.exception
    page = (three_days / "results/report.html").read_text()
    assert "how many nodes there are is not known" in page
    assert "of all node-hours were idle" not in page
    assert "<h1>What your idle nodes would train</h1>" in page


def test_settings_are_tuned_on_some_days_and_judged_by_others(three_days: Path) -> None:
    found = in_json(run(three_days, "tune", "--json"))
    assert len(found["days"]) == 3
    assert found["recommended"]["job_manager.max_parallel"] > 1
    assert found["applied"] is False
    assert len(found["forward"]["held_out"]["gain_by_day"]) == 3
    assert found["forward"]["held_out"]["half_width"] is not None
    assert "max_parallel = 1 # one place" in (three_days / "malletrain.toml").read_text()
    (present,) = (row for row in found["forward"]["settings"] if row["present"])
    assert (present["max_parallel"], present["gain"]) == (1, 0.0)


def test_one_day_has_no_interval_and_what_is_recommended_is_written_only_if_asked(tmp_path: Path) -> None:
    folder = make_state(tmp_path, 1)
    shown = run(folder, "tune")
    assert shown.exception is None, shown.exception
    assert "One day only: no interval" in shown.stdout
    assert "Nothing was written" in shown.stdout
    applied = in_json(run(folder, "tune", "--apply", "--json"))
    assert applied["applied"] is True
    places = applied["recommended"]["job_manager.max_parallel"]
    assert f"max_parallel = {places}\n" in (folder / "malletrain.toml").read_text()
    assert f"max_parallel = {places}\n" in shown.stdout
    again = in_json(run(folder, "tune", "--apply", "--json"))
    assert "job_manager.max_parallel" not in again["recommended"]


def damaged(folder: Path, kind: str) -> None:
    """Make a state folder that can't be read."""
    make_state(folder, 1, jobs=1)
    state = folder / "state"
    if kind == "corrupt":
        (state / "monitor.sqlite").write_bytes(b"no database" * 1000)
    elif kind == "newer":
        with closing(sqlite3.connect(state / "allocator.sqlite")) as connection, connection:
            connection.execute("UPDATE alembic_version SET version_num = '0009'")
    elif kind == "without history":
        with closing(sqlite3.connect(state / "allocator.sqlite")) as connection, connection:
            connection.execute("DELETE FROM idle_history")
    elif kind == "without jobs":
        with closing(sqlite3.connect(state / "job_manager.sqlite")) as connection, connection:
            connection.execute("DELETE FROM jobs")
    else:
        (state / "job_manager.sqlite").unlink()


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("corrupt", MalleTrainError, "the journal in state can't be read"),
        ("newer", SchemaVersionError, "are of revision 0009, and this version of MalleTrain knows up to 0005"),
        (
            "without history",
            InvalidInputError,
            "--journal: expected a past in which the Allocator has recorded idle nodes",
        ),
        ("without jobs", InvalidInputError, "--journal: expected a past in which jobs trained"),
        ("missing", InvalidInputError, "--journal: expected a state folder that services have used"),
    ],
)
def test_a_folder_that_can_not_be_replayed_is_refused(
    tmp_path: Path, kind: str, error: type[MalleTrainError], message: str
) -> None:
    damaged(tmp_path, kind)
    for verb in ("replay", "tune"):
        done = run(tmp_path, verb, "--journal", "state")
        assert type(done.exception) is error
        assert message in str(done.exception)
        assert "malletrain-journal-" not in str(done.exception), "the copy is nobody's business"
        assert done.stdout == ""


SPAN = "--since: expected a time above 0 such as 90s, 30m, 24h or 7d"
NO_FOLDER = "--journal: expected a state folder that services have used, got 'nowhere'"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("replay", "--journal", "nowhere"), NO_FOLDER),
        (("replay",), "--trace: expected --trace or --journal, and not both"),
        (("replay", "--journal", "state", "--trace", "x.csv"), "--trace: expected --trace or --journal, and not both"),
        (("replay", "--journal", "state", "--nodes", "3"), "--nodes: expected --trace beside it"),
        (("replay", "--journal", "state", "--jobs", "imagenet"), "--jobs: expected --trace beside it"),
        (("replay", "--journal", "state", "--since", "soon"), SPAN),
        (("tune", "--since", "-3h"), SPAN),
        (("tune", "--apply", "--config", "nowhere.toml"), "nowhere.toml"),
    ],
)
def test_wrong_use_is_named(three_days: Path, arguments: tuple[str, ...], message: str) -> None:
    done = run(three_days, *arguments)
    assert isinstance(done.exception, InvalidInputError)
    assert message in str(done.exception)


def test_the_url_of_a_database_is_no_folder_and_is_not_repeated(three_days: Path) -> None:
    done = run(three_days, "replay", "--journal", "postgresql://ada:secret@db/malletrain")
    assert isinstance(done.exception, InvalidInputError)
    assert "--journal: expected a folder; for databases on PostgreSQL" in str(done.exception)
    assert "secret" not in str(done.exception)
