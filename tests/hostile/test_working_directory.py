"""What lies in the working directory is somebody else's, and root or another user types a command there."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hostile.strangers import STRANGER, VICTIM, give, run_command
from tests.support.everybody import folder_of_everybody
from tests.support.stranger import needs_another_account, run_as_number

pytestmark = needs_another_account

_TRAP = '#!/bin/sh\ntouch "{marker}"\necho MUNGE:caught:\n'
_LOAD = "from malletrain.cli.shared.settings import AllSettings, load"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of root's that everybody can enter; below /tmp, as a stranger would have it."""
    with folder_of_everybody() as found:
        yield found


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """The stranger's server, which waits for tokens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


def trap(place: Path, marker: Path, port: int = 9) -> Path:
    """Settings that run the stranger's program, and send tokens to the stranger."""
    programs = place / "bin"
    programs.mkdir()
    for name in ("munge", "unmunge"):
        (programs / name).write_text(_TRAP.format(marker=marker))
        (programs / name).chmod(0o755)
    file = place / "malletrain.toml"
    file.write_text(
        f'[access]\nmunge = "on"\nmunge_path = "{programs}"\n[addresses]\n'
        + "".join(f'{name} = "127.0.0.1:{port}"\n' for name in ("job_manager", "scavenger", "monitor", "allocator"))
    )
    return file


def of_a_stranger(folder: Path, marker: Path) -> Path:
    """Everything is the stranger's."""
    (place := folder / "place").mkdir()
    give(STRANGER, trap(place, marker), place)
    return place


def in_an_open_folder(folder: Path, marker: Path) -> Path:
    """Root's folder, in which everybody can write."""
    (place := folder / "place").mkdir()
    give(STRANGER, trap(place, marker))
    place.chmod(0o777)
    return place


def in_a_sticky_folder(folder: Path, marker: Path) -> Path:
    """As in /tmp."""
    place = in_an_open_folder(folder, marker)
    place.chmod(0o1777)
    return place


def a_file_of_root_that_others_can_write(folder: Path, marker: Path) -> Path:
    """Root's file in root's folder, with a wrong mode."""
    (place := folder / "place").mkdir()
    trap(place, marker).chmod(0o666)
    return place


def a_link_of_the_stranger(folder: Path, marker: Path) -> Path:
    """The stranger's link, in a sticky folder, to a file that is root's and meant for something else."""
    (real := folder / "real").mkdir()
    file = trap(real, marker)
    (place := folder / "place").mkdir()
    (place / "malletrain.toml").symlink_to(file)
    give(STRANGER, place / "malletrain.toml")
    place.chmod(0o1777)
    return place


def a_link_into_a_folder_of_the_stranger(folder: Path, marker: Path) -> Path:
    """Root's own link to what is the stranger's."""
    (real := folder / "real").mkdir()
    file = trap(real, marker)
    give(STRANGER, real)
    (place := folder / "place").mkdir()
    (place / "malletrain.toml").symlink_to(file)
    return place


def below_a_folder_of_the_stranger(folder: Path, marker: Path) -> Path:
    """Root's folder and file, but the stranger can put others in their place."""
    (above := folder / "above").mkdir()
    (place := above / "place").mkdir()
    trap(place, marker)
    give(STRANGER, above)
    return place


TRAPS = (
    of_a_stranger,
    in_an_open_folder,
    in_a_sticky_folder,
    a_file_of_root_that_others_can_write,
    a_link_of_the_stranger,
    a_link_into_a_folder_of_the_stranger,
    below_a_folder_of_the_stranger,
)


@pytest.mark.parametrize("lay", TRAPS, ids=lambda lay: lay.__name__)
def test_a_configuration_that_others_could_have_written_is_refused_to_root(
    folder: Path, lay: Callable[[Path, Path], Path]
) -> None:
    marker = folder / "caught"
    done = run_command(lay(folder, marker), "jobs")
    assert not marker.exists(), "the stranger's program ran as root"
    assert done.returncode == 2, done
    assert "./malletrain.toml" in done.stderr
    assert "--config" in done.stderr


def test_the_callers_token_is_not_sent_to_a_strangers_address(folder: Path, listener: socket.socket) -> None:
    (place := folder / "place").mkdir()
    give(STRANGER, trap(place, folder / "caught", listener.getsockname()[1]), place)
    done = run_command(place, "jobs", environment={"MALLETRAIN_TOKEN": "a.secret.token"})
    assert done.returncode == 2, done
    with pytest.raises(BlockingIOError):
        listener.accept()  # nobody has connected


