"""Values of environment variables that look like secrets are shown to nobody. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

HIDDEN_VALUE = "***"
_NO_LETTERS = re.compile("[^A-Z]+")
_SECRETS = (
    *("TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "KEY", "CREDENTIAL", "COOKIE"),
    *("AUTH", "AUTHORIZATION", "AUTHENTICATION"),
)


def names_secret(variable: str) -> bool:
    """Whether the name of an environment variable looks like that of a secret: one of its words ends in such a word.

    `API_KEYS` and `APIKEY` do, `TOKENIZERS_PARALLELISM` does not. A harmless value that is hidden costs less than a
    secret that is shown.
    """
    words = (word.removesuffix("S") for word in _NO_LETTERS.split(variable.upper()))
    return any(word.endswith(_SECRETS) for word in words)


def redact_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Environment variables with `***` in place of each value that looks like a secret by its name."""
    return {name: HIDDEN_VALUE if names_secret(name) else value for name, value in environment.items()}
