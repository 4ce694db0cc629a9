"""One command of several plugins: its option ``--as`` says what to make, and so whose part runs.

``checkmate export --as sac`` is PyTorch's part, ``checkmate export --as keras-remat`` TensorFlow's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

__all__ = ["ByTarget", "targets_of"]

_OPTION = "--as"


def targets_of(command: click.Command) -> Sequence[str]:
    """The values of a command's option ``--as``; empty if it has no such option."""
    types = [p.type for p in command.params if _OPTION in p.opts]
    return [str(name) for kind in types if isinstance(kind, click.Choice) for name in kind.choices]


class ByTarget(click.Command):
    """Commands of one name, each with an option ``--as`` of its own.

    The part runs whose ``--as`` the user asked for; without ``--as``, the first part that has all the options
    that were given. The help shows each part.
    """

    def __init__(self, name: str, parts: Sequence[click.Command]) -> None:
        """Join commands, each with a choice of ``--as``."""
        self.parts = tuple(parts)
        options = {p.name: p for part in parts for p in part.params}
        super().__init__(name, params=[*options.values()], short_help=parts[0].get_short_help_str())

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """The context of the part that these words ask for."""
        names = {word.partition("=")[0] for word in args if word.startswith("-")}
        helps = (parent.help_option_names if parent is not None else None) or ["--help"]
        target = _target(args)
        if target is None and not names.isdisjoint(helps):
            return super().make_context(info_name, args, parent, **extra)
        return self._part(names - {_OPTION}, target).make_context(info_name, args, parent, **extra)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The help of each part, one after the other."""
        for part in self.parts:
            formatter.write_heading(f"{_OPTION} {'|'.join(targets_of(part))}")
            with formatter.indentation():
                part.format_help_text(ctx, formatter)
                part.format_options(ctx, formatter)
            formatter.write_paragraph()

    def _part(self, names: set[str], target: str | None) -> click.Command:
        known = [name for part in self.parts for name in targets_of(part)]
        if target is not None and target not in known:
            listed = ", ".join(map(repr, known))
            raise click.UsageError(f"Invalid value for '{_OPTION}': {target!r} is not one of {listed}.")
        for part in self.parts:
            options = {text for p in part.params for text in p.opts}
            if target in targets_of(part) if target is not None else names <= options:
                return part
        return self.parts[0]


def _target(args: Sequence[str]) -> str | None:
    """The value of the last ``--as`` among the words of a command line; None if there is none."""
    found = None
    for word, following in zip(args, [*args[1:], ""], strict=True):
        if word == _OPTION:
            found = following
        elif word.startswith(f"{_OPTION}="):
            found = word.partition("=")[2]
    return found
