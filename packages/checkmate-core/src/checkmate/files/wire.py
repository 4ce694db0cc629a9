"""The wire formats, version 1, as structs: the name, type, default and limits of each key.

The structs below *are* the formats. A file is one of them in JSON or in msgpack, which hold the same tree.
The first byte distinguishes them: a msgpack map never begins as JSON does.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from checkmate.errors import FormatError
from checkmate.text.printable import excerpt

__all__ = ["Encoding", "GraphV1", "OpV1", "ScheduleV1", "TensorV1", "decoded", "encoded", "json_schemas"]

Encoding = Literal["json", "msgpack"]
"""The encoding of the tree."""

_LARGEST = 2**63 - 1
_VERSION = 1
_Wire = TypeVar("_Wire", bound=msgspec.Struct)

_Bytes = Annotated[int, Meta(ge=0, le=_LARGEST)]
_Index = Annotated[int, Meta(ge=0, le=_LARGEST)]
_Tensors = Annotated[tuple[_Index, ...], Meta(description="indices into `tensors`, each once")]


class _Header(msgspec.Struct):
    format: str
    version: int


class TensorV1(msgspec.Struct, frozen=True):
    """One storage."""

    name: Annotated[str, Meta(description="for people; need not be unique")]
    size: Annotated[_Bytes, Meta(description="bytes")]


class OpV1(msgspec.Struct, frozen=True, omit_defaults=True):
    """One operation: reads tensors, makes tensors."""

    name: Annotated[str, Meta(description="for people; need not be unique")]
    inputs: _Tensors
    outputs: Annotated[_Tensors, Meta(description="tensors that it makes; no other op makes them")]
    cost: Annotated[float, Meta(ge=0, description="of one run, finite, in `cost_unit`")]
    workspace: Annotated[_Bytes, Meta(description="bytes held only while it runs")] = 0
    recomputable: Annotated[bool, Meta(description="false: runs at most once")] = True
    backward: Annotated[bool, Meta(description="belongs to the backward pass")] = False
    reuses: Annotated[
        _Tensors,
        Meta(description="inputs that do not count while it runs, if they are freed right after it"),
    ] = ()


class GraphV1(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A training step as ops and tensors. All that it can hold at once is less than 2^63 bytes."""

    format: Literal["checkmate.graph"]
    version: Literal[1]
    name: Annotated[str, Meta(description="for people")] = ""
    cost_unit: Annotated[str, Meta(description="of every cost, e.g. `s` or `flop`")] = ""
    fixed_size: Annotated[_Bytes, Meta(description="further bytes, always resident")] = 0
    tensors: Annotated[tuple[TensorV1, ...], Meta(description="referred to by index")]
    ops: Annotated[tuple[OpV1, ...], Meta(description="in a valid execution order; referred to by index")]
    inputs: Annotated[_Tensors, Meta(description="tensors resident from the start, never freed")]
    outputs: Annotated[_Tensors, Meta(description="tensors that must be resident at the end")]


class ScheduleV1(msgspec.Struct, frozen=True, kw_only=True):
    """The computes and frees of a training step, in order."""

    format: Literal["checkmate.schedule"]
    version: Literal[1]
    graph: Annotated[str, Meta(description="digest of the graph that the indices refer to")]
    steps: Annotated[
        tuple[tuple[Literal["compute", "free"], _Index], ...],
        Meta(description='`["compute", op]` or `["free", tensor]`'),
    ]
    meta: Annotated[
        dict[str, Any], Meta(description="hints on where it came from; no program relies on it")
    ] = {}


_FORMATS: dict[str, type[msgspec.Struct]] = {"checkmate.graph": GraphV1, "checkmate.schedule": ScheduleV1}


def json_schemas() -> dict[str, dict[str, Any]]:
    """The JSON Schema (draft 2020-12) of each format, by its name.

    >>> sorted(json_schemas())
    ['checkmate.graph', 'checkmate.schedule']
    """
    return {
        name: {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$id": f"urn:{name.replace('.', ':')}:v{_VERSION}",
            "title": f"{name}, version {_VERSION}",
            "description": wire.__doc__,
            **msgspec.json.schema(wire),
        }
        for name, wire in _FORMATS.items()
    }


def encoded(wire: msgspec.Struct, encoding: Encoding) -> bytes:
    """Encode the tree.

    Raises:
        FormatError: at text that is not Unicode (a lone surrogate), or an unknown encoding.
    """
    if encoding not in ("json", "msgpack"):
        raise FormatError(f"unknown encoding {encoding!r}: write 'json' or 'msgpack'")
    try:
        return msgspec.json.encode(wire) if encoding == "json" else msgspec.msgpack.encode(wire)
    except UnicodeEncodeError as error:
        raise FormatError(f"the text {error.object!r:.60} can't be written: {error.reason}") from error


