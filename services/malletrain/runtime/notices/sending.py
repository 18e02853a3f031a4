"""Sends a notice again and again, with pauses, until that succeeds, makes no sense, or is too late."""

from __future__ import annotations

import asyncio
from typing import Any

from malletrain.common.backoff import Backoff
from malletrain.runtime.clock import Clock
from malletrain.runtime.notices.delivery import CommandDelivery, Deliver, NoticeOutcome, WebhookDelivery
from malletrain.runtime.notices.settings import ReceiverSettings


def receivers(settings: ReceiverSettings, section: str) -> dict[str, Deliver]:
    """What delivers notices to each receiver that is set, by its name.

    Args:
        settings: The settings.
        section: Their section, for errors.

    Raises:
        InvalidInputError: a receiver can't be used.
    """
    found: dict[str, Deliver] = {}
    if settings.webhook_file is not None:
        found["webhook"] = WebhookDelivery(settings.webhook_file, settings.timeout_seconds, section)
    if settings.command:
        found["command"] = CommandDelivery(settings.command, settings.timeout_seconds, section)
    return found


async def send(notice: str, deliver: Deliver, settings: ReceiverSettings, clock: Clock, log: Any) -> bool:
    """Deliver a notice, or give it up.

    Args:
        notice: JSON.
        deliver: Delivers it.
        settings: How often it is tried, and for how long.
        clock: Clock.
        log: Bound to what the notice is about.

    Returns:
        Whether it was delivered.
    """
    begin, attempts = clock.monotonic(), 0
    backoff = Backoff(settings.retry_seconds, settings.retry_max_seconds)
    while True:
        attempts += 1
        pause = backoff.fail()
        outcome, reason = await deliver(notice)
        late = clock.monotonic() - begin + pause > settings.give_up_seconds
        if outcome is NoticeOutcome.DELIVERED:
            log.info("notification delivered", attempts=attempts)
            return True
        if outcome is NoticeOutcome.REFUSED or late:
            log.error("notification given up", reason=reason)
            return False
        log.warning("notification delayed", reason=reason, pause_seconds=pause)
        await asyncio.sleep(pause)