def test_another_user_is_protected_as_root_is(folder: Path) -> None:
    (place := folder / "place").mkdir()
    give(STRANGER, trap(place, folder / "caught"), place)
    done = run_as_number(VICTIM, place, "load()", imports=_LOAD)
    assert "InvalidInputError" in done.stderr
    assert "--config" in done.stderr


def test_a_users_own_file_and_roots_are_taken(folder: Path) -> None:
    (place := folder / "place").mkdir()
    file = trap(place, folder / "caught", 4242)
    show = "print(load().addresses.job_manager)"
    assert run_as_number(VICTIM, place, show, imports=_LOAD).stdout.strip() == "127.0.0.1:4242", "root's"
    give(VICTIM, place, file)
    assert run_as_number(VICTIM, place, show, imports=_LOAD).stdout.strip() == "127.0.0.1:4242", "the user's own"


def test_a_file_that_a_variable_names_is_read_in_place_of_a_strangers(folder: Path) -> None:
    place = of_a_stranger(folder, folder / "caught")
    (folder / "own.toml").write_text('[addresses]\nmonitor = "nonsense"\n')
    done = run_command(place, "jobs", environment={"MALLETRAIN_CONFIG_FILE": str(folder / "own.toml")})
    assert "addresses.monitor" in done.stderr
    done = run_command(place, "backup", "b", environment={"MALLETRAIN_CONFIG_FILE": str(folder / "missing.toml")})
    assert "MALLETRAIN_CONFIG_FILE: expected a readable TOML file" in done.stderr


def test_a_file_that_is_named_is_the_callers_decision_but_not_what_root_runs_by_it(folder: Path) -> None:
    marker = folder / "caught"
    place = of_a_stranger(folder, marker)
    named = run_as_number(
        VICTIM, place, "print(load(Path('malletrain.toml')).access.munge)", imports=_LOAD + "; from pathlib import Path"
    )
    assert named.stdout.strip() == "on", named.stderr
    done = run_command(place, "jobs", "--config", "malletrain.toml")
    assert not marker.exists()
    assert "access.munge_path" in done.stderr
    assert str(STRANGER) in done.stderr


def test_the_demo_runs_in_no_folder_of_a_stranger(folder: Path) -> None:
    (place := folder / "place").mkdir()
    give(STRANGER, place)
    done = run_command(place, "demo")
    assert done.returncode == 2, done
    assert f"belongs to user id {STRANGER}" in done.stderr


@pytest.mark.parametrize(
    "setting",
    [
        "[job_manager]\ntrainer_python = '{file}'\n",
        "[job_manager.notifications]\ncommand = ['{file}']\n",
        "[job_manager.notifications]\nwebhook_file = '{file}'\n",
        "[scavenger.notifications]\ncommand = ['{file}']\n",
        "[scavenger.notifications]\nwebhook_file = '{file}'\n",
        "[tls]\nauthority_file = '{file}'\n",
        "[scavenger]\nsource = 'slurm'\n[scavenger.slurm]\nsqueue = '{file}'\n",
        "[scavenger]\nsource = 'pbs'\n[scavenger.pbs.hold]\nqueue = 'idle'\npython = '{file}'\n",
    ],
)
def test_what_settings_of_root_name_must_be_roots_alone(folder: Path, setting: str) -> None:
    program = folder / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    give(STRANGER, program)
    config = folder / "malletrain.toml"
    config.write_text(f"state_dir = '{folder}/state'\n" + setting.format(file=program))
    for words in (("up",), ("serve", "monitor")):
        done = run_command(folder, *words, "--config", str(config))
        assert done.returncode == 2, done
        assert f"{program} belongs to user id {STRANGER}" in done.stderr
    assert not (folder / "state").exists()


def test_modules_of_the_working_directory_are_not_imported_by_what_the_command_starts(folder: Path) -> None:
    """`python -c` and `python -m` look for modules in the working directory first."""
    marker = folder / "caught"
    (place := folder / "place").mkdir()
    for name in ("torch", "horovod", "malletrain"):
        (place / f"{name}.py").write_text(f"open({str(marker)!r}, 'w')\n")
    give(STRANGER, place)
    run_command(place, "doctor", environment={"MALLETRAIN_STATE_DIR": str(folder / "state")})
    assert not marker.exists(), "the stranger's module was imported by root"
