"""How a supervisor is told where agents are, and by what it knows them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from malletrain.common.job_folder import LAUNCH_FILE
from malletrain.common.launch_file import AgentAddress
from malletrain.supervisor.context import read_launch
from malletrain.tls.names import node_name

NAME = node_name("n1")
LAUNCH: dict[str, Any] = {
    "job_id": "j1",
    "backend": "command",
    "command": ["true"],
    "working_directory": "/",
    "environment": {},
    "slots_per_node": 1,
    "socket": "/s",
    "sequence": 1,
}


def test_the_launch_file_says_it_and_that_of_0_1_says_no_names(tmp_path: Path) -> None:
    hosts = [
        {"name": "n1", "slots": 1, "agent": "10.0.0.1:5", "agent_name": NAME},
        {"name": "n2", "slots": 1, "agent": "10.0.0.2:5"},
        {"name": "here", "slots": 1, "agent": "", "agent_name": ""},
    ]
    (tmp_path / LAUNCH_FILE).write_text(json.dumps(LAUNCH | {"hosts": hosts}))
    assert read_launch(tmp_path).agents == {"n1": AgentAddress("10.0.0.1:5", NAME), "n2": AgentAddress("10.0.0.2:5")}
