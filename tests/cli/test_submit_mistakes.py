"""Errors of JobManager name the options of the command that was given."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import typer
from google.protobuf.descriptor import Descriptor

from malletrain.cli.jobs.submit import in_options, option_of, submit
from malletrain.v1 import resources_pb2

_GROUPS = ("needs", "limits", "dependencies")
_WITHOUT_OPTION = {"command", "fleet", "launch_note"}
_APPLICATION = typer.Typer()
_APPLICATION.command()(submit)
_OPTIONS = {word for parameter in typer.main.get_command(_APPLICATION).params for word in parameter.opts}


def fields(of: Descriptor) -> Iterator[str]:
    """The fields of a specification as errors name them."""
    for field in of.fields:
        if field.name in _GROUPS and field.message_type is not None:
            yield from (f"{field.name}.{name}" for name in fields(field.message_type))
        yield field.name


@pytest.mark.parametrize("field", sorted(set(fields(resources_pb2.JobSpec.DESCRIPTOR)) - {"needs", "limits"}))
def test_each_field_has_an_option(field: str) -> None:
    assert option_of(field) in (_WITHOUT_OPTION if field in _WITHOUT_OPTION else _OPTIONS)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("specs[0].burst_buffer_gb: expected 0 to 4000 GB", "--burst-buffer: expected 0 to 4000 GB"),
        ("specs[0].min_nodes: expected at most max_nodes (2), got 3", "--min: expected at most --max (2), got 3"),
        ("specs[0].needs.excluded_nodes[1]: expected a name", "--exclude[1]: expected a name"),
        ("specs[0].limits.start_seconds: expected more, got max_nodes", "--start-limit: expected more, got max_nodes"),
        ("specs[0].array.max_admitted: expected at least 1", "--array: expected at least 1"),
        ("specs[0].command[0]: expected a program", "command[0]: expected a program"),
        ("request_id: expected text", "request_id: expected text"),
    ],
)
def test_errors_name_options(message: str, said: str) -> None:
    assert in_options(message) == said
