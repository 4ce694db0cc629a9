"""The TensorFlow interface: all public names of :mod:`checkmate_tf`, from ``checkmate-tf``."""

from checkmate.errors import MissingDistributionError, install_hint

try:
    from checkmate_tf import *  # noqa: F403
    from checkmate_tf import __all__ as __all__
except ModuleNotFoundError as error:
    if error.name != "checkmate_tf":
        raise
    message = f"'checkmate.tf2' needs the 'checkmate-tf' distribution: {install_hint('checkmate-tf')}"
    raise MissingDistributionError(message, name=error.name) from None
