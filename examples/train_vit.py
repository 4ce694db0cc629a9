"""A small vision transformer trains within a byte budget; the training loop is an ordinary one.

    python examples/train_vit.py [BUDGET]

Data and labels are synthetic, so this runs on any machine in a minute, most of it in the first step.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn

import checkmate.torch


class ViT(nn.Module):
    """Cuts images of 32 x 32 pixels into 64 patches, and lets them attend to each other."""

    def __init__(self, width: int = 64, depth: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.places = nn.Parameter(torch.randn(1, 64, width) / 10)
        block = nn.TransformerEncoderLayer(
            width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, 8)

    def forward(self, images: Tensor) -> Tensor:
        """Scores of the classes."""
        x = self.patches(images).flatten(2).transpose(1, 2) + self.places
        return self.head(self.blocks(x).mean(1))


def main(budget: str = "60%", steps: int = 20) -> list[float]:
    """Train, and print losses and the report; return the losses."""
    torch.manual_seed(0)
    model = ViT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    training = checkmate.torch.enable(model, budget, optimizer=optimizer)  # the one line

    def step() -> float:
        labels = torch.randint(8, (32,))  # the class of an image is the position of a bright stripe
        stripes = nn.functional.one_hot(4 * labels, 32)[:, None, :, None]
        images = torch.randn(32, 3, 32, 32) + 2 * stripes
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    losses = [step() for _ in range(steps)]
    with checkmate.torch.memory_meter(model, optimizer) as meter:
        step()
    sys.stdout.write(f"losses {losses[0]:.3f} … {losses[-1]:.3f}\n{training.report(meter)}\n")
    return losses


if __name__ == "__main__":
    main(*sys.argv[1:2])
