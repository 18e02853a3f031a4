"""`malletrain doctor`: what this machine has, what is missing, and what to do about it."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from malletrain.cli.operate.doctor_access import (
    examine_certificates,
    examine_cgroups,
    examine_key,
    examine_munge,
    examine_run_as,
)
from malletrain.cli.operate.doctor_checks import (
    Finding,
    examine_own_nodes,
    examine_placeholders,
    judge,
    judge_end,
    judge_reach,
    other_machines,
)
from malletrain.cli.operate.doctor_pbs import examine_pbs, pbs_hosts
from malletrain.cli.operate.doctor_slurm import examine_slurm, slurm_hosts
from malletrain.cli.operate.doctor_try import PbsTrial, SlurmTrial, examine_try
from malletrain.cli.shared.configured import ConfigOption, unknown_variables
from malletrain.cli.shared.output import JsonOption, print_json, print_table
from malletrain.cli.shared.settings import AllSettings, distrusted_files, load, state_folder_fault
from malletrain.common.accounts import AccountError, account_of
from malletrain.common.environment import PREFIX
from malletrain.runtime.access.installation import own_user
from malletrain.runtime.channel import is_serving, open_blocking_channel
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.peer import Peer
from malletrain.runtime.settings_file import SERVICES
from malletrain.runtime.tracing.settings import TracingSettings
from malletrain.runtime.tracing.spans import open_tracer
from malletrain.scavenger.sources.schedulers.settings import HoldSettings

_CONNECT_SECONDS = 3.0


def examine_tracing(settings: TracingSettings) -> Finding:
    """Whether spans can be sent: packages, files, and whether the collector can be connected to."""
    check = "tracing"
    if not settings.endpoint:
        return Finding(check, True, "off (tracing.endpoint is not set)")
    try:
        open_tracer("allocator", settings).close()
    except InvalidInputError as error:
        return Finding(check, False, str(error), "see docs/operators/tracing.md")
    parts = urlsplit(settings.endpoint)
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=_CONNECT_SECONDS):
            found, reached = f"{settings.address} answers", True
    except OSError as error:
        found, reached = f"{settings.address}: {error}", False
    return judge(check, reached, found, "start the collector, or correct tracing.endpoint; the services run without it")


_MIN_FREE_BYTES = 2 * 1024**3
_IMPORT_SECONDS = 120
_METRICS_SECONDS = 3.0
_MAX_METRICS_BYTES = 1 << 20
_DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Whatever `http_proxy` says: a proxy does not reach the services of this machine."""


class Scheduler(StrEnum):
    """The batch schedulers that can be checked."""

    SLURM = "slurm"
    PBS = "pbs"


def doctor(
    source: Annotated[
        Scheduler | None, typer.Option(help="Check instead what a batch scheduler must offer: slurm or pbs.")
    ] = None,
    as_json: Annotated[bool, JsonOption] = False,
    trying: Annotated[
        bool,
        typer.Option("--try", help="With --source: submit one placeholder, say how it fares, and delete it."),
    ] = False,
    config: ConfigOption = None,
) -> None:
    """Check Python, torch, Horovod, ports and disk, or a batch scheduler; exit 1 if anything stands in the way."""
    settings = load(config)
    if trying and source is None:
        raise InvalidInputError("--try", "--source, too")
    match source:
        case Scheduler.SLURM:
            slurm = settings.scavenger.slurm
            findings = [*examine_slurm(slurm), *_judge_settings("slurm", slurm.hold, settings, slurm_hosts(slurm))]
            findings += [examine_try(SlurmTrial(slurm), slurm.hold)] if trying else []
        case Scheduler.PBS:
            pbs = settings.scavenger.pbs
            findings = [*examine_pbs(pbs), *_judge_settings("pbs", pbs.hold, settings, pbs_hosts(pbs))]
            findings += [examine_try(PbsTrial(pbs), pbs.hold)] if trying else []
        case None:
            findings = list(examine(settings))
    findings += examine_placeholders(settings)
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        rows = [(entry.check, "ok" if entry.ok else "NOT OK", entry.found, entry.remedy) for entry in findings]
        print_table(("check", "", "found", "what to do"), rows)
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)


def _judge_settings(
    scheduler: str, hold: HoldSettings, settings: AllSettings, hosts: Mapping[str, str]
) -> list[Finding]:
    python = examine_interpreters({f"scavenger.{scheduler}.hold.python": hold.python}, settings.state_dir)
    reach = judge_reach(scheduler, hold, settings, other_machines(hosts) if hold.held else ())
    return [*python, reach, judge_end(scheduler, hold, settings)]


