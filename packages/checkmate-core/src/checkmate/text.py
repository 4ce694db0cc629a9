"""Text from outside for people: any string as one visible line, costs with their unit.

Names of ops, messages and paths come from anywhere. What can't be seen (control characters, line breaks, lone
surrogates, marks that turn the direction of the text) is written as an escape, so it can't break a file,
command a terminal or forge a line.
"""

from __future__ import annotations

__all__ = ["byte_unit", "clipped", "cost_text", "examples", "excerpt", "format_bytes", "printable", "quoted"]

_LONGEST = 1000


def printable(text: str) -> str:
    r"""The text on one line; each character that can't be seen as ``\x1b`` or ``\u202e``.

    >>> printable("conv\n1")
    'conv\\n1'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def clipped(text: str, length: int = 60) -> str:
    """The text, printable, of at most ``length`` characters: both ends stay, the middle goes.

    >>> clipped("encoder.layers.11.attention", 15)
    'encoder…tention'
    """
    return _shortened(printable(_shortened(text, 2 * length)), length)  # what is long is cut before the work


def quoted(text: str, length: int = 60) -> str:
    r"""The text as Python writes it, in quotes, of at most ``length`` characters and their escapes.

    >>> print(quoted("conv\n1"))
    'conv\n1'
    """
    return repr(_shortened(text, length))


def excerpt(text: str) -> str:
    """The text, printable, for a message: of at most 1000 characters."""
    return clipped(text, _LONGEST)


def cost_text(cost: float, unit: str) -> str:
    """A cost with its unit; short seconds as milli- or microseconds.

    >>> cost_text(0.00125, "s"), cost_text(12.5, "flop"), cost_text(3, "")
    ('1.25 ms', '12.5 flop', '3')
    """
    if unit == "s" and 0 < cost < 1:
        return f"{cost * 1e3:.4g} ms" if cost >= 1e-3 else f"{cost * 1e6:.4g} µs"
    return f"{cost:.4g} {clipped(unit)}".rstrip()


def examples(*lines: str) -> str:
    """Example command lines that end the help text of a command (its ``epilog``); click doesn't wrap them."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


def format_bytes(size: int) -> str:
    """Bytes for people, in binary units, with three or four significant digits.

    >>> format_bytes(1536), format_bytes(8 * 2**30), format_bytes(12)
    ('1.50 KiB', '8.00 GiB', '12 B')
    """
    if abs(size) < 1024:
        return f"{size} B"
    value = float(size)
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        value /= 1024
        if abs(value) < 1024 or unit == "PiB":
            break
    return f"{value:.2f} {unit}" if abs(value) < 100 else f"{value:.1f} {unit}"


def byte_unit(largest: int) -> tuple[int, str]:
    """The binary unit to draw bytes up to ``largest`` in: how many bytes it has, and its name.

    >>> byte_unit(3 * 2**20)
    (1048576, 'MiB')
    """
    power = min(max(largest.bit_length() - 1, 0) // 10, 5)
    return 1 << 10 * power, ("B", "KiB", "MiB", "GiB", "TiB", "PiB")[power]


def _shortened(text: str, length: int) -> str:
    half = (length - 1) // 2
    return text if len(text) <= length else f"{text[: length - 1 - half]}…{text[-half:]}"
