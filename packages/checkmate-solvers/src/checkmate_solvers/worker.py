"""The worker: a second process on the same problem, whose findings the first process receives as they come.

Both exchange bytes through pipes, without pickle. The worker reads one line of JSON, then the graph in its
wire format. It writes one line of JSON for each finding: a bound on the cost, the ops of a schedule or null,
and the step. The worker is a fresh interpreter that imports our packages, but nothing of the caller's program
and nothing from the current folder; scripts need no ``if __name__ == "__main__"``. It ends when its work is
done, when the pipe to it closes (as when the first process is killed), or when it is stopped. If it dies,
only findings that it has not sent are lost.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import IO, Any

from checkmate import Problem, Progress, read_graph
from checkmate.solving import graph_bytes
from checkmate_solvers.search import Incumbent, answer_easy_cases

__all__ = ["Worker", "serve"]

_PROGRAM = "from checkmate_solvers import auto, worker; worker.serve(auto.cut_moments)"


class Worker:
    """The worker, seen from the first process. It starts within milliseconds, and loads for a second or two.

    Attributes:
        running: whether more findings may come.
        finished: whether it has done all its work.
    """

    def __init__(self, best: Incumbent, problem: Problem, options: object) -> None:
        """Start the process; ``best`` receives its findings at each :meth:`poll`.

        The options, of JSON's types, are for :func:`checkmate_solvers.auto.cut_moments`, which it calls.
        """
        self._best = best
        self._findings: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.finished = False
        self.running = True
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(_safe_path())},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._threads = [  # pipes that are full, or empty, must not hold up the search
            threading.Thread(target=_ask, args=(self._process.stdin, problem, options), daemon=True),
            threading.Thread(target=self._receive, args=(self._process.stdout,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def poll(self, wait_s: float = 0.0) -> None:
        """Take over the findings since the last call; wait at most ``wait_s`` seconds for the first."""
        while self.running:
            try:
                finding = self._findings.get(timeout=wait_s)
            except queue.Empty:
                return
            wait_s = 0.0
            if finding is None:
                self.running = False
                return
            bound, sequence, origin = finding
            if sequence is not None:
                self._best.keep_if_better(sequence, origin)
            self._best.raise_bound(bound, origin)

    def stop(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        with contextlib.suppress(OSError), self._process:  # bytes that were not sent are of no use
            for thread in self._threads:
                thread.join()

    def _receive(self, answers: IO[bytes]) -> None:
        with contextlib.suppress(OSError, ValueError, TypeError):
            for line in answers:
                bound, sequence, origin = json.loads(line)
                if origin:
                    self._findings.put((float(bound), sequence, str(origin)))
                else:
                    self.finished = True
        self._findings.put(None)


def _safe_path() -> list[str]:
    """Where this process imports from, but not the current folder, which may hold a hostile ``json.py``."""
    folders = filter(os.path.isabs, sys.path)
    return [folder for folder in folders if not (os.path.exists(folder) and os.path.samefile(folder, "."))]


def _ask(questions: IO[bytes], problem: Problem, options: object) -> None:
    graph = graph_bytes(problem.graph, format="msgpack")
    asked = {name: getattr(problem, name) for name in ("budget", "time_limit", "seed", "fixed_order")}
    header = {"question": asked, "options": options, "bytes": len(graph)}
    with contextlib.suppress(OSError):  # the process died, or was stopped
        questions.write(json.dumps(header).encode() + b"\n" + graph)
        questions.flush()


def serve(work: Callable[[Incumbent, Any], object]) -> None:
    """The program of the worker: read a problem from standard input, write findings to standard output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process decides
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # output of libraries is no answer
    header = json.loads(sys.stdin.buffer.readline())
    graph = read_graph(sys.stdin.buffer.read(header["bytes"]))
    threading.Thread(target=_end_with_the_first, daemon=True).start()
    cheapest = math.inf

    def send(report: Progress) -> None:
        nonlocal cheapest
        sequence = None
        if report.incumbent is not None and report.incumbent < cheapest:
            cheapest, sequence = report.incumbent, best.sequence
        answers.write(json.dumps([report.bound, sequence, report.step]) + "\n")

    best = Incumbent(Problem(graph=graph, on_progress=send, **header["question"]))
    if not answer_easy_cases(best):
        work(best, header["options"])
    answers.write('[0, null, ""]\n')


def _end_with_the_first() -> None:
    sys.stdin.buffer.read()
    os._exit(0)
