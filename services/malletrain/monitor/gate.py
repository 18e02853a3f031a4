"""Letting trainers on other nodes through to Monitor, which itself listens on loopback."""

from __future__ import annotations

import asyncio

import structlog

from malletrain.agent.relay import keep_gate
from malletrain.runtime.config import Settings
from malletrain.runtime.token import installation_token

_RETRY_SECONDS = 5.0


class Gate:
    """Lets those through that have the installation's token."""

    def __init__(self, settings: Settings) -> None:
        """Read the token, or make it; nothing is listened on where `addresses.monitor_gate` is empty.

        Raises:
            InvalidInputError: the token can't be made, or used.
        """
        self._address = settings.addresses.monitor_gate
        self._target = settings.addresses.monitor
        self._token = installation_token(settings.state_dir) if self._address else b""

    async def run(self) -> None:
        """Let them through, until cancelled; tries again where the address can't be had."""
        log = structlog.get_logger(__name__)
        while self._address:
            try:
                log.info("gate", address=self._address)
                await keep_gate(
                    self._address, self._token, self._target, lambda why: log.warning("not let through", error=why)
                )
            except OSError as error:
                log.warning("addresses.monitor_gate can't be listened on", address=self._address, error=str(error))
            await asyncio.sleep(_RETRY_SECONDS)
