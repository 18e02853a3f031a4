"""A search from what its user asks for, also in TOML: checked, its study opened in its storage, and driven."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from malletrain.caller.job_array import check_used
from malletrain.caller.job_file import JOB_KEYS, line_of, read_job_file
from malletrain.caller.job_request import JobRequest, default_name, job_spec
from malletrain.caller.option_values import nearest
from malletrain.caller.searching.decisions import MAX_FAVOUR, SearchPlan
from malletrain.caller.searching.driver import SearchDriver, SearchJobs, SearchListeners, SearchSetup, ServiceCalls
from malletrain.caller.searching.space import parse_space
from malletrain.caller.searching.studies import (
    MAX_NAME,
    checked_direction,
    distributions_of,
    load_optuna,
    new_name,
    open_study,
    pruner_of,
    sampler_of,
)
from malletrain.common.mounts import unescape
from malletrain.model.job_terms import MAX_WEIGHT, MIN_WEIGHT
from malletrain.runtime.errors import InvalidInputError, PreconditionError

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.storages import BaseStorage

SQLITE_ENDINGS = (".db", ".sqlite", ".sqlite3")
JOURNAL_ENDINGS = (".journal", ".log")
_EXPECTED = (
    f"a file whose name ends in {', '.join((*SQLITE_ENDINGS, *JOURNAL_ENDINGS))}, a database's URL such as "
    "sqlite:///studies.db, or a storage of Optuna"
)
_SHARED = frozenset(
    (
        *("nfs", "nfs4", "lustre", "gpfs", "beegfs", "cifs", "smb3", "ceph", "afs", "panfs", "pvfs2", "orangefs"),
        *("9p", "fuse.sshfs", "fuse.glusterfs", "fuse.juicefs", "wekafs"),
    )
)
"""File systems of several machines, on which SQLite's locks can't be relied on."""
_PRIVATE = 0o600


def default_file(environment: Mapping[str, str], mountinfo: str) -> Path:
    """The file of studies in the user's folder: SQLite, and a journal on a shared file system.

    Args:
        environment: Variables of the process.
        mountinfo: What is mounted where, as in /proc/self/mountinfo.
    """
    data = environment.get("XDG_DATA_HOME") or ""
    folder = Path(data) if data.startswith("/") else Path(environment.get("HOME") or "~").expanduser() / ".local/share"
    ending = "journal" if file_system_of(folder.resolve(), mountinfo) in _SHARED else "db"
    return folder / "malletrain" / f"studies.{ending}"


def file_system_of(path: Path, mountinfo: str) -> str:
    """The kind of the file system that a path is on, e.g. `ext4`; empty: not known.

    Args:
        path: An absolute path.
        mountinfo: What is mounted where.
    """
    longest, kind = -1, ""
    for line in mountinfo.splitlines():
        words, _, ending = line.partition(" - ")
        fields, kinds = words.split(" "), ending.split(" ")
        if len(fields) < 5:
            continue
        point = Path(unescape(fields[4]))
        if path.is_relative_to(point) and len(point.parts) >= longest:
            longest, kind = len(point.parts), kinds[0]
    return kind


def open_storage(storage: object, environment: Mapping[str, str] = os.environ) -> tuple[str | BaseStorage, Path | None]:
    """A storage for Optuna, and the file that it is; None: no file of ours.

    Args:
        storage: A path, a URL, or a storage of Optuna; None: the file of the user's folder.
        environment: Variables of the process.

    Raises:
        InvalidInputError: it is none, or its folder can't be made.
    """
    from optuna.storages import BaseStorage

    if isinstance(storage, BaseStorage) or (isinstance(storage, str) and "://" in storage):
        return storage, None
    if storage is None:
        path = default_file(environment, Path("/proc/self/mountinfo").read_text(errors="surrogateescape"))
        _make_private_folder(path.parent)
    elif isinstance(storage, str | os.PathLike) and str(storage):
        path = Path(storage).absolute()
    else:
        raise InvalidInputError("storage", _EXPECTED, storage)
    if not path.parent.is_dir():
        raise InvalidInputError("storage", "a file in a folder that exists", str(path))
    if path.suffix in SQLITE_ENDINGS:
        _touch(path)
        return f"sqlite:///{path}", path
    if path.suffix in JOURNAL_ENDINGS:
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        _touch(path)
        return JournalStorage(JournalFileBackend(str(path))), path
    raise InvalidInputError("storage", _EXPECTED, str(storage))


@contextmanager
def sole_driver(file: Path | None, study: str) -> Iterator[None]:
    """Be the one process that drives a study, as far as its file tells; the kernel ends that with the process.

    Args:
        file: The file of studies; None: there is none, and nothing is looked at.
        study: Name of the study.

    Raises:
        PreconditionError: another process does.
    """
    if file is None:
        yield
        return
    mark = hashlib.sha256(study.encode()).hexdigest()[:12]
    lock = file.with_name(f".{file.name}.{mark}.lock")
    _touch(lock)
    descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PreconditionError(f"another process drives the study {study} of {file}") from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP):  # a file system without locks
                raise
        yield
    finally:
        os.close(descriptor)


def _make_private_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        expected = f"a folder for studies that can be made ({error.strerror})"
        raise InvalidInputError("storage", expected, str(folder)) from None


def _touch(path: Path) -> None:
    """Make the file, which only its user can read: parameters may say more than its user wants."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE))
    except OSError as error:
        raise InvalidInputError("storage", f"a file that can be written ({error.strerror})", str(path)) from None


