"""What this distribution adds to Checkmate: the frontend of ``checkmate trace --tf``."""

from __future__ import annotations

import os
from importlib import import_module

from checkmate.plugins import Frontend, FrontendSpec, hookimpl

__all__ = ["checkmate_register_frontends"]


@hookimpl
def checkmate_register_frontends() -> list[FrontendSpec]:
    """TensorFlow's."""
    return [
        FrontendSpec(
            name="tf",
            summary="a factory of (model, loss, optimizer, input_spec, label_spec) or (function, arguments)",
            load=_frontend,
        )
    ]


def _frontend() -> Frontend:
    from checkmate_tf.releases import check_installed

    check_installed()
    # A command line shows what it was asked for, not how TensorFlow was built, unless the user wants to know.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    frontend: Frontend = import_module("checkmate_tf.ahead").Frontend()
    return frontend
