"""The `malletrain` command."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from malletrain.cli.advise import advise
from malletrain.cli.backup import backup
from malletrain.cli.batch import batch
from malletrain.cli.cancel import cancel
from malletrain.cli.curve import curve
from malletrain.cli.debug import debug_app
from malletrain.cli.demo.command import demo
from malletrain.cli.doctor import doctor
from malletrain.cli.drain import drain, resume
from malletrain.cli.health import health
from malletrain.cli.install import install_app
from malletrain.cli.job import job
from malletrain.cli.jobs import jobs
from malletrain.cli.logs import logs
from malletrain.cli.nodes import nodes
from malletrain.cli.pki import pki_app
from malletrain.cli.plan import plan
from malletrain.cli.profile import profile
from malletrain.cli.replay import replay
from malletrain.cli.reproduce import reproduce
from malletrain.cli.restore import restore
from malletrain.cli.serve import serve
from malletrain.cli.shadow import shadow
from malletrain.cli.solve import solve
from malletrain.cli.stubs import ServiceCallError
from malletrain.cli.submit import submit
from malletrain.cli.token import token
from malletrain.cli.trace import trace_app
from malletrain.cli.up import up
from malletrain.common.version import VERSION
from malletrain.runtime.errors import InvalidInputError, MalleTrainError


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"malletrain {VERSION}")
        raise typer.Exit


app = typer.Typer(
    name="malletrain",
    help="Trains neural networks on the nodes that a supercomputer's batch scheduler cannot fill.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and end.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    del version


for command in (
    up,
    serve,
    health,
    submit,
    jobs,
    job,
    logs,
    cancel,
    nodes,
    drain,
    resume,
    plan,
    profile,
    curve,
    solve,
    replay,
    reproduce,
    batch,
    advise,
    doctor,
    shadow,
    token,
    backup,
    restore,
    demo,
):
    app.command()(command)
app.add_typer(trace_app, name="trace")
app.add_typer(pki_app, name="pki")
app.add_typer(install_app, name="install")
app.add_typer(debug_app)


def run() -> None:
    """Run the command. Exit codes: 0 done, 1 failed, 2 wrong use."""
    try:
        app()
    except InvalidInputError as error:
        _end(error, 2)
    except ServiceCallError as error:
        _end(error, 2 if error.wrong_use else 1)
    except MalleTrainError as error:
        _end(error, 1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader of the output has ended, e.g. `malletrain jobs | head`.
        sys.stderr.close()
        sys.exit(1)


def _end(error: MalleTrainError, code: int) -> None:
    typer.echo(f"error: {error}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    run()
