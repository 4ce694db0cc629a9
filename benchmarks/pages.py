"""Pages that quote results: the text between two marks is generated from the results files.

    <!-- results: NAME -->
    …
    <!-- end of results -->

NAME is an experiment, or one of the other tables that are registered in ``evaluation``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

__all__ = ["conditions", "filled", "quoted", "table"]

_BLOCK = re.compile(
    r"(?P<head><!-- results: (?P<name>[\w-]+) -->\n).*?(?P<tail><!-- end of results -->)", re.S
)


def filled(text: str, tables: Mapping[str, Callable[[], str]]) -> str:
    """A page with its tables replaced.

    Args:
        text: of the page.
        tables: by name, a function that makes the Markdown.

    Raises:
        ValueError: if the page quotes an unknown table.
    """

    def made(block: re.Match[str]) -> str:
        name = block["name"]
        if name not in tables:
            raise ValueError(f"no results {name!r}: there are {', '.join(sorted(tables))}")
        return f"{block['head']}\n{tables[name]().strip()}\n\n{block['tail']}"

    return _BLOCK.sub(made, text)


def quoted(text: str) -> list[str]:
    """The names of the tables that a page quotes."""
    return [block["name"] for block in _BLOCK.finditer(text)]


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table; the first column is text, the others are aligned right."""
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def conditions(sessions: Iterable[Mapping[str, Any]]) -> str:
    """The conditions of the measurement: a line for each run that added rows.

    Args:
        sessions: facts about each run, as :func:`machine.session` has them.
    """
    lines = []
    for facts in sessions:
        versions = ", ".join(f"{name} {v}" for name, v in facts["packages"].items() if v)
        seeds = f", seeds {', '.join(map(str, facts['seeds']))}" if facts["seeds"] else ""
        lines.append(
            f"{facts['date']}, {facts['cpu']}, {facts['cores']} cores, {facts['memory_gib']} GiB, load "
            f"{facts['load']} at the start, {facts['system']}, Python {facts['python']}, {versions}, commit "
            f"{facts['commit']}{seeds}: `{facts['command']}`."
        )
    return "\n".join(lines)
