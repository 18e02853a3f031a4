"""Values of environment variables that look like secrets are shown to nobody. Pure."""

from __future__ import annotations

from collections.abc import Mapping

HIDDEN_VALUE = "***"
_SECRET_PARTS = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "KEY", "CREDENTIAL", "COOKIE", "AUTH")


def names_secret(variable: str) -> bool:
    """Whether the name of an environment variable looks like that of a secret.

    Any part of the name counts: a harmless value that is hidden costs less than a secret that is shown.
    """
    name = variable.upper()
    return any(part in name for part in _SECRET_PARTS)


def redact_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Environment variables with `***` in place of each value that looks like a secret by its name."""
    return {name: HIDDEN_VALUE if names_secret(name) else value for name, value in environment.items()}
