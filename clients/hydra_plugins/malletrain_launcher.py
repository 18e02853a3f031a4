"""Hydra's launcher `malletrain`: each job of a multirun is a job of MalleTrain.

    python app.py -m hydra/launcher=malletrain lr=0.1,0.01

A job runs the program itself with its overrides, `python app.py lr=0.1 hydra.run.dir=...`, and not a pickled function:
it is started again at changes of scale and after failures, by several workers at once, and goes on from its checkpoint.

Hydra imports this file whenever an application begins, in jobs too; what it needs of MalleTrain is imported when jobs
are launched. It is not in `sys.modules` by then, so that no annotation may be a text that a dataclass would look at.
"""

import logging
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn, JobStatus, configure_log, filter_overrides, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

if TYPE_CHECKING:
    from malletrain import Job

log = logging.getLogger(__name__)

_OWN = (
    "hydra/launcher",
    "hydra/sweeper",
    "hydra.launcher",
    "hydra.sweeper",
    "hydra.sweep",
    "hydra.mode",
    "hydra.run.dir",
)
"""Overrides of Hydra itself that are about the multirun and not about its jobs."""
_FLAGS_WITH_VALUE = ("--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd")
_OPTIONS = ("name", "min_nodes", "max_nodes", "backend", "weight", "target_samples", "project")


@dataclass
class MalleTrainLauncherConf:
    """The configuration `hydra.launcher`.

    Attributes:
        name: Name of the jobs, with a number behind it; by default the application's.
        min_nodes, max_nodes, backend, weight, target_samples, project: As for `malletrain.submit`; none: its defaults.
        options: Other options of `malletrain.submit`: `+hydra.launcher.options.gpus=4`.
        metric: Which of the metrics that a job reports at its end (`done(metrics)`) its return value is, for sweepers
            that search; empty: there is none.
        config: The configuration file of the services; none: as for the command `malletrain`.
    """

    _target_: str = "hydra_plugins.malletrain_launcher.MalleTrainLauncher"
    name: str | None = None
    min_nodes: int | None = None
    max_nodes: int | None = None
    backend: str | None = None
    weight: float | None = None
    target_samples: int | None = None
    project: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    metric: str = ""
    config: str | None = None


ConfigStore.instance().store(
    group="hydra/launcher", name="malletrain", node=MalleTrainLauncherConf, provider="malletrain"
)


class JobFailedError(RuntimeError):
    """A job has not completed, or without the metric that is to be its return value."""


class _Launched(NamedTuple):
    """A job and what Hydra is told of it when it has ended."""

    job: "Job"
    result: JobReturn


class MalleTrainLauncher(Launcher):  # type: ignore[misc]  # Hydra may not be installed where types are checked
    """Submits the jobs of a multirun, and waits until all have ended."""

    def __init__(self, **settings: Any) -> None:
        """Launch nothing yet.

        Args:
            settings: As `MalleTrainLauncherConf`.
        """
        super().__init__()
        self._settings = settings
        self._config: DictConfig | None = None
        self._context: HydraContext | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Take what Hydra knows. The function is not used: jobs run the program."""
        del task_function
        self._context, self._config = hydra_context, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Submit jobs and wait until all have ended; Ctrl-C leaves them running.

        Args:
            job_overrides: Overrides of each job.
            initial_job_idx: Number of the first one in the multirun.

        Raises:
            MalleTrainError: a job is refused, or JobManager does not answer.
        """
        import malletrain

        setup_globals()
        assert self._config is not None
        configure_log(self._config.hydra.hydra_logging, self._config.hydra.verbose)
        if self._settings["config"]:
            malletrain.connect(config=self._settings["config"])
        launched = [
            self._submit(initial_job_idx + place, list(overrides)) for place, overrides in enumerate(job_overrides)
        ]
        log.info("%d jobs submitted; they go on if this ends", len(launched))
        return [self._finished(one) for one in launched]

    def _submit(self, number: int, overrides: list[str]) -> _Launched:
        import malletrain

        assert self._config is not None
        assert self._context is not None
        config = self._context.config_loader.load_sweep_config(self._config, overrides)
        with open_dict(config):
            config.hydra.job.num = number
            config.hydra.job.id = str(number)  # JobManager's is known once it is submitted
        folder = Path(config.hydra.sweep.dir, config.hydra.sweep.subdir).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        options = self._options(f"{self._settings['name'] or config.hydra.job.name}-{number}")
        own = [
            *kept_overrides(config.hydra.overrides.hydra),
            "hydra.mode=RUN",
            f"hydra.run.dir={quote_value(str(folder))}",
            f"hydra.job.num={number}",
        ]
        command = [sys.executable, *program(sys.argv, sys.modules["__main__"]), *overrides, *own]
        job = malletrain.submit(command, **options)
        log.info("\t#%d : %s : %s", number, job.id, " ".join(filter_overrides(overrides)))
        result = JobReturn()
        result.overrides, result.hydra_cfg = overrides, OmegaConf.create({"hydra": config.hydra})
        result.working_dir, result.task_name = str(folder), config.hydra.job.name
        result.cfg = OmegaConf.masked_copy(config, [key for key in config if key != "hydra"])
        return _Launched(job, result)

    def _options(self, name: str) -> dict[str, Any]:
        named = {key: value for key in _OPTIONS if (value := self._settings[key]) is not None}
        others = self._settings["options"]
        if OmegaConf.is_config(others):
            others = OmegaConf.to_container(others, resolve=True)
        return {**others, **named, "name": name}

    def _finished(self, launched: _Launched) -> JobReturn:
        job, result, metric = launched.job, launched.result, self._settings["metric"]
        state = job.wait()
        value = job.metrics.get(metric)
        if state != "COMPLETED":
            result.status = JobStatus.FAILED
            result.return_value = JobFailedError(f"{job.id} {state}: {job.reason}")
        elif metric and value is None:
            result.status = JobStatus.FAILED
            reported = ", ".join(sorted(job.metrics)) or "none"
            result.return_value = JobFailedError(f"{job.id} has reported no metric {metric}; reported: {reported}")
        else:
            result.status, result.return_value = JobStatus.COMPLETED, value
        log.info("%s %s", job.id, state)
        return result


def program(argv: Sequence[str], main: Any) -> list[str]:
    """The program that runs now, as words behind `python`, with the flags that say where its configuration is.

    Args:
        argv: `sys.argv`.
        main: The module `__main__`.
    """
    spec = getattr(main, "__spec__", None)
    words = [str(Path(argv[0]).absolute())] if spec is None else ["-m", spec.name.removesuffix(".__main__")]
    rest = iter(argv[1:])
    for word in rest:
        if word in _FLAGS_WITH_VALUE:
            words += [word, *([value] if (value := next(rest, None)) is not None else [])]
        elif word.startswith(tuple(f"{flag}=" for flag in _FLAGS_WITH_VALUE)):
            words.append(word)
    return words


def kept_overrides(overrides: Sequence[str]) -> list[str]:
    """Of the overrides of Hydra itself, those that jobs get as well."""
    return [text for text in overrides if not text.lstrip("+~").startswith(_OWN)]


def quote_value(value: str) -> str:
    """A text as a value in Hydra's grammar of overrides: quoted, where it also resolves nothing."""
    # Backslashes stand for themselves, but in front of a quotation mark.
    return "'" + re.sub(r"(\\*)('|\Z)", lambda match: 2 * match[1] + ("\\'" if match[2] else ""), value) + "'"
