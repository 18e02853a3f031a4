"""Commands from the head node to the trainer, and the part of the ring that transports them."""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass

from malletrain.client.ring import COMMAND_OFFSET, COMMAND_SIZE, COMMAND_SLOTS, COMMANDS, STOPS, Ring

_HEADER = struct.Struct("qqq")
_NODES = struct.Struct("q")
# At the end, where earlier versions have the end of long identifiers, and zeros otherwise.
_NODES_OFFSET = COMMAND_SIZE - _NODES.size
_MAX_ID_BYTES = _NODES_OFFSET - _HEADER.size


class CommandType(enum.IntEnum):
    """Types of commands, with the numbers of `malletrain.v1.CommandType`."""

    COMMIT = 1
    """Commit the state now."""
    RESCALE_COMING = 2
    """The scale is about to change."""
    RELEASE_REQUESTED = 3
    """Nodes of the job have to be released."""
    STOP = 4
    """Commit, save a checkpoint, and end."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command to the trainer.

    Attributes:
        id: Unique identifier (its first 96 bytes).
        type: Its type.
        nodes: How many nodes the job is about to have, with RESCALE_COMING and RELEASE_REQUESTED; 0: not known.
    """

    id: str
    type: CommandType
    nodes: int = 0


def put_command(ring: Ring, command: Command) -> None:
    """Write a command to the ring; called by the sidecar. The newest 64 are kept."""
    number = ring.words[COMMANDS] + 1
    text = command.id.encode()[:_MAX_ID_BYTES]
    offset = _offset(number)
    _HEADER.pack_into(ring.buffer, offset, number, command.type, len(text))
    ring.buffer[offset + _HEADER.size : offset + _HEADER.size + len(text)] = text
    _NODES.pack_into(ring.buffer, offset + _NODES_OFFSET, command.nodes)
    if command.type is CommandType.STOP:
        ring.words[STOPS] += 1
    ring.words[COMMANDS] = number


def commands_after(ring: Ring, seen: int) -> tuple[list[Command], int]:
    """Read commands from the ring; called by the trainer.

    Args:
        ring: The ring.
        seen: Number of the newest command that has been read before; 0 at first.

    Returns:
        Commands with a higher number that are still in the ring, and the number of the newest one.
    """
    newest = ring.words[COMMANDS]
    # The sidecar was perhaps started from files of a later version, which has more types.
    known = set(CommandType)
    commands = []
    for wanted in range(max(seen, newest - COMMAND_SLOTS) + 1, newest + 1):
        offset = _offset(wanted)
        number, kind, length = _HEADER.unpack_from(ring.buffer, offset)
        start = offset + _HEADER.size
        if number == wanted and kind in known:
            text = ring.buffer[start : start + length].decode(errors="ignore")
            (nodes,) = _NODES.unpack_from(ring.buffer, offset + _NODES_OFFSET)
            commands.append(Command(text, CommandType(kind), nodes))
    return commands, newest


def _offset(number: int) -> int:
    return COMMAND_OFFSET + (number % COMMAND_SLOTS) * COMMAND_SIZE
