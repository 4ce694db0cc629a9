"""A second process that works on the same problem; the first one receives its findings as they come.

Both exchange bytes through pipes, without pickle: to the worker one line of JSON, then the graph in its wire
format; from it one line of JSON for each :class:`Finding`. The worker is a fresh interpreter that imports
this module and the function that it was asked for, but nothing of the caller's program and nothing from the
current folder; scripts need no ``if __name__ == "__main__"``. It ends when its work is done, when the pipe to
it closes (as when the first process is killed), or when it is stopped. If it dies, only findings that it has
not sent are lost.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import pkgutil
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import IO, NamedTuple

from checkmate import Problem, Progress, read_graph
from checkmate.solving import graph_bytes
from checkmate_solvers.isolation import isolated_python
from checkmate_solvers.search import Incumbent, answer_easy_cases

__all__ = ["Finding", "Worker", "serve"]

_PROGRAM = "from checkmate_solvers.worker import serve; serve()"


class Finding(NamedTuple):
    """One result of the worker.

    Attributes:
        bound: proved lower bound on the cost; infinite if the problem is proved infeasible.
        sequence: ops of a schedule that was not judged in this process; None if the finding is a bound.
        origin: the step that found it.
    """

    bound: float
    sequence: list[int] | None
    origin: str


class Worker:
    """The worker as the first process sees it. It starts within milliseconds, and loads for a second or two.

    Attributes:
        running: whether more findings may come.
        finished: whether it has done all its work.
    """

    def __init__(self, problem: Problem, entry: str, options: Mapping[str, object]) -> None:
        """Start the process.

        Args:
            problem: the question.
            entry: the function that it calls, as ``"module:name"``; gets an
                :class:`~checkmate_solvers.search.Incumbent`.
            options: further arguments of that function; numbers, strings, lists.
        """
        self._findings: queue.SimpleQueue[Finding | None] = queue.SimpleQueue()
        self.finished = False
        self.running = True
        command, environment = isolated_python(_PROGRAM)
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        pipes = self._process.stdin, self._process.stdout
        self._threads = [  # pipes that are full, or empty, must not hold up the search
            threading.Thread(target=_ask, args=(pipes[0], problem, entry, dict(options)), daemon=True),
            threading.Thread(target=self._receive, args=(pipes[1],), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def findings(self, wait_s: float = 0.0) -> Iterator[Finding]:
        """The findings since the last call; waits at most ``wait_s`` seconds for the first one."""
        while self.running:
            try:
                finding = self._findings.get(timeout=wait_s) if wait_s > 0 else self._findings.get_nowait()
            except queue.Empty:
                return
            wait_s = 0.0
            if finding is None:
                self.running = False
            else:
                yield finding

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for thread in self._threads:
            thread.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # bytes that were not sent are of no use
                    pipe.close()

    def _receive(self, answers: IO[bytes]) -> None:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            for line in answers:
                answer = json.loads(line)
                if "end" in answer:
                    self.finished = True
                else:
                    bound = math.inf if answer["bound"] is None else float(answer["bound"])
                    self._findings.put(Finding(bound, answer["sequence"], str(answer["origin"])))
        self._findings.put(None)


def _ask(questions: IO[bytes], problem: Problem, entry: str, options: Mapping[str, object]) -> None:
    graph = graph_bytes(problem.graph, format="msgpack")
    asked = {"budget": problem.budget, "time_limit": problem.time_limit, "seed": problem.seed}
    question = {**asked, "fixed_order": problem.fixed_order}
    header = {"question": question, "entry": entry, "options": options, "bytes": len(graph)}
    with contextlib.suppress(OSError):  # the process died, or was stopped
        questions.write(json.dumps(header).encode() + b"\n" + graph)
        questions.flush()


def serve() -> None:
    """The program of the worker: read a problem from standard input, write findings to standard output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process decides
    answers = os.fdopen(os.dup(1), "wb")
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
        bound = report.bound if math.isfinite(report.bound) else None
        answer = {"bound": bound, "sequence": sequence, "origin": report.step}
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()

    best = Incumbent(Problem(graph=graph, on_progress=send, **header["question"]))
    if not answer_easy_cases(best):
        pkgutil.resolve_name(header["entry"])(best, **header["options"])
    answers.write(b'{"end": true}\n')
    answers.flush()


def _end_with_the_first() -> None:
    sys.stdin.buffer.read()
    os._exit(0)
