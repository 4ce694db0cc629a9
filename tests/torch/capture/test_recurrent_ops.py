"""LSTM, GRU and RNN are one op of a plan: PyTorch's kernel, computed again as a whole."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from checkmate_torch import (
    UnsupportedModelError,
    compile,
    compile_step,
    enable,
    memory_meter,
)
from checkmate_torch.capture import recurrent_ops


class Tagger(nn.Module):
    """Two recurrent networks, one after the other."""

    def __init__(self, kind: type[nn.RNNBase], **settings: Any) -> None:
        super().__init__()
        width = 32 if settings.get("bidirectional") else 16
        self.first = kind(16, 16, batch_first=True, **settings)
        self.second = kind(width, 16, batch_first=True, **settings)
        self.head = nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The mean square of the tags, and of the last states."""
        y, _ = self.first(x)
        y, states = self.second(y)
        last = states[0] if isinstance(states, tuple) else states
        return self.head(y).square().mean() + last.square().mean()


def step(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    torch.manual_seed(3)
    model.zero_grad()
    loss = model(x)
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters()), torch.get_rng_state()]


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (nn.LSTM, {"num_layers": 2, "dropout": 0.3}),
        (nn.LSTM, {"bidirectional": True}),
        (nn.GRU, {}),
        (nn.RNN, {"nonlinearity": "relu"}),
    ],
    ids=["dropout", "both ways", "gru", "rnn"],
)
def test_it_has_the_bits_of_eager_pytorch_within_less_memory(
    kind: type[nn.RNNBase], settings: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    model, x = Tagger(kind, **settings), torch.randn(16, 32, 16)
    plain = copy.deepcopy(model)
    step(plain, x)
    with memory_meter(plain, x) as eager:
        theirs = step(plain, x)
    training = enable(model, int(0.9 * eager.peak))
    assert all(map(torch.equal, step(model, x), theirs))
    with memory_meter(model, x) as meter:
        mine = step(model, x)
    assert all(map(torch.equal, mine, theirs))
    assert meter.peak <= (training.plans[0].solution.peak or 0) <= int(0.9 * eager.peak)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_it_has_the_bits_of_cudnn(kind: type[nn.RNNBase], monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights on a GPU are views of one storage, as are their gradients; updates follow one another."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    torch.manual_seed(0)
    models = [Tagger(kind, num_layers=2).cuda() for _ in range(3)]
    for model in models:
        model.load_state_dict(models[0].state_dict())
    x = torch.randn(16, 32, 16, device="cuda")
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in models]
    enable(models[1], "100%", optimizer=optimizers[1])
    step_of = compile_step(models[2], lambda model, x: model(x), optimizers[2], "100%")
    for _ in range(3):
        for model, optimizer in zip(models[:2], optimizers, strict=False):
            model(x).backward()
            optimizer.step()
            optimizer.zero_grad()
        step_of(x)
    for model in models[1:]:
        assert all(map(torch.equal, model.state_dict().values(), models[0].state_dict().values()))


def test_gradients_that_a_kernel_returns_in_one_storage_get_their_own() -> None:
    """cuDNN returns those of all weights so, and an op must not."""
    row = torch.arange(12.0)
    views = row[:4], row[4:].view(2, 4), row.view(3, 4).t()
    found = [recurrent_ops._own(view) for view in views]
    assert len({x.untyped_storage().data_ptr() for x in (row, *found)}) == 4
    assert all(map(torch.equal, found, views))
    assert all(x.is_contiguous() for x in found)
    assert recurrent_ops._own(row) is row


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.LSTM(16, 8, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of the outputs for packed sequences."""
        lengths = torch.full((len(x),), x.shape[1])
        return self.network(pack_padded_sequence(x, lengths, batch_first=True))[0].data.sum()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # Dynamo's, in 2.15
def test_packed_sequences_and_autocast_are_warned_of_or_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    x = torch.randn(4, 6, 16)
    with torch.autocast("cpu"), pytest.raises(UnsupportedModelError, match="autocast"):
        compile(Tagger(nn.GRU), "8GiB", strict=True)(x)
    with pytest.raises(UnsupportedModelError):
        compile(Packed(), "8GiB", strict=True)(x)
    model = Packed()
    plain = copy.deepcopy(model)
    enable(model, "8GiB")
    with caplog.at_level(logging.WARNING, "checkmate_torch"):
        assert all(map(torch.equal, step(model, x), step(plain, x)))
    assert "runs as plain PyTorch" in caplog.text
