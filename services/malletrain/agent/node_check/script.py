"""`python -m malletrain.agent.node_check.script PATH NODE`: becomes the operator's check, if it is the operator's.

Whether others could have written it is looked at here, not in the agent: on a file system that hangs, so does the look.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from malletrain.common.trusted_files import check_trusted

BEGUN = "begun"
"""Printed first: from then on its time counts, not while the interpreter starts on a busy machine."""
NOT_RUN = 126
"""Exit status, as a shell has it, of a program that can't be run."""


def main(path: str, node: str) -> int:
    """Become the script; comes back only if it can't be run."""
    print(BEGUN, flush=True)
    try:
        check_trusted(Path(path))
        os.execv(path, [path, node])
    except OSError as error:
        print(f"can't be run: {error.strerror}", flush=True)
    return NOT_RUN


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
