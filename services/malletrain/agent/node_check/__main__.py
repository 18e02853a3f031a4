"""`python -m malletrain.agent.node_check NODE --check-seconds 3 ...`: the check of a node by itself, without an agent.

Prints why no work must start on this machine, and ends with 1 then; 0: nothing is known against it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from malletrain.agent.node_check.judging import add_options, limits_of
from malletrain.agent.node_check.running import check_node


def main() -> int:
    """Check, and print."""
    parser = argparse.ArgumentParser(prog="python -m malletrain.agent.node_check", description=__doc__)
    parser.add_argument("node", help="name of the node, which the operator's script is told")
    add_options(parser)
    arguments = parser.parse_args()
    limits = limits_of(arguments)
    if limits is None:
        parser.error("--check-seconds: expected a number above 0")
    if reason := asyncio.run(check_node(arguments.node, limits)):
        print(reason, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
