"""Settings of notices of nodes."""

from __future__ import annotations

from pydantic import Field

from malletrain.runtime.notices.settings import ReceiverSettings
from malletrain.scavenger.notifications.notices import NodeNoticeKind


class NodeNotificationSettings(ReceiverSettings):
    """Whom to tell of nodes that are not well."""

    events: tuple[NodeNoticeKind, ...] = Field(
        default=tuple(NodeNoticeKind),
        description="What is told: `quarantined`: work keeps failing on a node; `check-failed`: it has failed the "
        "check before its first worker; `slow`: it counts as slow; `called-slow`: jobs of one owner say that it is.",
    )
    repeat_seconds: float = Field(
        default=6 * 3600.0,
        ge=60,
        le=1e8,
        description="For so long the same is not told again of the same node.",
    )
