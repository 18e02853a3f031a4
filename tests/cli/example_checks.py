"""`malletrain check` on the examples: each is fit for MalleTrain as it is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples"


def check_example(folder: Path, script: str, *arguments: str) -> dict[str, dict[str, Any]]:
    """Check an example, which has to be found good; the verdicts by backend.

    Args:
        folder: Working directory.
        script: Path of the script below `examples`.
        arguments: Its arguments, so that it trains for long enough.
    """
    limits = ["--boot-limit", "150", "--time-limit", "540", "--json"]
    words = ["python", str(EXAMPLES / script), *arguments]
    command = [sys.executable, "-m", "malletrain.cli.main", "check", *limits, "--", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert (found["findings"], done.returncode) == ([], 0), done.stdout
    assert found["usable"]
    # What could not be seen is no clean verdict.
    answers = {verdict["backend"]: verdict["answers"] for verdict in found["backends"]}
    assert all(answer["resumes"].startswith("yes") for answer in answers.values()), done.stdout
    return answers
