"""The pytest plugin of the conformance suite: its options, and one run of the suite for each name.

``pytest -p checkmate.testing.plugin --pyargs checkmate.testing.suite --checkmate-solver NAME``; in test files
with conformance classes of your own, the plugin adds ``--checkmate-examples N``.
"""

from __future__ import annotations

from typing import Any

import pytest

from checkmate.errors import PluginError
from checkmate.plugins import COST_MODELS, EXECUTORS, EXPORTERS, SOLVERS, Registry

__all__ = [
    "pytest_addoption",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_generate_tests",
]

_SUITE = "checkmate.testing.suite"
_KINDS: dict[str, Registry[Any, Any]] = {
    "checkmate_solver": SOLVERS,
    "checkmate_cost_model": COST_MODELS,
    "checkmate_executor": EXECUTORS,
    "checkmate_exporter": EXPORTERS,
}
"""The registry of each fixture that the suite is parametrized with; fixtures are named as the options."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--checkmate-solver NAME`` and its siblings."""
    group = parser.getgroup("checkmate", f"conformance of Checkmate plugins (--pyargs {_SUITE})")
    for fixture, registry in _KINDS.items():
        group.addoption(
            f"--{fixture.replace('_', '-')}", action="append", default=[], metavar="NAME", dest=fixture,
            help=f"an installed {registry.kind} to check; may be repeated",
        )  # fmt: skip
    group.addoption(
        "--checkmate-examples", type=int, default=None, metavar="N", help="number of examples of a check"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Refuse unknown names, before any test runs."""
    examples = config.getoption("--checkmate-examples")
    if examples is not None and examples < 1:
        raise pytest.UsageError(f"--checkmate-examples is {examples}, must be ≥ 1")
    for fixture, registry in _KINDS.items():
        for name in config.getoption(fixture):
            try:
                registry.load(name)
            except PluginError as error:
                raise pytest.UsageError(str(error)) from None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test of the suite once for each name."""
    if metafunc.module.__name__ != _SUITE:
        return
    for fixture in _KINDS.keys() & metafunc.fixturenames:
        if not any(map(metafunc.config.getoption, _KINDS)):
            raise pytest.Collector.CollectError(
                "nothing to check: name a solver with --checkmate-solver NAME; "
                f"installed: {[spec.name for spec in _KINDS[fixture].specs()]}"
            )
        names = metafunc.config.getoption(fixture)
        cases = _trials(names) if fixture == "checkmate_executor" else {name: name for name in names}
        values, ids = [*cases.values()] or [""], [*cases] or ["none"]
        metafunc.parametrize(fixture, values, ids=ids, scope="class")  # all checks of a case in a row


def _trials(names: list[str]) -> dict[str, object]:
    """Executor and program of each case of the executors' checks, by a label."""
    return {
        f"{name}-{trial.name}": (name, trial) for name in names for trial in EXECUTORS.spec(name).trials()
    }


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the kinds without a name."""
    idle = [item for item in items if "" in map(_parameters(item).get, _KINDS)]
    if idle:
        config.hook.pytest_deselected(items=idle)
        items[:] = [item for item in items if item not in idle]


def _parameters(item: pytest.Item) -> dict[str, object]:
    """The values of the fixtures that a test is parametrized with, by name."""
    case = getattr(item, "callspec", None)
    return {} if case is None else case.params
