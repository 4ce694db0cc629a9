"""Views in generated code: as few as possible, of the same values."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from checkmate_torch import compile
from checkmate_torch.running.emit import emit

aten = torch.ops.aten


class Reshaping(nn.Module):
    """Products of batches of rows, whose gradients are views of views, and transposed twice."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
        self.last = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        rows: Tensor = self.rows(x)
        return torch.softmax(self.last(rows.unflatten(-1, (2, 4)).flatten(-2)), dim=-1)


def trained(run: nn.Module, x: Tensor) -> list[Tensor]:
    run(x).square().sum().backward()
    return [p.grad for p in run.parameters() if p.grad is not None]


def test_views_between_are_left_out_and_bits_are_the_same() -> None:
    torch.manual_seed(0)
    plain, x = Reshaping(), torch.randn(3, 5, 8)
    compiled = compile(Reshaping(), 2**30)
    compiled.load_state_dict(plain.state_dict())
    for one, other in zip(trained(plain, x), trained(compiled, x), strict=True):
        assert torch.equal(one, other)
    (plan,) = compiled.plans
    parts = emit(plan.traced, plan.solution.schedule)
    made = [node for part in parts for node in part.graph.nodes if node.op == "call_function"]
    returned = {node for part in parts for node in part.graph.output_node().all_input_nodes}
    joint = [node.target for node in plan.traced.joint.graph.nodes]
    assert {aten.detach.default, aten.t.default, aten.view.default} <= set(joint)
    for node in made:
        operands = node.all_input_nodes
        if node in returned:
            continue
        assert node.target not in (aten.detach.default, aten.alias.default)
        if node.target is torch.t:
            assert operands[0].target is not torch.t
        if node.target is Tensor.view:
            assert operands[0].target is not Tensor.view
            assert operands[0].meta["val"].shape != node.meta["val"].shape
