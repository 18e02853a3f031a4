"""What a check of `malletrain doctor` found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One check: what was looked at, whether it is well, what was seen, and what to do if not."""

    check: str
    ok: bool
    found: str
    remedy: str = ""


def judge(check: str, ok: bool, found: object, remedy: str) -> Finding:
    """A finding that says what to do only where something is to be done."""
    return Finding(check, ok, str(found), "" if ok else remedy)
