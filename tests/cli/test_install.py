"""`malletrain install systemd`: units that systemd accepts and calls confined, and nothing overwritten unasked."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from malletrain.cli.operate.install import SystemdInstallation, render, state_folder, template_folder, write_files
from malletrain.runtime.errors import InvalidInputError, MalleTrainError
from malletrain.runtime.settings_file import SERVICES

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
_MAX_EXPOSED = 3.0
UNITS = (*(f"malletrain@{service}.service" for service in SERVICES), "malletrain-dashboard.service")
TMPFILES = Path("tmpfiles.d/malletrain.conf")


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a command. The test's own folder may be below one that units hide."""
    monkeypatch.setattr("malletrain.cli.operate.install.HIDDEN_FOLDERS", ())
    command = tmp_path / "opt/bin/malletrain"
    command.parent.mkdir(parents=True)
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    return tmp_path / "opt"


@pytest.fixture
def files(prefix: Path) -> dict[Path, str]:
    config, state = Path("/etc/malletrain/malletrain.toml"), Path("/var/lib/malletrain")
    return render(template_folder(), SystemdInstallation(prefix, "malletrain", config, state))


def test_every_name_is_filled_in(files: dict[Path, str], prefix: Path) -> None:
    assert not [path for path, text in files.items() if re.search(r"@[A-Z]+@", text)]
    unit = files[Path("systemd/system/malletrain@.service")]
    assert f"ExecStart={prefix}/bin/malletrain serve %i --config /etc/malletrain/malletrain.toml\n" in unit
    assert "User=malletrain\n" in unit
    assert "d /var/lib/malletrain 0700 malletrain" in files[TMPFILES]


def test_target_wants_all_services(files: dict[Path, str]) -> None:
    target = files[Path("systemd/system/malletrain.target")]
    assert sorted(re.findall(r"malletrain@(\w+)\.service", target)) == sorted(SERVICES)


def test_the_dashboard_has_an_account_of_its_own_that_reads_its_token_only(files: dict[Path, str]) -> None:
    unit = files[Path("systemd/system/malletrain-dashboard.service")]
    assert "\nUser=malletrain-dashboard\n" in unit
    assert "\nEnvironment=MALLETRAIN_TOKEN_FILE=/var/lib/malletrain-viewer/token\n" in unit
    assert "ReadWritePaths" not in unit
    assert "\nInaccessiblePaths=-/var/lib/malletrain\n" in unit
    assert "d /var/lib/malletrain-viewer 2750 malletrain malletrain-dashboard" in files[TMPFILES]
    services = files[Path("systemd/system/malletrain@.service")]
    assert "\nEnvironment=MALLETRAIN_ACCESS__VIEWER_FOLDER=/var/lib/malletrain-viewer\n" in services


def test_supervisors_outlive_job_manager(files: dict[Path, str]) -> None:
    text = files[Path("systemd/system/malletrain@job_manager.service.d/supervisors.conf")]
    for line in ("KillMode=process", "OOMPolicy=continue", "PrivateTmp=no", "RemoveIPC=no"):
        assert f"\n{line}\n" in text


@needs_systemd
def test_systemd_accepts_the_units(files: dict[Path, str], tmp_path: Path) -> None:
    folder = _units_of_instances(files, tmp_path)
    units = sorted(str(path) for path in folder.iterdir() if path.is_file() and "@." not in path.name)
    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@needs_systemd
@pytest.mark.parametrize("unit", UNITS)
def test_systemd_calls_the_services_confined(files: dict[Path, str], tmp_path: Path, unit: str) -> None:
    folder = _units_of_instances(files, tmp_path)
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(folder / unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+) (\w+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found[1]) < _MAX_EXPOSED


def test_what_differs_is_not_overwritten(files: dict[Path, str], tmp_path: Path) -> None:
    folder = tmp_path / "etc"
    assert len(write_files(folder, files, force=False)) == len(files)
    assert write_files(folder, files, force=False) == []
    target, missing = folder / "systemd/system/malletrain.target", folder / "tmpfiles.d/malletrain.conf"
    target.write_text("[Unit]\nDescription=of the site\n")
    missing.unlink()
    with pytest.raises(MalleTrainError, match=r"malletrain\.target: there, and different"):
        write_files(folder, files, force=False)
    assert "of the site" in target.read_text()
    assert not missing.exists()
    assert write_files(folder, files, force=True) == [target, missing]
    assert target.read_text() == files[Path("systemd/system/malletrain.target")]


@pytest.mark.parametrize("user", ["", "Root", "a b", "x\nExecStart=/bin/sh", "-x", "a" * 22])
def test_account_that_can_not_stand_in_a_unit(prefix: Path, user: str) -> None:
    with pytest.raises(InvalidInputError, match="--user"):
        SystemdInstallation(prefix, user, Path("/etc/m.toml"), Path("/var/lib/m"))


@pytest.mark.parametrize("state", ["state", "/var/lib/m n", "/var/lib/%i", "/var/lib/../x", "/var/lib/m\nUser=root"])
def test_state_folder_that_can_not_stand_in_a_unit(prefix: Path, state: str) -> None:
    with pytest.raises(InvalidInputError, match="state_dir"):
        SystemdInstallation(prefix, "malletrain", Path("/etc/m.toml"), Path(state))


def test_what_units_hide_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="--prefix: expected a path outside /home"):
        SystemdInstallation(Path("/home/ada/venv"), "malletrain", Path("/etc/m.toml"), Path("/var/lib/m"))


def test_prefix_without_the_command(prefix: Path) -> None:
    with pytest.raises(InvalidInputError, match="--prefix: expected a folder with bin/malletrain"):
        SystemdInstallation(prefix / "bin", "malletrain", Path("/etc/m.toml"), Path("/var/lib/m"))


def test_state_folder_must_be_named(tmp_path: Path) -> None:
    config = tmp_path / "malletrain.toml"
    config.write_text('log_level = "info"\n')
    with pytest.raises(InvalidInputError, match="state_dir: expected a folder, named in"):
        state_folder(config)
    config.write_text('state_dir = "/srv/malletrain"\n')
    assert state_folder(config) == Path("/srv/malletrain")


def _units_of_instances(files: dict[Path, str], tmp_path: Path) -> Path:
    """A folder with the units, and the template once under each instance's name, which these commands ask for."""
    folder = tmp_path / "etc"
    write_files(folder, files, force=False)
    units = folder / "systemd/system"
    for service in SERVICES:
        shutil.copy(units / "malletrain@.service", units / f"malletrain@{service}.service")
    return units
