"""The PyTorch interface: all public names of :mod:`checkmate_torch`, from ``checkmate-torch``."""

from checkmate.errors import MissingDistributionError, install_hint

try:
    from checkmate_torch import *  # noqa: F403
    from checkmate_torch import __all__ as __all__
except ModuleNotFoundError as error:
    if error.name != "checkmate_torch":
        raise
    message = f"'checkmate.torch' needs the 'checkmate-torch' distribution: {install_hint('checkmate-torch')}"
    raise MissingDistributionError(message, name=error.name) from None
