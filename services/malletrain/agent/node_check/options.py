"""The options of a check of a node, for programs that make one."""

from __future__ import annotations

import argparse

from malletrain.agent.node_check.judging import CheckLimits


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options to a parser."""
    check, usual = parser.add_argument_group("check of the node before its first worker"), CheckLimits()
    check.add_argument("--check-seconds", type=float, default=0.0, help="time limit; 0: the node is not checked (0)")
    check.add_argument("--check-memory-mib", type=int, default=usual.least_memory_mib, help="least available memory")
    check.add_argument("--check-ecc-errors", type=int, default=usual.most_ecc_errors, help="most of a GPU's memory")
    check.add_argument("--check-folder", action="append", default=[], help="a folder that must be writable")
    check.add_argument(
        "--check-speed-seconds", type=float, default=0.0, help="how long speed is measured; 0: it is not (0)"
    )
    check.add_argument("--check-script", default="", help="program that ends with 0 if the node, its argument, is well")
    check.add_argument("--check-script-seconds", type=float, default=usual.script_seconds, help="its time limit")


def limits_of(arguments: argparse.Namespace) -> CheckLimits | None:
    """What the node must have; None: it is not checked."""
    if arguments.check_seconds <= 0:
        return None
    return CheckLimits(
        arguments.check_seconds,
        arguments.check_memory_mib,
        arguments.check_ecc_errors,
        tuple(arguments.check_folder),
        arguments.check_script,
        arguments.check_script_seconds,
        arguments.check_speed_seconds,
    )
