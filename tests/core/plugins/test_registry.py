"""Lookup by name is one law for all five kinds."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from checkmate import CostError, DFGraph, PluginError, Timeline
from checkmate.cost import Roofline, UnitCost
from checkmate.plugins import (
    COST_MODELS,
    EXECUTORS,
    EXPORTERS,
    FRONTENDS,
    SOLVERS,
    CostModelSpec,
    ExecutorSpec,
    ExporterSpec,
    FrontendSpec,
    Registry,
    SolverSpec,
    annotated,
    checked_cost_model,
    command_errors,
    exporter_for,
    hookimpl,
    installed_plugins,
    register_commands,
    reset,
)

Run = Callable[..., str]


class Able:
    """Has the method of every kind."""

    def solve(self) -> None: ...

    annotate = trace = bind = write = solve


class Kind(NamedTuple):
    registry: Registry[Any, Any]
    hook: str
    spec: type[Any]

    def added(self) -> list[str]:
        """Names beside the built-in ones."""
        names = [spec.name for spec in self.registry.specs()]
        return [name for name in names if self.registry.owner(name).name != "built-in"]


KINDS = {
    "solver": Kind(SOLVERS, "solvers", SolverSpec),
    "cost model": Kind(COST_MODELS, "cost_models", CostModelSpec),
    "frontend": Kind(FRONTENDS, "frontends", FrontendSpec),
    "executor": Kind(EXECUTORS, "executors", ExecutorSpec),
    "exporter": Kind(EXPORTERS, "exporters", ExporterSpec),
}


@pytest.fixture(autouse=True)
def _forget_what_is_loaded() -> Iterator[None]:
    reset()
    yield
    reset()


def offered(kind: Kind, name: str, load: Callable[[], Any] = Able, **fields: Any) -> Any:
    more = {"suffix": f".{name}"} if kind.spec is ExporterSpec else {}
    return kind.spec(name=name, summary="a thing", load=load, **(more | fields))


def load_only(plug: Callable[..., None], kind: Kind, **plugins: list[Any]) -> None:
    """Replace the installed plugins by these, each with these specs."""

    def plugin(specs: list[Any]) -> Callable[[], object]:
        def hook() -> list[Any]:
            return specs

        return lambda: type("Plugin", (), {f"checkmate_register_{kind.hook}": staticmethod(hookimpl(hook))})

    plug(*((name, plugin(specs)) for name, specs in plugins.items()))


@pytest.mark.parametrize("name", KINDS)
def test_offers_of_a_plugin_are_found_and_loaded(plug: Callable[..., None], name: str) -> None:
    kind = KINDS[name]
    spec, thing = offered(kind, "mine", load=lambda: thing), Able()
    load_only(plug, kind, one=[spec], two=[offered(kind, "other")])
    assert kind.registry.kind == name
    assert kind.added() == ["mine", "other"]
    assert kind.registry.spec("mine") is spec
    assert kind.registry.owner("other").owner == "'two' (two 1.0)"
    assert kind.registry.load("mine") is thing
    assert not kind.registry.ambiguous()
    assert all(not other.added() for other in KINDS.values() if other is not kind)


@pytest.mark.parametrize("name", KINDS)
def test_an_unknown_name_lists_installed_names_and_failed_plugins(
    plug: Callable[..., None], name: str
) -> None:
    kind = KINDS[name]
    load_only(plug, kind, one=[offered(kind, "everest")], broken=[None])
    with pytest.raises(PluginError) as caught:
        kind.registry.load("everst")
    installed = [spec.name for spec in kind.registry.specs()]
    assert str(caught.value) == (
        f"no {name} 'everst'; installed: {installed}; failed to load: ['broken'] "
        "('checkmate plugins' says why); did you mean 'everest'?"
    )


@pytest.mark.parametrize("name", KINDS)
def test_names_that_lack_a_package_are_listed_apart(
    plug: Callable[..., None], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "heights-1.0.dist-info"
    site.mkdir()
    (site / "METADATA").write_text(
        "Metadata-Version: 2.4\nName: heights\nVersion: 1.0\nProvides-Extra: rope\n"
        "Requires-Dist: no-such-rope>=2 ; extra == 'rope'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    kind = KINDS[name]
    needs = {"able": "heights", "roped": "heights[rope]", "lost": "no-such-map"}
    load_only(plug, kind, one=[offered(kind, n, requires=(need,)) for n, need in needs.items()])
    with pytest.raises(PluginError) as caught:
        kind.registry.load("everst")
    usable = [spec.name for spec in kind.registry.specs() if spec.name not in ("roped", "lost")]
    assert "able" in usable
    assert f"installed: {usable}; lacking a package: ['roped', 'lost']: pip install" in str(caught.value)
    assert "'heights[rope]' no-such-map" in str(caught.value)


@pytest.mark.parametrize("name", KINDS)
def test_a_name_of_two_owners_is_refused_and_both_are_named(plug: Callable[..., None], name: str) -> None:
    kind = KINDS[name]
    load_only(plug, kind, one=[offered(kind, "mine")], two=[offered(kind, "mine")])
    assert kind.added() == []
    assert kind.registry.ambiguous() == {"mine": ("'one' (one 1.0)", "'two' (two 1.0)")}
    with pytest.raises(PluginError, match=rf"{name} 'mine' is offered by 'one' \(one 1.0\) and by 'two'"):
        kind.registry.load("mine")


@pytest.mark.parametrize("name", KINDS)
def test_a_load_failure_names_the_owner_and_its_requirements(plug: Callable[..., None], name: str) -> None:
    kind = KINDS[name]

    def fails() -> object:
        raise ImportError("No module named 'rope'")

    specs = [
        offered(kind, "absent", load=fails, requires=("rope", "axe")),
        offered(kind, "lame", load=object),
    ]
    load_only(plug, kind, one=specs)
    with pytest.raises(
        PluginError, match=rf"^{name} 'absent' of 'one' \(one 1.0\) failed to load: "
    ) as caught:
        kind.registry.load("absent")
    assert str(caught.value).endswith("No module named 'rope'; it needs: pip install rope axe")
    with pytest.raises(PluginError, match=rf"loads a object: it has no {kind.registry.method}\(\)"):
        kind.registry.load("lame")


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("a.page", "page"),
        ("a.text", "plain"),
        ("a.b.text", "plain"),
        ("a.trace.text", "trace"),
        ("A.TRACE.TEXT", "trace"),
        (Path("some.page/a.text"), "plain"),
        (".text", "plain"),
    ],
)
def test_the_longest_suffix_wins(plug: Callable[..., None], file: str | Path, name: str) -> None:
    kind = KINDS["exporter"]
    suffixes = {"plain": ".text", "trace": ".trace.text", "page": ".page"}
    load_only(plug, kind, one=[offered(kind, n, suffix=suffix) for n, suffix in suffixes.items()])
    assert exporter_for(file).name == name


def test_an_unknown_suffix_lists_the_installed_ones(plug: Callable[..., None]) -> None:
    kind = KINDS["exporter"]
    load_only(plug, kind, one=[offered(kind, "page", suffix=".page")], broken=[None])
    for file in ("a.none", "a", "page", "a.page/"):
        with pytest.raises(
            PluginError, match=r"no exporter for .*; installed suffixes: \[.*'\.page'.*\]; failed"
        ):
            exporter_for(file)


def test_an_ambiguous_suffix_needs_the_name_of_the_exporter(plug: Callable[..., None]) -> None:
    kind = KINDS["exporter"]
    twins = [offered(kind, name, suffix=".page") for name in ("page", "report")]
    load_only(plug, kind, one=twins)
    with pytest.raises(PluginError, match="exporters 'page' and 'report': ask for one by name"):
        exporter_for("a.page")
    assert kind.added() == ["page", "report"]


@pytest.mark.parametrize("suffix", [None, 7, "", "html"])
def test_a_suffix_starts_with_a_dot(plug: Callable[..., None], suffix: Any) -> None:
    kind = KINDS["exporter"]
    load_only(plug, kind, one=[offered(kind, "page", suffix=suffix)])
    plugin = installed_plugins()[-1]
    assert plugin.error is not None
    assert "suffix does not start with a dot" in plugin.error


def test_a_registered_exporter_is_loaded(plug: Callable[..., None], tmp_path: Path) -> None:
    class Writes:
        def write(self, timeline: Timeline, file: Path, *, budget: int | None = None) -> None:
            file.write_text("seen")

    kind = KINDS["exporter"]
    load_only(plug, kind, one=[offered(kind, "page", load=Writes, suffix=".page")])
    EXPORTERS.load(exporter_for("a.page").name).write(None, tmp_path / "a.page")  # type: ignore[arg-type]
    assert (tmp_path / "a.page").read_text() == "seen"


def test_a_plugin_that_is_broken_in_one_kind_is_dropped_entirely(run: Run) -> None:
    code = """
