"""What a check says of a script. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

NOT_USABLE = frozenset(
    {
        "ends",
        "hangs",
        "fails",
        "no_batch_seen",
        "does_not_resume",
        "weights_not_restored",
        "two_workers",
        "same_samples",
        "not_synchronised",
        "separate_models",
    }
)
"""Findings with which a backend does not fit."""


@dataclass(frozen=True, slots=True)
class ScriptFinding:
    """Something that should be changed.

    Attributes:
        code: A name that does not change between versions.
        what: What was seen.
        change: What to change.
    """

    code: str
    what: str
    change: str


@dataclass(frozen=True, slots=True)
class BackendVerdict:
    """What was found out under one backend.

    Attributes:
        backend: Name of the backend.
        findings: What should be changed.
        answers: What was asked of the script, each with the answer: yes, no, or why it is unknown.
        seconds: What was measured, in seconds, by name.
    """

    backend: str
    findings: tuple[ScriptFinding, ...] = ()
    answers: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def fits(self) -> bool:
        """Whether the script can be trained with this backend, if not as well as it could."""
        return not any(finding.code in NOT_USABLE for finding in self.findings)

    @property
    def unsure(self) -> str:
        """What should be found out before it is relied upon, in words; empty where it is known."""
        if not self.fits or not self.answers.get("resumes", "").startswith("unknown"):
            return ""
        return (
            "not known: whether it goes on after a stop or begins again. Stop it and start it again by hand, or have it"
            " report its position: report(samples, position)"
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one question, and the findings that go with it.

    Attributes:
        text: yes, no, or why it is unknown.
        findings: What should be changed.
    """

    text: str
    findings: tuple[ScriptFinding, ...] = ()

    @property
    def known_bad(self) -> bool:
        """Whether something should be changed."""
        return bool(self.findings)


def unknown(why: str) -> Answer:
    """An answer that is not known."""
    return Answer(f"unknown: {why}")


def no(code: str, what: str, change: str) -> Answer:
    """An answer with one finding."""
    return Answer("no", (ScriptFinding(code, what, change),))


YES = Answer("yes")