MAX_TRIALS = 100_000
MAX_AT_ONCE = 1000
DEFAULT_TRIALS, DEFAULT_AT_ONCE, DEFAULT_FAILURES = 20, 4, 5


@dataclass(frozen=True, kw_only=True)
class SearchRequest:
    """A search as its user asks for it.

    Attributes:
        job: The job of a trial: command and variables are templates. Its name is that of the study; empty: a new study.
        space: What may be chosen for each parameter.
        metric: Which of a job's metrics is the value of its trial.
        direction: `minimize` or `maximize`.
        trials: How many trials the study is to have.
        at_once: Most trials at the same time.
        sampler: `tpe`, `random`, or a sampler of Optuna; None: `tpe`.
        pruner: `none`, `median`, `asha`, `hyperband`, or a pruner of Optuna; None: `none`.
        storage: A file, a URL or a storage of Optuna; None: a file in the user's folder.
        seed: Of the sampler; None: another each time.
        failures: After so many failed trials in a row the search gives up; 0: never.
        cancel_on_exit: Whether jobs are cancelled where the search is interrupted or fails.
        favour: How many times the weight of the others the most promising trials have, at most.
    """

    job: JobRequest
    space: object
    metric: object
    direction: object = "minimize"
    trials: object = DEFAULT_TRIALS
    at_once: object = DEFAULT_AT_ONCE
    sampler: object = None
    pruner: object = None
    storage: object = None
    seed: object = None
    failures: object = DEFAULT_FAILURES
    cancel_on_exit: bool = False
    favour: object = 1


def run_search(
    request: SearchRequest,
    calls: ServiceCalls,
    listeners: SearchListeners,
    pause: Callable[[float], None] = time.sleep,
) -> Study:
    """Run a search until its study has all its trials; returns the study.

    Args:
        request: What is asked for.
        calls: The services.
        listeners: Who is told what happens.
        pause: Waits for so many seconds.

    Raises:
        ImportError: Optuna is not installed.
        InvalidInputError: something is not as expected; the error names it.
        PreconditionError: another process drives the study.
        SearchFailedError: too many trials in a row have failed.
        MalleTrainError: a job is refused, or JobManager does not answer.
    """
    load_optuna()
    setup, direction, first_seed = check_request(request)
    name, pruner = setup.request.name, pruner_of(request.pruner)
    sampler_of(request.sampler, first_seed)
    storage, file = open_storage(request.storage)
    with sole_driver(file, name):
        study, study_id = open_study(name, storage, direction, setup.plan.metric)
        trials = study.get_trials(deepcopy=False)
        # A study that goes on is not offered the values of its first trials again.
        seed = None if first_seed is None else (first_seed + len(trials)) % 2**32
        study.sampler, study.pruner = sampler_of(request.sampler, seed), pruner
        if trials:
            _check_compatible(trials[-1].distributions, setup.distributions)
        SearchDriver(study, replace(setup, study_id=study_id), SearchJobs(calls), listeners, pause).run(
            f"study {name}" + (f", kept in {file}" if file else "")
        )
    return study


def check_request(request: SearchRequest) -> tuple[SearchSetup, str, int | None]:
    """The settings of a search whose study is not open yet, its direction, and its seed."""
    space = parse_space(request.space)
    check_used("space", request.job, space)
    if not isinstance(request.metric, str) or not 1 <= len(request.metric) <= 256:
        raise InvalidInputError("metric", "the name of a metric that the job reports at its end", request.metric)
    name = request.job.name
    if len(name) > MAX_NAME or not name.isprintable() or name != name.strip():
        raise InvalidInputError("name", f"at most {MAX_NAME} printable characters, none of them blank at an end", name)
    job_spec(request.job)  # options that can't be used are told before there is a trial
    setup = SearchSetup(
        request=request.job if name else replace(request.job, name=new_name(default_name(request.job.command))),
        distributions=distributions_of(space),
        plan=SearchPlan(
            request.metric,
            _whole("trials", request.trials, 1, MAX_TRIALS),
            _whole("at_once", request.at_once, 1, MAX_AT_ONCE),
        ),
        study_id="",
        failures=_whole("failures", request.failures, 0, MAX_TRIALS),
        cancel_on_exit=request.cancel_on_exit,
        favour=_favour(request.favour, request.job.weight),
    )
    seed = None if request.seed is None else _whole("seed", request.seed, 0, 2**32 - 1)
    return setup, checked_direction(request.direction), seed