def examine(settings: AllSettings) -> Iterator[Finding]:
    """Every check, in the order in which one would mend what is wrong."""
    trainer = str(settings.job_manager.trainer_python or sys.executable)
    checks: list[Callable[[], Finding]] = [
        _python,
        lambda: _module(trainer, "torch", "torch.__version__", "pip install torch==2.13.0 in the training environment"),
        lambda: _backend(
            _module(
                trainer,
                "horovod.torch",
                "__import__('horovod').__version__ + (' with Gloo' if horovod.torch.gloo_built() else ' WITHOUT Gloo')",
                "run deploy/install-horovod.sh in the training environment (needs g++, cmake, make)",
            ),
            "horovod",
            settings.job_manager.backend,
        ),
        lambda: _backend(
            _module(
                trainer,
                "torch.distributed",
                "'with Gloo' if torch.distributed.is_gloo_available() else 'WITHOUT Gloo'",
                "install a torch that is built with distributed",
            ),
            "torchrun",
            settings.job_manager.backend,
        ),
        lambda: Finding("backend command", True, "available: any program that can be restarted"),
        lambda: _module(trainer, "malletrain.client", "'importable'", f"{trainer} -m pip install malletrain"),
        lambda: _loopback(),
        lambda: _disk(settings.state_dir),
        lambda: examine_state_folder(settings.state_dir),
        examine_variables,
        lambda: examine_key(settings.state_dir),
        lambda: examine_certificates(settings),
        lambda: examine_munge(settings.access),
        lambda: examine_run_as(settings),
        examine_cgroups,
        lambda: _named_files(settings),
        lambda: examine_tracing(settings.tracing),
    ]
    yield from (check() for check in checks)
    yield from examine_own_nodes(settings.scavenger)
    pythons = {"the services": sys.executable, "job_manager.trainer_python": trainer}
    yield from examine_interpreters(pythons, settings.state_dir)
    yield from (_port(service, settings.peer(service)) for service in SERVICES)
    yield from (
        examine_metrics_port(service, address) for service in SERVICES if (address := settings.metrics.of(service))
    )


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding(
        "Python", sys.version_info >= (3, 11), version, "" if sys.version_info >= (3, 11) else "use 3.11 or later"
    )


