"""The owner's token: written for the owner only, and renewed."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from malletrain.runtime.access.identity import Role
from malletrain.runtime.access.keys import load_key, make_keys_folder, owner_file
from malletrain.runtime.access.revocation import RevocationFile
from malletrain.runtime.access.token_file import TokenFile
from malletrain.runtime.access.tokens import Tokens
from malletrain.runtime.errors import UnavailableError
from tests.support.clocks import ManualClock

LIFESPAN = 1000.0


class Owner:
    """The owner's token of a state folder, by a clock that can be set."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock(1_800_000_000.0)
        self.tokens = Tokens(load_key(folder), self.clock)
        self.revoked = RevocationFile(make_keys_folder(folder), self.clock)
        self.path = owner_file(folder)
        self.token = TokenFile(self.path, "olga", self.tokens, self.revoked, self.clock, LIFESPAN)


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    return Owner(tmp_path)


def test_it_is_an_operators_and_readable_by_its_owner_only(owner: Owner) -> None:
    before = os.umask(0)
    try:
        assert owner.token.renew()
    finally:
        os.umask(before)
    found = owner.tokens.verify(owner.path.read_text().strip())
    assert (found.user, found.role) == ("olga", Role.OPERATOR)
    assert stat.S_IMODE(owner.path.stat().st_mode) == 0o600


def test_it_is_renewed_well_before_it_expires_and_not_earlier(owner: Owner) -> None:
    owner.token.renew()
    first = owner.path.read_text()
    owner.clock.advance(LIFESPAN * 0.49)
    assert not owner.token.renew()
    assert owner.path.read_text() == first
    owner.clock.advance(LIFESPAN * 0.02)
    assert owner.token.renew()
    assert owner.tokens.verify(owner.path.read_text().strip()).expires > owner.clock.time() + LIFESPAN * 0.9


@pytest.mark.parametrize("change", ["remove", "open to others", "other text", "not text", "of another", "revoked"])
def test_one_that_is_not_good_is_replaced(owner: Owner, change: str) -> None:
    owner.token.renew()
    owner.clock.advance(1.0)
    match change:
        case "remove":
            owner.path.unlink()
        case "open to others":
            owner.path.chmod(0o644)
        case "other text":
            owner.path.write_text("hello")
        case "not text":
            owner.path.write_bytes(b"\xff")
        case "of another":
            owner.path.write_text(owner.tokens.sign("eve", Role.OPERATOR, LIFESPAN)[0])
        case "revoked":
            owner.revoked.revoke_user("olga")
            owner.clock.advance(0.5)
    assert owner.token.renew()
    found = owner.tokens.verify(owner.path.read_text().strip())
    assert found.user == "olga"
    assert not owner.revoked.contains(found)
    assert stat.S_IMODE(owner.path.stat().st_mode) == 0o600
    assert not owner.token.renew()


def test_a_folder_that_is_gone_is_an_error_without_the_token(owner: Owner) -> None:
    owner.path.unlink(missing_ok=True)
    for path in owner.path.parent.iterdir():
        path.unlink()
    owner.path.parent.rmdir()
    with pytest.raises(UnavailableError, match="can't be written"):
        owner.token.renew()
