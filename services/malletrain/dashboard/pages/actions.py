"""What viewers may do from a page: cancel a job, drain a node, resume it. Pure.

Each is opened, and then confirmed with the viewer's token.
The services check again who asks, and write it to their audit logs: what is offered here is only what they would allow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from markupsafe import Markup

from malletrain.observer.job_facts import JobFact

MAX_REASON_LENGTH = 500
MAX_TOKEN_LENGTH = 4096
_OPERATORS = ("operator", "service")


@dataclass(frozen=True)
class Action:
    """Something that a viewer may do.

    Attributes:
        name: What it is called in the address: `cancel`, `drain` or `resume`.
        opens: What is pressed first.
        means: What will happen, for people.
        confirms: What is pressed then.
        values: What is sent: `job` or `node`, and the address of the page.
        with_reason: Whether a reason may be given.
    """

    name: str
    opens: str
    means: str
    confirms: str
    values: Mapping[str, str] = field(default_factory=dict)
    with_reason: bool = False


def job_actions(user: str, role: str, job: JobFact | None) -> tuple[Action, ...]:
    """What a viewer may do with a job.

    Args:
        user: Who looks at the page.
        role: Role of the viewer's token; with that of a viewer, nothing may be done.
        job: The job; None: it is not known.
    """
    may = job is not None and (role in _OPERATORS or (role == "user" and user == job.owner))
    if job is None or job.final or not may:
        return ()
    means = f"{job.id} {job.name} of {job.owner} ends now. Its checkpoints stay in its folder; it can't be taken back."
    return (Action("cancel", "Cancel this job …", means, f"Cancel {job.id}", {"job": job.id}),)


def node_actions(role: str, node: str, *, left_out: bool) -> tuple[Action, ...]:
    """What a viewer may do with a node.

    Args:
        role: Role of the viewer's token.
        node: Name of the node; empty: none is chosen.
        left_out: Whether it is drained or quarantined.
    """
    if role not in _OPERATORS or not node:
        return ()
    if left_out:
        means = f"{node} may be used again, if it is idle."
        return (Action("resume", f"Resume {node} …", means, f"Resume {node}", {"node": node}),)
    means = f"{node} is given back now, and is not used until it is resumed. The job on it goes on elsewhere, or waits."
    return (Action("drain", f"Drain {node} …", means, f"Drain {node}", {"node": node}, with_reason=True),)


_REASON = Markup(
    '<label>Why <input name="reason" maxlength="{}" autocomplete="off"></label>'  # a text for people
).format(MAX_REASON_LENGTH)
# A cookie alone does nothing: who has stolen one, as another account of this machine may, does not know the token.
_TOKEN = Markup(
    '<label>Your token <input name="token" type="password" maxlength="{}" autocomplete="off" required></label>'
).format(MAX_TOKEN_LENGTH)
_SHAPE = Markup(
    '<details class="action"><summary>{opens}</summary><p>{means}</p>'
    '<form method="post" action="/act/{name}">{hidden}{reason}{token}'
    '<button type="submit">{confirms}</button></form></details>'
)
_HIDDEN = Markup('<input type="hidden" name="{}" value="{}">')


def actions_html(actions: tuple[Action, ...]) -> str:
    """The actions as HTML; empty where there are none."""
    forms = (
        _SHAPE.format(
            opens=action.opens,
            means=action.means,
            name=action.name,
            hidden=Markup("").join(_HIDDEN.format(*entry) for entry in action.values.items()),
            reason=_REASON if action.with_reason else "",
            token=_TOKEN,
            confirms=action.confirms,
        )
        for action in actions
    )
    return str(Markup("").join(forms))