def decoded(content: bytes, where: str, wire: type[_Wire]) -> _Wire:
    """Read a tree in either encoding, and check it against its format; ``where`` names it in messages.

    Format and version are checked first, so that for a newer file the error names the version, not a missing
    key.

    Raises:
        FormatError: names ``where`` and the place.
    """
    expected = next(name for name, struct in _FORMATS.items() if struct is wire)
    if not content:
        raise FormatError(f"{where}: it is empty")
    packed = content[0] & 0xF0 == 0x80 or content[0] in (0xDE, 0xDF)
    codec: Any = msgspec.msgpack if packed else msgspec.json
    try:
        header = codec.decode(
            content, type=_Header
        )  # walks all of it: truncated content, or a false length, fails here
        if header.format != expected:
            raise FormatError(f"{where}: this is a {header.format!r:.60}, not a {expected!r} - at `$.format`")
        if header.version != _VERSION:
            raise FormatError(
                f"{where}: version {header.version} of {expected!r} is unknown, this release reads "
                f"version {_VERSION}: upgrade checkmate-core - at `$.version`"
            )
        tree: _Wire = codec.decode(content, type=wire)
        _check_plain(getattr(tree, "meta", {}), (None, "$.meta"))
        twice = _twice_packed(content) if packed else _twice_json(content)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{where}: {excerpt(str(error))}{_hint(content, str(error))}") from error
    if twice is not None:
        raise FormatError(f"{where}: a key occurs twice in one object - at `{excerpt(twice)}`")
    return tree


def _hint(content: bytes, message: str) -> str:
    """Advice for frequent faults that the decoder's message doesn't explain."""
    if content.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        return ": write UTF-8, without a byte order mark"
    at = re.search(r"invalid character \(byte (\d+)\)", message)
    if at is not None and content.startswith((b"NaN", b"Infinity"), int(at[1])):
        return ": NaN and infinity are not JSON"
    return ""


_Place = tuple["_Place | None", str]
"""A place in the tree: that of the object or list around it, and its key. It becomes text only in a message:
a key may be as long as the file, and hold a list as long."""


def _text(place: _Place) -> str:
    parts = list[str]()
    inside: _Place | None = place
    while inside is not None:
        inside, part = inside
        parts.append(part)
    return "".join(reversed(parts))


def _check_plain(value: object, place: _Place) -> None:
    """Refuse values that msgpack can hold and JSON can't."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError(f"the key {key!r:.60} is not text - at `{_text(place)}`")
            _check_plain(item, (place, f".{key}"))
    elif isinstance(value, list):
        for k, item in enumerate(value):
            _check_plain(item, (place, f"[{k}]"))
    elif not (value is None or isinstance(value, bool | int | float | str)):
        raise ValueError(f"a {type(value).__name__} is not a JSON value - at `{_text(place)}`")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not a JSON value - at `{_text(place)}`")


class _Pairs(list[Any]):
    """A JSON object as pairs, so that repeated keys remain."""

    __slots__ = ()


def _twice_json(content: bytes) -> str | None:
    """The place of a key that occurs twice in one object, or None."""
    found = False

    def look(pairs: list[tuple[str, Any]]) -> None:
        nonlocal found
        found = found or len({key for key, _ in pairs}) < len(pairs)

    json.loads(content, object_pairs_hook=look, parse_int=len, parse_float=len)
    if not found:
        return None
    return next(_places(json.loads(content, object_pairs_hook=_Pairs, parse_int=len), (None, "$")), None)


def _places(value: object, place: _Place) -> Iterator[str]:
    if isinstance(value, _Pairs):
        seen = set()
        for key, item in value:
            inside = (place, f".{key}")
            if key in seen:
                yield _text(inside)
            seen.add(key)
            yield from _places(item, inside)
    elif isinstance(value, list):
        for k, item in enumerate(value):
            yield from _places(item, (place, f"[{k}]"))


_OBJECT = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
_LIST = msgspec.msgpack.Decoder(list[msgspec.Raw])


def _twice_packed(content: bytes) -> str | None:
    """The place of a map with a repeated key in msgpack, or None; ``meta`` is not searched."""
    top = _OBJECT.decode(content)
    if len(top) < _declared(content):
        return "$"
    for name in ("tensors", "ops"):
        for k, raw in enumerate(_LIST.decode(top[name]) if name in top else []):
            if len(_OBJECT.decode(raw)) < _declared(memoryview(raw)):
                return f"$.{name}[{k}]"
    return None


def _declared(packed: bytes | memoryview) -> int:
    """The number of keys that a msgpack map declares."""
    wide = {0xDE: 2, 0xDF: 4}.get(packed[0], 0)
    return int.from_bytes(packed[1 : 1 + wide], "big") if wide else packed[0] & 0x0F
