"""The parts of a model are found at all depths, and the tables of their effects predict steps."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from checkmate_torch import Recompute, Save
from checkmate_torch.policies.choose import cheapest
from checkmate_torch.policies.eager import EagerStep, run_eagerly
from checkmate_torch.policies.parts import Again, Part, PartTables, joined


class Block(nn.Module):
    """Two layers beside a short cut, as a part and not."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.norm(x)).tanh()


class Staged(nn.Module):
    """An embedding of two layers, two stages of blocks, and a head; one small part runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(8, 32), nn.GELU())
        stages = [nn.Sequential(*(Block(width) for _ in range(2))) for width in (32, 48)]
        self.stages = nn.ModuleList(stages)
        self.widen, self.head = nn.Linear(32, 48), nn.Linear(48, 1)
        self.shared = nn.Sequential(nn.Tanh(), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages[0](self.embed(x))
        x = self.stages[1](self.shared(self.shared(self.widen(x))))
        return self.head(x).square().mean()


X = torch.zeros(512, 8)


@cache
def model() -> nn.Module:
    torch.manual_seed(0)
    return Staged()


def run(policy: Recompute) -> EagerStep:
    return run_eagerly(model(), X, policy, None, notes_calls=True)


def prices(step: EagerStep) -> Mapping[Hashable, tuple[float, int]]:
    return {op.key: (1.0, 0) for op in step.ran}


@cache
def tables() -> PartTables:
    found = PartTables(run, prices, run(Recompute()))
    found.fill(saves=True)
    return found


def by_path(parts: tuple[Part, ...]) -> dict[str, Part]:
    return {path: p for part in parts for path, p in ({part.path: part} | by_path(part.parts)).items()}


def test_parts_of_stages_and_beside_them_are_found() -> None:
    blocks = [f"stages.{stage}.{block}" for stage in (0, 1) for block in (0, 1)]
    parts = by_path(tables().parts)
    assert {*parts} == {"embed", "stages.0", "stages.1", *blocks, *(f"{block}.mlp" for block in blocks)}
    kinds = [parts[block].alike for block in blocks]
    assert kinds[0] == kinds[1] != kinds[2] == kinds[3]
    assert tables().effects[kinds[0]][Again()].held < 0


@pytest.mark.parametrize("share", [0.9, 0.75, 0.6])
def test_the_tables_predict_peak_and_cost(share: float) -> None:
    choice = cheapest(tables(), share * run(Recompute()).peak({})[0])
    assert choice is not None
    step = run(choice.policy)
    assert step.peak({})[0] == pytest.approx(choice.peak, rel=0.01)
    assert sum(op.again for op in step.ran) == pytest.approx(choice.cost, abs=2)


def test_what_was_learned_is_exact() -> None:
    found = PartTables(run, prices, run(Recompute()))
    chosen = [(by_path(found.parts)["stages.0.1"], Again(save=(Save(op="aten.gelu.default"),)))]
    step = found.learn(chosen)
    assert found.effects[chosen[0][0].alike][chosen[0][1]].cost == sum(op.again for op in step.ran)
    found.forget(chosen)
    assert not found.effects[chosen[0][0].alike]


def test_nests_are_apart_and_equal_policies_together() -> None:
    saved = (Save(op="aten.mm.default"),)
    each = [
        *(Recompute(modules=(name,)) for name in ("a.0", "a.0.b", "a.1", "a.10")),
        Recompute(modules=("c",), save=saved),
    ]
    assert joined(each) == Recompute(
        modules=("a.0", "a.1", "a.10"),
        also=(Recompute(modules=("a.0.b",)), Recompute(modules=("c",), save=saved)),
    )
    assert joined([]) == Recompute()
