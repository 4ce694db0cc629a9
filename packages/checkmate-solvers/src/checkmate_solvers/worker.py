"""A second process that proves bounds while the first one searches; what it knows comes back as it is found.

Between them go bytes of ours through pipes, and no pickle: to the process one line of JSON, then the graph in
its wire format; from it one line of JSON for each :class:`Finding`. It is a fresh interpreter that imports
this module and nothing of the caller's program, so scripts need no ``if __name__ == "__main__"``; nor what
lies in the current folder. It ends when it has no more to say, when the pipe to it closes (as when the first
process is killed), or when it is stopped. If it dies, what it had not yet said is lost, and nothing else.
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
from collections.abc import Callable, Iterator
from typing import IO, NamedTuple

from checkmate import Problem, Progress, read_graph
from checkmate.solving import graph_bytes
from checkmate_solvers.isolation import isolated_python

__all__ = ["Finding", "Worker", "serve"]

_PROGRAM = "from checkmate_solvers.worker import serve; serve()"


class Finding(NamedTuple):
    """What the other process found out.

    Attributes:
        bound: proved lower bound on the cost; infinite if the problem is proved infeasible.
        sequence: ops of a schedule, if it is about one; the judge has yet to see it.
        origin: the step that found it.
    """

    bound: float
    sequence: list[int] | None
    origin: str


class Worker:
    """The process, seen from the first one. It takes milliseconds to start, and a second or two to load."""

    def __init__(self, problem: Problem, without: tuple[str, ...] = ()) -> None:
        """Start it on a problem; it leaves these steps of ``auto`` out."""
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
        self._threads = [
            threading.Thread(target=errand, args=args, daemon=True)
            for errand, args in self._errands(problem, without)
        ]
        for thread in self._threads:
            thread.start()

    def findings(self, wait_s: float = 0.0) -> Iterator[Finding]:
        """What has come in since the last call; if nothing has, wait for it, but no longer than that."""
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
        """End it."""
        self._process.kill()
        self._process.wait()
        for thread in self._threads:
            thread.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what was not yet sent is of no use
                    pipe.close()

    def _errands(
        self, problem: Problem, without: tuple[str, ...]
    ) -> Iterator[tuple[Callable[..., None], tuple[object, ...]]]:
        """What must not hold up the search: pipes that are full, or empty."""
        yield _tell, (self._process.stdin, problem, without)
        yield self._hear, (self._process.stdout,)

    def _hear(self, answers: IO[bytes]) -> None:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            for line in answers:
                said = json.loads(line)
                if "end" in said:
                    self.finished = True
                else:
                    bound = math.inf if said["bound"] is None else float(said["bound"])
                    self._findings.put(Finding(bound, said["sequence"], str(said["origin"])))
        self._findings.put(None)


def _tell(questions: IO[bytes], problem: Problem, without: tuple[str, ...]) -> None:
    graph = graph_bytes(problem.graph, format="msgpack")
    asked = {"budget": problem.budget, "time_limit": problem.time_limit, "seed": problem.seed}
    question = {**asked, "fixed_order": problem.fixed_order}
    header = {"question": question, "without": without, "bytes": len(graph)}
    with contextlib.suppress(OSError):  # it died, or was stopped
        questions.write(json.dumps(header).encode() + b"\n" + graph)
        questions.flush()


def serve() -> None:
    """What the process does: read a problem from standard input, write findings to standard output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process decides

    from checkmate_solvers.auto import Auto  # which imports this module
    from checkmate_solvers.search.incumbent import Search

    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no answer
    header = json.loads(sys.stdin.buffer.readline())
    graph = read_graph(sys.stdin.buffer.read(header["bytes"]))
    threading.Thread(target=_die_with_the_first, daemon=True).start()

    def tell(report: Progress) -> None:
        sequence = (
            search.sequence if report.incumbent is not None and report.incumbent < cheapest[0] else None
        )
        cheapest[0] = min(cheapest[0], math.inf if report.incumbent is None else report.incumbent)
        bound = report.bound if math.isfinite(report.bound) else None
        said = {"bound": bound, "sequence": sequence, "origin": report.step}
        answers.write(json.dumps(said).encode() + b"\n")
        answers.flush()

    cheapest = [math.inf]
    search = Search(Problem(graph=graph, on_progress=tell, **header["question"]))
    if not search.start():
        Auto(without=tuple(header["without"])).prove(search)
    answers.write(b'{"end": true}\n')
    answers.flush()


def _die_with_the_first() -> None:
    sys.stdin.buffer.read()
    os._exit(0)
