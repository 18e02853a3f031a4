"""The pages of the site that are made from code, protos and settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from malletrain.cli.main import application
from tools.docs import command, pages, protos, roles, settings


def test_every_method_and_field_of_the_protos_is_described() -> None:
    made = protos.reference_pages()
    for file in protos.read_descriptors().file:
        page = made[pages.PROTOS[f"protos/{file.name}"]]
        rows = {line.split("|")[1].strip(): line for line in page.splitlines() if line.startswith("| `")}
        for message in file.message_type:
            assert f"## {message.name} {{ #{message.name} }}" in page
            assert {f"`{field.name}`" for field in message.field} <= rows.keys()
        assert all(row.split("|")[-2].strip() for row in rows.values()), file.name


def test_types_of_the_protos_are_linked_across_files() -> None:
    page = protos.reference_pages()["reference/protos/scavenger.md"]
    assert "| `nodes` | repeated [Node](resources.md#Node) | 1 |" in page
    assert "stream of [WatchNodesResponse](scavenger.md#WatchNodesResponse)" in page
    assert "map of string to double" in protos.reference_pages()["reference/protos/resources.md"]
    assert "optional double" in page


def test_every_setting_is_described() -> None:
    page = settings.reference_page()
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| `")]
    assert "## [scavenger.slurm.hold]" in page
    assert {"scavenger.slurm.hold.queue", "job_manager.max_parallel", "state_dir"} <= settings.setting_names()
    assert all(row[-2].strip() for row in rows), [row[1] for row in rows if not row[-2].strip()]
    assert str(Path.home()) not in page


def test_the_page_on_access_has_the_roles_of_the_protos() -> None:
    assert roles.table() in (pages.ROOT / "docs/access.md").read_text(encoding="utf-8"), "python -m tools.docs.roles"


def test_every_verb_is_in_the_reference_of_the_command() -> None:
    page = command.reference_page()
    names = [info.callback.__name__ for info in application().registered_commands if info.callback]
    assert len(names) > 10
    for name in names:
        assert f"## `malletrain {name}`" in page
        assert f"(#malletrain-{name})" in page
    assert "&#x27;" not in page


@pytest.mark.parametrize(
    ("source", "page", "markdown", "expected"),
    [
        ("README.md", "readme.md", "[a](docs/client.md#x)", "[a](client.md#x)"),
        ("docs/client.md", "client.md", "[a](../examples/digits)", "[a](examples/digits.md)"),
        ("docs/operators/slurm.md", "operators/slurm.md", "[a](../../README.md)", "[a](../readme.md)"),
        ("docs/client.md", "client.md", "[a](../Makefile) [b](#here)", "a [b](#here)"),
        ("docs/client.md", "client.md", "[a](nothing.md)", "[a](nothing.md)"),
        (
            "docs/client.md",
            "client.md",
            "[a](../protos/malletrain/v1/monitor.proto)",
            "[a](reference/protos/monitor.md)",
        ),
        ("docs/a.md", "a.md", r"| `a\|b` | a\|b |", r"| `a|b` | a\|b |"),
        ("README.md", "readme.md", "```\n[a](docs/client.md)\n```", "```\n[a](docs/client.md)\n```"),
        ("README.md", "readme.md", "<!-- docs-test: skip: why -->\n```console\n```", "```console\n```"),
    ],
)
def test_links_of_the_repository_lead_to_pages_of_the_site(
    source: str, page: str, markdown: str, expected: str
) -> None:
    assert pages.for_site(markdown, source, page) == expected
