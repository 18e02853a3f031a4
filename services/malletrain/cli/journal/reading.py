"""Reads the past of an installation: from a state folder, or from its running services."""

from __future__ import annotations

import grpc

from malletrain.caller.credentials import caller_credential
from malletrain.cli.journal.live import LIVE, read_live
from malletrain.cli.journal.stored import read_stored
from malletrain.cli.shared.stubs import ServiceStubs, explain
from malletrain.runtime.access.credentials import Credential
from malletrain.runtime.config import Settings
from malletrain.runtime.errors import InvalidInputError, MalleTrainError
from malletrain.simulator.journal.record import Journal


def read_journal(place: str, settings: Settings) -> Journal:
    """The past of an installation.

    Args:
        place: Its state folder, or `live`: the services of the settings. Databases on PostgreSQL are read if the folder
            is that of the settings.
        settings: Settings that are in force here.

    Raises:
        InvalidInputError: it is no state folder, or there is nothing in it that could be replayed.
        SchemaVersionError: a later version wrote it.
        MalleTrainError: a database can't be read, a restore was interrupted, or a service does not answer.
    """
    if place != LIVE:
        return read_stored(place, settings)
    return read_from_services(settings, caller_credential(settings))


def read_from_services(settings: Settings, credential: Credential) -> Journal:
    """The past of a running installation.

    Args:
        settings: Where its services are.
        credential: What is shown to them.

    Raises:
        InvalidInputError: there is nothing in it that could be replayed.
        MalleTrainError: a service does not answer, or is of a later version.
    """
    stubs = ServiceStubs(settings, credential)
    try:
        return read_live(stubs)
    except grpc.RpcError as error:
        raise explain(error) from error
    except InvalidInputError:
        raise
    except ValueError as error:
        raise MalleTrainError(f"the services tell what this version does not know: {error}") from error
    finally:
        stubs.close()
