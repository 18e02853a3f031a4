"""What typer's installation of completion leaves to do."""

from __future__ import annotations

from pathlib import Path


def complete_at_first_tab(home: Path, name: str) -> None:
    """Have zsh complete at the first Tab of a shell, too: the file that typer writes only defines how.

    Args:
        home: Home folder of the user; nothing is done where nothing was installed for zsh.
        name: Name of the command.
    """
    file = home / ".zfunc" / f"_{name}"
    call = f'_{name}_completion "$@"\n'
    if not file.is_file():
        return
    text = file.read_text(encoding="utf-8")
    if not text.endswith(call):
        file.write_text(f"{text}\n{call}", encoding="utf-8")
