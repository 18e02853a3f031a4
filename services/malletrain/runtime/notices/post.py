"""Posts one notice and ends: a program of its own, so that no server can hold a service up.

Standard input is JSON with `url`, `authorization`, `body` and `seconds`. Exit status: 0 delivered, 75 try again, 76
refused. One line on standard error says why, without the URL. Imports nothing of MalleTrain.
"""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any

DELIVERED, TRY_AGAIN, REFUSED = 0, 75, 76
_PASSING = frozenset({408, 425, 429})


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: it would take the secrets elsewhere."""

    def redirect_request(self, *arguments: Any) -> None:
        """Do not follow it: its status is the answer."""
        del arguments


def post(url: str, authorization: str, body: str, seconds: float) -> tuple[int, str]:
    """Post a notice.

    Args:
        url: Where to.
        authorization: Value of the header; empty: none.
        body: JSON.
        seconds: Longest pause of the server.

    Returns:
        Exit status, and why it is not `DELIVERED`.
    """
    headers = {"Content-Type": "application/json", "User-Agent": "malletrain"}
    if authorization:
        headers["Authorization"] = authorization
    request = urllib.request.Request(url, body.encode(), headers, method="POST")
    try:
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=seconds):
            return DELIVERED, ""
    except urllib.error.HTTPError as error:
        passes = error.code >= 500 or error.code in _PASSING
        return (TRY_AGAIN if passes else REFUSED), f"HTTP status {error.code}"
    except urllib.error.URLError as error:
        return TRY_AGAIN, f"{type(error.reason).__name__}"
    except (OSError, HTTPException) as error:
        return TRY_AGAIN, type(error).__name__


def main() -> int:
    """Post what standard input says."""
    request = json.load(sys.stdin)
    status, why = post(request["url"], request["authorization"], request["body"], request["seconds"])
    if why:
        print(why, file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
