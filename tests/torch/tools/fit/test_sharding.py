"""A rank's peaks where a model is sharded over ranks that are not there."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from threading import Lock
from types import ModuleType

import click
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from checkmate import UnsupportedModelError
from checkmate.framework import ProgramError
from checkmate_torch import Fit, FitTable, plan
from checkmate_torch import fit as fit_slowly
from checkmate_torch.private import fake_mode, fake_ranks, units_of
from checkmate_torch.tools.fit.command import register
from checkmate_torch.tools.fit.hugging_face import hugging_face_factory
from checkmate_torch.tools.fit.predict import make
from checkmate_torch.tools.fit.sharding import block_sharding

LOCK = Lock()
WIDTH, BATCH, TIME_LIMIT_S = 64, 256, 0.5
fit = partial(fit_slowly, time_limit=TIME_LIMIT_S)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)  # type: ignore[no-any-return]


class Net(nn.Module):
    """Computes its loss. Its blocks are repeated, and so are the layers inside of them."""

    def __init__(self, listed: list[str] | None = None) -> None:
        super().__init__()
        self._no_split_modules = listed
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x).square().mean()  # type: ignore[no-any-return]


def net(batch: int) -> tuple[nn.Module, Tensor]:
    return Net(), torch.zeros(batch, WIDTH)


@cache
def of_ranks(world_size: int) -> Fit:
    return fit(net, [BATCH], world_size=world_size, shard=block_sharding())[BATCH]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch) -> click.Group:
    module = ModuleType("test_fit_factories")
    module.net = net  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    group = click.Group()
    register(group)
    return group


def sharded_by(shard: Callable[[nn.Module], object], model: nn.Module) -> list[str]:
    """The paths of the modules that were sharded."""
    with fake_ranks(2):
        shard(model)
        return sorted(name for unit in units_of(model) for name in unit.names)


def test_more_ranks_take_less_each() -> None:
    two, four, many = map(of_ranks, (2, 4, 64))
    for kind in ("plain_peak", "least_peak", "update_peak"):
        assert getattr(two, kind) > getattr(four, kind) > getattr(many, kind)
    for cell in (two, four, many):
        assert cell.update_peak <= (cell.least_peak or 0) < 0.9 * cell.plain_peak


def test_a_rank_updates_its_share_of_parameters_gradients_and_state() -> None:
    parameters = sum(p.nbytes for p in Net().parameters())
    batch = BATCH * WIDTH * 4
    for world_size in (2, 4):  # Adam's state is two moments; its temporaries are smaller than a weight
        least = 4 * parameters / world_size
        most = least + 4 * WIDTH * WIDTH * 4 / world_size
        assert least <= of_ranks(world_size).update_peak - batch <= 1.05 * most


def test_it_is_what_plan_says() -> None:
    cell = of_ranks(4)
    budget = (cell.plain_peak + (cell.least_peak or 0)) // 2
    within = fit(net, [BATCH], world_size=4, shard=block_sharding(), budget=budget)[BATCH]
    model, x = net(BATCH)
    planned = plan(
        model,
        x,
        budget,
        loss=lambda output: output,
        optimizer=torch.optim.AdamW(model.parameters()),
        shard=block_sharding(),
        world_size=4,
        cost_model="flops",
        time_limit=TIME_LIMIT_S,
        progress=False,
    )
    assert planned.plain_peak == cell.plain_peak == within.plain_peak
    assert planned.overhead == within.overhead
    assert within.verdict.startswith("fits at +")
    assert not units_of(model)


def test_a_verdict_is_about_a_rank() -> None:
    cell = of_ranks(4)
    never, always = (
        fit(net, [BATCH], world_size=4, shard=block_sharding(), budget=budget)
        for budget in ((cell.least_peak or 0) // 2, cell.plain_peak)
    )
    assert never[BATCH].fits is False
    assert always[BATCH].verdict == "fits"
    assert "each of 4 ranks" in str(always)
    assert "in pieces" not in str(always)
    assert FitTable.from_json(always.to_json()) == always


def test_gathered_parameters_and_activations_may_have_another_dtype() -> None:
    half = fit(net, [BATCH], world_size=4, shard=block_sharding(dtype=torch.bfloat16))[BATCH]
    assert half.update_peak == of_ranks(4).update_peak
    assert half.plain_peak < 0.7 * of_ranks(4).plain_peak


def test_frozen_parameters_have_neither_gradients_nor_state() -> None:
    def frozen(batch: int) -> tuple[nn.Module, Tensor]:
        model, x = net(batch)
        for block in model.get_submodule("blocks"):  # type: ignore[attr-defined]
            block.body[0].requires_grad_(False)
        return model, x

    cell = fit(frozen, [BATCH], world_size=4, shard=block_sharding())[BATCH]
    saved = 3 * 2 * (WIDTH + 1) * WIDTH * 4 // 4
    assert of_ranks(4).update_peak - cell.update_peak == pytest.approx(saved, rel=0.1)


def test_a_part_that_can_not_be_captured_is_named() -> None:
    class Reads(Block):
        def forward(self, x: Tensor) -> Tensor:
            with LOCK:
                return super().forward(x)

    def factory(batch: int) -> tuple[nn.Module, Tensor]:
        model, x = net(batch)
        model.blocks = nn.ModuleList(Reads() for _ in range(2))
        return model, x

    cell = fit(factory, [BATCH], world_size=4, shard=block_sharding())[BATCH]
    assert cell.remark.startswith("blocks.0: ")
    assert cell.least_peak == cell.plain_peak


@pytest.mark.parametrize(
    ("model", "names", "found"),
    [
        (Net, (), ["blocks.0", "blocks.1"]),
        (lambda: Net(["Block", "Absent"]), (), ["blocks.0", "blocks.1"]),
        (lambda: Net(["Block"]), ("Linear",), None),
        (lambda: nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2), nn.ReLU()), (), ["0", "2"]),
    ],
)
def test_blocks_are_listed_repeated_or_named(
    model: Callable[[], nn.Module], names: tuple[str, ...], found: list[str] | None
) -> None:
    with fake_mode():
        whole = model()
    if found is None:
        found = [name for name, module in whole.named_modules() if isinstance(module, nn.Linear)]
    assert sharded_by(block_sharding(names), whole) == sorted(["", *found])


def test_blocks_of_a_model_of_transformers_are_those_that_it_lists(tmp_path: Path) -> None:
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 64}
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps(config | sizes))
    model, _, _ = make(hugging_face_factory(tmp_path), 1, 8)
    assert sharded_by(block_sharding(), model) == ["", "model.layers.0", "model.layers.1"]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: fit(net, world_size=4), TypeError, "go together"),
        (lambda: fit(net, shard=fully_shard), TypeError, "go together"),
        (lambda: fit(net, shard=fully_shard, world_size=1), ValueError, "2 or more"),
        (lambda: fit(net, shard=block_sharding(["Bloc"]), world_size=4), ProgramError, "it has Block"),
        (
            lambda: fit(lambda n: (nn.Linear(4, 4), torch.zeros(n, 4)), shard=block_sharding(), world_size=4),
            ProgramError,
            "name the blocks",
        ),
        (
            lambda: fit(lambda n: (nn.Linear(4, 4), torch.zeros(n, 4)), shard=fully_shard, world_size=4),
            UnsupportedModelError,
            "scalar",
        ),
    ],
)
def test_mistakes_are_named(call: Callable[[], object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()


def test_the_command_takes_blocks_by_itself_or_by_name(cli: click.Group) -> None:
    asked = ["fit", "--torch", "test_fit_factories:net", "--batch", str(BATCH), "--world-size", "4"]
    asked += ["--time-limit", str(TIME_LIMIT_S)]
    for words in (["--fsdp", "--json"], ["--json", "--fsdp", "Block"]):
        printed = CliRunner().invoke(cli, [*asked, *words], catch_exceptions=False)
        table = json.loads(printed.stdout)
        assert table["world_size"] == 4
        assert table["cells"][0]["plain_peak"] == of_ranks(4).plain_peak
        assert table["cells"][0]["least_peak"] == of_ranks(4).least_peak


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--fsdp"], "--world-size 64 --fsdp"),
        (["--world-size", "4"], "--world-size 64 --fsdp"),
        (["--fsdp-dtype", "bf16"], "goes with --fsdp"),
    ],
)
def test_mistakes_on_the_command_line_are_named(cli: click.Group, words: list[str], text: str) -> None:
    asked = ["fit", "--torch", "test_fit_factories:net", *words]
    with pytest.raises(ProgramError, match=text):
        CliRunner().invoke(cli, asked, catch_exceptions=False, standalone_mode=False)