def _module(python: str, module: str, expression: str, remedy: str) -> Finding:
    """Import a module with the trainers' interpreter, in a process of its own."""
    code = f"import {module}\nprint({expression})"
    try:
        done = subprocess.run(
            [python, "-P", "-c", code], capture_output=True, text=True, timeout=_IMPORT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding(module, False, str(error), remedy)
    ok = done.returncode == 0 and "WITHOUT" not in done.stdout
    errors = done.stderr.strip().splitlines()
    return Finding(module, ok, done.stdout.strip() or (errors[-1] if errors else ""), "" if ok else remedy)


def _backend(module: Finding, name: str, default: str) -> Finding:
    """What a module's presence means: a backend that is not the default may be missing."""
    found = f"{'available' if module.ok else 'not available'}: {module.found}"
    return Finding(f"backend {name}", module.ok or name != default, found, module.remedy)


def _loopback() -> Finding:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return Finding("loopback", True, "127.0.0.1 answers")
    except OSError as error:
        return Finding("loopback", False, str(error), "bring the loopback interface up: ip link set lo up")


def _disk(state_dir: Path) -> Finding:
    existing = next(folder for folder in (state_dir, *state_dir.parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    ok = free >= _MIN_FREE_BYTES
    remedy = "" if ok else "free at least 2 GiB, or set MALLETRAIN_STATE_DIR elsewhere"
    return Finding("disk", ok, f"{free / 1024**3:.1f} GiB free at {existing}", remedy)


def examine_state_folder(state_dir: Path) -> Finding:
    """Whether this account can write the state folder, or make it."""
    existing = next(folder for folder in (state_dir, *state_dir.parents) if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
        if fault := state_folder_fault(state_dir):
            remedy = f"only the account of the services may write it: chown -R ACCOUNT: {state_dir} && chmod -R go-w "
            return Finding("state folder", False, fault, f"{remedy}{state_dir}, once you know what others have changed")
        return Finding("state folder", True, f"{existing} can be written")
    except OSError as error:
        owner = f"as root: install -d -m 700 -o ACCOUNT {state_dir}, where ACCOUNT runs the services"
        remedy = f"{owner}, as which this should be run, too; or set MALLETRAIN_STATE_DIR elsewhere"
        return Finding("state folder", False, f"{existing}: {error.strerror}", remedy)


def _named_files(settings: AllSettings) -> Finding:
    """Whether others could have written what root executes or believes because settings name it."""
    wrong = [f"{field}: {reason}" for field, _, reason in distrusted_files(settings)]
    remedy = "have each file and every folder above it belong to root, and chmod go-w"
    return judge("named files", not wrong, "; ".join(wrong) or "nobody else can write them", remedy)


def examine_variables() -> Finding:
    """Whether each variable with our prefix is a setting: a misspelt one would change nothing, and not be missed."""
    unknown = unknown_variables()
    found = f"no settings: {', '.join(unknown)}" if unknown else f"all {PREFIX}* variables are known"
    return judge("variables", not unknown, found, "see docs/quickstart/operator.md for names: SECTION__FIELD")


def examine_metrics_port(service: str, address: str) -> Finding:
    """Whether a service's metrics can be served, or are: where they can't, the service runs without."""
    check = f"metrics of {service}"
    host, _, port = address.rpartition(":")
    try:
        with _listen(host, port):
            return Finding(check, True, f"{address} is free")
    except OSError as error:
        ours = error.errno == errno.EADDRINUSE and _serves_metrics(host, port)
        found = f"{address} serves" if ours else f"{address} can't be used: {error.strerror}"
        return judge(check, ours, found, f"set metrics.{service} to a free port")


def _listen(host: str, port: str) -> socket.socket:
    """A socket that listens at an address, of IPv6 where the host is.

    Raises:
        OSError: the address can't be listened at.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host.strip("[]"), int(port)), family=family)


def _serves_metrics(host: str, port: str) -> bool:
    reachable = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)
    try:
        with _DIRECTLY.open(f"http://{reachable}:{port}/metrics", timeout=_METRICS_SECONDS) as answer:
            return b"malletrain_" in answer.read(_MAX_METRICS_BYTES)
    except (OSError, ValueError):
        return False


def _port(service: str, peer: Peer) -> Finding:
    address = peer.address
    host, _, port = address.rpartition(":")
    try:
        with _listen(host, port):
            return Finding(service, True, f"{address} is free")
    except OSError as error:
        refused = error
        try:
            channel = open_blocking_channel(peer, None)
        except InvalidInputError as error:
            return Finding(service, False, str(error), "see docs/access.md, section TLS")
        try:
            if is_serving(channel):
                return Finding(service, True, f"{address} serves")
        finally:
            channel.close()
    return judge_refused_address(service, address, refused)


def judge_refused_address(service: str, address: str, error: OSError) -> Finding:
    """An address at which nothing of ours serves, and which can't be listened at."""
    variable = f"{PREFIX}ADDRESSES__{service.upper()}"
    if error.errno == errno.EADDRINUSE:
        return Finding(service, False, f"{address} is taken by another program", f"set {variable} to a free port")
    found = f"{address} can't be listened at ({error.strerror})"
    return Finding(service, False, found, f"set {variable} to an address of this machine")


_SECONDS = 30.0
_OTHERS_ENTER = stat.S_IXOTH


def examine_interpreters(pythons: Mapping[str, str], state_dir: Path) -> Iterator[Finding]:
    """Run each interpreter as the owner of the state folder, where we are root, and otherwise as ourselves.

    Args:
        pythons: By the setting that names it: an interpreter.
        state_dir: The state folder, which belongs to the account of the services; it may not exist yet.
    """
    options, who = _as_owner(state_dir)
    for setting, python in pythons.items():
        yield examine_interpreter(setting, python, options, who)


def examine_interpreter(setting: str, python: str, options: Mapping[str, Any], who: str) -> Finding:
    """Run an interpreter that jobs would be started with, and see whether it has what they need.

    Args:
        setting: What names it.
        python: The interpreter.
        options: More arguments of `subprocess.run`: as whom it is run.
        who: The name of that account.
    """
    check = f"Python of {setting}"
    if shutil.which(python) is None and not Path(python).is_symlink() and not _is_hidden(Path(python)):
        return Finding(check, True, f"{python} is not on this machine; --source SCHEDULER --try runs it on a node")
    try:
        done = subprocess.run(
            [python, "-I", "-c", ""],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
            cwd="/",
            **options,
        )
        lines = done.stderr.strip().splitlines()
        fault = (lines[-1] if lines else f"ended with status {done.returncode}") if done.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        fault = str(error)
    where = _closed_folder(Path(python))
    remedy = f"let {who} read and enter {where or python}, or install Python where every account can, e.g. below /opt"
    return judge(check, not fault, f"{who} can't run it: {fault}" if fault else f"{who} can run {python}", remedy)


def _as_owner(state_dir: Path) -> tuple[dict[str, Any], str]:
    """Arguments that have a program run as the owner of the state folder, and the owner's name."""
    ourselves: tuple[dict[str, Any], str] = {}, own_user()
    if os.geteuid() != 0:
        return ourselves
    try:
        account = account_of(state_dir.stat().st_uid)
    except (OSError, AccountError):  # there is no such folder yet, or it is root's
        return ourselves
    groups = list(account.groups)
    return {"user": account.user_id, "group": account.group_id, "extra_groups": groups}, account.name


def _is_hidden(path: Path) -> bool:
    """Whether we can't see if there is such a file."""
    try:
        path.stat()
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def _closed_folder(python: Path) -> str:
    """The first folder on the way to an interpreter, or to what it links to, that others may not enter."""
    for end in (python, Path(os.path.realpath(python))):
        for folder in reversed(end.parents):
            try:
                if not folder.stat().st_mode & _OTHERS_ENTER:
                    return str(folder)
            except OSError:
                continue
    return ""
