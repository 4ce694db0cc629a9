"""Generated graphs: chains, random graphs, and the training steps of well-known networks.

All are deterministic: the same arguments, seed included, give the same digest.
"""

from checkmate.generators.networks import densenet, residual, transformer, unet
from checkmate.generators.synthetic import chain, random_layered

__all__ = ["chain", "densenet", "random_layered", "residual", "transformer", "unet"]
