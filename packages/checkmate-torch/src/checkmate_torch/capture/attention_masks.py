"""Attention masks of transformers that mask nothing: not made in a captured graph, as in plain PyTorch.

Outside of a trace, transformers looks at the padding mask and the positions of a batch: where no token is
masked and each row is one sequence, it makes no mask, so that attention runs by PyTorch's fastest kernels.
While Dynamo traces it always makes one. These are the private functions that decide; tried with releases
5.17, 5.23 and 5.24 on PyTorch 2.13, with 5.23 on 2.11, and with 5.24 on 2.14.1.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from functools import cache
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import Tensor

from checkmate_torch.private import Answer, Answers

__all__ = ["answers_of_transformers", "is_one_sequence", "masks_nothing"]

_MODULE = "transformers.masking_utils"
_log = logging.getLogger(__name__)
_WHOLE = (torch.int64, torch.int32, torch.bool)
_SAME = {"to", "unsqueeze", "expand", "repeat", "contiguous", "long", "int"}


def masks_nothing(mask: Tensor) -> bool:
    """Whether a padding mask keeps every token."""
    return bool(_quick(mask).all())


def is_one_sequence(positions: Tensor) -> bool:
    """Whether each row of positions counts up by one."""
    x = _quick(positions)
    if isinstance(x, Tensor):
        return bool((x[..., 1:] - x[..., :-1] == 1).all())
    rows = x.reshape(-1, x.shape[-1])
    if (rows[1:] == rows[:-1]).all():
        rows = rows[:1]
    return all((row[1:] - row[:-1] == 1).all() for row in rows)


def _quick(x: Tensor) -> Tensor | np.ndarray[Any, Any]:
    """The numbers of a tensor for NumPy, which compares them three times as fast on one thread of a CPU."""
    return x.numpy() if x.device.type == "cpu" and type(x) is Tensor and x.dtype in _WHOLE else x


def _needs_no_causal_mask(
    padding_mask: Tensor | None,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor,
    kv_offset: int,
    local_attention_size: int | None = None,
) -> bool:
    """Whether a causal mask may be left out, if the padding mask keeps every token."""
    if local_attention_size is not None and kv_length >= local_attention_size:
        return False
    if isinstance(q_offset, Tensor):
        return False
    return q_length == 1 or kv_length == q_length or (padding_mask is None and q_offset == 0)


def _needs_no_mask(
    padding_mask: Tensor | None, kv_length: int, local_attention_size: int | None = None
) -> bool:
    """Whether a mask for both directions may be left out, if the padding mask keeps every token."""
    return local_attention_size is None or kv_length < local_attention_size


def _no_packed_sequences(position_ids: Tensor) -> None:
    """The mask of packed sequences for rows that are one sequence each."""


_OF_PADDING = frozenset({*_SAME, "view", "reshape", "bool", "getitem"})
_ANSWERS: Mapping[str, Answer] = {
    "_ignore_causal_mask_sdpa": Answer(
        argument="padding_mask",
        holds=masks_nothing,
        kept_by=_OF_PADDING,
        made_by="ones",
        instead=_needs_no_causal_mask,
    ),
    "_ignore_bidirectional_mask_sdpa": Answer(
        argument="padding_mask",
        holds=masks_nothing,
        kept_by=_OF_PADDING,
        made_by="ones",
        instead=_needs_no_mask,
    ),
    "find_packed_sequence_indices": Answer(
        argument="position_ids",
        holds=is_one_sequence,
        kept_by=frozenset({*_SAME, "add"}),
        made_by="arange",
        instead=_no_packed_sequences,
    ),
}


def answers_of_transformers() -> Answers:
    """How its functions are answered; none before it is imported, or if they are not those that we know."""
    module = sys.modules.get(_MODULE)
    return {} if module is None else _answers_in(module)


@cache
def _answers_in(module: Any) -> Answers:
    found: dict[Callable[..., object], Answer] = {}
    for name, answer in _ANSWERS.items():
        function, known = getattr(module, name, None), list(signature(answer.instead).parameters)
        if function is None or list(signature(function).parameters) != known:
            _log.warning(
                "this release of transformers decides elsewhere whether an attention mask is needed: planned "
                "models are right, but make masks that mask nothing, which takes time and memory"
            )
            return {}
        found[function] = answer
    return found
