"""What users do besides plain training, and bad input: each works or says what to do."""

from __future__ import annotations

import copy
import logging
from functools import partial

import pytest
import torch
from torch import nn

import checkmate
from checkmate_torch import TooManyPlansError, UnsupportedModelError, compile, memory_meter
from checkmate_torch.api import backend
from checkmate_torch.costs.price import profile_node
from checkmate_torch.ops.recompute_rules import takes_library_state
from checkmate_torch.private import FakeTensorMode
from zoo.small_torch import perceptron

network = partial(perceptron, 16, 64, 64, 16)


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = network()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.body(x)
        return h * 2 if h.sum() > 0 else h


@pytest.mark.parametrize(
    "budget", [0, -1, "0%", "abc", "-5GB", "", None, True, float("nan"), float("inf"), -0.5]
)
def test_a_bad_budget_is_refused_before_anything_runs(budget: object) -> None:
    with pytest.raises(checkmate.BudgetError):
        compile(network(), budget)


def test_an_infeasible_budget_names_one_that_works_and_leaves_nothing_behind() -> None:
    module, x = network(), torch.randn(64, 16)
    compiled = compile(module, "10KiB")
    for _ in range(2):
        with pytest.raises(checkmate.InfeasibleBudgetError, match=r"least budget known to work") as caught:
            compiled(x)
    error = caught.value
    assert error.budget == 10 * 1024 < error.floor <= error.minimum
    assert error.bottleneck in str(error)
    assert compiled.plans == ()
    assert module(x).shape == (64, 16)
    compile(module, error.minimum)(x).sum().backward()


def test_a_guessed_loss_that_makes_a_budget_infeasible_is_named_with_the_way_out() -> None:
    module, x = nn.Linear(16, 1000), torch.randn(64, 16)
    with pytest.raises(checkmate.InfeasibleBudgetError, match=r"rule of thumb .* pass loss="):
        compile(module, "500KiB")(x)
    with pytest.raises(checkmate.InfeasibleBudgetError, match=r"returns 250.* compute the loss in its forw"):
        compile(module, "500KiB", loss=lambda y: y.sum())(x)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # Dynamo's own, at a break
def test_a_branch_on_data_is_planned_in_pieces_or_refused(caplog: pytest.LogCaptureFixture) -> None:
    module, x = Branching(), torch.randn(8, 16)
    with pytest.raises(UnsupportedModelError, match=r"test_compile\.py.*\n.*out of forward"):
        compile(module, "1MiB", strict=True)(x)
    through_the_backend = torch.compile(module, backend="checkmate", options={"budget": "1MiB"})
    for pieces, message in ((compile(module, "1MiB"), "its pieces"), (through_the_backend, "graph break")):
        with caplog.at_level(logging.WARNING, "checkmate_torch"):
            output = pieces(x)
        assert message in caplog.text
        assert torch.equal(output, module(x))
        output.sum().backward()
        caplog.clear()


def test_backend_by_name_and_its_options() -> None:
    module, x = network(), torch.randn(8, 16)
    compiled = torch.compile(module, backend="checkmate", options={"budget": "100%"})
    assert torch.equal(compiled(x), module(x))
    for options, message in [({}, "needs a budget"), ({"budget": 1, "size": 2}, "no setting 'size'")]:
        torch.compiler.reset()
        with pytest.raises(Exception, match=message):
            torch.compile(module, backend="checkmate", options=options)(x)


def test_backend_takes_changing_shapes() -> None:
    module = network()
    compiled = torch.compile(module, backend="checkmate", options={"budget": "1MiB"})
    for batch in (4, 5, 6):
        x = torch.randn(batch, 16)
        assert torch.equal(compiled(x), module(x))
        compiled(x).sum().backward()


