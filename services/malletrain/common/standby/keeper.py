"""Keeps one standby process ready: starts it, has it fork, replaces it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from malletrain.common import worker_bootstrap
from malletrain.common.accounts import Account
from malletrain.common.standby.child import Order
from malletrain.common.standby.preload import RefusedError
from malletrain.common.standby.process import Phase, StandbyProcess, start_standby
from malletrain.common.standby.recipe import Recipe, parse_forkable, recipe_for, same_interpreter

DEFAULT_MEMORY_BYTES = 2 << 30
_FIRST_PAUSE_SECONDS = 5.0
_LONGEST_PAUSE_SECONDS = 600.0
_QUIET_SECONDS = 5.0
_BOOT_SECONDS = 300.0
_MEMORY_SECONDS = 10.0
_OUTPUT = Path("/dev/null")


class StandbyKeeper:
    """One standby process of one account, or none while none can be had. Use from one thread.

    Workers that it can't fork are started as new interpreters; `fork` says why.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        *,
        recipe: Recipe | None = None,
        account: Account | None = None,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        clock: Callable[[], float] = time.monotonic,
        standby: StandbyProcess | None = None,
    ) -> None:
        """Start nothing before `tick`.

        Args:
            say: Called with a line of text about what happens.
            recipe: How to start it; None: as the first worker shows.
            account: As whom it runs; None: as this process.
            memory_bytes: Its largest share of memory; 0: no standby process is kept.
            clock: Monotonic time in seconds.
            standby: One that there is already.
        """
        self._say = say
        self._recipe = recipe
        self._account = account
        self._memory_bytes = memory_bytes
        self._clock = clock
        self._standby = standby
        self._started = clock()
        self._looked = clock()
        self._not_before = 0.0
        self._pause = _FIRST_PAUSE_SECONDS
        self._learned: set[str] = set()

    @property
    def pid(self) -> int:
        """Process id of the standby process; 0 if there is none."""
        return 0 if self._standby is None else self._standby.pid

    @property
    def is_importing(self) -> bool:
        """Whether there is one that will be ready soon."""
        return self._standby is not None and self._standby.poll() is Phase.IMPORTING

    def learn(self, script: str) -> None:
        """Have the standby process import what a script imports, if it is ready; each script is learned once."""
        if self._standby is not None and script not in self._learned and self.is_ready:
            self._learned.add(script)
            self._standby.learn([script])

    @property
    def is_ready(self) -> bool:
        """Whether it would fork now."""
        return self._standby is not None and self._standby.poll() is Phase.READY

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
        elif self._recipe is not None and self._memory_bytes and now >= self._not_before:
            self._start(self._recipe, now)

    def fork(
        self, command: Sequence[str], folder: str, environment: Mapping[str, str], log: int, pipes: tuple[int, int]
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
            return self._ask(order, interpreter, log, pipes)
        except RefusedError as error:
            self._say(f"a worker is started as a new interpreter: {error}")
            return None

    def fork_module(
        self,
        interpreter: str,
        module: str,
        arguments: Sequence[str],
        folder: str,
        environment: Mapping[str, str],
        log: int,
    ) -> int | None:
        """Have a process forked that runs a module, goes on after this process, and gets a standby process of its own.

        Returns:
            Its process id; None if it must be started as a new interpreter.
        """
        if not self._memory_bytes:
            return None
        words = (interpreter, "-m", module, *arguments)
        order = Order(words, module, "module", tuple(arguments), folder, dict(environment), worker=False)
        try:
            return self._ask(order, interpreter, log, ())
        except RefusedError as error:
            self._say(f"{module} is started as a new interpreter: {error}")
            return None

    def kill(self) -> None:
        """Kill the standby process without waiting for its end; `close` follows. None is started any more."""
        self._memory_bytes = 0
        if self._standby is not None:
            self._standby.kill()

    def close(self) -> None:
        """End the standby process. None is started any more."""
        self._memory_bytes = 0
        self._end()

    def _ask(self, order: Order, interpreter: str, log: int, pipes: Sequence[int]) -> int:
        if self._recipe is None:
            self._recipe = recipe_for(interpreter, order.environment)
        if not same_interpreter(interpreter, self._recipe.interpreter):
            self._replace(recipe_for(interpreter, order.environment))
            raise RefusedError(f"its interpreter is {interpreter}")
        if self._standby is None or not self.is_ready:
            raise RefusedError("no standby process is ready")
        try:
            return self._standby.fork(order, log, pipes, self._account)
        except RefusedError as error:
            if error.names:
                self._replace(self._recipe.like(order.environment, error.names))
            elif error.final:
                self._note_failure(str(error), self._clock())
            raise

    def _replace(self, recipe: Recipe) -> None:
        """Use another recipe from now on."""
        self._recipe = recipe
        self._end()

    def _start(self, recipe: Recipe, now: float) -> None:
        try:
            self._standby = start_standby(
                recipe.interpreter, recipe.environment, recipe.modules, recipe.barred, _OUTPUT, self._account
            )
        except OSError as error:
            self._note_failure(f"can't be started: {error}", now)
        else:
            self._started = self._looked = now
            self._learned.clear()

    def _look_after(self, standby: StandbyProcess, now: float) -> None:
        before, phase = standby.phase, standby.poll()
        if before is Phase.IMPORTING and phase is Phase.READY:
            self._say(f"standby process {standby.pid} is ready")
        if phase is Phase.ENDED:
            if standby.importing and self._recipe is not None:
                self._recipe = self._recipe.without(standby.importing)
            self._note_failure(standby.refusal or "it has ended", now)
        elif phase is Phase.IMPORTING:
            if now - self._started > _BOOT_SECONDS:
                self._note_failure(f"{standby.importing or 'its start'} takes too long", now)
        elif now - self._looked >= _MEMORY_SECONDS:
            self._looked, self._pause = now, _FIRST_PAUSE_SECONDS
            if (used := standby.memory_bytes()) > self._memory_bytes:
                self._note_failure(f"it takes {used >> 20} MiB, more than {self._memory_bytes >> 20} MiB", now)

    def _note_failure(self, reason: str, now: float) -> None:
        self._say(f"no standby process for {self._pause:g} s: {reason}")
        self._end()
        self._not_before = now + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)

    def _end(self) -> None:
        if self._standby is not None:
            self._standby.close()
            self._standby = None
