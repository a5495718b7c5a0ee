"""The programs of a launch in turns, as a GPU may run them: some at once, the others when there is room.

A program that asks the memory what others did, by the result of an atomic operation, finds another answer where they
run at once. So programs give way to each other at their atomic operations, by chance; and where one waits for another
(a spin loop), that one runs.

Each program under way has a thread of its own, of which one holds the baton: never do two of them run.
"""

from __future__ import annotations

import contextvars
import ctypes
import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from triton.runtime import interpreter as engine

from assay.kernels.inside.triton.ledger import PausedError, WrongValueError, current, refuse

MOST_AT_ONCE = 16
"""Programs that have begun and are not over; further ones wait until one of them is."""
CROWD = 128
"""The same in a crowd, in which as many begin as can before one of them goes on after its first atomic operation."""
SHUFFLED = 0.3
"""The chance that programs begin in random order."""
MOST_IDLE = 256
"""Once all programs under way have asked the same so many times, on average, they wait for ever."""
MOST_ASKED = 32
"""An operation on more elements is a sum, not a question."""
MANNERS = ((0.0, 0.1), (0.0, 0.5), (0.5, 0.2), (0.8, 1.0))
"""The chance that a program goes on at an atomic operation, and the chance that one that does not sleeps for long, so
that others come between its operations in number."""
PATIENCE = (16, 2000)
"""How often programs that wait ask again before another one runs, in launches in which one is slow: on a GPU all that
others compute meanwhile takes time."""
SLOW = 0.75
"""The chance of such a launch."""
MOST_WAITED_S = 0.06
"""CPU seconds in a launch after which nobody asks in vain any more."""
PATIENCE_OF_WAITERS, SLOW_OF_WAITERS = (128, 4000), 0.95
"""The same of a kernel whose programs have been seen to wait. They begin in random order, so that more of them do."""
LONG_TURN = 1024
"""After so many atomic operations a program gives way in any case."""
_STACK, _STACK_IN_A_CROWD = 4 << 20, 1 << 20
_ARENA_MAX = -8
"""Of mallopt(3)."""
_FOR_EVER = (
    "{0}() waits for ever: its programs that have begun ask by the same atomic operations again and again, and none "
    "changes what they find. {1} of {2} have not begun: a GPU starts a program once there is room for it, and here "
    "{3} run at once"
)

Place = tuple[int, Any]
"""The number of a program, and its place in the grid."""


class _OverError(BaseException):
    """The launch is over: another program of it raised."""


