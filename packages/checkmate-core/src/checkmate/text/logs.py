"""Messages of Checkmate on stderr, on request: ``CHECKMATE_LOG=info``.

Libraries leave their loggers to the application; the variable helps where the application configures none. It
is read once, when ``checkmate`` is first imported.
"""

from __future__ import annotations

import logging
import os

__all__ = ["LOGGERS", "configure"]

LOGGERS = ("checkmate", "checkmate_solvers", "checkmate_tf", "checkmate_torch")
"""The loggers of the four distributions."""

_VARIABLE = "CHECKMATE_LOG"
_LEVELS = ("debug", "info", "warning", "error")
_log = logging.getLogger(__name__)


def configure() -> None:
    """Write messages of the level that ``CHECKMATE_LOG`` names, and of higher ones, to stderr.

    Without the variable nothing changes; a value that is no level is ignored, with a warning.
    """
    level = os.environ.get(_VARIABLE, "").strip().lower()
    if not level:
        return
    if level not in _LEVELS:
        _log.warning("%s is %r, must be one of %s: ignored", _VARIABLE, level, ", ".join(_LEVELS))
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s: %(message)s", "%H:%M:%S"))
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.setLevel(level.upper())
        logger.addHandler(handler)
