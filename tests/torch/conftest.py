"""One thread: on a busy machine OpenMP's barriers make small ops hundreds of times slower."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
