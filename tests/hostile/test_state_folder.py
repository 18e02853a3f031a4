"""The services start on no state folder that others own or can write: its databases say what is run, and for whom."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hostile.strangers import STRANGER, VICTIM, give, run_command
from tests.support.everybody import folder_of_everybody
from tests.support.stranger import needs_another_account, run_as_number

pytestmark = [needs_another_account, pytest.mark.long]

CHECK = "print(state_folder_fault(Path(sys.argv[1])))"
IMPORTS = "from pathlib import Path; from malletrain.cli.shared.settings import state_folder_fault"


@pytest.fixture
def state() -> Iterator[Path]:
    """A state folder with a database, as root's services have left it, where others can go."""
    with folder_of_everybody() as above:
        (folder := above / "state").mkdir(mode=0o755)
        sqlite3.connect(folder / "job_manager.sqlite").close()
        (folder / "job_manager.sqlite").touch(0o644)
        yield folder


def folder_of_a_stranger(state: Path) -> None:
    give(STRANGER, state)


def folder_that_others_write(state: Path) -> None:
    state.chmod(0o777)


def folder_that_a_group_writes(state: Path) -> None:
    state.chmod(0o775)
    os.chown(state, 0, STRANGER)


def database_of_a_stranger(state: Path) -> None:
    give(STRANGER, state / "job_manager.sqlite")


def database_that_others_write(state: Path) -> None:
    (state / "job_manager.sqlite").chmod(0o666)


def link_of_a_stranger(state: Path) -> None:
    (state / "monitor.sqlite").symlink_to("job_manager.sqlite")
    give(STRANGER, state / "monitor.sqlite")


def below_a_folder_of_a_stranger(state: Path) -> None:
    give(STRANGER, state.parent)


OPEN = (
    folder_of_a_stranger,
    folder_that_others_write,
    folder_that_a_group_writes,
    database_of_a_stranger,
    database_that_others_write,
    link_of_a_stranger,
    below_a_folder_of_a_stranger,
)


@pytest.mark.parametrize("lay", OPEN, ids=lambda lay: lay.__name__)
def test_services_do_not_start_on_what_others_could_have_written(state: Path, lay: Callable[[Path], None]) -> None:
    lay(state)
    for words in (("up",), ("serve", "job_manager"), ("restore", "none.tar.gz", "--force")):
        done = run_command(Path("/"), *words, environment={"MALLETRAIN_STATE_DIR": str(state)})
        assert done.returncode == 2, done
        assert "state_dir: expected a folder that only the account of the services" in done.stderr
    assert not (state / "keys").exists(), "nothing was done in it"


@pytest.mark.parametrize("lay", [folder_that_others_write, database_of_a_stranger], ids=lambda lay: lay.__name__)
def test_doctor_says_so(state: Path, lay: Callable[[Path], None]) -> None:
    lay(state)
    done = run_command(Path("/"), "doctor", "--json", environment={"MALLETRAIN_STATE_DIR": str(state)})
    (finding,) = (entry for entry in json.loads(done.stdout) if entry["check"] == "state folder")
    assert not finding["ok"]
    assert str(state) in finding["found"]
    assert "chmod" in finding["remedy"]


def test_an_account_that_is_not_root_may_work_below_a_folder_of_a_project(state: Path) -> None:
    give(VICTIM, state, state / "job_manager.sqlite")
    give(STRANGER, state.parent)
    assert run_as_number(VICTIM, Path("/"), CHECK, state, imports=IMPORTS).stdout == "\n"
    give(STRANGER, state / "job_manager.sqlite")
    found = run_as_number(VICTIM, Path("/"), CHECK, state, imports=IMPORTS).stdout
    assert f"belongs to user id {STRANGER}" in found
