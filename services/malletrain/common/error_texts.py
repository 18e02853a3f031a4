"""What a worker's last lines say of its end: its own error, or that of another worker. Pure.

The lines are a user's input: they are taken as text only, cleaned, and bounded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

MAX_LINES = 20
MAX_LINE_LENGTH = 500

_RANK = re.compile(r"\A(?:\[(?:rank)?\d+\]:\s?|\[\d+,\d+\]<\w+>:\s?)")
"""What torch puts before each line of a traceback, and Horovod's and Open MPI's launchers before each line."""
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
"""Control characters, and those that change the direction or the order of a text. The tab is none of them."""
_HEAD = "Traceback (most recent call last):"
_ERROR = re.compile(r"\A(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?::\s.*|:)?\Z")
_BARE_ERROR = re.compile(r"\A(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt)(?::\s.*|:)?\Z")
_ABORTED = re.compile(r"\Aterminate called after throwing an instance of '([^']+)'")
_LAUNCHERS_ERROR = re.compile(
    r"\A(?:[A-Za-z_]\w*\.)*ChildFailedError:|\A(?:subprocess\.)?CalledProcessError: Command '\[.*python"
)
"""What torchrun, and accelerate, say of the rank that they have started: its own error stands above that."""
_CONSEQUENCE = re.compile(
    "|".join(
        (
            r"gloo/transport|gloo::\w*Exception|[Gg]loo .*(?:closed|reset|timed? ?out)",
            r"Application timeout caused pair closure",
            r"Timed out waiting \d+ ?ms for (?:recv|send) operation",
            r"[Cc]onnection closed by (?:remote )?peer \[|closed by remote peer",
            r"HorovodInternalError|Horovod has been shut ?down|HostsUpdatedInterrupt",
            r"nccl(?:Remote|System|Internal|Unhandled)\w*|NCCL (?:error|communicator was aborted|timeout)|NCCL WARN",
            r"[Cc]ollective operation timeout",
            r"ProcessGroup(?:NCCL|Gloo|MPI|UCC)\b.*(?:time|abort|terminat|closed|error)",
            r"Dist(?:Backend|Network|Store)Error|TCPStore|c10d::|sendBytes failed|recvValue(?:WithTimeout)? failed",
            r"failed to recv, got 0 bytes|monitoredBarrier|pass monitored barrier",
            r"MPI_ABORT was invoked|MPI_ERR_PROC_FAILED|ORTE has lost communication",
            r"[Cc]oordination ?[Ss]ervice|[Bb]arrier timed out|Gloo \w+ failed",
        )
    )
)
"""What libraries say in a worker when another one of its group has ended or does not answer."""


@dataclass(frozen=True)
class ErrorText:
    """What a worker's last lines say.

    Attributes:
        error: The line that says what was wrong, e.g. "ValueError: label 17 is out of range"; empty: there is none.
        is_own: Whether it is an error of this worker, by a traceback or a library's abort that is no consequence.
        is_consequence: Whether it says that another worker has gone or does not answer.
        lines: The last lines up to that one, at most `MAX_LINES` of at most `MAX_LINE_LENGTH` characters.
    """

    error: str = ""
    is_own: bool = False
    is_consequence: bool = False
    lines: tuple[str, ...] = ()


def clean_line(text: str) -> str:
    """A line without what a terminal would act upon, and not too long."""
    text = text.rstrip("\r").rpartition("\r")[2]  # of a progress bar, what is seen
    text = _UNSEEN.sub(" ", _ESCAPES.sub("", text[: 16 * MAX_LINE_LENGTH])).rstrip()
    return text if len(text) <= MAX_LINE_LENGTH else text[: MAX_LINE_LENGTH - 1] + "…"


def read_error(text: str) -> ErrorText:
    """What the end of a worker's log says."""
    lines = [clean_line(line) for line in text.split("\n")]
    plain = [_RANK.sub("", line) for line in lines]
    while plain and not plain[-1]:
        del plain[-1], lines[-1]
    errors = _tracebacks(plain) or _aborts(plain) or _bare_errors(plain)
    if not errors:
        last = plain[-1] if plain else ""
        is_consequence = bool(_CONSEQUENCE.search("\n".join(plain[-MAX_LINES:])))
        return ErrorText(last, is_consequence=is_consequence, lines=tuple(plain[-MAX_LINES:]))
    # Of errors that were raised one while another was handled, the first is the cause of the others.
    first, chosen = errors[0], errors[-1]
    is_consequence = _is_consequence(plain, first)
    if not is_consequence and _is_consequence(plain, chosen):
        chosen = first
    last_lines = tuple(plain[max(0, chosen + 1 - MAX_LINES) : chosen + 1])
    return ErrorText(plain[chosen], is_own=not is_consequence, is_consequence=is_consequence, lines=last_lines)


def _is_consequence(lines: Sequence[str], number: int) -> bool:
    """Whether the error at a line is one; its text may go on in the next lines."""
    return bool(_CONSEQUENCE.search("\n".join(lines[number : number + 4])))


def _tracebacks(lines: Sequence[str]) -> list[int]:
    """The lines of the last chain of tracebacks that is not a launcher's; empty if there is none."""
    chain: list[int] = []
    ranks_own: list[int] = []
    number = 0
    while number < len(lines):
        if not lines[number].endswith(_HEAD):
            number += 1
            continue
        linked = bool(chain) and _links(lines[chain[-1] + 1 : number])
        indent = len(lines[number]) - len(lines[number].lstrip(" |+"))
        end = number + 1
        while end < len(lines) and _is_inside(lines[end], indent):
            end += 1
        if end >= len(lines):
            break  # cut off
        if _ERROR.match(lines[end].lstrip(" |+")):
            chain = [*chain, end] if linked else [end]
            ranks_own = ranks_own if _LAUNCHERS_ERROR.match(lines[end]) else chain
        number = end
    return ranks_own or chain


def _is_inside(line: str, indent: int) -> bool:
    text = line[indent:] if line[:indent].strip(" |+") == "" else line
    return not text or text.startswith((" ", "\t")) or text.startswith("During handling")


def _links(between: Sequence[str]) -> bool:
    text = "\n".join(between)
    return "During handling of the above exception" in text or "was the direct cause of the following" in text


def _aborts(lines: Sequence[str]) -> list[int]:
    """The line in which C++ says why it has aborted: the one with what(), or the first one."""
    numbers = [number for number, line in enumerate(lines) if _ABORTED.match(line)]
    if not numbers:
        return []
    following = numbers[-1] + 1
    has_reason = following < len(lines) and lines[following].lstrip().startswith("what():")
    return [following if has_reason else numbers[-1]]


def _bare_errors(lines: Sequence[str]) -> list[int]:
    """A syntax error has no head, and that of a traceback may be too far above. Only the last lines count."""
    last = range(max(0, len(lines) - MAX_LINES), len(lines))
    return [number for number in last if _BARE_ERROR.match(lines[number])][-1:]
