"""Runs import-linter: `python -m tools.import_contracts`.

The linter takes parts of `malletrain` for packages of their own only if `malletrain` itself is a mere namespace. Its
`__init__.py` does nothing but name what is imported later, and so says nothing of directions.
"""

from __future__ import annotations

from importlinter.cli import lint_imports_command

import malletrain


def main() -> None:
    """Check the contracts of pyproject.toml; ends the process with exit status 1 if one is broken."""
    assert malletrain.__spec__ is not None
    malletrain.__spec__.has_location = False
    lint_imports_command()


if __name__ == "__main__":
    main()
