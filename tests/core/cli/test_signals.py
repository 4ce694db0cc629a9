"""Signals that end a command: the answers so far are written, and the exit code names the signal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from checkmate import DFGraph, read_schedule
from checkmate.cli import signals
from checkmate.plugins import loader

pytestmark = pytest.mark.skipif(os.name == "nt", reason="no such signals")

MAIN = "from checkmate.cli import main; main()"
SOLVERS = """
import os, pathlib, signal, time
from dataclasses import replace
from checkmate import Solution
from checkmate.heuristics import KeepAll
from checkmate.plugins import SolverSpec, hookimpl

class Patient:
    '''Says that it works, and answers when it is interrupted.'''

    def solve(self, problem):
        try:
            os.write(2, b"working\\n")
            time.sleep(600)
        except KeyboardInterrupt:
            return replace(KeepAll().solve(problem), origin={"interrupted": "Ctrl-C"})

class Deaf:
    def solve(self, problem):
        while True:
            try:
                os.write(2, b"working\\n")
                time.sleep(600)
            except KeyboardInterrupt:
                pass

class Absent:
    '''Works in a finaliser, where Python drops an interrupt, and goes on.'''

    def solve(self, problem):
        try:
            self.work_in_a_finaliser()
            time.sleep(600)
        except KeyboardInterrupt:
            return replace(KeepAll().solve(problem), origin={"interrupted": "Ctrl-C"})

    def work_in_a_finaliser(self):
        class Busy:
            def __del__(self):
                os.write(2, b"working\\n")
                time.sleep(600)

        Busy()

class Slow:
    '''Answers 40 bytes at once; else it says that it works, and sleeps.'''

    def solve(self, problem):
        if problem.budget != 40:
            os.write(2, b"working\\n")
            time.sleep(600)
        return KeepAll().solve(problem)

class Fragile:
    '''The first to be asked dies.'''

    def solve(self, problem):
        try:
            pathlib.Path(os.environ["FRAGILE"]).touch(exist_ok=False)
        except FileExistsError:
            return KeepAll().solve(problem)
        os.kill(os.getpid(), signal.SIGKILL)

