"""How a check runs: over many examples, the same ones each time; a failure shows its smallest example only.

A check is an ordinary function of one example that raises :class:`ConformanceError`. Hypothesis finds an
example for which it does, and shrinks it; pytest then prints the message alone, without a traceback of ours.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Verbosity, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky

__all__ = ["ConformanceError", "ManyExamples", "NoAnswerInTime", "for_all", "required", "within_time"]

SHRINKING_S = 20.0
"""Seconds for which a failing check looks for a smaller example."""

_Example = TypeVar("_Example")
_Result = TypeVar("_Result")


class ConformanceError(AssertionError):
    """What a plugin did breaks a law; the message is the whole counterexample."""


class ManyExamples:
    """What conformance classes that draw examples have in common.

    Attributes:
        examples: how many a check tries, at most; ``--checkmate-examples`` overrides it.
    """

    examples: int

    @pytest.fixture(autouse=True)
    def _examples_asked_for(self, request: pytest.FixtureRequest) -> None:
        wanted = request.config.getoption("--checkmate-examples", default=None)
        if wanted is not None:
            self.examples = wanted


class NoAnswerInTime(BaseException):
    """A call did not return. No Exception, so that Hypothesis does not wait for smaller examples too."""


class _SmallEnough(BaseException):
    """Ends the search for a smaller example; no Exception, so that Hypothesis lets it through."""


def for_all(examples: st.SearchStrategy[_Example], check: Callable[[_Example], None], *, count: int) -> None:
    """Run ``check`` on ``count`` examples; fail the test with the message of the smallest that breaks it."""
    __tracebackhide__ = True

    @settings(
        max_examples=count,
        derandomize=True,
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
    except Flaky:  # the same example passed when it was tried again: what was seen still counts
        pytest.fail(messages[-1] if messages else "the same example behaves differently", pytrace=False)


def required(check: Callable[[], None]) -> None:
    """Run ``check``; fail the test with its message alone if it finds something."""
    __tracebackhide__ = True
    found: str | None = None
    try:
        check()
    except (ConformanceError, NoAnswerInTime, _SmallEnough) as problem:
        found = str(problem)
    if found is not None:
        pytest.fail(found, pytrace=False)


def within_time(call: Callable[[], _Result], seconds: float) -> _Result:
    """What ``call`` returns or raises; it runs in a thread of its own, so that a hang does not hang the test.

    Raises:
        NoAnswerInTime: when the time is up; the thread is left to itself.
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
