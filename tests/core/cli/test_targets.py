"""One command of several plugins, told apart by its option --as."""

from __future__ import annotations

import itertools

import click
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from checkmate import PluginError
from checkmate.cli.app import App

PARTS = {"--net": ("list", "string"), "--graph": ("names",), "--both": ("scope", "rules")}


def command(option: str) -> click.Command:
    """A command ``write`` with an option of its own, a shared one, and its targets, the first the default."""
    targets = PARTS[option]
    made = click.option("--as", "target", type=click.Choice(targets), default=targets[0])(
        lambda **asked: click.echo(f"{option} {asked['target']} {asked['budget']}")
    )
    made = click.option("--budget", required=True)(click.option(option, "value", help=f"Of {option}.")(made))
    return click.command("write", help=f"Write {option}.")(made)


def group(options: tuple[str, ...]) -> App:
    made = App(name="checkmate", context_settings={"help_option_names": ["-h", "--help"]})
    made._asked = True  # no installed plugin
    for option in options:
        made._turn = option
        made.add_command(command(option))
    return made


def run(made: App, *words: str) -> Result:
    return CliRunner().invoke(made, ["write", *words])


orders = st.sampled_from([p for n in (1, 2, 3) for p in itertools.permutations(PARTS, n)])


@given(orders, st.data())
def test_the_part_that_has_the_target_runs(order: tuple[str, ...], data: st.DataObject) -> None:
    option = data.draw(st.sampled_from(order))
    target = data.draw(st.sampled_from(PARTS[option]))
    words = data.draw(st.permutations([["--as", target], ["--budget", "1"], [option, "x"]]))
    result = run(group(order), *itertools.chain(*words))
    assert result.stdout == f"{option} {target} 1\n"
    assert run(group(order), f"--as={target}", "--budget=1").stdout == f"{option} {target} 1\n"


@given(orders, st.data())
def test_without_a_target_the_part_that_has_the_options_runs(
    order: tuple[str, ...], data: st.DataObject
) -> None:
    option = data.draw(st.sampled_from(order))
    result = run(group(order), option, "x", "--budget", "2")
    assert result.stdout == f"{option} {PARTS[option][0]} 2\n"


@given(orders)
def test_help_shows_every_part(order: tuple[str, ...]) -> None:
    for flag in ("-h", "--help"):
        text = run(group(order), flag).stdout
        for option in order:
            assert f"Write {option}." in text
            assert f"Of {option}." in text


def test_wrong_words_are_named() -> None:
    both = group(("--net", "--graph"))
    assert "'tape' is not one of 'list', 'string', 'names'" in run(both, "--as", "tape").stderr
    assert "No such option" in run(both, "--as", "names", "--net", "x", "--budget", "1").stderr
    assert "Missing option '--budget'" in run(both, "--as", "names").stderr


def test_owners_are_listed_and_commands_without_targets_are_refused() -> None:
    both = group(("--net", "--graph"))
    assert both.command_owners() == {"write": "--net, --graph"}
    with pytest.raises(PluginError, match="already a command 'write'"):
        both.add_command(click.Command("write"))
