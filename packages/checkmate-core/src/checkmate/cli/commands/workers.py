"""The processes of ``sweep --jobs``: spawned, without imports from the current folder."""

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
    """An executor, or None for one job; if the block fails, its processes are ended."""
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
    """A pool of processes; if one of them dies, which breaks the pool, the next task starts another pool."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._others = {process.pid for process in multiprocessing.active_children()}
        self._pool = self._fresh()

    def submit(self, task: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        with held_back(), _isolated():  # may start a process, which must not be interrupted half-way
            try:
                future = self._pool.submit(task, *args, **kwargs)
            except BrokenProcessPool:
                self._pool = self._fresh()
                future = self._pool.submit(task, *args, **kwargs)
        # A pool whose futures are cancelled while it breaks does not clean up, and Python may hang at its
        # exit: python/cpython#108974, in Python 3.11.
        future.cancel = lambda: False  # type: ignore[method-assign]
        return future

    def kill(self) -> None:
        for process in multiprocessing.active_children():
            if process.pid not in self._others:
                process.terminate()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._pool.shutdown(wait, cancel_futures=cancel_futures)

    def _fresh(self) -> ProcessPoolExecutor:
        """A new pool, spawned: a process forked from one with threads may hang."""
        with _isolated():  # starts the process that tracks shared resources
            context = multiprocessing.get_context("spawn")
            return ProcessPoolExecutor(self._jobs, mp_context=context, initializer=_begin)


@contextmanager
def _isolated() -> Iterator[None]:
    """Processes started inside don't import from the current folder, and leave Ctrl-C to their parent."""
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
    """Initialise a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it goes to all processes: only the parent handles it
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End with the parent, however it ends: a worker would wait for tasks forever, with its output open."""
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)
