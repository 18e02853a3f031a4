"""What `malletrain doctor` says of identity."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from malletrain.cli.operate.doctor_access import examine_key, examine_munge
from malletrain.runtime.access.installation import own_user
from malletrain.runtime.access.keys import load_key
from malletrain.runtime.access.settings import AccessSettings
from tests.access.munged import munged


def test_a_folder_without_a_key_is_fine_and_so_is_a_good_key(tmp_path: Path) -> None:
    assert examine_key(tmp_path).ok
    key = load_key(tmp_path)
    finding = examine_key(tmp_path)
    assert finding.ok
    assert "readable by its owner only" in finding.found
    assert key.decode() not in str(finding)


@pytest.mark.parametrize("name", ["keys", "keys/token.key"])
def test_a_key_that_is_open_to_others_is_told(tmp_path: Path, name: str) -> None:
    load_key(tmp_path)
    path = tmp_path / name
    path.chmod(path.stat().st_mode | 0o040)
    finding = examine_key(tmp_path)
    assert not finding.ok
    assert f"{path} has mode" in finding.found
    assert "chmod" in finding.remedy


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file away")
def test_a_key_of_somebody_else_is_told(tmp_path: Path) -> None:
    load_key(tmp_path)
    os.chown(tmp_path / "keys/token.key", 65534, 65534)
    assert "belongs to uid 65534" in examine_key(tmp_path).found


@pytest.mark.parametrize(("setting", "ok"), [("auto", True), ("on", False), ("off", True)])
def test_munge_must_be_there_only_where_the_settings_say_so(tmp_path: Path, setting: str, ok: bool) -> None:
    settings = AccessSettings.model_validate({"munge": setting, "munge_path": str(tmp_path)})
    finding = examine_munge(settings)
    assert finding.ok == ok
    assert bool(finding.remedy) != ok


@pytest.mark.parametrize(("setting", "ok"), [("auto", True), ("on", False)])
def test_a_munged_that_does_not_answer(tmp_path: Path, setting: str, ok: bool) -> None:
    for name in ("munge", "unmunge"):
        program = tmp_path / name
        program.write_text("#!/bin/sh\nexit 6\n")
        program.chmod(0o755)
    finding = examine_munge(AccessSettings.model_validate({"munge": setting, "munge_path": str(tmp_path)}))
    assert finding.ok == ok
    assert "does munged run?" in finding.found


def test_munge_vouches_for_us() -> None:
    with tempfile.TemporaryDirectory(prefix="munge-") as folder, munged(Path(folder)) as munge:
        finding = examine_munge(AccessSettings(munge="on", munge_socket=munge.socket))
    assert finding.ok
    assert finding.found == f"vouches for {own_user()}"
