"""Policies as values and text; what they change in a model, and undo."""

from __future__ import annotations

import copy
import dataclasses
import inspect

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy

from checkmate_torch import LibraryDefault, MemoryBudget, PolicyError, Recompute, Save
from checkmate_torch.policies.policy import applied, apply, layers_of, parsed, usual_policies

names = st.text("abc.*_", min_size=1, max_size=12).filter(lambda name: name.strip("*"))
runs = st.none() | st.frozensets(st.integers(0, 20), min_size=1, max_size=3)


class Net(nn.Module):
    """Four blocks of two layers, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        blocks = [nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.5)) for _ in range(4)]
        self.blocks = nn.ModuleList(blocks)
        self.runs = [0] * 4
        for k, block in enumerate(blocks):
            block.register_forward_pre_hook(lambda *_: None)
            block[0].register_forward_hook(lambda *_, k=k: self._count(k))

    def _count(self, k: int) -> None:
        self.runs[k] += 1

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x.square().sum()


rules = st.builds(
    Recompute,
    modules=st.lists(names, min_size=1, max_size=3).map(tuple),
    every=st.integers(1, 9),
    save=st.lists(st.builds(Save, module=names, op=names, which=runs)).map(tuple),
)


def text_of(rule: Recompute) -> str:
    assert isinstance(rule.save, tuple)
    saved = f" save {' | '.join(map(str, rule.save))}" if rule.save else ""
    return f"{','.join(rule.modules)}/{rule.every}{saved}"


@given(rules, st.lists(rules, max_size=2).map(tuple))
def test_a_policy_is_read_from_its_text(rule: Recompute, also: tuple[Recompute, ...]) -> None:
    assert parsed("; ".join(map(text_of, (rule, *also)))) == dataclasses.replace(rule, also=also)


def test_the_other_policies_have_texts_too() -> None:
    assert parsed("plain") == Recompute()
    assert parsed("library/3") == LibraryDefault(every=3)
    assert parsed("budget=0.25") == MemoryBudget(share=0.25)
    assert parsed("a.* save aten.mm.default").save == (Save(op="aten.mm.default"),)


@pytest.mark.parametrize(
    "text", ["", "a/0", "a/x", "budget=2", "budget=x", "a save ::", "a save b-c", "a; plain"]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(PolicyError):
        parsed(text)


@pytest.mark.parametrize(
    ("text", "again"),
    [
        ("plain", []),
        ("blocks.*", [0, 1, 2, 3]),
        ("blocks.?/2", [0, 2]),
        ("blocks.1,blocks.3", [1, 3]),
        ("blocks.? save aten.mm.default", [0, 1, 2, 3]),
        ("blocks.0; blocks.1,blocks.3 save aten.tanh.default", [0, 1, 3]),
    ],
)
def test_the_modules_of_a_policy_run_again_with_the_same_gradients(text: str, again: list[int]) -> None:
    model, x = Net(), torch.randn(3, 8)
    wanted = []
    for policy in (Recompute(), parsed(text)):
        torch.manual_seed(0)
        model.zero_grad()
        model.runs[:] = [0] * 4
        with applied(policy, model):
            model(x).backward()
        wanted.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert model.runs == [2 if k in again else 1 for k in range(4)]
    assert all(map(torch.equal, *wanted))


def test_a_model_is_left_as_it_was() -> None:
    model = Net()
    before = [dict(vars(module)) for module in model.modules()]
    with pytest.raises(ZeroDivisionError), applied(parsed("blocks.*"), model):
        _ = 1 / 0
    assert [dict(vars(module)) for module in model.modules()] == before


def test_a_model_under_a_policy_can_be_copied_and_keeps_its_signatures() -> None:
    model, x = Net(), torch.randn(3, 8)
    names = inspect.signature(model.blocks[0].forward).parameters
    with apply(parsed("blocks.? save blocks.* :: aten.mm.default"), model):
        assert inspect.signature(model.blocks[0].forward).parameters == names
        assert "forward" not in vars(model)
        twin = copy.deepcopy(model)
    model.eval()(x).backward()
    twin.eval()(x).backward()
    pairs = zip(model.parameters(), twin.parameters(), strict=True)
    assert all(torch.equal(p.grad, q.grad) for p, q in pairs)


def test_a_policy_function_is_asked() -> None:
    asked = []

    def policy(ctx: object, op: object, *args: object, **kwargs: object) -> CheckpointPolicy:
        asked.append(op)
        return CheckpointPolicy.PREFER_RECOMPUTE

    model = Net()
    with applied(Recompute(modules=("blocks.0",), save=policy), model):
        model(torch.randn(3, 8)).backward()
    assert torch.ops.aten.addmm.default in asked


def test_wrong_policies_are_named() -> None:
    with pytest.raises(PolicyError, match=r"'block.\*'"), applied(parsed("block.*"), Net()):
        pass
    with (
        pytest.raises(PolicyError, match="no gradient checkpointing of its own"),
        applied(LibraryDefault(), Net()),
    ):
        pass


def test_the_repeated_parts_are_found_and_usually_checkpointed() -> None:
    blocks = tuple(f"blocks.{k}" for k in range(4))
    assert layers_of(Net())[0] == blocks
    assert usual_policies(Net()) == [Recompute(modules=blocks)]
    assert usual_policies(nn.Linear(2, 2)) == []
