"""The folder of a dashboard of another account: a viewer's token and the CA's certificate, and nothing more."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from malletrain.caller.credentials import caller_credential
from malletrain.runtime.access.identity import Role
from malletrain.runtime.access.installation import Installation, open_installation
from malletrain.runtime.config import Addresses, Settings
from malletrain.runtime.errors import InvalidInputError, UnavailableError
from tests.support.clocks import ManualClock

DAY = 86_400.0
OFF_LOOPBACK = Addresses(job_manager="job_manager:7703")


@pytest.fixture(autouse=True)
def _umask_of_the_units() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def _installation(folder: Path, addresses: Addresses | None = None) -> tuple[Installation, ManualClock]:
    clock = ManualClock(1_800_000_000.0)
    access = {"viewer_folder": folder / "viewer"}
    settings = Settings(state_dir=folder / "state", access=access, addresses=addresses or Addresses())
    return open_installation(settings, clock), clock


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_token_is_a_viewers_and_readable_by_the_group(tmp_path: Path) -> None:
    installation, _ = _installation(tmp_path)
    installation.certificates("job_manager").renew()
    folder = installation.viewer_folder()
    assert folder is not None
    assert folder.renew()
    assert not folder.renew()
    assert {path.name for path in (tmp_path / "viewer").iterdir()} == {"token", "ca.pem"}
    identity = installation.tokens.verify((tmp_path / "viewer/token").read_text().strip())
    assert (identity.user, identity.role) == ("malletrain-dashboard", Role.VIEWER)
    assert _mode(tmp_path / "viewer/token") == 0o640


def test_the_certificate_is_there_too(tmp_path: Path) -> None:
    installation, _ = _installation(tmp_path, OFF_LOOPBACK)
    folder = installation.viewer_folder()
    assert folder is not None
    with pytest.raises(UnavailableError, match=r"access\.viewer_folder: .*ca\.pem"):
        folder.renew()
    installation.certificates("job_manager").renew()
    assert folder.renew()
    copied = tmp_path / "viewer/ca.pem"
    assert copied.read_text() == (tmp_path / "state/ca.pem").read_text()
    assert _mode(copied) == 0o640
    copied.write_text("of an earlier CA")
    assert folder.renew()
    assert copied.read_text() == (tmp_path / "state/ca.pem").read_text()


def test_an_operators_token_in_its_place_is_replaced(tmp_path: Path) -> None:
    installation, clock = _installation(tmp_path)
    installation.certificates("job_manager").renew()
    folder = installation.viewer_folder()
    assert folder is not None
    folder.renew()
    path = tmp_path / "viewer/token"
    path.write_text(installation.tokens.sign("malletrain-dashboard", Role.OPERATOR, DAY)[0])
    clock.advance(1.0)
    assert folder.renew()
    assert installation.tokens.verify(path.read_text().strip()).role is Role.VIEWER


def test_who_shows_it_goes_on_after_a_renewal(tmp_path: Path) -> None:
    installation, clock = _installation(tmp_path)
    installation.certificates("job_manager").renew()
    folder = installation.viewer_folder()
    assert folder is not None
    folder.renew()
    path = tmp_path / "viewer/token"
    credential = caller_credential(installation.settings, {"MALLETRAIN_TOKEN_FILE": str(path)})
    first = credential.token()
    clock.advance(DAY * 0.6)
    assert folder.renew()
    assert credential.token() == path.read_text().strip() != first
    path.unlink()
    assert installation.tokens.verify(credential.token()).expires > clock.time()


def test_without_a_token_there_is_no_credential(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="MALLETRAIN_TOKEN_FILE"):
        caller_credential(Settings(state_dir=tmp_path), {"MALLETRAIN_TOKEN_FILE": str(tmp_path / "token")})


def test_a_folder_that_can_not_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "viewer").write_text("a file")
    folder = _installation(tmp_path)[0].viewer_folder()
    assert folder is not None
    with pytest.raises(UnavailableError, match=r"access\.viewer_folder"):
        folder.renew()


def test_by_default_there_is_no_such_folder(tmp_path: Path) -> None:
    assert open_installation(Settings(state_dir=tmp_path), ManualClock(0.0)).viewer_folder() is None
