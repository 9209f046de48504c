"""Groups images of equal bytes, and images that look alike, for `image_findings`.

A difference hash finds candidates, and nine times eight greys confirm them. The hash has a bit for
each of eight times eight neighbours in a row: whether the right one is
brighter (the "dHash" of N. Krawetz, hackerfactor.com, 2013), here by more than the noise of a JPEG.
Two hashes that differ in at most ``MOST_BITS`` bits agree wholly in one of ``MOST_BITS + 1`` parts
of their bits (pigeonhole), so that only images that share a part are compared; where many share
one, their remaining bits are parted again. All pairs are found, in far less than quadratic time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

ACROSS, DOWN = 9, 8
"""Greys of a look, side by side and below each other."""

MOST_BITS = 4
"""Bits of 64 in which the hashes of images that look alike may differ: another size, JPEG quality
or brightness moves fewer (`tests/unit/data/test_report_fingerprints.py`)."""

MOST_GREY = 6.0
"""Mean difference of the greys, of 255, up to which two images look alike; a brightness that is
another everywhere does not count."""

FLAT = 3
"""Brightest less darkest grey, of 255, up to which an image is of one colour."""

_NOISE = 2
_FEW = 512
_BITS = 64
_SMALL_GROUP = 64
_PAIRS_AT_A_TIME = 100_000
_MANY = 4096  # pairs of images of two hashes; more are flat greys that repeat

# Neighbours in an image agree; bits far from each other make a part that tells more apart.
_SPREAD = [place * 37 % _BITS for place in range(_BITS)]

Hashes = NDArray[np.uint64]
Looks = NDArray[np.uint8]


def look_hashes(looks: Looks) -> Hashes:
    """The hash of each look, `[N]`.

    Args:
        looks: `[N, 72]`, greys row by row.
    """
    greys = looks.reshape(-1, DOWN, ACROSS).astype(np.int16)
    bits = (greys[:, :, 1:] - greys[:, :, :-1] > _NOISE).reshape(-1, _BITS)
    return np.packbits(bits, axis=1).view(">u8").reshape(-1).astype(np.uint64)


def is_flat(looks: Looks) -> NDArray[np.bool_]:
    """Which looks, `[N, 72]`, are of one colour."""
    if not len(looks):
        return np.zeros(0, dtype=bool)
    return looks.max(axis=1).astype(np.int16) - looks.min(axis=1) <= FLAT


def different_bits(one: Hashes, other: Hashes) -> NDArray[np.int64]:
    """In how many bits hashes differ; shapes as numpy broadcasts them."""
    bits = np.bitwise_xor(one, other)
    # Counts of bits in pairs, fours and bytes, then summed by the product (Hacker's Delight, 5-1).
    bits = bits - ((bits >> np.uint64(1)) & np.uint64(0x5555555555555555))
    fours = np.uint64(0x3333333333333333)
    bits = (bits & fours) + ((bits >> np.uint64(2)) & fours)
    bits = (bits + (bits >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    with np.errstate(over="ignore"):
        return ((bits * np.uint64(0x0101010101010101)) >> np.uint64(56)).astype(np.int64)


def near_pairs(hashes: Hashes, most: int = MOST_BITS) -> NDArray[np.int64]:
    """Pairs of different hashes that differ in few bits: sorted places `[P, 2]`, smaller first.

    Args:
        hashes: `[N]`, no two the same.
        most: Bits that may differ, 0 to 16.
    """
    found = [*_pairs(hashes, np.arange(len(hashes)), _SPREAD, most)]
    if not found:
        return np.zeros((0, 2), dtype=np.int64)
    return np.unique(np.sort(np.concatenate(found), axis=1), axis=0)


def _pairs(
    hashes: Hashes, places: NDArray[np.int64], bits: Sequence[int], most: int
) -> Iterator[NDArray[np.int64]]:
    if len(places) <= _FEW or len(bits) <= most:
        yield from _compared(hashes, places, most)
        return
    parts = most + 1
    for number in range(parts):
        part = set(bits[number::parts])
        keys = hashes[places] & np.uint64(sum(1 << bit for bit in part))
        order = np.argsort(keys, kind="stable")
        keys, own = keys[order], places[order]
        starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
        sizes = np.diff(np.append(starts, len(keys)))
        small = np.repeat(sizes <= _SMALL_GROUP, sizes)
        yield from _shifted(hashes, own[small], keys[small], most)
        rest = [bit for bit in bits if bit not in part]
        for start, size in zip(starts, sizes, strict=True):
            if size > _SMALL_GROUP:
                yield from _pairs(hashes, own[start : start + size], rest, most)


def _shifted(
    hashes: Hashes, places: NDArray[np.int64], keys: Hashes, most: int
) -> Iterator[NDArray[np.int64]]:
    """Compare within many small groups at once: each with the next, with the one behind it, ..."""
    own = hashes[places]
    for shift in range(1, _SMALL_GROUP):
        same = keys[shift:] == keys[:-shift]
        if not same.any():
            return
        near = same & (different_bits(own[shift:], own[:-shift]) <= most)
        if near.any():
            yield np.stack([places[:-shift][near], places[shift:][near]], axis=1)


def _compared(hashes: Hashes, places: NDArray[np.int64], most: int) -> Iterator[NDArray[np.int64]]:
    own = hashes[places]
    for start in range(0, len(places), _FEW):
        bits = different_bits(own[start : start + _FEW, None], own[None, :])
        first, second = np.nonzero(bits <= most)
        first = first + start
        later = first < second
        if later.any():
            yield np.stack([places[first[later]], places[second[later]]], axis=1)


def of_same_bytes(contents: Sequence[bytes]) -> list[list[int]]:
    """Group files by digests of their bytes: the places of two and more; an empty one is none."""
    by_content: dict[bytes, list[int]] = {}
    for place, content in enumerate(contents):
        if content:
            by_content.setdefault(content, []).append(place)
    return [group for group in by_content.values() if len(group) > 1]


def near_duplicates(looks: Looks, most: int = MOST_BITS) -> list[list[int]]:
    """Group images that look alike.

    Args:
        most: Bits of the hashes that may differ.

    Returns:
        Groups of two and more places, each sorted, in order of their first. An image may reach
        another of its group over a third. Images of one colour are in none.
    """
    kept = np.flatnonzero(~is_flat(looks))
    hashes = look_hashes(looks[kept])
    unique, which = np.unique(hashes, return_inverse=True)
    order = np.argsort(which, kind="stable")
    members = np.split(kept[order], np.flatnonzero(np.diff(which[order])) + 1)
    leader = np.arange(len(looks))
    if not len(kept):
        return []
    for same in members:
        _join_same(looks, same, leader)
    sizes = np.asarray([len(each) for each in members])
    pairs = near_pairs(unique, most)
    alone = (sizes[pairs] == 1).all(axis=1)
    firsts = np.asarray([each[0] for each in members], dtype=np.int64)
    for one, other in _confirmed(looks, firsts[pairs[alone]]):
        _join(leader, int(one), int(other))
    for first, second in pairs[~alone]:
        _join_across(looks, members[int(first)], members[int(second)], leader)
    groups: dict[int, list[int]] = {}
    for place in kept:
        groups.setdefault(_top(leader, int(place)), []).append(int(place))
    return sorted(group for group in groups.values() if len(group) > 1)


def _confirmed(looks: Looks, pairs: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Those of the pairs `[P, 2]` whose greys agree."""
    for start in range(0, len(pairs), _PAIRS_AT_A_TIME):
        some = pairs[start : start + _PAIRS_AT_A_TIME]
        moved = _moved(looks[some[:, 0]], looks[some[:, 1]])
        yield from some[moved <= MOST_GREY]


