"""`python -m malletrain.agent --node NAME --head HOST:PORT --certificate-from stdin`: what a placeholder runs."""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import resource
import sys
import time
from pathlib import Path

from malletrain.agent.agent import Agent, AgentConfig
from malletrain.agent.environment import problem_of_one_gpu
from malletrain.agent.first_certificate import read_from_standard_input, take_from_pbs_script
from malletrain.agent.node_check.judging import add_options, limits_of
from malletrain.common.stage_out import MAX_SECONDS, terms_from_text
from malletrain.common.tasks import end_process
from malletrain.tls.files import CertificateFileError
from malletrain.tls.sources import RenewableCertificate

_STDIN, _PBS_SCRIPT = "stdin", "pbs-script"
_TAKEN_SECONDS = 60.0
"""How long a mark of the Prolog counts: the Scavenger may know only half a minute later that a node was taken."""


def main() -> int:
    """Run until the node is wanted back. The exit status is 2 if an argument can't be used."""
    parser = argparse.ArgumentParser(prog="python -m malletrain.agent", description=__doc__)
    parser.add_argument("--node", required=True, help="name of the node, as the scheduler calls it")
    parser.add_argument("--head", required=True, help="HOST:PORT on which the Scavenger listens for agents")
    certificate_source = parser.add_mutually_exclusive_group(required=True)
    certificate_source.add_argument("--certificate", type=Path, help="file with the node's certificate and its key")
    certificate_source.add_argument(
        "--certificate-from",
        choices=(_STDIN, _PBS_SCRIPT),
        help="where it comes from without a file: one line of base64 on the standard input, or in the job's script",
    )
    parser.add_argument("--listen", default="127.0.0.1", help="address to serve supervisors on")
    parser.add_argument("--grace", type=float, default=1.5, help="seconds that workers get to leave by themselves")
    parser.add_argument("--orphan", type=float, default=600.0, help="seconds without work and Scavenger to stay")
    parser.add_argument("--installation", default="", help="identifier of the installation, for those who list agents")
    parser.add_argument("--stay", type=float, default=math.inf, help="seconds after which the node is left in any case")
    parser.add_argument("--marks", type=Path, help="folder in which a Prolog marks nodes that have just been taken")
    parser.add_argument(
        "--standby-mib",
        type=int,
        default=0,
        help="largest share of memory of all standby processes, which fork workers, in MiB; 0: none is kept (0)",
    )
    parser.add_argument(
        "--stage-out-seconds",
        type=float,
        default=0.0,
        help=f"how long checkpoints may be copied from the node after its workers have gone, at most {MAX_SECONDS:g} s;"
        " 0: none is (0)",
    )
    parser.add_argument(
        "--stage-out-mib", type=int, default=0, help="how much of a user's that may be at a time, in MiB; 0: none (0)"
    )
    parser.add_argument("--one-gpu", action="store_true", help="the node is one GPU, which the scheduler must name")
    parser.add_argument("--nice", type=int, default=0, help="by how much CPU time is yielded to others (0)")
    add_options(parser)
    arguments = parser.parse_args()
    if arguments.marks is not None and _was_just_taken(arguments.marks / arguments.node):
        print(f"malletrain.agent: node {arguments.node} has just been taken, nothing is started", file=sys.stderr)
        return 0
    host, _, port = arguments.head.rpartition(":")
    if not host or not port.isdigit():
        parser.error(f"--head: expected HOST:PORT, got {arguments.head!r}")
    try:
        certificate = _certificate(arguments.certificate, arguments.certificate_from)
    except CertificateFileError as error:
        parser.error(f"--certificate: {error}")
    slurm_job = os.environ.get("SLURM_JOB_ID", "")
    config = AgentConfig(
        node=arguments.node,
        head=arguments.head,
        certificate=certificate,
        listen=arguments.listen,
        placeholder=slurm_job or os.environ.get("PBS_JOBID", ""),
        grace_seconds=arguments.grace,
        orphan_seconds=arguments.orphan,
        stay_seconds=arguments.stay,
        in_slurm=bool(slurm_job),
        standby_memory_bytes=max(0, arguments.standby_mib) << 20,
        check=limits_of(arguments),
        stage_out=terms_from_text(f"{arguments.stage_out_seconds} {arguments.stage_out_mib << 20}"),
        unfit=problem_of_one_gpu(os.environ) if arguments.one_gpu else "",
    )
    os.nice(max(0, arguments.nice))
    _raise_file_limit()
    try:
        asyncio.run(_run(config))
    except CertificateFileError as error:
        parser.error(f"--certificate: {error}")
    except Exception as error:  # noqa: BLE001 - nothing of ours is left on the node: the agent must not stay either
        end_process(error)
    return 0


def _certificate(file: Path | None, source: str | None) -> RenewableCertificate:
    """The agent's first certificate.

    Raises:
        CertificateFileError: there is none that can be used.
    """
    if source == _STDIN:
        return RenewableCertificate(read_from_standard_input())
    if source == _PBS_SCRIPT:
        return RenewableCertificate(take_from_pbs_script(os.environ))
    assert file is not None
    return RenewableCertificate(file)


def _raise_file_limit() -> None:
    """Each worker takes two descriptors, and each connection one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _run(config: AgentConfig) -> None:
    await Agent(config).run()


def _was_just_taken(mark: Path) -> bool:
    """Whether the Prolog of a main job has just run here: whoever started this agent did not know of that job yet."""
    try:
        return 0 <= time.time() - mark.stat().st_mtime < _TAKEN_SECONDS
    except OSError:
        return False


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    # The end of an interpreter with gRPC takes a tenth of a second, for which the main job would wait.
    os._exit(status)
