"""Hostile bytes: any content gives an answer or a clear error, quickly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate import DFGraph, FormatError, GraphError, Schedule, read_graph, read_schedule
from checkmate.files.serialize import graph_bytes, json_schemas, read_schedule_with_meta, schedule_bytes
from checkmate.files.wire import Encoding, encoded
from checkmate.testing.strategies import graphs, schedules

pytestmark = pytest.mark.slow

SCHEMAS = Path(__file__).parents[3] / "docs" / "reference" / "schemas"
ENCODINGS: tuple[Encoding, ...] = ("json", "msgpack")
GRAPH = DFGraph.from_nodes(
    cost=[1.5, 2], size=[4, 8], deps=[[], [0]], name="tiny", cost_unit="s", fixed_size=3
)
SCHEDULE = Schedule.from_sequence(GRAPH, [0, 1])
FILES = {
    ("graph", encoding): graph_bytes(GRAPH, format=encoding) for encoding in ENCODINGS
} | {
    ("schedule", encoding): schedule_bytes(SCHEDULE, GRAPH, {"solver": "me", "bound": 1.5}, format=encoding)
    for encoding in ENCODINGS
}  # fmt: skip
HEAD = b'{"format": "checkmate.graph", "version": 1, '
PACKED = msgspec.msgpack.encode({"format": "checkmate.graph", "version": 1})[1:]
PACKED_GRAPH = b"\x87" + PACKED + b"\xa3ops\x90\xa6inputs\x90\xa7outputs\x90\xa7tensors\x90"


def read(kind: str, content: bytes) -> None:
    """The content survives reading, writing and reading; or it is refused with a Checkmate error."""
    try:
        graph = read_graph(content) if kind == "graph" else GRAPH
        schedule, meta = read_schedule_with_meta(content, GRAPH) if kind == "schedule" else (SCHEDULE, {})
    except (FormatError, GraphError) as error:
        said = str(error)
    else:
        said = "<bytes>: fine"
        assert read_graph(graph_bytes(graph)) == graph
        again = read_schedule_with_meta(schedule_bytes(schedule, GRAPH, meta), GRAPH)
        assert again == (schedule, meta)
    assert said.startswith("<bytes>: ")


@given(which=st.sampled_from(sorted(FILES)), edits=st.data())
def test_damaged_files_are_read_or_refused(which: tuple[str, Encoding], edits: st.DataObject) -> None:
    content = bytearray(FILES[which])
    for _ in range(edits.draw(st.integers(1, 4))):
        k = edits.draw(st.integers(0, len(content) - 1))
        edit = edits.draw(st.sampled_from(["flip", "delete", "insert", "swap"]))
        if edit == "flip":
            content[k] ^= 1 << edits.draw(st.integers(0, 7))
        elif edit == "insert":
            content[k:k] = edits.draw(st.binary(min_size=1, max_size=5))
        elif edit == "swap":
            content[k] = edits.draw(st.integers(0, 255))
        elif len(content) > 1:
            del content[k]
    read(which[0], bytes(content))


@given(kind=st.sampled_from(["graph", "schedule"]), content=st.binary(max_size=60))
def test_noise_is_refused(kind: str, content: bytes) -> None:
    read(kind, content)
    read(kind, b"\x82" + PACKED + content)
    read(kind, HEAD + content)


TREES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "size", "inputs", "outputs", "cost", "x"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(
    kind=st.sampled_from(["graph", "schedule"]),
    changes=st.dictionaries(
        st.sampled_from(
            ["ops", "tensors", "inputs", "outputs", "steps", "meta", "graph", "fixed_size", "version"]
        ),
        TREES,
        min_size=1,
        max_size=3,
    ),
)
def test_trees_of_the_wrong_shape_are_refused(kind: str, changes: dict[str, Any]) -> None:
    tree = json.loads(FILES[kind, "json"]) | changes
    read(kind, json.dumps(tree).encode())  # which writes NaN as NaN
    try:
        packed = msgspec.msgpack.encode(tree)
    except OverflowError:
        return  # an integer too large for msgpack
    read(kind, packed)


@pytest.mark.parametrize("which", sorted(FILES), ids="-".join)
def test_every_part_of_a_file_is_refused(which: tuple[str, Encoding]) -> None:
    whole = FILES[which]
    for end in range(len(whole)):
        with pytest.raises(FormatError, match=r"^<bytes>: "):
            read_graph(whole[:end]) if which[0] == "graph" else read_schedule(whole[:end], GRAPH)
    with pytest.raises(FormatError):
        read_graph(whole + b"\x00") if which[0] == "graph" else read_schedule(whole + b"\x00", GRAPH)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "it is empty"),
        (b"\xef\xbb\xbf{}", "malformed.*: write UTF-8, without a byte order mark"),
        ('{"format": "checkmate.graph"}'.encode("utf-16"), "malformed.*: write UTF-8"),
        (HEAD + b'"fixed_size": NaN}', "malformed.*: NaN and infinity are not JSON"),
        (HEAD + b'"fixed_size": -Infinity}', "malformed.*: NaN and infinity are not JSON"),
        (HEAD + b'"hint": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "recursion"),
        (HEAD + b'"hint": ' + b'{"a":' * 100_000, "recursion"),
        (HEAD + b'"fixed_size": ' + b"9" * 31 + b"}", "fixed_size"),
        (HEAD + b'"fixed_size": ' + b"9" * 100_000 + b"}", "fixed_size"),
        (HEAD + b'"fixed_size": 1e3}', r"\$\.fixed_size"),
        (HEAD + b'"name": "\xff"}', "utf-8|UTF-8"),
        (HEAD + b'"name": "\\ud800", "tensors": [], "ops": [], "inputs": [], "outputs": []}', "malformed"),
        (b'{"format": "checkmate.graph", "version": 1' + b"0" * 5000 + b"}", "version"),
        (b'{"format": "' + b"x" * 10_000 + b'", "version": 1}', r"^.{0,200}at `\$\.format`$"),
        (b"\x82" + PACKED.replace(b"\x01", b"\x02"), r"version 2 .* - at `\$\.version`"),
        (b"\x82" + PACKED, "required field `tensors`"),
        (b"\x83" + PACKED + b"\xa1x" + b"\x91" * 100_000 + b"\x90", "recursion"),
        (b"\x83" + PACKED + b"\xa7tensors\xdd\xff\xff\xff\xff", "truncated"),
        (b"\x83" + PACKED + b"\xa4hint\xdf\xff\xff\xff\xff\xa1a\x00", "truncated"),
        (b"\x83" + PACKED + b"\xa4name\xdb\xff\xff\xff\xff" + b"a" * 50, "truncated"),
        (b"\xdf\xff\xff\xff\xff" + PACKED, "truncated"),
        (PACKED_GRAPH[:1].replace(b"\x87", b"\x86") + PACKED_GRAPH[1:] + b"\xc1", "trailing"),
        (PACKED_GRAPH + b"\xa4name\xa1\xff", "utf-8|UTF-8|decode"),
        (PACKED_GRAPH + b"\xaafixed_size\xcf" + b"\xff" * 8, r"\$\.fixed_size"),
        (PACKED_GRAPH + b"\xaafixed_size\xcb\x7f\xf8" + bytes(6), r"\$\.fixed_size"),
        (PACKED_GRAPH + b"\xa4name\xd4\x05\x00", r"got `ext` - at `\$\.name`"),
        (b"\xc7\xff\x05", "malformed"),
        (b"\x7b", "malformed|truncated"),
    ],
)
def test_hostile_bytes_are_refused_in_one_line(tmp_path: Path, content: bytes, complaint: str) -> None:
    with pytest.raises(FormatError, match=complaint) as caught:
        read_graph(content)
    assert len(str(caught.value)) < 300
    file = tmp_path / "hostile"
    file.write_bytes(content)
    with pytest.raises(FormatError) as from_file:
        read_graph(file)
    assert str(from_file.value) == str(caught.value).replace("<bytes>", str(file), 1)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (("{", '{"name": "other", '), "$.name"),
        (('"size":8', '"size":8,"size":9'), "$.tensors[1].size"),
        (('"cost":1.5', '"cost":1.5,"cost":0'), "$.ops[0].cost"),
        (("{", '{"hint": [{"a": {"b": 1, "b": 1}}], '), "$.hint[0].a.b"),
    ],
)
def test_a_repeated_key_is_refused(change: tuple[str, str], place: str) -> None:
    content = FILES["graph", "json"].decode().replace(*change, 1)
    with pytest.raises(FormatError) as caught:
        read_graph(content.encode())
    assert str(caught.value) == f"<bytes>: a key occurs twice in one object - at `{place}`"


@pytest.mark.parametrize("wide", [b"\x83", b"\xde\x00\x03", b"\xdf\x00\x00\x00\x03"])
def test_a_repeated_key_is_refused_in_msgpack(wide: bytes) -> None:
    twice = wide + b"\xa4name\xa1x\xa4size\x01\xa4size\x02"
    content = b"\x86" + PACKED + b"\xa3ops\x90\xa6inputs\x91\x00\xa7outputs\x90\xa7tensors\x91" + twice
    with pytest.raises(FormatError, match=r"twice in one object - at `\$\.tensors\[0\]`"):
        read_graph(content)
    with pytest.raises(FormatError, match=r"twice in one object - at `\$`"):
        read_graph(PACKED_GRAPH + b"\xa3ops\x90")
    once = content.replace(twice, wide[:-1] + bytes([wide[-1] - 1]) + b"\xa4name\xa1x\xa4size\x02")
    assert [tensor.size for tensor in read_graph(once).tensors] == [2]


@pytest.mark.parametrize(
    "cost", [b"\xcb\x7f\xf8" + bytes(6), b"\xcb\x7f\xf0" + bytes(6), b"\xcb\xff\xf0" + bytes(6)]
)
def test_a_cost_that_is_no_number_is_refused_in_msgpack(cost: bytes) -> None:
    content = FILES["graph", "msgpack"].replace(msgspec.msgpack.encode(1.5), cost)
    with pytest.raises((FormatError, GraphError), match=r"\$\.ops\[0\]"):
        read_graph(content)


@pytest.mark.parametrize(
    ("hint", "complaint"),
    [
        (b"\xd4\x05\x00", r"a Ext is not a JSON value - at `\$\.meta\.hints\[0\]`"),
        (b"\xd6\xff" + bytes(4), "a datetime is not a JSON value"),
        (b"\xc4\x01a", "a bytes is not a JSON value"),
        (b"\xcb\x7f\xf8" + bytes(6), "nan is not a JSON value"),
        (b"\x81\x01\x02", r"the key 1 is not text - at `\$\.meta\.hints\[0\]`"),
    ],
)
def test_hints_are_json_values(hint: bytes, complaint: str) -> None:
    plain = schedule_bytes(SCHEDULE, GRAPH, {"hints": [255]}, format="msgpack")
    with pytest.raises(FormatError, match=complaint):
        read_schedule(plain.replace(b"\xcc\xff", hint), GRAPH)


@pytest.mark.parametrize(
    "content",
    [
        graph_bytes(GRAPH)
        .replace(b'"0"', b'"' + b"x" * 10**6 + b'"')
        .replace(b'"inputs":[]', b'"inputs":[1]', 1),
        graph_bytes(GRAPH).replace(b'"inputs":[0]', b'"inputs":[' + b"0," * 10**5 + b"0]"),
        b'{"\\n\\u001b[2J":1,"\\n\\u001b[2J":1,' + graph_bytes(GRAPH)[1:],
        b'{"' + b"x" * 10**6 + b'":1,"' + b"x" * 10**6 + b'":1,' + graph_bytes(GRAPH)[1:],
    ],
    ids=["long name", "many indices", "unprintable key", "long key"],
)
def test_a_message_is_short_and_printable_for_every_name(content: bytes) -> None:
    with pytest.raises((FormatError, GraphError)) as caught:
        read_graph(content)
    assert len(str(caught.value)) < 1100
    assert str(caught.value).isprintable()
    with pytest.raises(FormatError, match=r"digest is \\n\\x1b\[2J…, that of") as refused:
        read_schedule(schedule_bytes(SCHEDULE, GRAPH).replace(GRAPH.digest.encode(), b"\\n\\u001b[2J"), GRAPH)
    assert str(refused.value).isprintable()


def test_a_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=tmp_path.name):
        read_graph(tmp_path)


def test_keys_that_a_later_release_may_add_are_ignored() -> None:
    for encode in (msgspec.json.encode, msgspec.msgpack.encode):
        tree = json.loads(FILES["graph", "json"])
        tree["hint"] = tree["ops"][0]["hint"] = tree["tensors"][1]["hint"] = {"any": [None, 1.5, {"x": {}}]}
        assert read_graph(encode(tree)) == GRAPH
        tree = json.loads(FILES["schedule", "json"]) | {"hint": [1]}
        assert read_schedule(encode(tree), GRAPH) == SCHEDULE


@pytest.mark.parametrize("name", sorted(json_schemas()))
def test_the_published_schema_is_that_of_the_structs(name: str) -> None:
    published = json.loads((SCHEMAS / f"{name}.v1.json").read_text())
    assert published == json.loads(json.dumps(json_schemas()[name]))
    assert published["title"] == f"{name}, version 1"
    assert published["description"]


def validator(name: str) -> Any:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((SCHEMAS / f"{name}.v1.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@given(graph=graphs(), data=st.data())
def test_written_files_fit_the_schemas(graph: DFGraph, data: st.DataObject) -> None:
    validator("checkmate.graph").validate(json.loads(graph_bytes(graph)))
    schedule = data.draw(schedules(graph))
    validator("checkmate.schedule").validate(json.loads(schedule_bytes(schedule, graph, {"a": None})))


@given(
    place=st.sampled_from(
        [("ops", 0, "cost"), ("ops", 1, "inputs"), ("tensors", 0, "size"), ("fixed_size",), ("version",)]
    ),
    value=TREES,
)
def test_the_reader_refuses_all_that_the_schema_refuses(place: tuple[str | int, ...], value: Any) -> None:
    tree = json.loads(FILES["graph", "json"])
    target = tree
    for part in place[:-1]:
        target = target[part]
    target[place[-1]] = value
    if not validator("checkmate.graph").is_valid(tree):
        with pytest.raises(FormatError):
            read_graph(json.dumps(tree).encode())


def test_the_encoders_refuse_an_unknown_encoding() -> None:
    with pytest.raises(FormatError, match="'json' or 'msgpack'"):
        encoded(msgspec.defstruct("Any", [])(), "pickle")  # type: ignore[arg-type]