def _join_same(looks: Looks, same: NDArray[np.int64], leader: NDArray[np.int64]) -> None:
    """Images of one hash: each joins those before it that it is like."""
    waiting = list(same)
    while len(waiting) > 1:
        first, rest = waiting[0], np.asarray(waiting[1:])
        like = _moved(looks[rest], looks[first]) <= MOST_GREY
        for place in rest[like]:
            _join(leader, int(first), int(place))
        waiting = list(rest[~like])


def _join_across(
    looks: Looks,
    ones: NDArray[np.int64],
    others: NDArray[np.int64],
    leader: NDArray[np.int64],
) -> None:
    """Images of two near hashes: each with each, or where they are many, one of each group."""
    if len(ones) * len(others) > _MANY:
        ones = np.asarray(_leaders(ones, leader))
        others = np.asarray(_leaders(others, leader))
    for one in ones:
        for place in others[_moved(looks[others], looks[one]) <= MOST_GREY]:
            _join(leader, int(one), int(place))


def _leaders(places: NDArray[np.int64], leader: NDArray[np.int64]) -> list[int]:
    first_of: dict[int, int] = {}
    for place in places:
        first_of.setdefault(_top(leader, int(place)), int(place))
    return list(first_of.values())


def _moved(ones: Looks, others: Looks) -> NDArray[np.float64]:
    """Mean difference of greys, without that of their means."""
    moved = ones.astype(np.float32) - others
    return np.abs(moved - moved.mean(axis=1, keepdims=True)).mean(axis=1)


def _top(leader: NDArray[np.int64], place: int) -> int:
    while leader[place] != place:
        leader[place] = leader[leader[place]]
        place = int(leader[place])
    return place


def _join(leader: NDArray[np.int64], one: int, other: int) -> None:
    first, second = sorted((_top(leader, one), _top(leader, other)))
    leader[second] = first