import json
import re
import sys
from checkmate.plugins import installed_plugins, SOLVERS
print(json.dumps([{p.name: p.error for p in installed_plugins()}, [s.name for s in SOLVERS.specs()]]))
"""
    errors, solvers = json.loads(run(code, "partial", "sample"))
    assert errors["sample"] is None
    assert "checkmate_register_exporters returned SolverSpec(name='picture'" in errors["partial"]
    assert "which is not of the class ExporterSpec" in errors["partial"]
    assert "half" not in solvers
    assert "luck" in solvers


def test_errors_of_commands_are_remembered(run: Run) -> None:
    code = """
from checkmate.plugins import command_errors, installed_plugins, register_commands
print(command_errors())
register_commands(None)
print(command_errors(), installed_plugins()[-1].error)
"""
    before, after = run(code, "hostile").splitlines()
    assert before == "{}"
    assert after == """{"'hostile' (checkmate-hostile 0.1)": "KeyError: 'commands'"} None"""


def test_commands_that_work_are_forgotten_errors(plug: Callable[..., None]) -> None:
    class Clashes:
        @staticmethod
        @hookimpl
        def checkmate_register_commands(cli: list[str]) -> None:
            if "climb" in cli:
                raise PluginError("there is already a command 'climb'")
            cli.append("climb")

    plug(("one", lambda: Clashes))
    errors = register_commands(["climb"])
    assert (
        errors == command_errors() == {"'one' (one 1.0)": "PluginError: there is already a command 'climb'"}
    )
    errors.clear()
    assert command_errors()
    register_commands([])
    assert command_errors() == {}


def test_a_name_or_an_object_with_annotate_is_a_cost_model() -> None:
    model = UnitCost()
    assert checked_cost_model(model) is model
    assert checked_cost_model("of a plugin that is not there") == "of a plugin that is not there"
    for wrong in (UnitCost, None, 3.5):
        with pytest.raises(TypeError, match="must be 'profiled'"):
            checked_cost_model(wrong)


class _Prices:
    """A cost model that calls ``act``."""

    def __init__(self, act: Callable[[DFGraph], object]) -> None:
        self.act = act

    def annotate(self, graph: DFGraph) -> Any:
        return self.act(graph)


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda graph: setattr(graph.ops[0], "cost", 3.0), "failed: FrozenInstanceError: "),
        (lambda graph: graph.costs.fill(0), "failed: ValueError: assignment destination is read-only"),
        (lambda graph: object.__setattr__(graph, "ops", ()) or graph, "changed the graph that it was given"),
        (lambda graph: object.__setattr__(graph.ops[0], "cost", 0.0) or graph, "changed the graph"),
        (lambda graph: sys.exit(3), "failed: SystemExit: 3"),
        (lambda graph: None, "returned a NoneType, not a DFGraph"),
    ],
    ids=["frozen", "read-only", "graph", "op", "exit", "nothing"],
)
def test_a_cost_model_that_breaks_its_contract_is_named(
    plug: Callable[..., None], act: Callable[[DFGraph], object], said: str
) -> None:
    graph = DFGraph.from_nodes(cost=[1, 2], size=[4, 4], deps=[[], [0]])
    spec = CostModelSpec(name="evil", summary="prices", load=lambda: _Prices(act))
    load_only(plug, KINDS["cost model"], one=[spec])
    with pytest.raises(CostError, match=re.escape(f"cost model 'evil' {said}")):
        annotated("evil", graph)
    with pytest.raises(CostError, match="cost model '_Prices'"):
        annotated(_Prices(act), DFGraph.from_nodes(cost=[1, 2], size=[4, 4], deps=[[], [0]]))


def test_answers_and_errors_of_a_cost_model_are_passed_on() -> None:
    graph = DFGraph.from_nodes(cost=[5, 7], size=[4, 4], deps=[[], [0]])
    assert annotated(UnitCost(), graph).ideal_cost == 2
    with pytest.raises(CostError, match="a roofline needs costs in 'flop'"):
        annotated(Roofline(flops_per_s=1.0, bytes_per_s=1.0), graph)