def _whole(field: str, value: Any, minimum: int, maximum: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise InvalidInputError(field, f"a whole number from {minimum} to {maximum}", value)
    return value


def _favour(value: Any, weight: float) -> float:
    """The favour, which must be possible with the weight that trials are submitted with."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= MAX_FAVOUR:
        raise InvalidInputError("favour", f"a number from 1 to {MAX_FAVOUR:g}", value)
    base = weight or 1.0  # as at a submission
    if not MIN_WEIGHT <= base <= MAX_WEIGHT:
        raise InvalidInputError("weight", f"{MIN_WEIGHT:f} to {MAX_WEIGHT:.0f}", weight)
    if base * value > MAX_WEIGHT:
        expected = (
            f"at most {MAX_WEIGHT / base:g}: its trials have the weight {base:g}, and {MAX_WEIGHT:.0f} is the most"
        )
        raise InvalidInputError("favour", expected, value)
    return float(value)


def _check_compatible(before: Mapping[str, BaseDistribution], now: Mapping[str, BaseDistribution]) -> None:
    """Refuse what Optuna would refuse in the middle: another kind of parameter, or other choices."""
    from optuna.distributions import check_distribution_compatibility

    for name, kind in now.items():
        if name in before:
            try:
                check_distribution_compatibility(before[name], kind)
            except ValueError:
                expected = f"as in the study before: {before[name]}; with another name it is another study"
                raise InvalidInputError(f"space.{name}", expected, kind) from None


SEARCH_KEYS = (
    "space",
    "metric",
    "direction",
    "trials",
    "at-once",
    "sampler",
    "pruner",
    "storage",
    "seed",
    "failures",
    "favour",
)
_TABLE = "search"
_REQUIRED = ("space", "metric")


def read_search_file(text: str, name: str, expand_nodes: Callable[[str], tuple[str, ...]]) -> SearchRequest:
    """The search that a file describes. What its values have to be is checked when it starts.

    Args:
        text: Its content.
        name: Its name, for errors.
        expand_nodes: Names in a list of nodes such as `n07,n[11-13]`.

    Raises:
        InvalidInputError: it is no job file with such a table. The error names the line.
    """
    job = read_job_file(text, name, expand_nodes, others=(_TABLE,))
    if job.array:
        raise InvalidInputError(f"{name}:{line_of(text, 'array')}", "no array beside a search")
    table = tomllib.loads(text).get(_TABLE)
    if not isinstance(table, dict):
        raise InvalidInputError(name, "a table [search] with space and metric")
    for key in table:
        if key not in SEARCH_KEYS:
            near = nearest(key.replace("_", "-"), SEARCH_KEYS)
            expected = f"a known key, such as {near}" if near else f"one of {', '.join(SEARCH_KEYS)}"
            raise InvalidInputError(f"{name}:{_line(text, key)}", expected, key)
    for key in _REQUIRED:
        if key not in table:
            raise InvalidInputError(f"{name}:{line_of(text, _TABLE)}", f"a key {key} in [search]")
    values: dict[str, Any] = {key.replace("-", "_"): value for key, value in table.items()}
    return SearchRequest(job=job, **values)


def in_file(error: InvalidInputError, text: str, name: str) -> InvalidInputError:
    """An error of a search with the line of the file that it is about; unchanged where that is not known.

    Args:
        error: The error, of a field such as `space.lr` or of an option such as `--backend`.
        text: Content of the file.
    """
    first, _, rest = error.field.removeprefix("--").partition(".")
    key = first.replace("_", "-")
    if key in SEARCH_KEYS:
        inner = rest.partition(".")[0]
        line = _line(text, inner) if inner else _line(text, key)
    elif key in JOB_KEYS:
        line = line_of(text, key)
    else:
        return error
    return InvalidInputError(f"{name}:{line}", f"{error.field} to be {error.expected}")


def _line(text: str, key: str) -> int:
    """The line of a key of the table, or of a table in it."""
    line = line_of(text, _TABLE, key)
    nested = line_of(text, f"{_TABLE}.{key}")
    return nested if nested > 1 else line
