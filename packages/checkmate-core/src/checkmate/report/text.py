"""Names and numbers for people: any string as one visible line, costs with their unit.

Names of ops come from anywhere. What can't be seen (control characters, line breaks, lone surrogates, marks
that turn the direction of the text) is written as an escape, so it can't break a file or deceive a reader.
"""

from __future__ import annotations

import unicodedata

__all__ = ["byte_unit", "clipped", "cost_text", "printable"]

_UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def printable(text: str) -> str:
    r"""The text on one line; each character that can't be seen as ``\x1b`` or ``\u202e``.

    >>> printable("conv\n1")
    'conv\\n1'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        c.encode("unicode_escape").decode("ascii") if unicodedata.category(c) in _UNSEEN else c for c in text
    )


def clipped(text: str, length: int = 60) -> str:
    """The text, printable, of at most ``length`` characters: both ends stay, the middle goes.

    >>> clipped("encoder.layers.11.attention", 15)
    'encoder…tention'
    """
    text = printable(text)
    half = (length - 1) // 2
    return text if len(text) <= length else f"{text[: length - 1 - half]}…{text[-half:]}"


def cost_text(cost: float, unit: str) -> str:
    """A cost with its unit; short seconds as milli- or microseconds.

    >>> cost_text(0.00125, "s"), cost_text(12.5, "flop"), cost_text(3, "")
    ('1.25 ms', '12.5 flop', '3')
    """
    if unit == "s" and 0 < cost < 1:
        return f"{cost * 1e3:.4g} ms" if cost >= 1e-3 else f"{cost * 1e6:.4g} µs"
    return f"{cost:.4g} {printable(unit)}".rstrip()


def byte_unit(largest: int) -> tuple[int, str]:
    """The binary unit to draw bytes up to ``largest`` in: how many bytes it has, and its name.

    >>> byte_unit(3 * 2**20)
    (1048576, 'MiB')
    """
    power = min(max(largest.bit_length() - 1, 0) // 10, 5)
    return 1 << 10 * power, ("B", "KiB", "MiB", "GiB", "TiB", "PiB")[power]
