"""`malletrain dashboard`: the page in the browser, and how one that runs tells its own account a new link.

It does so on a Unix socket that no other account can reach. Nothing secret is sent there: whoever asks says nothing,
and both sides check the account of the other.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import grpc
import typer

from malletrain.caller.credentials import caller_credential, forget_token
from malletrain.cli.shared.configured import ConfigOption
from malletrain.cli.shared.settings import AllSettings, load
from malletrain.client.feeding.private_folder import PrivateFolder, check_peer
from malletrain.common.addresses import is_loopback
from malletrain.dashboard.one_time_links import LIFESPAN_S
from malletrain.runtime.access.credentials import Credential
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.errors import InvalidInputError, MalleTrainError
from malletrain.runtime.logs import configure_logging
from malletrain.runtime.watchdog import BUSY_FACTOR, LoopWatchdog, keep_telling, watchdog_for

_DEFAULT = "127.0.0.1:7706"
_REPLAYING = (sys.executable, "-P", "-m", "malletrain.cli.journal.what_if")


def dashboard(
    address: Annotated[
        str, typer.Option(help="HOST:PORT to listen on. Off loopback a certificate is needed.")
    ] = _DEFAULT,
    name: Annotated[
        list[str] | None, typer.Option(help="Name by which browsers reach it, if not as localhost. May be repeated.")
    ] = None,
    certificate: Annotated[Path | None, typer.Option(help="Certificate for HTTPS, PEM.")] = None,
    key: Annotated[Path | None, typer.Option(help="Its private key, PEM.")] = None,
    config: ConfigOption = None,
    link: Annotated[
        bool, typer.Option("--link", help="Print a new link to your dashboard with this --address, and end.")
    ] = False,
) -> None:
    """Serve pages that show nodes, jobs and plans live in a browser, until Ctrl-C. Needs malletrain\\[dashboard]."""
    if link:
        _print_new_link(*_parse_address(address))
        return
    if find_spec("bokeh") is None:
        raise InvalidInputError("dashboard", "Bokeh, which is not installed: pip install 'malletrain[dashboard]'")
    host, port = _parse_address(address)
    tls = _tls(address, certificate, key)
    settings = load(config)
    configure_logging("dashboard", settings.log_level)
    credential = caller_credential(settings)
    forget_token()
    watchdog = watchdog_for(os.environ, BUSY_FACTOR * settings.hang_seconds)
    asyncio.run(_serve(settings, config, credential, host, port, tuple(name or ()), tls, watchdog))


def _parse_address(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= 65535:
        raise InvalidInputError("--address", "HOST:PORT", address)
    return host.strip("[]"), int(port)


def _tls(address: str, certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if certificate is None:
        if not is_loopback(address):
            raise InvalidInputError("--certificate", "a certificate, since the address is not on loopback", None)
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise InvalidInputError("--certificate", f"a certificate with its key ({error})", str(certificate)) from error
    return context


async def _serve(
    settings: AllSettings,
    config: Path | None,
    credential: Credential,
    host: str,
    port: int,
    names: tuple[str, ...],
    tls: ssl.SSLContext | None,
    watchdog: LoopWatchdog,
) -> None:
    from malletrain.dashboard.pages.what_if import WhatIf
    from malletrain.dashboard.replays import Replays
    from malletrain.dashboard.server.server import Dashboard
    from malletrain.observer.watching import Watcher

    watcher = Watcher(settings, credential, SystemClock())
    allocator = settings.allocator
    present = WhatIf(
        forward_s=allocator.forward_seconds,
        forward_policy=allocator.forward_policy.value,
        max_parallel=settings.job_manager.max_parallel,
    )
    file = str(config.resolve()) if config is not None else None
    replays = Replays(_REPLAYING, credential.token, file, present, watcher.now, watcher.changed.set)
    try:
        server = Dashboard(watcher, replays, host, port, names, tls)
    except OSError as error:
        expected = f"an address that one can listen on ({error.strerror})"
        raise InvalidInputError("--address", expected, f"{host}:{port}") from error
    base = f"{'https' if tls else 'http'}://{names[0] if names else host}:{port}"

    async def new_link() -> str:
        """A link for whoever started the dashboard; empty where there is no token now."""
        try:
            token = await asyncio.to_thread(credential.token)  # it may ask munged and JobManager
        except (MalleTrainError, grpc.RpcError):
            return ""
        return f"{base}/login?once={server.context.links.new(token)}" if token else ""

    async with AsyncExitStack() as stack:
        parts = [watcher.run(), server.run()]
        try:
            parts.append(tell_links(stack.enter_context(listening(links_folder(), host, port)), new_link))
        except OSError as error:
            typer.echo(f"no links later (--link): {error}", err=True)
        _announce(base, host, port, await new_link() if may_print_link() else "")
        watchdog.serving()
        stack.callback(watchdog.stopping)
        await _until_signal(parts, watchdog)


def _announce(base: str, host: str, port: int, link: str) -> None:
    """Say where the pages are. A link that lets in comes to terminals only: else it would be in a log."""
    if link:
        typer.echo(link)
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        another = "malletrain dashboard --link" + (f" --address {address}" if address != _DEFAULT else "")
        typer.echo(f"lets in one browser, as you, within {LIFESPAN_S / 60:g} minutes; another: {another}")
        typer.echo()
        typer.echo("for others:")
    typer.echo(f"{base}/login?token=TOKEN")
    typer.echo("TOKEN: malletrain token --user NAME --role viewer --lifespan 12h")
    if base.startswith("http:"):
        typer.echo(f"from elsewhere: ssh -L {port}:127.0.0.1:{port} {socket.gethostname()}")


def _print_new_link(host: str, port: int) -> None:
    if not may_print_link():
        raise InvalidInputError("--link", "a terminal to print on: a link lets in whoever has it")
    try:
        link = ask_for_link(links_folder(), host, port)
    except OSError as error:
        raise MalleTrainError(f"the dashboard on {host}:{port} gives no link: {error}") from error
    if link is None:
        raise MalleTrainError(
            f"no dashboard of yours that was started here listens on {host}:{port}, or the services know no token of "
            "yours: `malletrain dashboard`, or the --address that it was started with"
        )
    typer.echo(link)


async def _until_signal(serving: Sequence[Coroutine[Any, Any, object]], watchdog: LoopWatchdog) -> None:
    """Follow and serve until SIGINT or SIGTERM."""
    loop, ending = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ending.set)
    parts: list[Coroutine[Any, Any, object]] = [*serving, keep_telling(watchdog), ending.wait()]
    tasks = [asyncio.create_task(part) for part in parts]
    done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    for task in done:
        task.result()


_MAX_BYTES = 4096
_SECONDS = 30.0
"""How long a dashboard may take to answer; it may have to ask JobManager for a token first."""
_PAUSE_S = 1.0


def links_folder() -> Path:
    """The folder of this account's sockets. Not TMPDIR, which may be another one in each session."""
    return Path(f"/tmp/malletrain-dashboard-{os.geteuid()}")


