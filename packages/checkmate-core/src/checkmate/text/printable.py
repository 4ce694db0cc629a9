"""Text for people: any string as one visible line; bytes and costs with their units.

Names of ops, messages and paths come from files and other programs. Invisible characters (control characters,
line breaks, lone surrogates, marks that change the direction of the text) are escaped, so that they can't
corrupt a file, control a terminal or forge a line.
"""

from __future__ import annotations

__all__ = ["byte_unit", "clipped", "cost_text", "examples", "excerpt", "format_bytes", "printable", "quoted"]

_LONGEST = 1000


def printable(text: str) -> str:
    r"""The text on one line, with an escape such as ``\x1b`` for each invisible character.

    >>> printable("conv\n1")
    'conv\\n1'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def clipped(text: str, length: int = 60) -> str:
    """The text, printable, of at most ``length`` characters: the middle is left out.

    >>> clipped("encoder.layers.11.attention", 15)
    'encoder…tention'
    """
    # Shortened before escaping, which is slow for long texts.
    return _shortened(printable(_shortened(text, 2 * length)), length)


def quoted(text: str, length: int = 60) -> str:
    r"""The text as Python writes it, in quotes, of at most ``length`` characters and their escapes.

    >>> print(quoted("conv\n1"))
    'conv\n1'
    """
    return repr(_shortened(text, length))


def excerpt(text: str) -> str:
    """The text, printable, of at most 1000 characters, for a message."""
    return clipped(text, _LONGEST)


def cost_text(cost: float, unit: str) -> str:
    """A cost with its unit; less than a second in milli- or microseconds.

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
    scale, unit = byte_unit(abs(size))
    value = size / scale
    digits = 0 if scale == 1 else 2 if abs(value) < 100 else 1
    return f"{value:.{digits}f} {unit}"


def byte_unit(largest: int) -> tuple[int, str]:
    """The binary unit for drawing up to ``largest`` bytes: its size in bytes, and its name.

    >>> byte_unit(3 * 2**20)
    (1048576, 'MiB')
    """
    power = min(max(largest.bit_length() - 1, 0) // 10, 5)
    return 1 << 10 * power, ("B", "KiB", "MiB", "GiB", "TiB", "PiB")[power]


def _shortened(text: str, length: int) -> str:
    half = (length - 1) // 2
    return text if len(text) <= length else f"{text[: length - 1 - half]}…{text[-half:]}"
