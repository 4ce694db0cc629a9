"""The processes of ``sweep --jobs``: fresh, without code from the current folder, gone when the first is."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

from checkmate.cli.signals import held_back

__all__ = ["workers"]

_SAFE_PATH = "PYTHONSAFEPATH"


@contextmanager
def workers(jobs: int) -> Iterator[Executor | None]:
    """An executor, or None for one job; whatever ends it early ends its processes, too."""
    if jobs == 1:
        yield None
        return
    processes = _Processes(jobs)
    try:
        yield processes
    except BaseException:
        processes.kill()
        raise
    finally:
        processes.shutdown(cancel_futures=True)


class _Processes(Executor):
    """A pool of processes; when one of them has died, and the pool with it, the next task starts another."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._others = {process.pid for process in multiprocessing.active_children()}
        self._pool = self._fresh()

    def submit(self, task: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        with held_back(), _isolated():  # here processes start, as they are needed: each wholly or not at all
            try:
                given = self._pool.submit(task, *args, **kwargs)
            except BrokenProcessPool:
                self._pool = self._fresh()
                given = self._pool.submit(task, *args, **kwargs)
        return _beside(given)

    def kill(self) -> None:
        for process in multiprocessing.active_children():
            if process.pid not in self._others:
                process.terminate()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._pool.shutdown(wait, cancel_futures=cancel_futures)

    def _fresh(self) -> ProcessPoolExecutor:
        """Not forked: a process forked from one with threads may hang."""
        with _isolated():  # here the process starts that tracks what the others share
            context = multiprocessing.get_context("spawn")
            return ProcessPoolExecutor(self._jobs, mp_context=context, initializer=_begin)


def _beside(given: Future[Any]) -> Future[Any]:
    """A future that gets what another gets, and can't be cancelled.

    A pool that breaks while its own futures are cancelled does not clean up, and Python may hang at its exit:
    python/cpython#108974, in Python 3.11.
    """
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()

    def pass_on(_given: Future[Any]) -> None:
        try:
            future.set_result(given.result())
        except BaseException as error:  # noqa: BLE001, it is passed on
            future.set_exception(error)

    given.add_done_callback(pass_on)
    return future


@contextmanager
def _isolated() -> Iterator[None]:
    """Python started inside keeps the current folder off its path, and leaves Ctrl-C to the first process."""
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if os.name == "posix" else None
    try:
        yield
    finally:
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if before is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = before


def _begin() -> None:
    """What a process does first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it goes to all: only the first process listens
    threading.Thread(target=_end_with_the_first, daemon=True).start()


def _end_with_the_first() -> None:
    """However that ends: one that waits for work would wait forever, and hold its standard output open."""
    if (first := multiprocessing.parent_process()) is not None:
        first.join()
        os._exit(1)
