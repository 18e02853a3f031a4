"""What `malletrain submit` says of usual mistakes: options in the wrong place, files of other kinds."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from malletrain.runtime.errors import InvalidInputError

_MAX_SCRIPT_BYTES = 1 << 20
_OPTIONS = {
    "array.max_admitted": "--array",
    "array_parameters": "--array",
    "burst_buffer_gb": "--burst-buffer",
    "cold_start": "--cold",
    "dependencies": "--after",
    "environment": "--env",
    "excluded_nodes": "--exclude",
    "gpu_memory_mib": "--gpu-memory",
    "max_nodes": "--max",
    "memory_mib": "--memory",
    "min_nodes": "--min",
    "permitted_nodes": "--permitted",
    "scale_down_seconds": "--scale-down",
    "scale_up_seconds": "--scale-up",
    "slots_per_node": "--slots",
    "topology_level": "--topology",
    "working_directory": "--workdir",
    "start_seconds": "--start-limit",
    "step_seconds": "--step-limit",
    "evaluation_seconds": "--evaluation-limit",
    "save_seconds": "--save-limit",
    "release_grace_seconds": "--release-grace",
    "leave_grace_seconds": "--leave-grace",
}
"""Options that have other names than the fields of a specification which they fill."""
_NOT_OF_OPTIONS = ("command", "fleet", "launch_note")
_GROUPS = re.compile(r"(?:needs|limits|dependencies)\.")
_FIELD = re.compile(r"specs\[\d+\]\.((?:(?:needs|limits|dependencies|array)\.)?[a-z_]+)")
_NUMBERS_OF_NODES = re.compile(r"\b(min_nodes|max_nodes)\b")


def refuse_other_files(command: Sequence[str]) -> None:
    """Refuse a job file of another kind, or one with words after it.

    Raises:
        InvalidInputError: it is one.
    """
    first = Path(command[0])
    if len(command) == 1 and first.suffix in (".yaml", ".yml", ".json"):
        expected = "a command after `--`, or a job file in TOML; --file reads a JSON list of job specs"
        raise InvalidInputError("command", expected, command[0])
    if len(command) > 1 and first.suffix == ".toml":
        raise InvalidInputError("command", "a job file alone: its command stands in it", " ".join(command))


def in_options(message: str) -> str:
    """An error of JobManager about the one job that was submitted, with the fields as the command names them."""
    match = _FIELD.match(message)
    if not match:
        return message
    rest, gets, value = message[match.end() :].rpartition(", got ")
    expected = _NUMBERS_OF_NODES.sub(lambda name: _OPTIONS[name[0]], rest)
    return option_of(match[1]) + expected + gets + value


def option_of(field: str) -> str:
    """The option that fills a field of a specification, e.g. `needs.gpu`; the field itself where none does."""
    name = _GROUPS.sub("", field)
    if name in _NOT_OF_OPTIONS:
        return name
    return _OPTIONS.get(name, "--" + name.replace("_", "-"))


def script_of(command: Sequence[str], directory: Path) -> tuple[int, str]:
    """The place of the script in a command, and its text; (0, ""): there is none that can be read."""
    for place, word in enumerate(command):
        if word.endswith((".py", ".sh", ".sbatch", ".slurm", ".pbs")):
            path = directory / word
            try:
                if not path.is_file():  # a pipe would be waited for
                    return 0, ""
                with path.open("rb") as file:
                    return place, file.read(_MAX_SCRIPT_BYTES).decode("utf-8", "replace")
            except OSError:
                return 0, ""  # JobManager says what is wrong with it
    return 0, ""


def notes_on_script(command: Sequence[str], script: tuple[int, str], options: Collection[str]) -> list[str]:
    """What is probably not meant as it stands. Pure.

    Args:
        command: Program and arguments.
        script: As `script_of`.
        options: Options of the verb, e.g. `--max`.
    """
    place, text = script
    if not text:
        return []
    name = command[place]
    names = (argument.partition("=")[0] for argument in command[place + 1 :])
    notes = [
        f"{word} is handed to {name}, which does not mention it: options of malletrain stand before `--`"
        for word in names
        if word in options and not re.search(rf"\b{word[2:].replace('-', '[-_]')}\b", text)
    ]
    if directive := re.search(r"^#(SBATCH|PBS) ", text, re.MULTILINE):
        notes.append(f"#{directive[1]} lines of {name} are not read: say what they ask for by options or in a job file")
    return notes
