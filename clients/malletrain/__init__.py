"""MalleTrain from Python: submit elastic trainings, follow them, and run functions as jobs.

    import malletrain

    job = malletrain.submit(["python", "train.py"], max_nodes=4, name="resnet")
    job.wait()

Importing it costs nothing: what it offers is imported when it is first used. In a training script import
`malletrain.client`, which needs the standard library only.
"""

from __future__ import annotations

from pkgutil import extend_path
from typing import TYPE_CHECKING

# Services, clients and protos lie in folders of their own in a checkout, which all contribute to this package.
__path__ = extend_path(__path__, __name__)

if TYPE_CHECKING:
    from malletrain.api.call_files import CallFileError
    from malletrain.api.connection import Connection, connect, job, jobs, submit, submit_array
    from malletrain.api.errors import (
        InvalidInputError,
        JobFailedError,
        LimitExceededError,
        MalleTrainError,
        NotFoundError,
        PermissionDeniedError,
        PreconditionError,
        ServiceCallError,
        UnauthenticatedError,
        UnavailableError,
    )
    from malletrain.api.executor import Executor, FunctionJob
    from malletrain.api.executor import Executor as AutoExecutor
    from malletrain.api.job import Job, JobList, LoggedHistory
    from malletrain.api.local import LocalCluster, local
    from malletrain.api.search import search
    from malletrain.caller.searching.driver import SearchFailedError
    from malletrain.model.job_state import JobState

__all__ = [
    "AutoExecutor",
    "CallFileError",
    "Connection",
    "Executor",
    "FunctionJob",
    "InvalidInputError",
    "Job",
    "JobFailedError",
    "JobList",
    "JobState",
    "LimitExceededError",
    "LocalCluster",
    "LoggedHistory",
    "MalleTrainError",
    "NotFoundError",
    "PermissionDeniedError",
    "PreconditionError",
    "SearchFailedError",
    "ServiceCallError",
    "UnauthenticatedError",
    "UnavailableError",
    "connect",
    "job",
    "jobs",
    "local",
    "search",
    "submit",
    "submit_array",
]

_PLACES = {
    "AutoExecutor": "malletrain.api.executor",
    "CallFileError": "malletrain.api.call_files",
    "Executor": "malletrain.api.executor",
    "FunctionJob": "malletrain.api.executor",
    "Connection": "malletrain.api.connection",
    "Job": "malletrain.api.job",
    "JobList": "malletrain.api.job",
    "JobState": "malletrain.model.job_state",
    "LocalCluster": "malletrain.api.local",
    "LoggedHistory": "malletrain.api.job",
    "connect": "malletrain.api.connection",
    "job": "malletrain.api.connection",
    "jobs": "malletrain.api.connection",
    "local": "malletrain.api.local",
    "search": "malletrain.api.search",
    "SearchFailedError": "malletrain.caller.searching.driver",
    "submit": "malletrain.api.connection",
    "submit_array": "malletrain.api.connection",
}
"""In which module each name is; errors are in `malletrain.api.errors`."""

_ALIASES = {"AutoExecutor": "Executor"}  # submitit's name for it

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        try:
            module = import_module(_PLACES.get(name, "malletrain.api.errors"))
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("malletrain"):
                raise
            raise ImportError(
                f"malletrain.{name} needs {error.name}: pip install malletrain", name=error.name
            ) from error
        attribute = getattr(module, _ALIASES.get(name, name))
        globals()[name] = attribute
        return attribute

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
