"""`malletrain token`: prints a token, gives others one, and revokes them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from malletrain.cli.shared.output import JsonOption, parse_duration, print_json, to_dict
from malletrain.cli.shared.stubs import DEADLINE_SECONDS, ServiceStubs, connect
from malletrain.runtime.errors import InvalidInputError
from malletrain.v1 import access_pb2


class TokenRole(StrEnum):
    """Roles that a token can be given."""

    VIEWER = "viewer"
    USER = "user"
    OPERATOR = "operator"


def token(
    user: Annotated[str | None, typer.Option(help="Whom the token is for; by default you.")] = None,
    role: Annotated[TokenRole | None, typer.Option(help="What its holder may do; by default user.")] = None,
    lifespan: Annotated[str, typer.Option(help="How long it is valid, such as 90s, 30m, 12h or 7d.")] = "",
    revoke: Annotated[str, typer.Option(metavar="ID", help="Revoke the token with this identifier instead.")] = "",
    revoke_user: Annotated[
        str, typer.Option(metavar="NAME", help="Revoke all tokens that this user has been given until now instead.")
    ] = "",
    as_json: Annotated[bool, JsonOption] = False,
) -> None:
    """Print a token: the one that the command itself shows, or with options a new one, which only operators make."""
    new_token = user is not None or role or lifespan
    if bool(new_token) + bool(revoke) + bool(revoke_user) > 1:
        raise InvalidInputError("--revoke", "nothing else beside it, and one of --revoke and --revoke-user")
    with connect() as stubs:
        if revoke or revoke_user:
            _revoke(stubs, revoke, revoke_user)
            return
        answer = _create_token(stubs, user, role, lifespan) if new_token else _own_token(stubs)
    if as_json:
        print_json(answer)
        return
    typer.echo(answer["token"])


def _own_token(stubs: ServiceStubs) -> dict[str, Any]:
    """The token that the command shows, once a service has accepted it."""
    identity = stubs.access.GetIdentity(access_pb2.GetIdentityRequest(), timeout=DEADLINE_SECONDS).identity
    return _token_fields(stubs.credential.token(), identity)


def _create_token(stubs: ServiceStubs, user: str | None, role: TokenRole | None, lifespan: str) -> dict[str, Any]:
    if user is None:
        user = stubs.access.GetIdentity(access_pb2.GetIdentityRequest(), timeout=DEADLINE_SECONDS).identity.user
    request = access_pb2.CreateTokenRequest(
        user=user,
        role=access_pb2.Role.Value(f"ROLE_{(role or TokenRole.USER).name}"),
        lifespan_seconds=parse_duration(lifespan, "--lifespan") if lifespan else 0.0,
    )
    response = stubs.access.CreateToken(request, timeout=DEADLINE_SECONDS)
    return _token_fields(response.token, response.identity)


def _token_fields(token: str, identity: access_pb2.Identity) -> dict[str, Any]:
    return {"token": token, **to_dict(identity)}


def _revoke(stubs: ServiceStubs, token_id: str, user: str) -> None:
    request = access_pb2.RevokeTokenRequest(user=user) if user else access_pb2.RevokeTokenRequest(token_id=token_id)
    stubs.access.RevokeToken(request, timeout=DEADLINE_SECONDS)
    # Nobody keeps a list of tokens, so a wrong name can't be told from a right one.
    named = f"all tokens of {user!r} until now" if user else f"a token with the identifier {token_id}"
    typer.echo(f"refused from now on, if there is any: {named}", err=True)
