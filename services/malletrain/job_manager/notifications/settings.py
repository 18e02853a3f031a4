"""Settings of notifications. They are the operator's: no job and no caller can set or see them."""

from __future__ import annotations

from pydantic import Field

from malletrain.job_manager.notifications.notices import NoticeKind
from malletrain.runtime.notices.settings import ReceiverSettings


class NotificationSettings(ReceiverSettings):
    """Whom to tell what has become of jobs."""

    events: tuple[NoticeKind, ...] = Field(
        default=(NoticeKind.COMPLETED, NoticeKind.FAILED, NoticeKind.WAITING),
        description="What is told: `completed`, `failed`, `cancelled`, and `waiting`: a job has had no nodes for "
        "`waiting_seconds`.",
    )
    waiting_seconds: float = Field(
        default=3600.0, gt=0, le=1e8, description="After how long without nodes a job is said to be waiting."
    )
