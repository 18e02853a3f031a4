"""`malletrain search search.toml`: Optuna chooses parameters, and each trial is a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import grpc
import typer

from malletrain.caller.job_file import read_job_text
from malletrain.caller.job_request import default_name
from malletrain.caller.searching.driver import SearchListeners, trial_name
from malletrain.caller.searching.start import SearchRequest, in_file, read_search_file, run_search
from malletrain.caller.searching.studies import JOB_KEY, REASON_KEY, new_name
from malletrain.caller.stubs import exception_of
from malletrain.cli.jobs.job_output import parameters_in_words
from malletrain.cli.jobs.needs import parse_nodes
from malletrain.cli.jobs.waiting import INTERRUPTED
from malletrain.cli.shared.output import JsonOption, print_json, print_table, tell
from malletrain.cli.shared.stubs import DEADLINE_SECONDS, ServiceStubs, connect
from malletrain.cli.shared.terminal import visible
from malletrain.runtime.errors import InvalidInputError, MalleTrainError

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial


def search(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE.toml", help="A job file with a table `search`: space, metric, …."),
    ],
    name: Annotated[
        str, typer.Option(help="Name of the study: it goes on where there is one. By default the file's, or a new one.")
    ] = "",
    trials: Annotated[int | None, typer.Option(help="How many trials the study is to have in all.")] = None,
    at_once: Annotated[int | None, typer.Option(help="Most trials at the same time.")] = None,
    storage: Annotated[
        str, typer.Option(help="Where the study is kept: FILE.db, FILE.journal or the URL of a database.")
    ] = "",
    cancel_on_exit: Annotated[
        bool, typer.Option("--cancel-on-exit", help="Cancel its jobs at Ctrl-C or an error; by default they go on.")
    ] = False,
    as_json: Annotated[bool, JsonOption] = False,
) -> None:
    """Search for good values of parameters with Optuna; each trial is a job. Needs malletrain[search].

    Called again with the same name, it goes on with the study, and with the trials that run.

    Exit status: 0 the study has all its trials, 1 an error or no trial is complete, 130 Ctrl-C.
    """
    text = read_job_text(file)
    request = read_search_file(text, str(file), parse_nodes)
    options = {"trials": trials, "at_once": at_once, "storage": storage or None}
    study_name = name or request.job.name or new_name(default_name(request.job.command))
    request = replace(
        request,
        job=replace(request.job, name=study_name),
        cancel_on_exit=cancel_on_exit,
        **{key: value for key, value in options.items() if value is not None},
    )
    study = _run(request, study_name, lambda error: in_file(error, text, str(file)))
    if as_json:
        print_json(_as_dict(study))
    else:
        _print_best(study)
    if not _complete(study):
        raise MalleTrainError("no trial is complete")


class _StubCalls:
    """Calls services once; who searches waits for those that are away."""

    def __init__(self, stubs: ServiceStubs) -> None:
        self.stubs = stubs

    def call(self, method: Callable[..., Any], request: Any) -> Any:
        try:
            return method(request, timeout=DEADLINE_SECONDS)
        except grpc.RpcError as error:
            raise exception_of(error, self.stubs.settings) from error


def _run(request: SearchRequest, name: str, placed: Callable[[InvalidInputError], InvalidInputError]) -> Study:
    listeners = SearchListeners(submitted=_tell_submitted, ended=_tell_ended, say=lambda text: tell(visible(text)))
    try:
        with connect() as stubs:
            return run_search(request, _StubCalls(stubs), listeners)
    except InvalidInputError as error:
        raise placed(error) from None
    except ImportError as error:
        raise MalleTrainError(str(error)) from None
    except KeyboardInterrupt:
        ending = "" if request.cancel_on_exit else "; its jobs go on: malletrain cancel ID ends one"
        tell(f"no longer searching{ending}. The search goes on with --name {visible(name)}")
        raise typer.Exit(INTERRUPTED) from None


def _tell_submitted(trial: FrozenTrial) -> None:
    tell(visible(f"trial {trial.number}: {trial.user_attrs[JOB_KEY]} submitted, {_parameters(trial.params)}"))


def _tell_ended(study: Study, trial: FrozenTrial) -> None:
    value = f", {trial.value:g}" if trial.value is not None else f", {trial.user_attrs.get(REASON_KEY, '')}"
    best = f"; best so far {study.best_value:g} of trial {study.best_trial.number}" if _complete(study) else ""
    tell(visible(f"trial {trial.number}: {trial.state.name}{value}{best}"))


def _complete(study: Study) -> bool:
    return any(trial.state.name == "COMPLETE" for trial in study.get_trials(deepcopy=False))


def _parameters(params: Mapping[str, Any]) -> str:
    return parameters_in_words(
        {key: f"{value:.6g}" if isinstance(value, float) else str(value) for key, value in params.items()}
    )


def _print_best(study: Study) -> None:
    if not _complete(study):
        return
    best = study.best_trial
    rows = [
        ("job", str(best.user_attrs.get(JOB_KEY, ""))),
        ("value", str(best.value)),
        *((key, str(value)) for key, value in best.params.items()),
    ]
    print_table(("best trial", trial_name(study.study_name, best.number)), rows)


def _as_dict(study: Study) -> dict[str, Any]:
    trials = [_trial_dict(trial) for trial in study.get_trials(deepcopy=False)]
    best = study.best_trial.number if _complete(study) else None
    return {
        "name": study.study_name,
        "direction": study.direction.name.lower(),
        "best": None if best is None else trials[best],
        "trials": trials,
    }


def _trial_dict(trial: FrozenTrial) -> dict[str, Any]:
    return {
        "number": trial.number,
        "state": trial.state.name,
        "value": trial.value if trial.state.name == "COMPLETE" else None,
        "parameters": trial.params,
        "jobId": trial.user_attrs.get(JOB_KEY, ""),
        "reason": trial.user_attrs.get(REASON_KEY, ""),
    }
