"""The line of progress: shown on a terminal only, erased at the end and before messages, never in the way."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from checkmate import DFGraph, Progress
from checkmate.framework import Options, decide
from checkmate.framework.progress import showing

GRAPH = DFGraph.from_nodes(cost=[1, 1, 1], size=[4, 4, 2], deps=[[], [0], [1]])


class Terminal(io.StringIO):
    """Takes what a terminal would show."""

    def isatty(self) -> bool:
        return True

    @property
    def screen(self) -> str:
        """The last line as it is seen now."""
        cells: list[str] = []
        column = 0
        for sign in self.getvalue():
            if sign == "\n":
                cells, column = [], 0
            elif sign == "\r":
                column = 0
            else:
                cells[column : column + 1] = [sign]
                column += 1
        return "".join(cells).rstrip()


@pytest.fixture
def attach(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Terminal]:
    """Puts a terminal in the place of stderr; a test calls it, because pytest changes stderr after setup."""

    def attach() -> Terminal:
        for name in ("CHECKMATE_PROGRESS", "RANK"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(sys, "stderr", Terminal())
        return sys.stderr

    return attach


def report(options: Options, step: str, incumbent: float | None = None) -> None:
    listener = options.listener()
    if listener is not None:
        listener(Progress(incumbent, 9.0, 0.0, step))


def test_a_stage_shows_until_the_block_ends_and_both_listeners_get_every_report(
    attach: Callable[[], Terminal],
) -> None:
    terminal = attach()
    seen: list[str] = []
    options = Options.parse(on_progress=lambda progress: seen.append(progress.step))
    with options.planning("tracing"):
        assert terminal.screen == "Checkmate: tracing"
        report(options, "timing op 1 of 2")
        report(options, "timing op 2 of 2")  # too soon after the other one to be written
        assert terminal.screen == "Checkmate: timing op 1 of 2"
        with options.planning("solving"):
            report(options, "found", 12.0)
            assert terminal.screen == "Checkmate: gap 25.0% (found)"
        assert terminal.screen == ""
        options.report("counting bytes")
        assert terminal.screen == "Checkmate: counting bytes"
    options.report("outside")
    assert terminal.screen == ""
    timing = ["timing op 1 of 2", "timing op 2 of 2"]
    assert seen == ["tracing", *timing, "solving", "found", "counting bytes", "outside"]


@pytest.mark.parametrize("off", ["setting", "variable", "rank", "log file", "closed", "display"])
def test_nothing_is_written_where_the_line_is_off(
    off: str, attach: Callable[[], Terminal], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = attach()
    if off in ("variable", "rank"):
        monkeypatch.setenv({"variable": "CHECKMATE_PROGRESS", "rank": "RANK"}[off], "01"[off == "rank"])
    if off == "log file":
        monkeypatch.setattr(terminal, "isatty", lambda: False)
    if off == "closed":
        monkeypatch.setattr(sys, "stderr", None)
    with showing(False) if off == "display" else nullcontext():
        options = Options.parse(progress=False if off == "setting" else None)
        with options.planning("tracing"):
            report(options, "timing")
    assert terminal.getvalue() == ""


def test_a_message_is_logged_on_a_line_of_its_own(attach: Callable[[], Terminal]) -> None:
    terminal = attach()
    log, options = logging.getLogger("checkmate.anything"), Options()
    handler = logging.StreamHandler(terminal)
    logging.getLogger().addHandler(handler)
    try:
        with options.planning("tracing"):
            log.warning("a message")
            report(options, "timing op 1 of 2")
    finally:
        logging.getLogger().removeHandler(handler)
    assert "\ra message\n\rCheckmate: timing" in terminal.getvalue()
    assert logging.getLogger("checkmate").handlers == []


def test_an_error_erases_the_line(attach: Callable[[], Terminal]) -> None:
    terminal = attach()

    def refuse(_: Progress) -> None:
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"), Options().planning("tracing"):
        report(Options.parse(on_progress=refuse), "timing")
    assert terminal.screen == ""


def test_solving_is_shown_and_erased(attach: Callable[[], Terminal]) -> None:
    terminal = attach()
    decide(GRAPH, 10, Options(solver="heuristics", cache=False))
    assert "Checkmate: solving" in terminal.getvalue()
    assert terminal.screen == ""


@pytest.mark.parametrize("by", ["setting", "notebook"])
def test_the_line_is_written_where_stderr_is_no_terminal_but_read(
    by: str, attach: Callable[[], Terminal], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = attach()
    monkeypatch.setattr(terminal, "isatty", lambda: False)
    if by == "notebook":
        shell = SimpleNamespace(kernel="python3")
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    with Options.parse(progress=True if by == "setting" else None).planning("tracing"):
        assert terminal.screen == "Checkmate: tracing"
    assert terminal.screen == ""


def test_a_closed_terminal_ends_no_plan(attach: Callable[[], Terminal]) -> None:
    terminal = attach()
    with Options.parse(progress=True).planning("tracing"):
        terminal.close()
        report(Options.parse(progress=True), "timing op 1 of 2")


def test_long_planning_is_logged_once_where_nobody_sees_the_line(
    attach: Callable[[], Terminal], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    terminal, now = attach(), [0.0]
    monkeypatch.setattr(terminal, "isatty", lambda: False)
    monkeypatch.setattr("checkmate.framework.progress.time.monotonic", lambda: now[0])
    monkeypatch.setattr("checkmate.framework.progress._line._warned", False)
    for options, seconds in ((Options(), 3.0), (Options(progress=False), 99.0), (Options(), 12.0)):
        with options.planning("tracing"):
            now[0] += seconds
            report(options, "timing op 1 of 2")
            report(options, "timing op 2 of 2")
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == [
        "Checkmate: timing op 1 of 2: planning has taken 12 s so far, which later steps don't repeat; "
        "CHECKMATE_LOG=info logs its stages"
    ]
    assert terminal.getvalue() == ""