class Attention(nn.Module):
    """Sizes of the batch enter as numbers of all kinds: views, expand, division, an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.drop = network(), nn.Dropout(0.3)

    def forward(self, x: torch.Tensor, scale: int) -> torch.Tensor:
        n = x.shape[0]
        h = self.drop(self.body(x).view(1, n, 16)) + torch.full((16,), 1.5 / n)
        h = h * h.mean(1, keepdim=True).expand(1, n, 16) * scale
        return torch.softmax(h @ h.transpose(1, 2), -1) @ h.clamp(max=3.3 / n)


@pytest.mark.parametrize("dynamic", [None, True])
def test_backend_takes_symbols_of_all_kinds(dynamic: bool | None) -> None:
    module = Attention()
    options = {"budget": 2**40, "solver": "chen-sqrt-n"}
    compiled = torch.compile(module, backend="checkmate", dynamic=dynamic, options=options)
    for batch, scale in ((4, 2), (6, 2), (7, 3)):
        x = torch.randn(batch, 16)
        seen = []
        for run in (module, compiled):
            torch.manual_seed(1)
            module.zero_grad()
            output = run(x, scale)
            output.sum().backward()
            seen.append([output, *(p.grad for p in module.parameters())])
        for mine, theirs in zip(*seen, strict=True):
            assert torch.equal(mine, theirs)


def test_each_new_shape_gets_a_plan_and_too_many_run_unplanned(caplog: pytest.LogCaptureFixture) -> None:
    module = network()
    compiled = compile(module, "100%", max_plans=2, dynamic=False)
    with caplog.at_level(logging.INFO, "checkmate_torch"):
        for batch in (4, 5, 4, 6, 7):
            compiled(torch.randn(batch, 16)).sum().backward()
            compiled.zero_grad()
    assert len(compiled.plans) == 2
    assert "plan 2, for (5, 16)" in caplog.text
    warnings = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "run unplanned" in warnings[0]
    strict = compile(module, "100%", max_plans=1, dynamic=False, strict=True)
    strict(torch.randn(4, 16)).sum().backward()
    with pytest.raises(TooManyPlansError, match="max_plans"):
        strict(torch.randn(6, 16))
    strict(torch.randn(4, 16)).sum().backward()


def test_no_parameters_and_no_grad_pass_through() -> None:
    class Sine(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sin()

    compiled = compile(Sine(), "1MiB")
    assert torch.equal(compiled(torch.ones(3)), torch.ones(3).sin())
    x = torch.ones(3, requires_grad=True)
    compiled(x).sum().backward()
    assert torch.equal(x.grad, torch.ones(3).cos())
    module = compile(network(), "100%", max_plans=1)
    module(torch.randn(4, 16)).sum().backward()
    with torch.no_grad():
        for batch in range(2, 6):
            assert module(torch.randn(batch, 16)).shape == (batch, 16)
    assert len(module.plans) == 1


def test_retain_graph_works_and_double_backward_is_refused() -> None:
    compiled, x = compile(network(), "100%"), torch.randn(8, 16)
    total = compiled(x).sum()
    total.backward(retain_graph=True)
    total.backward()
    weight = next(iter(compiled.parameters()))
    with pytest.raises(UnsupportedModelError, match="the gradient of a gradient"):
        torch.autograd.grad(compiled(x).square().sum(), weight, create_graph=True)


def test_two_budgets_for_one_module() -> None:
    module, x = network(), torch.randn(256, 16)
    roomy, tight = compile(module, "100%"), compile(module, "75%")
    reference = module(x)
    for compiled in (roomy, tight, roomy):
        output = compiled(x)
        assert torch.equal(output, reference)
        output.sum().backward()
        del output
    assert len(roomy.plans) == len(tight.plans) == 1
    assert tight.plans[0].solution.peak < roomy.plans[0].solution.peak


def test_planning_inside_a_meter_is_refused_with_the_way_out() -> None:
    compiled, x = compile(perceptron(24, 96, 96, 24), "100%"), torch.randn(9, 24)
    with pytest.raises(checkmate.ProfilerBusyError, match="run one step"), memory_meter(x):
        compiled(x)


def test_attributes_and_mode_are_shared_with_the_original() -> None:
    module = network()
    compiled = compile(module, "100%")
    module.eval()
    assert not compiled.training
    compiled.train()
    assert module.training
    compiled.temperature = 2.0
    compiled.extra = nn.Linear(2, 2)
    assert module.temperature == 2.0
    assert "extra" in dict(module.named_modules())


def test_a_compiled_container_is_used_like_the_original() -> None:
    module, x = network(), torch.randn(8, 16)
    compiled = compile(module, "100%")
    assert len(compiled) == len(module) == 5
    assert list(compiled) == list(module)
    assert compiled[0] is module[0]
    assert compiled[-1] is module[-1]
    assert [type(layer) for layer in compiled[1:3]] == [nn.GELU, nn.Linear]
    assert module[3] in compiled
    compiled[3] = nn.ReLU()
    del compiled[4]
    assert isinstance(module[3], nn.ReLU)
    assert torch.equal(compiled(x), module(x))
    by_name = compile(nn.ModuleDict({"a": nn.Linear(2, 2)}), "100%")
    assert "a" in by_name
    assert by_name["a"] is by_name.original["a"]
    assert not compile(nn.ModuleList(), "100%")


def test_a_compiled_model_is_a_container_only_if_its_original_is_one() -> None:
    compiled = compile(nn.Linear(2, 2), "100%")
    assert compiled
    for use in (len, iter, lambda m: m[0], lambda m: 0 in m, lambda m: m.__setitem__(0, m)):
        with pytest.raises(TypeError, match="Linear"):
            use(compiled)


def test_a_copy_has_its_own_weights_and_plans() -> None:
    compiled, x = compile(network(), "100%"), torch.randn(8, 16)
    compiled(x).sum().backward()
    twin = copy.deepcopy(compiled)
    assert twin.plans == ()
    assert torch.equal(twin(x), compiled(x))
    with torch.no_grad():
        next(twin.parameters()).zero_()
    assert not torch.equal(twin(x), compiled(x))


def test_custom_ops_run_once_a_step_and_not_at_all_for_profiling() -> None:
    calls = []

    @torch.library.custom_op("checkmate_test::counted", mutates_args=())
    def counted(x: torch.Tensor) -> torch.Tensor:
        calls.append(x.shape)
        return x.sin()

    counted.register_fake(torch.empty_like)
    counted.register_autograd(
        lambda ctx, grad: grad * ctx.saved_tensors[0].cos(),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )

    class Calls(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = network(), network()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(counted(self.a(x)))

    compiled = compile(Calls(), 2**40, solver="chen-sqrt-n")
    for _ in range(2):
        compiled(torch.randn(8, 16)).sum().backward()
    assert len(calls) == 2


def test_an_op_that_takes_state_of_a_library_is_not_profiled() -> None:
    """oneDNN's LSTM crashes the process on a workspace that is not its own."""
    graph = torch.fx.Graph()
    with FakeTensorMode():
        shown = torch.empty(4, 4)
    arguments = [graph.placeholder(f"x{k}") for k in range(2)]
    for node in arguments:
        node.meta["val"] = shown
    target = torch.ops.aten._thnn_fused_lstm_cell_backward_impl.default
    node = graph.call_function(target, (arguments[0], None, arguments[0], arguments[1], arguments[1], False))
    node.meta["val"] = (shown, shown, shown)
    assert takes_library_state(node)
    assert profile_node(node).workspace == 0


