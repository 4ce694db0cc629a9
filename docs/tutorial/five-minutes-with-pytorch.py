# %% [markdown]
# # Five minutes with PyTorch
#
# You train a network within a byte budget: with the training loop that you have, then with the whole step in one graph. Install
# Checkmate from a clone of the repository, with matplotlib for one picture:
#
# ```sh
# pip install './packages/checkmate-core[plot]' ./packages/checkmate-solvers ./packages/checkmate-torch
# ```
#
# ## 1. A model and its loop

# %%
import copy

import torch
from torch import nn

_ = torch.manual_seed(0)


def layer(channels: int, wider: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels, wider, 3, padding=1), nn.BatchNorm2d(wider), nn.ReLU())


model = nn.Sequential(
    layer(3, 16),
    *(layer(16, 16) for _ in range(6)),
    nn.MaxPool2d(4),
    nn.Flatten(),
    nn.Dropout(0.2),
    nn.Linear(1024, 10),
)
images, labels = torch.randn(64, 3, 32, 32), torch.arange(64) % 10


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> list[float]:
    torch.manual_seed(1)  # dropout
    losses = []
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


# %% [markdown]
# ## 2. One more line
#
# `budget` bounds everything that the step holds at once: parameters, gradients, optimizer state, the batch, activations, workspaces.
# `"60%"` is a share of the peak of the plain step, without Checkmate; for a device you would write a size, such as `"8GiB"`.
# `enable` changes the model in place, so the loop, or a trainer, goes on with the model that it has.

# %%
import checkmate

twin = copy.deepcopy(model)
optimizer = torch.optim.Adam(twin.parameters(), lr=1e-3)
training = checkmate.torch.enable(twin, budget="60%", optimizer=optimizer)
losses = train(twin, optimizer)

# %% [markdown]
# The first call traces the model, times its ops and looks for a schedule. That takes some seconds, once: the measurements are kept
# on disk. From then on each step keeps the activations that the schedule keeps, and computes the others again when the backward
# pass needs them. Nothing else changes: the losses equal those of the plain model.

# %%
plain_optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
plain_losses = train(model, plain_optimizer)
list(zip(losses, plain_losses, strict=True))

# %% [markdown]
# ## 3. What happened?
#
# `training` holds the plans. Its report shows where every byte of the peak is. Given a meter, it shows the measured peak too.

# %%
with checkmate.torch.memory_meter(twin, optimizer, images, labels) as meter:
    train(twin, optimizer, steps=1)
print(training.report(meter))

# %% [markdown]
# The explanation lists the recomputed ops: times computed, bytes saved, extra seconds, and the peak if their results were kept.

# %%
print(training.explain())

# %% [markdown]
# Both steps over time, measured:

# %%
# %matplotlib inline
import matplotlib.pyplot as plt

with checkmate.torch.memory_meter(model, plain_optimizer, images, labels) as plain_meter:
    train(model, plain_optimizer, steps=1)

for name, measured in {"plain": plain_meter, "within 60 %": meter}.items():
    plt.step(measured.times_s * 1e3, measured.bytes / 2**20, where="post", label=name)
budget = training.plans[-1].solution.problem.budget
plt.axhline(budget / 2**20, color="black", linewidth=0.8, linestyle="--", label="budget")
plt.xlabel("ms")
plt.ylabel("MiB held")
_ = plt.legend()

# %% [markdown]
# `training.save_report("step.html")` writes a page with all of this.
#
# ## 4. A budget that is too low
#
# A budget that can't be met raises an error before any training. It names the lowest budget known to work, and the op that
# needs more.

# %%
try:
    checkmate.torch.enable(twin, budget="2 MB")
    twin(images)
except checkmate.InfeasibleBudgetError as error:
    print(error)

# %% [markdown]
# ## 5. The whole step in one graph
#
# `enable` leaves loss and optimizer to you, so every gradient is held until the optimizer runs. `compile_step` includes them: each
# parameter is updated as soon as its gradient is ready. One call is one training step.

# %%
step = checkmate.torch.compile_step(
    model, lambda model, x, y: nn.functional.cross_entropy(model(x), y), plain_optimizer, budget="50%"
)
first = step(images, labels)
for _ in range(10):
    last = step(images, labels)
first.item(), last.item()

# %% [markdown]
# ## Further
#
# - [Choose a budget](../how-to/choose-a-budget.md): which bytes count, and how low to go
# - [Plan a model that doesn't fit](plan-a-model-that-does-not-fit.md), and find the largest batch, without running anything
# - [Train a whole step within a budget](../how-to/train-a-whole-step.md): gradient clipping, schedulers, checkpoints
# - [PyTorch API reference](../reference/pytorch.md), and [How a PyTorch step runs](../explanation/pytorch.md)
