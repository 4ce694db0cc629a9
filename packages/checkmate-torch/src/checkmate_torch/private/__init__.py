"""Every private name of PyTorch that this package uses, and nothing else.

PyTorch has no public way to trace the forward and backward pass as one graph, to choose what is kept between
them, or to see each allocation. Whatever depends on PyTorch's release belongs here too. Other modules of the
package import from here only: all that the modules of this folder list in their ``__all__``.
"""

# ruff: noqa: F403
from checkmate_torch.private.aot import *
from checkmate_torch.private.dynamo import *
from checkmate_torch.private.fakes import *
from checkmate_torch.private.fsdp import *
from checkmate_torch.private.known_inputs import *
from checkmate_torch.private.profiler import *
from checkmate_torch.private.runtime import *