def test_a_compiled_part_is_planned_by_the_whole() -> None:
    part = compile(network(), "100%")
    whole, x = nn.Sequential(part, network()), torch.randn(8, 16)
    compiled = compile(whole, "100%")
    compiled(x).sum().backward()
    assert len(compiled.plans) == 1
    assert part.plans == ()
    assert all(p.grad is not None for p in whole.parameters())


def test_a_nested_region_is_refused_clearly() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = network()

        @torch.compiler.nested_compile_region
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(x)

    with pytest.raises(UnsupportedModelError, match="nested_compile_region"):
        compile(nn.Sequential(Block(), Block(), Block()), "1MiB")(torch.randn(8, 16))


def test_what_dynamo_never_hands_to_the_backend_is_warned_of(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "_known", {})
    monkeypatch.setattr(backend._not_captured, "n_steps", 0)
    module = nn.GRU(4, 4)
    recurrent = torch.compile(module, backend="checkmate", options={"budget": "1MiB"})
    optimizer = torch.optim.SGD(module.parameters())
    with caplog.at_level(logging.WARNING, "checkmate_torch"):
        for _ in range(3):
            recurrent(torch.randn(3, 4))[0].sum().backward()
            optimizer.step()
    assert backend._not_captured.n_steps == 2  # it is asked at steps 1, 2, 4, …
    assert caplog.text.count("handed no graph to the backend 'checkmate'") == 1
