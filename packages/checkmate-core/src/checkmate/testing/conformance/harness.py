"""The runner of checks: each tries many examples, always the same ones, and reports the smallest failing one.

A check is an ordinary function of one example that raises :class:`ConformanceError`. Hypothesis finds an
example for which it does, and shrinks it; pytest then prints the message without a traceback.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Verbosity, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky

__all__ = [
    "ConformanceError",
    "ManyExamples",
    "NoAnswerInTime",
    "for_all",
    "required",
    "slowdown",
    "within_time",
]

SHRINKING_S = 10.0
"""Seconds that a failing check may spend on shrinking its example."""
PROGRESS_S = 10.0
"""Seconds between two lines of progress."""
DERANDOMIZED = True
"""Whether a check draws the same examples in every run."""
_SPIN_S = 0.05
"""CPU seconds of the work that shows how busy the machine is."""

_Example = TypeVar("_Example")
_Result = TypeVar("_Result")


class ConformanceError(AssertionError):
    """A plugin broke a law; the message is the whole counterexample."""


class ManyExamples:
    """The base of conformance classes that draw examples.

    Attributes:
        examples: largest number of examples of a check; ``--checkmate-examples`` overrides it.
    """

    examples: int

    @pytest.fixture(autouse=True)
    def _examples_asked_for(self, request: pytest.FixtureRequest) -> None:
        wanted = request.config.getoption("--checkmate-examples", default=None)
        if wanted is not None:
            self.examples = wanted

    @pytest.fixture(autouse=True)
    def _progress_is_shown(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let a check that takes long print a line every ten seconds, between pytest's own."""
        terminal = request.config.pluginmanager.getplugin("terminalreporter")
        capture = request.config.pluginmanager.getplugin("capturemanager")
        if terminal is None:  # in a process of pytest-xdist
            return

        def say(text: str) -> None:
            with capture.global_and_fixture_disabled() if capture else nullcontext():
                terminal.ensure_newline()
                terminal.write_line(f"{request.node.name}: {text}")

        monkeypatch.setattr(sys.modules[__name__], "_say", say)


class NoAnswerInTime(BaseException):
    """A call did not return. Not an Exception, so that Hypothesis tries no smaller examples."""


class _SmallEnough(BaseException):
    """Ends the shrinking; not an Exception, so that Hypothesis does not catch it."""


def _say(_text: str) -> None:
    """Print a line of progress; does nothing outside of :class:`ManyExamples`."""


def _shown(check: Callable[[_Example], None], count: int) -> Callable[[_Example], None]:
    """The check, with lines of progress.

    They are not part of the function that Hypothesis runs: its source decides which examples are drawn.
    """
    tried, said = 0, time.monotonic()

    def shown(example: _Example) -> None:
        nonlocal tried, said
        tried += 1
        if time.monotonic() - said > PROGRESS_S:
            said = time.monotonic()
            _say(f"example {tried} of up to {count}" if tried <= count else "it fails, and is made smaller")
        check(example)

    return shown


def for_all(examples: st.SearchStrategy[_Example], check: Callable[[_Example], None], *, count: int) -> None:
    """Run ``check`` on ``count`` examples; fail the test with the message of the smallest that breaks it."""
    __tracebackhide__ = True
    check = _shown(check, count)

    @settings(
        max_examples=count,
        derandomize=DERANDOMIZED,
        database=None,
        deadline=None,
        verbosity=Verbosity.quiet,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(example=examples)
    def every(example: Any) -> None:
        try:
            check(example)
        except ConformanceError as error:
            messages.append(str(error))
            since.append(time.monotonic())
            if since[-1] - since[0] > SHRINKING_S:
                raise _SmallEnough(min(messages, key=len)) from None
            raise

    messages: list[str] = []
    since: list[float] = []
    try:
        required(every)
    except Flaky:  # the same example passed when tried again; the first failure counts
        pytest.fail(messages[-1] if messages else "the same example behaves differently", pytrace=False)


def required(check: Callable[[], None]) -> None:
    """Run ``check``; if it raises ConformanceError, fail the test with its message alone."""
    __tracebackhide__ = True
    found: str | None = None
    try:
        check()
    except (ConformanceError, NoAnswerInTime, _SmallEnough) as problem:
        found = str(problem)
    if found is not None:
        pytest.fail(found, pytrace=False)


def slowdown() -> float:
    """How much longer work takes now than on an idle machine, as seconds over seconds of CPU time; ≥ 1."""
    started, used = time.monotonic(), time.thread_time()
    while time.thread_time() - used < _SPIN_S:
        pass
    return max((time.monotonic() - started) / _SPIN_S, 1.0)


def within_time(call: Callable[[], _Result], seconds: float) -> _Result:
    """Return or raise the outcome of ``call``, which runs in a thread, so that it can't hang the test.

    Raises:
        NoAnswerInTime: after the time limit; the thread keeps running.
    """
    outcome: list[_Result] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(call())
        except BaseException as error:  # noqa: BLE001 - handed over to the caller, whatever it is
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True, name="checkmate conformance")
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise NoAnswerInTime
    if raised:
        raise raised[0]
    return outcome[0]
