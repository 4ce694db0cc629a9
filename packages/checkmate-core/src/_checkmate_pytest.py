"""The pytest plugin of Checkmate's conformance suite; loaded in every run of pytest, so its imports are lazy.

It adds the options of ``pytest --pyargs checkmate.testing.suite``, and parametrizes the suite with them.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pytest

_SUITE = "checkmate.testing.suite"
_KINDS = {
    "solver": ("checkmate_solver", "SOLVERS"),
    "cost-model": ("checkmate_cost_model", "COST_MODELS"),
    "executor": ("checkmate_executor", "EXECUTORS"),
    "exporter": ("checkmate_exporter", "EXPORTERS"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--checkmate-solver NAME`` and its siblings."""
    group = parser.getgroup(
        "checkmate", "conformance of Checkmate plugins (--pyargs checkmate.testing.suite)"
    )
    for kind, (fixture, _) in _KINDS.items():
        group.addoption(
            f"--checkmate-{kind}", action="append", default=[], metavar="NAME", dest=fixture,
            help=f"an installed {kind.replace('-', ' ')} to check; may be repeated",
        )  # fmt: skip
    group.addoption(
        "--checkmate-examples", type=int, default=None, metavar="N", help="number of examples of a check"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Refuse unknown names, before any test runs."""
    import pytest

    examples = config.getoption("--checkmate-examples")
    if examples is not None and examples < 1:
        raise pytest.UsageError(f"--checkmate-examples is {examples}, must be ≥ 1")
    for fixture, registry in _KINDS.values():
        for name in config.getoption(fixture):
            from checkmate import plugins
            from checkmate.errors import PluginError

            try:
                getattr(plugins, registry).load(name)
            except PluginError as error:
                raise pytest.UsageError(str(error)) from None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test of the suite once for each name."""
    for fixture, registry in _KINDS.values():
        if metafunc.module.__name__ == _SUITE and fixture in metafunc.fixturenames:
            if not any(metafunc.config.getoption(other) for other, _ in _KINDS.values()):
                raise _nothing_to_check(registry)
            names = metafunc.config.getoption(fixture)
            cases = _trials(names) if registry == "EXECUTORS" else {name: name for name in names}
            values, ids = [*cases.values()] or [""], [*cases] or ["none"]
            metafunc.parametrize(fixture, values, ids=ids, scope="class")  # all checks of a case in a row


def _trials(names: list[str]) -> dict[str, object]:
    """Executor and program of each case of the executors' checks, by a label."""
    from checkmate.plugins import EXECUTORS

    return {
        f"{name}-{trial.name}": (name, trial) for name in names for trial in EXECUTORS.spec(name).trials()
    }


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the kinds without a name."""
    fixtures = [fixture for fixture, _ in _KINDS.values()]
    idle = [
        item
        for item in items
        if any(getattr(item, "callspec", None) and item.callspec.params.get(f) == "" for f in fixtures)  # type: ignore[attr-defined]
    ]
    if idle:
        config.hook.pytest_deselected(items=idle)
        items[:] = [item for item in items if item not in idle]


def _nothing_to_check(registry: str) -> Exception:
    import pytest

    from checkmate import plugins

    installed = [spec.name for spec in getattr(plugins, registry).specs()]
    return pytest.Collector.CollectError(
        f"nothing to check: name a solver with --checkmate-solver NAME; installed: {installed}"
    )
