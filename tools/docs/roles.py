"""The table of who may call what, made from the option `required_role` in the protos: `python -m tools.docs.roles`."""

from __future__ import annotations

from collections.abc import Sequence

from malletrain.runtime.access.identity import CERTIFICATE_ROLES, Role
from malletrain.runtime.access.policy import REQUIRED_ROLES, allows

_PACKAGE = "/malletrain.v1."
_COLUMNS = (Role.VIEWER, Role.USER, Role.OPERATOR, Role.SERVICE, Role.JOB)


def table() -> str:
    """Markdown of the table: a row for each service and each role that its methods require."""
    head = ["service", "rpc", "no token", *(role.value for role in (*_COLUMNS, *CERTIFICATE_ROLES))]
    lines = [_row(head), _row(["---"] * len(head))]
    for service in sorted({_parts(method)[0] for method in REQUIRED_ROLES}):
        for required in Role:
            methods = [
                method for method, role in REQUIRED_ROLES.items() if _parts(method)[0] == service and role is required
            ]
            names = [f"`{_parts(method)[1]}`" for method in methods]
            may = [
                required is Role.ANYBODY,
                *(all(allows(role, method, required) for method in methods) for role in _COLUMNS),
            ]
            may += [required is role for role in CERTIFICATE_ROLES]
            if names:
                lines.append(_row([service, ", ".join(names), *("yes" if allowed else "" for allowed in may)]))
    return "\n".join(lines) + "\n"


def _parts(method: str) -> Sequence[str]:
    return method.removeprefix(_PACKAGE).split("/")


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print(table(), end="")
