"""``Answer``: the result of a verb, ready now or later.

A broker's verbs return an :class:`Answer`, so that a caller pays for a coroutine, a future or a thread hop only when the
answer really has to wait (for a commit, the network or a long poll). The same object serves all three worlds: ``value``
when it is ready, ``result(timeout)`` from a thread, ``await`` from asyncio, ``add_callback`` from an event loop's own code.

It is settled once, from any thread. Callbacks run in the settling thread, or at once when added later.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, cast

from bunqueue_core.model.errors import CommandTimeoutError

T = TypeVar("T")
U = TypeVar("U")

_PENDING = 0
_VALUE = 1
_ERROR = 2


class Driver(Protocol):
    """Makes progress on behalf of a waiting caller, where nobody else does (a lone synchronous caller commits itself)."""

    def drive(self, answer: Answer[Any], timeout: float | None) -> None:
        """Work in the calling thread until ``answer`` is ready or ``timeout`` seconds have passed (None: no limit)."""

    def drive_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        """See to it that waiting answers are settled although the caller goes back to ``loop``."""


class Answer(Generic[T]):
    """A value or an error that is there now or will be. See the module's head."""

    __slots__ = ("_callbacks", "_content", "_driver", "_on_cancel", "_state", "_turn")

    def __init__(
        self,
        driver: Driver | None = None,
        on_cancel: Callable[[Answer[T]], None] | None = None,
    ) -> None:
        self._state = _PENDING
        #: Whoever takes the only element settles the answer: two threads may try at once.
        self._turn: list[None] | None = [None]
        self._content: Any = None
        self._driver = driver
        self._on_cancel = on_cancel
        self._callbacks: list[Callable[[Answer[T]], None]] | None = None

    @classmethod
    def of(cls, value: T) -> Answer[T]:
        """An answer that is ready with ``value``."""
        answer = cls.__new__(cls)
        answer._state = _VALUE
        answer._content = value
        answer._driver = None
        answer._on_cancel = None
        answer._callbacks = None
        answer._turn = None
        return answer

    @classmethod
    def failed(cls, error: BaseException) -> Answer[T]:
        """An answer that is ready with ``error``."""
        answer = cls.of(cast(T, error))
        answer._state = _ERROR
        return answer

    @property
    def ready(self) -> bool:
        """True once there is a value or an error."""
        return self._state != _PENDING

    @property
    def error(self) -> BaseException | None:
        """The error of a ready answer, None if it has a value or is not ready."""
        return self._content if self._state == _ERROR else None

    @property
    def value(self) -> T:
        """The value of a ready answer.

        Raises:
            BaseException: the answer's own error.
            RuntimeError: it is not ready.
        """
        if self._state == _VALUE:
            return cast(T, self._content)
        if self._state == _ERROR:
            raise self._content
        raise RuntimeError("the answer is not ready")

    def settle(self, value: T) -> bool:
        """Give the value. Returns False, and changes nothing, if the answer was settled before."""
        return self._settle(_VALUE, value)

    def fail(self, error: BaseException) -> bool:
        """Give the error. Returns False, and changes nothing, if the answer was settled before."""
        return self._settle(_ERROR, error)

    def _settle(self, state: int, content: Any) -> bool:
        turn = self._turn
        if not turn:
            return False
        try:
            turn.pop()
        except IndexError:
            return False
        self._content = content
        self._state = state
        if self._callbacks:
            self._run_callbacks()
        return True

    def add_callback(self, callback: Callable[[Answer[T]], None]) -> None:
        """Call ``callback(answer)`` once it is ready: now, or in the thread that settles it."""
        if self._state != _PENDING:
            callback(self)
            return
        if self._callbacks is None:
            self._callbacks = []
        self._callbacks.append(callback)
        if self._state != _PENDING:
            # Settled by another thread meanwhile. Whoever takes a callback off the list runs it, so each runs once.
            self._run_callbacks()

    def _run_callbacks(self) -> None:
        callbacks = self._callbacks
        while callbacks:
            try:
                callback = callbacks.pop(0)
            except IndexError:
                return
            callback(self)

    def map(self, function: Callable[[T], U]) -> Answer[U]:
        """An answer with ``function(value)``; an error passes through, and one that ``function`` raises becomes the error."""
        if self._state == _VALUE:
            try:
                return Answer.of(function(self._content))
            except Exception as error:
                return Answer.failed(error)
        if self._state == _ERROR:
            return cast("Answer[U]", self)
        mapped: Answer[U] = Answer(self._driver, lambda _: self.cancel())

        def follow(answer: Answer[T]) -> None:
            if answer._state == _ERROR:
                mapped.fail(answer._content)
                return
            try:
                value = function(answer._content)
            except Exception as error:
                mapped.fail(error)
            else:
                mapped.settle(value)

        self.add_callback(follow)
        return mapped

    def on_cancel(self, hook: Callable[[Answer[T]], None]) -> None:
        """Have ``hook(answer)`` called when nobody will take the value; it takes the place of an earlier hook."""
        self._on_cancel = hook

    def cancel(self) -> None:
        """Say that nobody will take the value.

        A verb that handed something over (a pull) takes it back, whether it is still waiting or was settled already, so
        that nothing stays claimed by nobody. For other verbs this does nothing: what was asked for happens.
        """
        hook, self._on_cancel = self._on_cancel, None
        if hook is not None:
            hook(self)

    def result(self, timeout: float | None = None) -> T:
        """Wait in this thread and return the value.

        Args:
            timeout: seconds; None waits without limit.

        Raises:
            CommandTimeoutError: not ready in time. The operation goes on.
            BaseException: the answer's own error.
        """
        if self._state == _PENDING:
            if self._driver is not None:
                self._driver.drive(self, timeout)
            else:
                wait_in_thread(self, timeout)
            if self._state == _PENDING:
                raise CommandTimeoutError(f"no answer within {timeout} s")
        return self.value

    def __await__(self) -> Generator[Any, None, T]:
        if self._state == _PENDING:
            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()
            thread = threading.get_ident()

            def wake() -> None:
                if not future.done():
                    future.set_result(None)

            def settled(_: Answer[T]) -> None:
                if threading.get_ident() == thread:
                    wake()
                else:
                    try:
                        loop.call_soon_threadsafe(wake)
                    except RuntimeError:  # the loop was closed: nobody waits there any more
                        self.cancel()

            self.add_callback(settled)
            if self._driver is not None and self._state == _PENDING:
                self._driver.drive_soon(loop)
            try:
                yield from future
            except asyncio.CancelledError:
                self.cancel()
                raise
        return self.value


