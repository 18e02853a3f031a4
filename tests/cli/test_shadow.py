from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from typer.testing import CliRunner

from malletrain.cli.main import application
from malletrain.cli.shared.output import parse_duration
from malletrain.cli.simulate.shadow import watching_only
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.settings import ScavengerSettings
from malletrain.scavenger.trace_files import read_trace
from tests.scavenger.recorded_commands import RecordedCommands


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """The runner's standard error, which the command logs to, is gone with the test."""
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def played(folder: Path) -> dict[str, str]:
    """A Slurm that plays recorded answers, as settings."""
    folder.mkdir()
    commands = RecordedCommands(folder)
    return {
        "MALLETRAIN_STATE_DIR": str(folder),
        "MALLETRAIN_SCAVENGER__SLURM__PARTITIONS": '["main"]',
        "MALLETRAIN_SCAVENGER__SLURM__HOLD__QUEUE": "scavenge",
        "MALLETRAIN_SCAVENGER__SLURM__INTERVAL_SECONDS": "0.1",
        "MALLETRAIN_SCAVENGER__SLURM__SINFO": commands.add("sinfo", "idle|n[01-12]\nallocated|n[13-16]\n"),
        "MALLETRAIN_SCAVENGER__SLURM__SQUEUE": commands.add("squeue", ""),
        "MALLETRAIN_SCAVENGER__SLURM__SCONTROL": commands.add("scontrol", "No reservations in the system\n"),
    }


def test_a_shadow_records_and_says_what_would_have_been_harvested(tmp_path: Path) -> None:
    out = tmp_path / "seen.csv.gz"
    arguments = ["shadow", "--source", "slurm", "--for", "2s", "--every", "1s", "--out", str(out)]
    done = CliRunner().invoke(application(), arguments, env=played(tmp_path / "bin"))
    assert done.exit_code == 0, done.output
    assert "12 of 16 nodes idle" in done.output
    assert "node-hours idle" in done.output
    trace = read_trace(out)
    assert len(trace.fragments) == 12
    assert len(trace.nodes) == 16
    # It asked, and submitted nothing: there is no sbatch to be found.
    assert not list((tmp_path / "bin").glob("sbatch*"))


def test_a_report_is_that_of_a_replay(tmp_path: Path) -> None:
    out, report = tmp_path / "seen.csv.gz", tmp_path / "report"
    arguments = ["shadow", "--source", "slurm", "--for", "2s", "--every", "1s", "--out", str(out)]
    done = CliRunner().invoke(application(), [*arguments, "--report", str(report)], env=played(tmp_path / "bin"))
    assert done.exit_code == 0, done.output
    page = (report / "report.html").read_text()
    assert "75.0 % of all node-hours were idle" in " ".join(re.sub(r"<[^>]*>", " ", page).split())
    assert "malletrain shadow --source slurm" in page
    assert f"wrote {report / 'report.html'}" in done.output


def test_json(tmp_path: Path) -> None:
    out = tmp_path / "seen.csv"
    arguments = ["shadow", "--source", "slurm", "--for", "1s", "--json", "--out", str(out)]
    done = CliRunner().invoke(application(), arguments, env=played(tmp_path / "bin"))
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert figures["equivalent_nodes"] == pytest.approx(12, abs=0.1)


def test_lengths() -> None:
    assert [parse_duration(text, "--for") for text in ("90s", "1.5m", "24h", "7d")] == [90, 90, 86400, 604800]
    for wrong in ("", "0h", "24", "h", "-1h", "1w", "nanh"):
        with pytest.raises(InvalidInputError, match="--for: expected a time above 0"):
            parse_duration(wrong, "--for")


def test_a_shadow_holds_nothing() -> None:
    section = ScavengerSettings.model_validate({"slurm": {"partitions": ["a"], "hold": {"queue": "scavenge"}}})
    assert watching_only(section, "slurm").slurm.hold.queue == ""
    assert watching_only(section, "slurm").slurm.partitions == ("a",)


def test_a_shadow_of_one_scheduler_does_not_take_over_how_the_other_holds() -> None:
    slurm, pbs = {"hold": {"ssh": ["ssh"], "name": "a"}}, {"hold": {"queue": "scavenge", "name": "b"}}
    section = watching_only(ScavengerSettings.model_validate({"slurm": slurm, "pbs": pbs}), "slurm+pbs")
    assert not section.slurm.hold.held
    assert not section.pbs.hold.held
    assert (section.slurm.hold.name, section.pbs.hold.name) == ("a", "b")
