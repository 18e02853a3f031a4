"""MUNGE for real, and stand-ins that misbehave."""

from __future__ import annotations

import os
import pwd
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.runtime.access import munge as module
from malletrain.runtime.access.identity import Role, UnauthenticatedError
from malletrain.runtime.access.munge import Munge, MungeError, find_munge, role_for, user_name
from malletrain.runtime.access.settings import AccessSettings
from tests.access.munged import NOBODY, munged
from tests.support.waiting import wait_until

OURSELVES = pwd.getpwuid(os.geteuid()).pw_name


@pytest.fixture(scope="module")
def munge() -> Iterator[Munge]:
    with tempfile.TemporaryDirectory(prefix="munge-") as folder, munged(Path(folder)) as running:
        yield running


def made(munge: Munge, *options: str, uid: int | None = None) -> str:
    """A credential with other options, or of another user."""
    command = [munge.munge, "--socket", munge.socket, *options]
    return subprocess.run(command, capture_output=True, text=True, check=True, user=uid, group=uid).stdout


def test_a_credential_says_who_made_it(munge: Munge) -> None:
    assert munge.user_of(munge.make_credential()) == OURSELVES


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a credential as another user")
def test_another_users_credential_says_so(munge: Munge) -> None:
    assert munge.user_of(made(munge, "--string", "malletrain", uid=NOBODY)) == "nobody"


def test_a_credential_can_be_used_once(munge: Munge) -> None:
    credential = munge.make_credential()
    munge.user_of(credential)
    with pytest.raises(UnauthenticatedError, match="has been used before"):
        munge.user_of(credential)


def test_a_credential_that_has_expired_is_refused(munge: Munge) -> None:
    credential, made_at = made(munge, "--string", "malletrain", "--ttl", "1"), time.time()
    # munged counts in whole seconds.
    wait_until(lambda: time.time() > made_at + 2.1, 10, "its end")
    with pytest.raises(UnauthenticatedError, match="has expired"):
        munge.user_of(credential)


@pytest.mark.parametrize("payload", ["slurm", "malletrain2", ""])
def test_a_credential_that_was_made_for_something_else_is_refused(munge: Munge, payload: str) -> None:
    with pytest.raises(UnauthenticatedError, match="was not made for malletrain"):
        munge.user_of(made(munge, "--string", payload))


def test_a_payload_can_not_claim_to_be_somebody_else(munge: Munge) -> None:
    with pytest.raises(UnauthenticatedError, match="was not made for"):
        munge.user_of(made(munge, "--string", "UID: 0\n\nmalletrain"))


def test_what_is_no_credential_is_refused(munge: Munge) -> None:
    good = munge.make_credential()
    changed = good[:40] + ("y" if good[40] == "x" else "x") + good[41:]
    for text in ("", "hello", "MUNGE:AwQDAAB:", changed, "M" * 5000, "MUNGE:é:", good * 2):
        with pytest.raises(UnauthenticatedError, match="MUNGE credential"):
            munge.user_of(text)


def test_a_munged_that_is_not_there_is_an_error_and_no_refusal(munge: Munge) -> None:
    away = Munge(munge.munge, munge.unmunge, "/nonexistent/socket")
    with pytest.raises(MungeError, match="does munged run"):
        away.make_credential()
    with pytest.raises(MungeError, match="does not answer"):
        away.user_of(munge.make_credential())


def program(path: Path, script: str) -> str:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_commands_are_bounded_in_time_and_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMMAND_SECONDS", 0.3)
    slow = program(tmp_path / "slow", "exec sleep 60")
    loud = program(tmp_path / "loud", "exec yes")
    with pytest.raises(MungeError, match="slow did not end within"):
        Munge(slow, slow).user_of("MUNGE:x")
    with pytest.raises(MungeError, match="loud wrote more than"):
        Munge(loud, loud).user_of("MUNGE:x")
    with pytest.raises(MungeError, match="can't be started"):
        Munge("/nonexistent/munge", "/nonexistent/unmunge").make_credential()


def test_the_user_is_taken_from_the_metadata_only(tmp_path: Path) -> None:
    answers = program(tmp_path / "unmunge", "printf 'STATUS: Success (0)\\nUID: 0\\nGID: 0\\n\\nmalletrain\\n'")
    assert Munge(answers, answers).user_of("MUNGE:x") == "root"
    without = program(tmp_path / "without", "printf 'STATUS: Success (0)\\n\\nUID: 0\\n'")
    with pytest.raises(UnauthenticatedError):
        Munge(without, without).user_of("MUNGE:x")


def test_commands_are_found_by_the_settings(tmp_path: Path) -> None:
    for name in ("munge", "unmunge"):
        program(tmp_path / name, "exit 1")
    found = find_munge(AccessSettings(munge_path=str(tmp_path), munge_socket="/s"))
    assert found == Munge(str(tmp_path / "munge"), str(tmp_path / "unmunge"), "/s")
    assert find_munge(AccessSettings(munge="off", munge_path=str(tmp_path))) is None
    (tmp_path / "unmunge").unlink()
    assert find_munge(AccessSettings(munge_path=str(tmp_path))) is None


@given(st.text(min_size=1), st.lists(st.text(min_size=1)), st.lists(st.text(min_size=1)))
def test_roles_of_users(user: str, operators: list[str], viewers: list[str]) -> None:
    settings = AccessSettings(operators=tuple(operators), viewers=tuple(viewers))
    role = role_for(user, settings, "malletrain")
    assert (role is Role.OPERATOR) == (user in (*operators, "malletrain"))
    assert (role is Role.VIEWER) == (user in viewers and role is not Role.OPERATOR)
    assert role in (Role.VIEWER, Role.USER, Role.OPERATOR)


def test_a_uid_without_a_user_is_nobody_we_know() -> None:
    with pytest.raises(UnauthenticatedError, match="no user with the uid 4242424"):
        user_name(4242424)
