"""Arguments of a wrong type are refused before anything is traced, in words that name the way out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from checkmate_torch import arguments


@pytest.mark.parametrize(
    ("check", "wrong", "way_out"),
    [
        (arguments.check_module, lambda x: x, r"torch\.compile\(function, backend='checkmate'"),
        (arguments.check_module, nn.Linear, r"make one, Linear\("),
        (arguments.check_module, "gpt2", r"must be a torch\.nn\.Module"),
        (arguments.check_optimizer, "adam", r"optimizer=torch\.optim\.Adam\(model\.parameters\(\)\)"),
        (arguments.check_optimizer, torch.optim.Adam, r"torch\.optim\.Adam\(model\.parameters\(\)\)"),
        (arguments.check_loss, "mse", "loss=lambda output: "),
        (arguments.check_loss, nn.MSELoss, "loss=lambda output: "),
    ],
)
def test_a_wrong_type_is_refused_with_the_way_out(
    check: Callable[[object], None], wrong: object, way_out: str
) -> None:
    with pytest.raises(TypeError, match=way_out):
        check(wrong)
