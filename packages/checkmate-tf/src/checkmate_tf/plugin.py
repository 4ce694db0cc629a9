"""The plugin of this distribution: the frontend of ``checkmate trace --tf``."""

from __future__ import annotations

import os
from importlib import import_module

from checkmate.plugins import Frontend, FrontendSpec, hookimpl

__all__ = ["checkmate_register_frontends"]


@hookimpl
def checkmate_register_frontends() -> list[FrontendSpec]:
    """The frontend of TensorFlow."""
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
    # Hides TensorFlow's messages about its build, unless the user has set the level.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    frontend: Frontend = import_module("checkmate_tf.ahead").Frontend()
    return frontend
