"""Where studies are kept: by file, and one driver for each study."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from malletrain.caller.searching.start import default_file, file_system_of, open_storage, sole_driver
from malletrain.runtime.errors import InvalidInputError, PreconditionError
from tests.support.waiting import wait_until

optuna = pytest.importorskip("optuna", reason="needs malletrain[search]")

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /home rw shared:2 - nfs4 server:/home rw
31 30 0:41 / /home/my\\040disk rw - xfs /dev/sdb rw
32 22 0:42 / /homes rw - lustre lustre@tcp:/h rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/var/x", "ext4"), ("/home/a", "nfs4"), ("/home/my disk/a", "xfs"), ("/homes/a", "lustre"), ("/homely", "ext4")],
)
def test_the_file_system_of_a_path(path: str, kind: str) -> None:
    assert file_system_of(Path(path), MOUNTS) == kind


def test_a_file_in_the_users_folder_which_fits_its_file_system() -> None:
    assert default_file({"HOME": "/home/a"}, MOUNTS) == Path("/home/a/.local/share/malletrain/studies.journal")
    assert default_file({"HOME": "/root"}, MOUNTS) == Path("/root/.local/share/malletrain/studies.db")
    assert default_file({"HOME": "/home/a", "XDG_DATA_HOME": "/data"}, MOUNTS) == Path("/data/malletrain/studies.db")


@pytest.mark.parametrize("ending", ["db", "sqlite", "journal", "log"])
def test_a_study_is_found_again_in_a_file_that_others_can_not_read(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"studies.{ending}"
    optuna.create_study(study_name="s", storage=open_storage(path)[0]).ask()
    storage, file = open_storage(str(path))
    assert file == path
    assert len(optuna.load_study(study_name="s", storage=storage).trials) == 1
    assert path.stat().st_mode & 0o077 == 0


def test_the_default_file_is_made_with_its_folder(tmp_path: Path) -> None:
    _, file = open_storage(None, {"XDG_DATA_HOME": str(tmp_path / "data")})
    assert file is not None
    assert file.parent == tmp_path / "data/malletrain"
    assert file.is_file()


def test_storages_of_optuna_and_urls_are_taken_as_they_are() -> None:
    storage = optuna.storages.InMemoryStorage()
    assert open_storage(storage) == (storage, None)
    assert open_storage("postgresql://db/studies") == ("postgresql://db/studies", None)


@pytest.mark.parametrize("storage", ["studies.txt", 7, "", "/no/such/folder/studies.db"])
def test_what_is_no_storage_is_an_error(storage: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInputError, match="storage: expected a file"):
        open_storage(storage)


def test_one_process_drives_a_study_until_it_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "studies.db"
    code = (
        "import sys; from pathlib import Path\n"
        "from malletrain.caller.searching.start import sole_driver\n"
        f"with sole_driver(Path({str(file)!r}), 's'):\n"
        "    print('drives', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "drives\n"
        with sole_driver(file, "another"):
            pass
        with pytest.raises(PreconditionError, match="another process drives the study s of"), sole_driver(file, "s"):
            pass
        other.kill()
    wait_until(lambda: _may_drive(file), 10.0, "the lock to be gone")


def _may_drive(file: Path) -> bool:
    try:
        with sole_driver(file, "s"):
            return True
    except PreconditionError:
        return False


def test_a_folder_that_can_not_be_written_is_an_error(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    tmp_path.chmod(0o500)
    with pytest.raises(InvalidInputError, match="storage: expected a file that can be written"):
        open_storage(tmp_path / "studies.db")
