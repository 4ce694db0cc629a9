"""Whether a traced step can be captured as one CUDA graph: :func:`capturable`."""

from __future__ import annotations

from typing import Union

from checkmate_torch.api.trace import TracedModel
from checkmate_torch.api.trace_step import TracedTraining
from checkmate_torch.ops.capturable import Capturable

__all__ = ["capturable"]


def capturable(traced: Union[TracedModel, TracedTraining]) -> Capturable:  # noqa: UP007 - the docs mock torch
    """Whether a traced step can be captured as one CUDA graph on its device, and what forbids it.

    No GPU is needed: trace for one, ``device="cuda:H100-80GB"``. Then tensors that the model keeps on the CPU
    count as the GPU's, except where its code says so, as ``x.cpu()`` does.

    Args:
        traced: by :func:`checkmate_torch.trace` or :func:`checkmate_torch.trace_step`; the latter asks about
            the optimizer's updates too.

    Returns:
        A value that is true if nothing forbids it. Its ``obstacles`` name the ops, the reasons, and the lines
        of the model's code.

    >>> import torch
    >>> from checkmate_torch import trace
    >>> layer = torch.nn.Linear(4, 4)
    >>> print(capturable(trace(layer, torch.ones(2, 4), device="cuda:H100-80GB")))
    the step can be captured as one CUDA graph
    """
    return traced.capturable