def may_print_link() -> bool:
    """Whether standard output is a terminal itself: TTY_COMPATIBLE=1 is for colours, and a log may be behind it."""
    return sys.stdout.isatty()


def _name_of(host: str, port: int) -> str:
    """Name of a dashboard's socket. The folder may be that of several machines or containers, each with such a port."""
    try:
        network = Path("/proc/self/ns/net").stat().st_ino
    except OSError:
        network = 0
    place = f"{socket.gethostname()}\0{network}\0{host}"
    return f"{port}-{hashlib.sha256(place.encode()).hexdigest()[:16]}"  # short enough for a socket


@contextmanager
def listening(folder: Path, host: str, port: int) -> Iterator[socket.socket]:
    """Listen for questions while the context lasts.

    Args:
        folder: As `links_folder`.
        host: Address on which the dashboard listens.

    Raises:
        OSError: one can't listen there; PermissionError: others could enter the folder.
    """
    private, name = PrivateFolder(folder), _name_of(host, port)
    try:
        with private.listen(name) as listener:
            made = private.file_id(name)
            try:
                listener.setblocking(False)
                yield listener
            finally:
                # Before it is closed: then no other socket can have its number. Another dashboard's is left alone.
                if made is not None and private.file_id(name) == made:
                    private.remove(name)
    finally:
        private.close()


async def tell_links(listener: socket.socket, new_link: Callable[[], Awaitable[str]]) -> None:
    """Answer each connection with a new link, until cancelled.

    Args:
        listener: As `listening` gives it.
        new_link: Makes a link; empty where there can be none now.
    """
    loop = asyncio.get_running_loop()
    while True:
        try:
            connection, _ = await loop.sock_accept(listener)
            with connection:
                connection.setblocking(False)
                check_peer(connection)
                await loop.sock_sendall(connection, (await new_link()).encode())
        except OSError:  # another account, one that has gone, or no descriptors are left now
            await asyncio.sleep(_PAUSE_S)


def ask_for_link(folder: Path, host: str, port: int) -> str | None:
    """A new link of the dashboard of this account at an address; None: none runs there, or it has no token now.

    Args:
        folder: As `links_folder`.
        host: Address on which the dashboard listens.

    Raises:
        OSError: it does not answer; PermissionError: another account listens, or could enter the folder.
    """
    private = PrivateFolder(folder)
    try:
        connection = private.connect(_name_of(host, port))
        if connection is None:
            return None
        with connection:
            connection.settimeout(_SECONDS)
            return connection.recv(_MAX_BYTES).decode("ascii", "replace") or None
    finally:
        private.close()
