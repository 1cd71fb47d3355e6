"""Coroutines that nearly always return without waiting, begun without a task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, TypeVar

Result = TypeVar("Result")


def begin(
    work: Coroutine[Any, Any, Result],
    loop: asyncio.AbstractEventLoop,
    then: Callable[[Result | Exception], None],
) -> None:
    """Call ``then`` with what ``work`` returns or raises: at once, or when it has waited.

    Only what really waits becomes a task of ``loop``: a task costs 10 us.
    """
    try:
        waits = work.send(None)
    except StopIteration as done:
        then(done.value)
        return
    except Exception as error:  # noqa: BLE001 - whoever asked decides
        then(error)
        return
    loop.create_task(_rest(_Begun(work, waits), then))


def begin_task(
    work: Coroutine[Any, Any, Result],
    loop: asyncio.AbstractEventLoop,
    then: Callable[[Result | Exception], None],
) -> asyncio.Task[None]:
    """Do as `begin`, for what needs to be a task from its first step on: time-outs, cancelling."""
    return loop.create_task(_rest(work, then))


async def _rest(work: Awaitable[Any], then: Callable[[Any], None]) -> None:
    try:
        result = await work
    except Exception as error:  # noqa: BLE001 - whoever asked decides
        then(error)
    else:
        then(result)


class _Begun:
    """A coroutine that waits for something already."""

    def __init__(self, work: Coroutine[Any, Any, Any], waits: Any) -> None:
        self._work = work
        self._waits = waits

    def __await__(self) -> Generator[Any, None, Any]:
        work, waits = self._work, self._waits
        while True:
            try:
                yield waits
            except BaseException as error:  # noqa: BLE001 - it is the coroutine's to handle
                step: Callable[[], Any] = _thrown(work, error)
            else:
                step = _sent(work)
            try:
                waits = step()
            except StopIteration as done:
                return done.value


def _sent(work: Coroutine[Any, Any, Any]) -> Callable[[], Any]:
    return lambda: work.send(None)


def _thrown(work: Coroutine[Any, Any, Any], error: BaseException) -> Callable[[], Any]:
    return lambda: work.throw(error)
