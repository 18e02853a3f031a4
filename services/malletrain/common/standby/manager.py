"""Keeps one standby process ready: starts it, has it fork, replaces it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from malletrain.common import worker_bootstrap
from malletrain.common.accounts import Account
from malletrain.common.backoff import Backoff
from malletrain.common.cgroups import Cgroup
from malletrain.common.standby.child import Order
from malletrain.common.standby.config import StandbyConfig, parse_forkable, same_interpreter, standby_config_for
from malletrain.common.standby.preload import RefusedError, differing_variables
from malletrain.common.standby.process import Phase, StandbyProcess, start_standby

_FIRST_PAUSE_SECONDS = 5.0
_MAX_PAUSE_SECONDS = 600.0
_QUIET_SECONDS = 5.0
_BOOT_SECONDS = 300.0
_MEMORY_SECONDS = 10.0
_PATIENCE_SECONDS = 20.0
"""How long a worker waits for imports: on a busy machine they take longer than these of its own without the others."""
_LOOK_SECONDS = 0.005
_MAX_LEARNED = 256
_OUTPUT = Path("/dev/null")


class StandbyManager:
    """One standby process of one account, or none while none can be had. Use from one thread.

    Workers that it can't fork are started as new interpreters; `fork` says why.

    Attributes:
        config: How it is started; None before the first worker has shown that.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        *,
        memory_bytes: int,
        config: StandbyConfig | None = None,
        account: Account | None = None,
        clock: Callable[[], float] = time.monotonic,
        standby: StandbyProcess | None = None,
        spread: Callable[[StandbyConfig, Sequence[str]], bool] | None = None,
        group: Callable[[], Cgroup | None] = lambda: None,
    ) -> None:
        """Start nothing before `tick`.

        Args:
            say: Called with a line of text about what happens.
            memory_bytes: Its largest share of memory; 0: no standby process is kept.
            config: How to start it; None: as the first worker shows.
            account: As whom it runs; None: as this process.
            clock: Monotonic time in seconds.
            spread: Called with what another standby process needs for a worker that this one can't fork, and with the
                names of variables that differ; says whether somebody keeps that one. Otherwise it takes the place of
                this one.
            group: Returns the cgroup that a standby process joins at its start; None: that of this process.
        """
        self._say = say
        self.config = config
        self._account = account
        self._memory_bytes = memory_bytes
        self._clock = clock
        self._standby = standby
        self._spread = spread
        self._group = group
        self._phase = Phase.ENDED if standby is None else standby.phase
        self._importing_since = clock()
        self._looked = clock()
        self._not_before = 0.0
        self._backoff = Backoff(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
        self._learned: set[tuple[Path, int]] = set()

    @property
    def pid(self) -> int:
        """Process id of the standby process; 0 if there is none."""
        return 0 if self._standby is None else self._standby.pid

    def memory_used(self) -> int:
        """The standby process's share of memory in bytes; 0 if there is none."""
        return 0 if self._standby is None else self._standby.memory_bytes()

    @property
    def is_importing(self) -> bool:
        """Whether there is one that will be ready soon: it imports, and has not done so for long."""
        return self._poll() is Phase.IMPORTING and self._clock() < self._importing_since + _PATIENCE_SECONDS

    def is_worth_waiting(self, command: Sequence[str], folder: str, environment: Mapping[str, str]) -> bool:
        """Whether a worker that is to be started now had better wait: it can be forked soon.

        The first worker of all shows how a standby process is to be started, and the first one of each script what is
        to be imported; both is done then, once rather than in each worker.
        """
        if not self._memory_bytes or (self._standby is None and self._clock() < self._not_before):
            return False
        try:
            parsed, interpreter = parse_forkable(command, folder, environment)
        except RefusedError:
            return False
        if self.config is None:
            self.config = standby_config_for(interpreter, environment)
        config = self.config
        fits = same_interpreter(interpreter, config.interpreter)
        if not fits or differing_variables(environment, config.environment):
            return False
        if self._standby is None:
            self.tick(busy=False)
        if parsed.kind == "script":
            self.learn(Path(folder, parsed.target))
        return self.is_importing

    def learn(self, script: Path, modified_ns: int | None = None) -> None:
        """Have the standby process import what a script imports, if it is ready; each script is learned once.

        It is not ready then until it has.

        Args:
            modified_ns: When it was modified, in nanoseconds since the epoch; None: that is looked at here.
        """
        if self._standby is None or not self.is_ready:
            return
        try:
            learned = script, script.stat().st_mtime_ns if modified_ns is None else modified_ns
        except OSError:
            return  # the worker will say so
        if learned not in self._learned:
            if len(self._learned) >= _MAX_LEARNED:
                self._learned.clear()  # to learn a script once more is quick: it imports nothing then
            self._learned.add(learned)
            self._standby.learn(str(script))
            self._poll()

    @property
    def is_ready(self) -> bool:
        """Whether it would fork now."""
        return self._poll() is Phase.READY

    def tick(self, *, busy: bool) -> None:
        """Look after the standby process; call it several times a second.

        Args:
            busy: Whether workers boot now, which a start would slow down: it waits until five seconds later.
        """
        now = self._clock()
        if busy:
            self._not_before = max(self._not_before, now + _QUIET_SECONDS)
        if self._standby is not None:
            self._look_after(self._standby, now)
        elif self.config is not None and self._memory_bytes and now >= self._not_before:
            self._start(self.config, now)

    def fork(
        self, command: Sequence[str], folder: str, environment: Mapping[str, str], log: int, pipes: tuple[int, ...]
    ) -> int | None:
        """Have a worker forked.

        Args:
            command: The job's command.
            folder: Working directory.
            environment: The whole environment.
            log: Descriptor of the file for its output.
            pipes: Descriptors for `worker_bootstrap`.

        Returns:
            Its process id; None if the worker must be started as a new interpreter.
        """
        if not self._memory_bytes:
            return None
        try:
            parsed, interpreter = parse_forkable(command, folder, environment)
            arguments = ("warm", parsed.kind, parsed.target, *parsed.arguments)
            words = (*parsed.interpreter, worker_bootstrap.__file__, *arguments)
            order = Order(words, parsed.target, parsed.kind, arguments, folder, dict(environment), worker=True)
            standby = self._fitting(order, interpreter)
            try:
                return standby.fork(order, log, pipes, self._account)
            except RefusedError as error:
                self._take_refusal(standby, order, error)
                raise
        except RefusedError as error:
            self._say(f"a worker is started as a new interpreter: {error}")
            return None

    async def fork_module(
        self,
        interpreter: str,
        module: str,
        arguments: Sequence[str],
        folder: str,
        environment: Mapping[str, str],
        log: int,
        group: Cgroup | None = None,
    ) -> int | None:
        """Have a process forked that runs a module, goes on after this process, and gets a standby process of its own.

        Others may use this manager meanwhile, but have nothing forked.

        Returns:
            Its process id; None if it must be started as a new interpreter.
        """
        if not self._memory_bytes:
            return None
        words = (interpreter, "-m", module, *arguments)
        cgroup = "" if group is None else group.processes_file
        order = Order(words, module, "module", tuple(arguments), folder, dict(environment), worker=False, cgroup=cgroup)
        try:
            standby = self._fitting(order, interpreter)
            try:
                standby.ask(order, log, (), self._account)
                while (pid := standby.answer()) is None:
                    await asyncio.sleep(_LOOK_SECONDS)
            except RefusedError as error:
                self._take_refusal(standby, order, error)
                raise
        except RefusedError as error:
            self._say(f"{module} is started as a new interpreter: {error}")
            return None
        return pid

    def kill(self) -> None:
        """Kill the standby process without waiting for its end; `close` follows. None is started any more."""
        self._memory_bytes = 0
        if self._standby is not None:
            self._standby.kill()

    def close(self) -> None:
        """End the standby process. None is started any more."""
        self._memory_bytes = 0
        self._end()

    def _poll(self) -> Phase:
        """What the standby process does; notes what it has begun or finished."""
        if self._standby is None:
            return Phase.ENDED
        before, self._phase = self._phase, self._standby.poll()
        if before is Phase.READY and self._phase is Phase.IMPORTING:
            self._importing_since = self._clock()
        elif before is Phase.IMPORTING and self._phase is Phase.READY:
            self._say(f"standby process {self._standby.pid} is ready")
        return self._phase

    def _fitting(self, order: Order, interpreter: str) -> StandbyProcess:
        """The standby process, which has the order's interpreter and is ready.

        Raises:
            RefusedError: there is none.
        """
        if self.config is None:
            self.config = standby_config_for(interpreter, order.environment)
        if not same_interpreter(interpreter, self.config.interpreter):
            self._other(standby_config_for(interpreter, order.environment), ())
            raise RefusedError(f"its interpreter is {interpreter}")
        if self._standby is None or not self.is_ready:
            raise RefusedError("no standby process is ready")
        return self._standby

    def _take_refusal(self, standby: StandbyProcess, order: Order, error: RefusedError) -> None:
        if standby is not self._standby or self.config is None:
            return  # it has been replaced meanwhile
        if error.names:
            self._other(self.config.like(order.environment, error.names), error.names)
        elif error.final:
            self._note_failure(str(error), self._clock())

    def _other(self, config: StandbyConfig, names: Sequence[str]) -> None:
        """A worker needs another config: use that from now on, unless somebody else does."""
        if self._spread is None or not self._spread(config, names):
            self.config = config
            self._end()

    def _start(self, config: StandbyConfig, now: float) -> None:
        try:
            self._standby = start_standby(
                config.interpreter,
                config.environment,
                config.modules,
                config.barred,
                _OUTPUT,
                self._account,
                self._group(),
            )
        except OSError as error:
            self._note_failure(f"can't be started: {error}", now)
        else:
            self._phase = Phase.IMPORTING
            self._importing_since = self._looked = now
            self._learned.clear()

    def _look_after(self, standby: StandbyProcess, now: float) -> None:
        phase = self._poll()
        if phase is Phase.ENDED:
            if standby.importing and self.config is not None:
                self.config = self.config.without(standby.importing)
            self._note_failure(standby.refusal or "it has ended", now)
        elif phase is Phase.IMPORTING:
            if now - self._importing_since > _BOOT_SECONDS:
                self._note_failure(f"{standby.importing or 'its start'} takes too long", now)
        elif now - self._looked >= _MEMORY_SECONDS:
            self._looked = now
            self._backoff.succeed()
            if (used := standby.memory_bytes()) > self._memory_bytes:
                self._note_failure(f"it takes {used >> 20} MiB, more than {self._memory_bytes >> 20} MiB", now)

    def _note_failure(self, reason: str, now: float) -> None:
        pause = self._backoff.fail()
        self._say(f"no standby process for {pause:g} s: {reason}")
        self._end()
        self._not_before = now + pause

    def _end(self) -> None:
        if self._standby is not None:
            self._standby.close()
            self._standby = None
