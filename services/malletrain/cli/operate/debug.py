"""`malletrain debug replay FILE`: takes a service's machine through the stimuli of a recorded failure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from malletrain.cli.shared.output import JsonOption, print_json
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.kernel.documents import to_document
from malletrain.runtime.kernel.recording import (
    AnyMachine,
    RecordedFailure,
    Recording,
    RecordingReplay,
    recording_from_json,
    replay_recording,
    reproduces,
)

debug_app = typer.Typer(
    name="debug", help="Look into failures of MalleTrain itself.", no_args_is_help=True, pretty_exceptions_enable=False
)


@debug_app.callback()
def _debug() -> None:
    """Look into failures of MalleTrain itself."""


@debug_app.command()
def replay(
    file: Annotated[Path, typer.Argument(help="STATE_DIR/debug/…stimuli-….json, written when a service failed.")],
    as_json: Annotated[bool, JsonOption] = False,
) -> None:
    """Replay the stimuli of a recorded failure: 0 when it fails as it did, 1 when it does not."""
    recording = read_recording(file)
    replayed = replay_recording(recording)
    reproduced = reproduces(recording, replayed)
    if as_json:
        print_json(
            {
                "version": recording.version,
                "stimuli": len(recording.stimuli),
                "reproduced": reproduced,
                "recorded": to_document(recording.failure),
                "replayed": to_document(replayed),
            }
        )
    else:
        _print(recording, replayed, reproduced)
    if not reproduced:
        raise typer.Exit(1)


def read_recording(path: Path) -> Recording:
    """Read a recording from a file.

    Raises:
        InvalidInputError: the file can't be read, or is no recording.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInputError(str(path), f"a readable file ({error})") from None
    except ValueError as error:
        raise InvalidInputError(str(path), f"JSON ({error})") from None
    try:
        return recording_from_json(content, _machines(), default="job_manager")  # the only one that did not name itself
    except InvalidInputError as error:
        raise InvalidInputError(str(path), f"recorded stimuli ({error})") from None


def _machines() -> dict[str, type[AnyMachine]]:
    """The machines that are recorded, by service. They need what solves problems, and verbs pay for what they use."""
    from malletrain.allocator.machine.recording import RecordedAllocator
    from malletrain.job_manager.machine.recording import RecordedJobManager
    from malletrain.monitor.machine.recording import RecordedMonitor
    from malletrain.profiler.machine.recording import RecordedProfiler
    from malletrain.scavenger.machine.placeholder_machine import RecordedPlaceholders
    from malletrain.scavenger.machine.recording import RecordedScavenger

    kinds: tuple[type[AnyMachine], ...] = (
        RecordedAllocator,
        RecordedJobManager,
        RecordedMonitor,
        RecordedPlaceholders,
        RecordedProfiler,
        RecordedScavenger,
    )
    return {kind.service: kind for kind in kinds}


def _print(recording: Recording, replayed: RecordingReplay, reproduced: bool) -> None:
    typer.echo(f"{len(recording.stimuli)} stimuli, recorded by version {recording.version}")
    if replayed.first_violation:
        typer.echo(f"an invariant was broken before: {replayed.first_violation}")
    if reproduced:
        _print_failure("the same failure as recorded", recording.failure)
        return
    _print_failure("recorded", recording.failure)
    if replayed.failure is None:
        typer.echo("replayed: no failure")
    else:
        _print_failure(f"replayed, at stimulus {replayed.stimulus}", replayed.failure)


def _print_failure(title: str, failure: RecordedFailure) -> None:
    typer.echo(f"{title}: {failure.error}: {failure.message}")
    for line in failure.story:
        typer.echo(f"  {line}")