class _Program:
    """One that is under way."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.baton = threading.Semaphore(0)
        self.kept: Any = None
        """What the observer knows of it, and what the ledger notes of the access under way."""
        self.asked: Any = None
        self.has_asked = False
        self.asleep = False
        """Whether it goes on only once one waits for it, or none is awake."""
        self.turn = 0
        """Atomic operations since it last got the baton."""


class Turns:
    """How the programs of a launch take turns, and those that are under way."""

    def __init__(
        self, chance: random.Random, alone: bool, crowd: bool = False, waiters: set[str] | None = None
    ) -> None:
        """`alone`: another program runs only where one waits for it. `crowd`: all programs begin at once. `waiters`:
        names of kernels whose programs waited in earlier launches; those that do here are added."""
        self._chance, self._alone = chance, alone
        self._waiters = waiters if waiters is not None else set()
        self._stays, self._naps = (1.0, 0.0) if alone else chance.choice(MANNERS)
        self._crowd, self._most = crowd, CROWD if crowd else MOST_AT_ONCE
        self.under_way = False

    def run(self, name: str, places: Sequence[Place], function: Callable[[Place], None]) -> None:
        """Run all programs of a launch. `function`: runs one.

        Raises:
            Exception: the first that a program raises.
        """
        self._name, self._function, self._knows = name, function, name in self._waiters
        self._waiting, self._count = list(reversed(places if self._alone else self._ordered(places))), len(places)
        self._live: list[_Program] = []
        self._error: BaseException | None = None
        self._idle, self._patient = 0, False
        self._patience, self._ends = self._drawn_patience(), math.inf
        self._done = threading.Semaphore(0)
        _allow_threads(_STACK_IN_A_CROWD if self._crowd else _STACK)
        self.under_way = True
        try:
            if places:
                self._start()
                self._done.acquire()
        finally:
            self.under_way = False
        if self._error is not None:
            raise self._error

    def _drawn_patience(self) -> int:
        chance, between = (SLOW_OF_WAITERS, PATIENCE_OF_WAITERS) if self._knows else (SLOW, PATIENCE)
        if self._alone or self._chance.random() >= chance:
            return 0
        return int(math.exp(self._chance.uniform(*map(math.log, between))))

    def _has_time(self) -> bool:
        """Whether programs may wait on: some do ever more between two questions."""
        now = time.process_time()
        self._ends = min(self._ends, now + MOST_WAITED_S)
        return now < self._ends

    def _ordered(self, places: Sequence[Place]) -> Sequence[Place]:
        """The order in which programs begin: often neighbours along an axis of the grid, which share more."""
        if self._knows or self._chance.random() < SHUFFLED:
            return places
        axes, sign = self._chance.sample(range(3), 3), self._chance.choice((1, -1))
        return sorted(places, key=lambda place: [sign * place[1][axis] for axis in axes])

    def give_way(self) -> None:
        """Before and after an atomic operation: perhaps another program runs now."""
        if not self.under_way:
            return
        self._me.turn += 1
        if self._patient or (self._crowd and not self._me.has_asked):
            return
        if self._chance.random() >= self._stays or self._me.turn >= LONG_TURN:
            self._to_another(others_only=False)

    def _gathers(self) -> bool:
        """Whether further programs are to begin before those that have begun go on."""
        return self._crowd and self._begins()

    def _begins(self) -> bool:
        return bool(self._waiting) and len(self._live) < self._most

    def found(self, pointers: Any, data: Any) -> None:
        """After an atomic operation: what it found. Where that is what the program found there just before, it waits
        for another one."""
        if not self.under_way:
            return
        asked = (pointers.tobytes(), data.tobytes()) if pointers.size <= MOST_ASKED else None
        waits = asked is not None and asked == self._me.asked
        if waits:
            self._waiters.add(self._name)
        self._patient = waits and self._patience > 0 and self._has_time()
        if self._patient:
            self._patience -= 1
            return
        self._me.asked, self._me.has_asked = asked, True
        if not waits:
            self._idle = 0
        if self._gathers():
            self._to_another(others_only=True)
            return
        if not waits:
            self.give_way()
            return
        self._idle += 1
        if self._idle > MOST_IDLE * len(self._live):
            text = _FOR_EVER.format(self._name, len(self._waiting), self._count, self._most)
            refuse(WrongValueError(text))
        self._to_another(others_only=True)

    def goes_on(self) -> None:
        """A program does something else than to ask."""
        self._idle = 0

    def _to_another(self, others_only: bool) -> None:
        """Hand the baton to a program of chance, perhaps to one that has yet to begin, and wait to get it back."""
        me = self._me
        others = [each for each in self._live if each is not me] if others_only else self._awake()
        begins = self._begins()
        number = self._chance.randrange(len(others) + begins) if others or begins else -1
        number = len(others) if self._gathers() else number
        if number < 0 or (number < len(others) and others[number] is me):
            return
        me.kept, me.asleep = _kept(), self._chance.random() < self._naps
        if number < len(others):
            self._hand(others[number])
        else:
            self._start()
        me.baton.acquire()
        if self._error is not None:
            raise _OverError
        self._take(me)

    def _awake(self) -> list[_Program]:
        """The programs under way that may go on; once all sleep, they wake."""
        found = [each for each in self._live if not each.asleep]
        if not found:
            found = self._live
            for each in found:
                each.asleep = False
        return found

    def _hand(self, other: _Program) -> None:
        other.asleep = False
        other.baton.release()

    def _take(self, me: _Program) -> None:
        self._me, me.turn = me, 0
        engine.interpreter_builder.set_grid_idx(*me.place[1])
        ledger = current()
        state, ledger.early, ledger.apart, ledger.unused, ledger.site = me.kept
        if ledger.observer is not None:
            ledger.observer.resume(state)

    def _start(self) -> None:
        program = _Program(self._waiting.pop())
        self._live.append(program)
        context = contextvars.copy_context()  # how NumPy treats overflows is in it
        try:
            threading.Thread(target=context.run, args=(self._work, program), daemon=True).start()
        except RuntimeError:  # no room for one: nobody is to wait for it
            self._live.remove(program)
            raise

    def _work(self, program: _Program) -> None:
        """One thread: a program, then others, as long as these are to begin."""
        following: _Program | None = program
        while following is not None:
            try:
                self._begin(following)
            except PausedError:
                pass
            except _OverError:
                pass
            except BaseException as error:  # noqa: BLE001 - handed to the thread of the launch, which raises it
                self._error = self._error or error
            self._live.remove(following)
            following = self._after()

    def _begin(self, program: _Program) -> None:
        self._me, self._idle = program, 0
        ledger = current()
        ledger.early = ledger.apart = ledger.unused = False
        ledger.site = (0, 0)
        self._function(program.place)

    def _after(self) -> _Program | None:
        """What runs once a program is over: another one under way, the launch's own thread, or one that begins, which
        it gives back."""
        self._idle = 0
        begins = bool(self._waiting) and self._error is None
        awake = self._awake()
        number = self._chance.randrange(len(awake) + begins) if awake or begins else -1
        if number < 0:
            self._done.release()
        elif number < len(awake):
            self._hand(awake[number])
        else:
            program = _Program(self._waiting.pop())
            self._live.append(program)
            return program
        return None


def _kept() -> tuple[Any, bool, bool, bool, tuple[int, int]]:
    ledger = current()
    state = ledger.observer.suspend() if ledger.observer is not None else None
    return state, ledger.early, ledger.apart, ledger.unused, ledger.site


def _allow_threads(stack: int) -> None:
    """Threads share the heap: one of its own for each would reserve more addresses than a sandbox has."""
    threading.stack_size(stack)
    ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)