@hookimpl
def checkmate_register_solvers():
    solvers = (Patient, Deaf, Absent, Slow, Fragile)
    return [SolverSpec(name=one.__name__.lower(), summary="of a test", load=one) for one in solvers]
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment in which only the solvers above are installed."""
    metadata = tmp_path / "site" / "solvers_of_tests-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: solvers_of_tests\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[checkmate]\nsolvers_of_tests = solvers_of_tests\n")
    (metadata.parent / "solvers_of_tests.py").write_text(SOLVERS)
    path = os.pathsep.join(filter(None, [str(metadata.parent), os.environ.get("PYTHONPATH")]))
    plugins = {loader.ENVIRONMENT_VARIABLE: "solvers_of_tests"}
    return {**os.environ, **plugins, "PYTHONPATH": path, "FRAGILE": str(tmp_path / "fragile")}


@pytest.fixture
def start(environment: dict[str, str]) -> Iterator[Any]:
    """Start the command line; its process ends with the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: object, code: str = MAIN, ignored: tuple[int, ...] = ()) -> subprocess.Popen[str]:
        def set_signals() -> None:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # ignored where tests run behind &
                signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)

        process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=set_signals,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def until_it_works(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    assert process.stderr.readline() == "working\n"


@pytest.mark.parametrize(
    ("number", "exit_code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
@pytest.mark.parametrize("times", [1, 2])
def test_solve_writes_the_best_so_far(
    start: Any, graph: Path, chain: DFGraph, tmp_path: Path, number: int, exit_code: int, times: int
) -> None:
    """Two signals at once are one request: ``timeout`` sends each twice."""
    out = tmp_path / "schedule.json"
    process = start("solve", graph, "--budget", "100%", "--solver", "patient", "-o", out, "--json")
    until_it_works(process)
    for _ in range(times):
        process.send_signal(number)
    stdout, stderr = process.communicate()
    assert (process.returncode, stderr) == (exit_code, "Interrupted: this is the best schedule until then.\n")
    assert json.loads(stdout)["peak"] == 40
    assert read_schedule(out, chain).sequence.tolist() == list(range(8))


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_solver_that_has_nothing_yet_leaves_nothing(
    start: Any, graph: Path, tmp_path: Path, number: int, exit_code: int
) -> None:
    out = tmp_path / "schedule.json"
    process = start("solve", graph, "--budget", "90%", "--solver", "slow", "-o", out)
    until_it_works(process)
    process.send_signal(number)
    assert process.communicate() == ("", "Interrupted: no schedule was written.\n")
    assert process.returncode == exit_code
    assert not out.exists()


def test_an_interrupt_that_python_drops_comes_again(start: Any, graph: Path, tmp_path: Path) -> None:
    out = tmp_path / "schedule.json"
    process = start("solve", graph, "--budget", "100%", "--solver", "absent", "-o", out)
    until_it_works(process)
    process.send_signal(signal.SIGTERM)
    assert process.communicate()[1] == "Interrupted: this is the best schedule until then.\n"
    assert process.returncode == 143
    assert out.exists()


def test_an_interrupt_that_python_drops_while_modules_load_comes_again(start: Any, graph: Path) -> None:
    code = """
import os, signal, sys, time
from checkmate.cli import main

class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            sys.meta_path.remove(self)
            self.interrupt_a_finaliser()
            time.sleep(600)

    def interrupt_a_finaliser(self):
        class Finalised:
            def __del__(self):
                signal.raise_signal(signal.SIGINT)

        Finalised()

sys.meta_path.insert(0, Interrupted())
main()
"""
    process = start("solve", graph, "--budget", "100%", code=code)
    assert process.communicate(timeout=60) == ("", "Interrupted.\n")
    assert process.returncode == 130


def test_a_later_signal_ends_at_once(start: Any, graph: Path) -> None:
    process = start("solve", graph, "--budget", "100%", "--solver", "deaf")
    until_it_works(process)
    process.send_signal(signal.SIGTERM)
    until_it_works(process)  # the search went on
    while process.poll() is None:
        process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
    assert process.returncode == -signal.SIGTERM


def test_signals_that_nohup_ignores_stay_ignored(start: Any, graph: Path) -> None:
    process = start(
        "solve", graph, "--budget", "100%", "--solver", "patient", "--json", ignored=(signal.SIGHUP,)
    )
    until_it_works(process)
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 143


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_during_the_write_waits_for_it(
    start: Any, graph: Path, chain: DFGraph, tmp_path: Path, number: int, exit_code: int
) -> None:
    code = f"""
import os, sys
from checkmate.cli.app import solve as command
module = sys.modules[command.callback.__module__]

def interrupted(*arguments, write=module.write_schedule):
    os.kill(os.getpid(), {int(number)})
    write(*arguments)

module.write_schedule = interrupted
{MAIN}
"""
    out = tmp_path / "schedule.json"
    process = start("solve", graph, "--budget", "100%", "--solver", "heuristics", "-o", out, code=code)
    _, stderr = process.communicate()
    assert (process.returncode, stderr) == (exit_code, "Interrupted.\n")
    assert read_schedule(out, chain).sequence.tolist() == list(range(8))


@pytest.mark.parametrize("jobs", [1, 2])
def test_sweep_writes_the_answers_so_far(start: Any, graph: Path, tmp_path: Path, jobs: int) -> None:
    code = f"""
import os, sys
from checkmate.cli.app import sweep as command
module = sys.modules[command.callback.__module__]

def heard(answer, latest=module._latest):
    os.write(2, b"answered\\n")
    return latest(answer)

module._latest = heard
{MAIN}
"""
    out, plot = tmp_path / "frontier.json", tmp_path / "frontier.svg"
    process = start(
        *("sweep", graph, "--budgets", "40,41,42", "--solver", "slow", "--jobs", jobs),
        *("-o", out, "--plot", plot, "--json"),
        code=code,
    )
    assert process.stderr is not None
    lines = {process.stderr.readline() for _ in range(2)}
    if len(lines) == 1:  # with two jobs, both may work on other budgets before the first answer is counted
        lines.add(process.stderr.readline())
    assert lines == {"answered\n", "working\n"}
    process.send_signal(signal.SIGTERM)
    stdout, stderr = process.communicate()
    assert process.returncode == 143
    assert stderr.endswith("Interrupted after 1 of 3 answers: the frontier has only these.\n")
    facts = json.loads(stdout)
    assert json.loads(out.read_bytes()) == facts
    assert [answer["budget"] for answer in facts["answers"]] == [40]
    assert plot.exists()


def test_solves_of_a_killed_process_are_tried_once_more(start: Any, graph: Path) -> None:
    process = start("sweep", graph, "--budgets", "40,41", "--solver", "fragile", "--jobs", "2", "--json")
    stdout, stderr = process.communicate()
    assert (process.returncode, stderr) == (0, "")
    assert [answer["budget"] for answer in json.loads(stdout)["answers"]] == [40, 41]


@pytest.fixture
def silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin as if no signal has been received in this process; restore that state afterwards."""
    monkeypatch.setattr(signals, "_received", signals._Received())


@pytest.mark.usefixtures("silence")
def test_only_the_first_signal_interrupts_and_sets_the_exit_code() -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert signals.exit_code(3) == 3
    with signals.listening():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
    assert [signals.exit_code(code) for code in (0, None, 1, 2, "no")] == [143] * 5


@pytest.mark.usefixtures("silence")
def test_a_signal_that_is_held_back_interrupts_interruptible_blocks() -> None:
    with signals.listening(), signals.held_back():
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt), signals.interruptible():
            pytest.fail("entered")
    assert signals.exit_code(0) == 143
    with signals.interruptible():  # without effect outside of held_back
        pass


@pytest.mark.usefixtures("silence")
def test_a_signal_that_is_held_back_interrupts_at_the_end() -> None:
    done = []

    def work() -> None:
        with signals.held_back():
            with signals.held_back():
                signal.raise_signal(signal.SIGTERM)
                done.append("inner")
            done.append("outer")

    with signals.listening(), pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["inner", "outer"]


@pytest.mark.usefixtures("silence")
def test_a_compiled_module_is_initialised_to_its_end() -> None:
    """An interrupt there would be lost: NumPy, for example, turns it into an ImportError."""
    done = []

    class Loader(ExtensionFileLoader):
        def exec_module(self, module: ModuleType) -> None:
            signal.raise_signal(signal.SIGTERM)
            done.append("initialised")

    def work() -> None:
        Loader("numpy.core", "core.so").exec_module(ModuleType("numpy.core"))
        time.sleep(60)

    with signals.listening(), pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["initialised"]
