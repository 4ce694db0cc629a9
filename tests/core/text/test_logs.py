"""``CHECKMATE_LOG``: messages on stderr on request, nothing without it, and never an error."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

PROGRAM = """
import logging, checkmate
for name in ("checkmate.a", "checkmate_torch.b"):
    logging.getLogger(name).info("for your information")
    logging.getLogger(name).warning("take care")
"""


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("", ["take care"] * 2),
        ("INFO", ["checkmate.a INFO: for your information", "checkmate.a WARNING: take care"]),
        ("warning", ["checkmate.a WARNING: take care", "checkmate_torch.b WARNING: take care"]),
        ("loud", ["CHECKMATE_LOG is 'loud', must be one of debug, info, warning, error: ignored"]),
    ],
)
def test_messages_of_the_level_are_written_to_stderr_once(level: str, expected: list[str]) -> None:
    variables = {"CHECKMATE_LOG": level, "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in done.stderr.splitlines()]
    assert lines[: len(expected)] == expected
    assert done.stdout == ""


def test_warnings_without_any_handler_are_written_once_while_the_line_is_shown() -> None:
    program = """
import logging
from checkmate.framework import Options
with Options.parse(progress=True).planning("tracing"):
    logging.getLogger("checkmate.a").warning("take care")
    logging.getLogger("checkmate.a").info("for your information")
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CHECKMATE_")}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stderr.count("take care\n") == 1
    assert "information" not in done.stderr
