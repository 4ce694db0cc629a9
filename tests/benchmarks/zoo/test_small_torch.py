"""Small networks: seeded and trainable; checkpointing changes only memory, which is mostly activations."""

from __future__ import annotations

import pytest
import torch

from checkmate_torch.costs.meter import memory_meter, resident_bytes
from zoo.small_torch import CASES, Case

SMALL = {
    "mlp": {"blocks": 6, "width": 16, "batch": 256},
    "resnet18": {"width": 4, "image": 32, "batch": 16},
    "unet": {"width": 4, "image": 32, "batch": 4},
    "gpt2": {"layers": 3, "width": 32, "heads": 2, "length": 32, "batch": 4, "vocabulary": 64},
}


def step(case: Case) -> torch.Tensor:
    loss = case.loss(case.module(*case.inputs))
    loss.backward()
    return loss.detach()


def gradients(case: Case) -> list[torch.Tensor]:
    return [p.grad for p in case.module.parameters() if p.grad is not None]


@pytest.mark.parametrize("name", CASES)
def test_equal_seeds_give_equal_steps_and_others_do_not(name: str) -> None:
    first, again, other = (CASES[name](**SMALL[name], seed=seed) for seed in (3, 3, 4))
    assert first.name == name
    assert torch.equal(step(first), step(again))
    assert all(map(torch.equal, gradients(first), gradients(again)))
    assert not torch.equal(step(other), step(again))


@pytest.mark.parametrize("name", CASES)
def test_every_parameter_has_a_gradient_and_a_few_steps_lower_the_loss(name: str) -> None:
    case = CASES[name](**SMALL[name])
    optimizer = torch.optim.AdamW(case.module.parameters(), lr=1e-3)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        losses.append(float(step(case)))
        assert len(gradients(case)) == len(list(case.module.parameters()))
        optimizer.step()
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", CASES)
def test_checkpointing_blocks_saves_memory_and_changes_no_gradient(name: str) -> None:
    plain, saving = (CASES[name](**SMALL[name], checkpoint_blocks=on) for on in (False, True))
    step(plain), step(saving)
    assert all(map(torch.equal, gradients(plain), gradients(saving)))
    peaks = []
    for case in (plain, saving):
        case.module.zero_grad()
        with memory_meter(case.module, case.inputs) as meter:
            step(case)
        peaks.append(meter.peak)
    assert peaks[1] < 0.9 * peaks[0]


@pytest.mark.parametrize("name", CASES)
def test_activations_are_most_of_the_memory_in_the_default_sizes(name: str) -> None:
    case = CASES[name]()
    step(case)
    held = resident_bytes(case.module, case.inputs)  # parameters, gradients, buffers, the batch
    case.module.zero_grad()
    with memory_meter(case.module, case.inputs) as meter:
        step(case)
    assert meter.peak - held > 0.75 * meter.peak


def test_dropout_draws_new_masks_only_in_train_mode() -> None:
    case = CASES["gpt2"](**SMALL["gpt2"], dropout=0.5)
    assert not torch.equal(step(case), step(case))
    case.module.eval()
    assert torch.equal(step(case), step(case))


def test_the_head_of_the_transformer_is_tied() -> None:
    module = CASES["gpt2"](**SMALL["gpt2"]).module
    names = [name for name, _ in module.named_parameters()]
    assert "token.weight" in names
    assert "head.weight" not in names