def wait_in_thread(answer: Answer[Any], timeout: float | None) -> None:
    """Block this thread until ``answer`` is ready or ``timeout`` seconds have passed."""
    event = threading.Event()
    answer.add_callback(lambda _: event.set())
    event.wait(timeout)


def combined(answers: Sequence[Answer[T]]) -> Answer[list[T]]:
    """The values of ``answers`` in their order, once all are there; the first of their errors if one fails.

    Ready at once if all of them are. Cancelling it cancels those that are still waited for.
    """
    values: list[T | None] = [None] * len(answers)
    pending: list[int] = []
    for position, answer in enumerate(answers):
        if answer.ready:
            if answer.error is not None:
                return Answer.failed(answer.error)
            values[position] = answer.value
        else:
            pending.append(position)
    if not pending:
        return Answer.of(cast("list[T]", values))
    lock = threading.Lock()
    left = len(pending)

    def cancel(_: Answer[list[T]]) -> None:
        for position in pending:
            answers[position].cancel()

    outcome: Answer[list[T]] = Answer(answers[pending[0]]._driver, cancel)

    def settled(position: int, answer: Answer[T]) -> None:
        nonlocal left
        if answer.error is not None:
            outcome.fail(answer.error)
            return
        values[position] = answer.value
        with lock:
            left -= 1
            last = left == 0
        if last:
            outcome.settle(cast("list[T]", values))

    for position in pending:
        answers[position].add_callback(partial(settled, position))
    return outcome
