"""The check of nodes that are this machine, which have no agents: doctor makes it, by the same program."""

from __future__ import annotations

from pathlib import Path

import pytest

from malletrain.cli.operate.doctor_checks import examine_own_nodes
from malletrain.scavenger.settings import ScavengerSettings
from malletrain.scavenger.sources.schedulers.settings import NodeCheckSettings

pytestmark = pytest.mark.processes


def settings(tmp_path: Path, script: str = "", source: str = "static") -> ScavengerSettings:
    check = NodeCheckSettings(seconds=60, least_memory_mib=0, folders=(str(tmp_path),), script=script)
    return ScavengerSettings.model_validate({"source": source, "nodes": ("n1", "n2"), "node_check": check})


def test_this_machine_is_well(tmp_path: Path) -> None:
    (finding,) = examine_own_nodes(settings(tmp_path))
    assert (finding.check, finding.ok) == ("nodes of this machine", True), finding.found


def test_the_operators_script_is_asked_for_each_name(tmp_path: Path) -> None:
    script = tmp_path / "check"
    script.write_text('#!/bin/sh\n[ "$1" = n1 ] || { echo "no mount"; exit 3; }\n')
    script.chmod(0o700)
    (finding,) = examine_own_nodes(settings(tmp_path, str(script)))
    assert not finding.ok
    assert finding.found.startswith("n2: check script")
    assert "ended with 3: no mount" in finding.found


def test_nodes_with_agents_are_checked_by_these(tmp_path: Path) -> None:
    assert list(examine_own_nodes(settings(tmp_path, source="slurm"))) == []
