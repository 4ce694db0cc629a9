"""One plan for many sizes: the range that it covers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from checkmate_tf.capture.arguments import Range

SIZES = st.lists(st.tuples(*[st.integers(1, 4)] * 3), min_size=1, max_size=5)


@given(SIZES)
def test_a_range_covers_all_sizes_seen_and_none_beyond(seen: list[tuple[int, ...]]) -> None:
    found = Range.of(seen)
    if found is None:
        assert tuple(map(max, zip(*seen, strict=True))) not in seen
        return
    assert found.largest in seen
    assert all(map(found.covers, seen))
    assert not any(
        found.covers((*found.largest[:k], found.largest[k] + 1, *found.largest[k + 1 :])) for k in range(3)
    )
    for k, size in enumerate(found.sizes):
        assert (size is None) == (len({sizes[k] for sizes in seen}) > 1)


@given(SIZES)
def test_half_of_a_range_is_a_part_of_it(seen: list[tuple[int, ...]]) -> None:
    found = Range.of(seen)
    if found is not None:
        assert found.covers(found.half.largest)
        assert found.half.open == found.open
