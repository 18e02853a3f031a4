"""A contract of import-linter: a module whose docstring says that it is pure reaches no I/O by what it imports."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from importlinter.contracts.forbidden import ForbiddenContract

ROOTS = (Path("services/malletrain"), Path("clients/malletrain"))
_SAYS_PURE = re.compile(r"\bPure\b")


class PureContract(ForbiddenContract):
    """As a `forbidden` contract, of which the source modules are all that say in their docstring that they are pure.

    So nothing needs to be listed: whoever writes the word has the module checked.
    """

    type_name = "pure"

    def _populate_fields(self) -> None:
        self.contract_options = {**self.contract_options, "source_modules": sorted(pure_modules())}
        super()._populate_fields()


def pure_modules(roots: tuple[Path, ...] = ROOTS) -> Iterator[str]:
    """Names of the modules and packages below some folders whose docstring has the word "Pure".

    A package says it of all its modules.
    """
    for root in roots:
        for path in root.rglob("*.py"):
            docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            if _SAYS_PURE.search(docstring):
                parts = path.relative_to(root.parent).with_suffix("").parts
                yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
