"""Tokens: what is signed is what is verified, and nothing else is."""

from __future__ import annotations

import base64
import json
import string

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.runtime.access.identity import CERTIFICATE_ROLES, Identity, Role, UnauthenticatedError
from malletrain.runtime.access.tokens import Tokens
from tests.support.clocks import ManualClock

KEY = b"k" * 32
NOW = 1_800_000_000.0
ROLES = st.sampled_from([role for role in Role if role not in (Role.ANYBODY, *CERTIFICATE_ROLES)])
NAMES = st.text(string.ascii_letters + string.digits + "._@-", min_size=1, max_size=64)


def signer(now: float = NOW, key: bytes = KEY, leeway: float = 30.0) -> Tokens:
    return Tokens(key, ManualClock(now), leeway)


def claims(**changes: object) -> dict[str, object]:
    """Claims of a good token, with changes; None removes one."""
    good = {"sub": "ada", "role": "user", "jti": "t1", "iat": NOW, "exp": NOW + 60}
    return {name: value for name, value in {**good, **changes}.items() if value is not None}


def forged(key: bytes = KEY, algorithm: str = "HS256", **changes: object) -> str:
    return jwt.encode(claims(**changes), key, algorithm)


def refused(token: str, tokens: Tokens | None = None) -> str:
    with pytest.raises(UnauthenticatedError) as caught:
        (tokens or signer()).verify(token)
    return str(caught.value)


@given(NAMES, ROLES, st.floats(1.0, 1e8))
def test_what_is_signed_is_what_is_verified(user: str, role: Role, lifespan: float) -> None:
    job, audience = {Role.JOB: ("j000001", ""), Role.SERVICE: ("", "monitor")}.get(role, ("", ""))
    token, identity = signer().sign(user, role, lifespan, job, audience)
    assert signer().verify(token) == identity
    assert (identity.user, identity.role, identity.issued) == (user, role, NOW)


@given(st.data())
def test_a_token_with_any_changed_character_is_refused(data: st.DataObject) -> None:
    token, identity = signer().sign("ada", Role.USER, 60.0)
    at = data.draw(st.integers(0, len(token) - 1))
    other = data.draw(st.sampled_from(string.ascii_letters + string.digits + "-_."))
    changed = token[:at] + other + token[at + 1 :]
    found: Identity | str
    try:
        found = signer().verify(changed)
    except UnauthenticatedError as error:
        found = str(error)
    # The last character of the signature has bits that mean nothing.
    assert found in (identity, "the token is not one of this installation")
    assert found != identity or changed[:-1] == token[:-1]


@given(st.text(max_size=200))
def test_text_that_is_no_token_is_refused(text: str) -> None:
    assert "not one of this installation" in refused(text)


def test_a_token_of_another_key_is_refused() -> None:
    assert "not one of this installation" in refused(signer(key=b"x" * 32).sign("ada", Role.OPERATOR, 60.0)[0])


@pytest.mark.parametrize("algorithm", ["HS384", "HS512"])
def test_other_algorithms_are_refused_even_with_the_key(algorithm: str) -> None:
    assert "not one of this installation" in refused(forged(KEY * 2, algorithm))


@pytest.mark.parametrize("name", ["none", "None", "NONE", ""])
def test_a_token_without_a_signature_is_refused(name: str) -> None:
    def part(content: dict[str, object]) -> str:
        return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")

    unsigned = f"{part({'alg': name, 'typ': 'JWT'})}.{part(claims(role='operator'))}"
    for signature in ("", "."):
        assert "not one of this installation" in refused(f"{unsigned}.{signature}")


@pytest.mark.parametrize(
    "changes",
    [
        {"role": "root"},
        {"role": "anybody"},
        {"role": None},
        {"role": 3},
        {"role": ["operator"]},
        {"sub": None},
        {"sub": ""},
        {"sub": "a" * 257},
        {"jti": None},
        {"jti": ""},
        {"exp": None},
        {"exp": "soon"},
        {"exp": True},
        {"exp": NOW - 1, "iat": NOW},
        {"iat": None},
        {"job": "j000001"},
        {"role": "job"},
        {"role": "job", "job": ""},
        {"role": "job", "job": 7},
    ],
    ids=str,
)
def test_claims_that_we_never_sign_are_refused_although_the_signature_is_good(changes: dict[str, object]) -> None:
    assert signer().verify(forged()).user == "ada"
    assert "not one of this installation" in refused(forged(**changes))


def test_numbers_that_are_not_finite_are_refused() -> None:
    for value in (float("inf"), float("nan")):
        assert refused(forged(exp=value))
        assert refused(forged(iat=value))


@given(st.floats(-90.0, 200.0))
def test_the_clock_may_differ_by_the_leeway(later: float) -> None:
    token, _ = signer().sign("ada", Role.USER, 60.0)
    there = signer(NOW + later)
    if -30.0 <= later < 90.0:
        assert there.verify(token).user == "ada"
    else:
        assert refused(token, there) == ("the token has expired" if later > 0 else refused(token, there))
        assert ("expired" if later > 0 else "not valid yet") in refused(token, there)


@pytest.mark.parametrize(("role", "job"), [(Role.JOB, "j000001"), (Role.SERVICE, "")])
def test_a_clock_that_is_set_back_does_not_lock_out_trainings_and_services(role: Role, job: str) -> None:
    token, _ = signer().sign("j000001", role, 600.0, job, "monitor" if role is Role.SERVICE else "")
    assert signer(NOW - 3600.0).verify(token).role is role
    assert "expired" in refused(token, signer(NOW + 3600.0))


def test_a_long_text_is_refused_unread() -> None:
    assert "not one of this installation" in refused("e" * 5000)


@pytest.mark.parametrize(
    ("role", "lifespan", "job_id"),
    [
        *((role, 60.0, "") for role in (Role.ANYBODY, *CERTIFICATE_ROLES)),
        (Role.USER, 0.0, ""),
        (Role.USER, 60.0, "j1"),
        (Role.JOB, 60.0, ""),
    ],
)
def test_what_must_not_exist_is_not_signed(role: Role, lifespan: float, job_id: str) -> None:
    with pytest.raises(ValueError, match="no token may exist"):
        signer().sign("ada", role, lifespan, job_id)


def test_the_key_is_not_shown() -> None:
    assert KEY.decode() not in repr(vars(Tokens)) + repr(signer())


def test_identifiers_of_tokens_differ() -> None:
    identities: list[Identity] = [signer().sign("ada", Role.USER, 60.0)[1] for _ in range(100)]
    assert len({identity.token_id for identity in identities}) == 100
