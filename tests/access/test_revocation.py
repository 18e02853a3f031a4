"""Tokens that are revoked before they expire."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.runtime.access.identity import HUMAN_ROLES, Identity, Role
from malletrain.runtime.access.revocation import RevocationFile, RevokedTokens
from malletrain.runtime.access.settings import MAX_LIFESPAN_SECONDS
from malletrain.runtime.errors import InvalidInputError
from tests.support.clocks import ManualClock

NOW = 1_800_000_000.0


def identity(user: str = "ada", token_id: str = "t1", issued: float = NOW, role: Role = Role.USER) -> Identity:
    return Identity(user, role, token_id, issued, issued + 60, "j1" if role is Role.JOB else "")


@given(st.sampled_from(["ada", "bob"]), st.floats(NOW - 100, NOW + 100), st.sampled_from(list(Role)[1:]))
def test_a_user_loses_what_was_issued_until_then_and_nobody_else_does(user: str, issued: float, role: Role) -> None:
    revoked = RevokedTokens().with_user("ada", NOW)
    expected = user == "ada" and issued <= NOW and role in HUMAN_ROLES
    assert revoked.contains(identity(user, issued=issued, role=role)) == expected


@given(st.sampled_from(list(Role)[1:]))
def test_one_token_can_be_revoked_whosever_it_is(role: Role) -> None:
    revoked = RevokedTokens().with_token("t1", NOW)
    assert revoked.contains(identity(role=role))
    assert not revoked.contains(identity(token_id="t2", role=role))


@given(st.floats(0, 10 * MAX_LIFESPAN_SECONDS))
def test_entries_are_kept_as_long_as_a_token_could_live_and_then_dropped(later: float) -> None:
    revoked = RevokedTokens().with_token("t1", NOW).with_user("ada", NOW).without_expired(NOW + later)
    if later <= MAX_LIFESPAN_SECONDS:
        assert len(revoked) == 2
    if later > MAX_LIFESPAN_SECONDS + 86400:
        assert len(revoked) == 0


def test_all_processes_know_within_a_second_and_after_a_restart(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    writer, reader = RevocationFile(tmp_path, clock), RevocationFile(tmp_path, clock)
    assert not reader.contains(identity())
    writer.revoke_token("t1")
    writer.revoke_user("bob")
    assert writer.contains(identity())
    clock.advance(1.0)
    assert reader.contains(identity())
    assert reader.contains(identity("bob", "t3"))
    assert not reader.contains(identity("bob", "t4", issued=NOW + 0.5))
    assert RevocationFile(tmp_path, clock).contains(identity())
    assert stat.S_IMODE((tmp_path / "revoked.json").stat().st_mode) == 0o600


def test_the_file_does_not_grow_for_ever(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    file = RevocationFile(tmp_path, clock)
    for number in range(20):
        file.revoke_token(f"t{number}")
        clock.advance(MAX_LIFESPAN_SECONDS / 2)
    assert (tmp_path / "revoked.json").read_text().count('"t') <= 5


def test_a_file_that_becomes_unreadable_revokes_what_it_revoked(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    file = RevocationFile(tmp_path, clock)
    file.revoke_token("t1")
    (tmp_path / "revoked.json").write_text("{")
    clock.advance(1.0)
    assert file.contains(identity())
    with pytest.raises(InvalidInputError, match="a list of revoked tokens"):
        RevocationFile(tmp_path, clock)
