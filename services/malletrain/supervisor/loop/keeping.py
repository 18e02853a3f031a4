"""How a supervisor stays while its job has no nodes, so that the next one costs no start of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Keep:
    """What a stop says of the supervisor itself.

    Attributes:
        seconds: How long it stays without workers.
        sequence: Sequence of the last command about hosts that the stop overrides; 0: the supervisor has stopped by
            itself after a release, and JobManager's stop is still to come.
    """

    seconds: float
    sequence: int = 0

    def shorter(self, other: Keep) -> Keep:
        """What both say together."""
        return Keep(min(self.seconds, other.seconds), max(self.sequence, other.sequence))


@dataclass(frozen=True)
class Keeping:
    """The state. Times are monotonic seconds.

    Attributes:
        keep: What the newest stop asks for; None: to end.
        until: When the supervisor ends if it gets no hosts; None while it has some, or its workers are being ended.
        overtaken: Commands up to this sequence came before a stop, and are not carried out any more.
    """

    keep: Keep | None = None
    until: float | None = None
    overtaken: int = 0

    @property
    def awaits_stop(self) -> bool:
        """Whether no worker is left after a release, and the stop that says what it overtakes has not come."""
        return self.until is not None and self.keep is not None and not self.keep.sequence

    def takes(self, sequence: int) -> bool:
        """Whether a command about hosts with this sequence may be carried out."""
        return sequence > self.overtaken and not self.awaits_stop

    def stop(self, keep: Keep | None, *, under_way: bool) -> Keeping:
        """The state after a stop. Of several that are under way, one that asks for the end holds.

        Args:
            keep: What it asks for.
            under_way: Whether workers are being ended already.
        """
        overtaken = max(self.overtaken, 0 if keep is None else keep.sequence)
        if under_way:
            keep = None if keep is None or self.keep is None else keep.shorter(self.keep)
        return Keeping(keep, None, overtaken)

    def begin(self, now: float) -> Keeping:
        """No worker is left: wait for hosts from now on."""
        return replace(self, until=now + (0.0 if self.keep is None else self.keep.seconds))

    def end(self) -> Keeping:
        """There are hosts again."""
        return replace(self, keep=None, until=None)
