"""An interpreter that the account of the services can't run is named, with the folder that is closed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from malletrain.cli.operate.doctor import examine_interpreter, examine_interpreters
from tests.support.everybody import folder_of_everybody

NOBODY = 65534


def python_in(folder: Path) -> Path:
    folder.mkdir()
    python = folder / "python"
    python.write_text("#!/bin/sh\nexit 0\n")
    python.chmod(0o755)
    return python


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can have programs run as others")
def test_root_tries_it_as_the_owner_of_the_state_folder() -> None:
    with folder_of_everybody() as folder:
        state, python = folder / "state", python_in(folder / "environment")
        state.mkdir()
        os.chown(state, NOBODY, NOBODY)

        def found() -> list[tuple[bool, str]]:
            return [(entry.ok, entry.remedy) for entry in examine_interpreters({"hold.python": str(python)}, state)]

        assert found() == [(True, "")]
        python.parent.chmod(0o700)
        [(ok, remedy)] = found()
        assert not ok
        assert str(python.parent) in remedy
        os.chown(state, 0, 0)
        assert found() == [(True, "")], "root's own services can"


def test_one_that_fails_is_named_and_one_that_only_nodes_have_is_not(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    assert not examine_interpreter("hold.python", str(broken), {}, "ann").ok
    assert examine_interpreter("hold.python", sys.executable, {}, "ann").ok
    elsewhere = examine_interpreter("hold.python", str(tmp_path / "none" / "python"), {}, "ann")
    assert elsewhere.ok
    assert "not on this machine" in elsewhere.found
