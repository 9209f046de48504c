"""Texts of a caption against brute force: all choices, all orders, and what is put around them."""

import itertools
import re

import pytest

from trainer_core.config import DatasetSection
from trainer_core.data.captions.rules import caption_texts, with_trigger
from trainer_core.errors import DatasetError


def texts(raw, trigger_word="", **rules):
    raw = [raw] if isinstance(raw, str) else raw
    settings = DatasetSection(path="x", trigger_word=trigger_word, captions=rules)
    return caption_texts(raw, settings, "a.txt")


def expanded(text):
    """Every way to read choices without escapes: the innermost one is replaced until none is."""
    found = re.search(r"\{([^{}]*)\}", text)
    if found is None:
        return {text}
    options = found[1].split("|")
    return {
        each
        for option in options
        for each in expanded(text[: found.start()] + option + text[found.end() :])
    }


@pytest.mark.parametrize(
    ("caption", "trained"),
    [
        ("a photo of [trigger], [name]", "a photo of ohwx, ohwx"),
        ("Ohwx smiling", "Ohwx smiling"),
        ("a photo of (ohwx)", "a photo of (ohwx)"),
        ("一只ohwx猫", "一只ohwx猫"),
        ("ohwxes in a row", "ohwx, ohwxes in a row"),
        ("an éohwx", "ohwx, an éohwx"),
        ("", "ohwx"),
    ],
)
def test_a_caption_has_the_trigger_word_once(caption, trained):
    assert with_trigger("ohwx", caption) == trained
    assert texts(caption, "ohwx") == (trained,)
    assert with_trigger("", caption) == caption


def test_the_trigger_word_among_moved_tags_comes_in_front():
    found = texts("red, [trigger], blue, green", "ohwx", shuffle=4)
    assert found[0] == "red, ohwx, blue, green"
    assert len(found) == 4
    assert all(text.startswith("ohwx, ") and text.count("ohwx") == 1 for text in found[1:])


@pytest.mark.parametrize(
    "caption",
    [
        "a {red|blue} car",
        "{a|b}{c|d|e}",
        "{a {big|small|} cat|two {cats|dogs}} on {grass|sand}",
        "{a|{b|{c|{d|e}}}}",
        "{x|x} and {|y}",
        "a | b",
        "no choice",
    ],
)
def test_all_choices_are_read_where_they_are_few(caption):
    found = texts(caption, wildcards=True, most=256)
    assert set(found) == {" ".join([text.strip()]) for text in expanded(caption)}
    assert len(set(found)) == len(found)


def test_dropped_tags_are_a_share_of_those_that_may_change():
    tags, left, orders = [f"t{number}" for number in range(20)], 0, 0
    for number in range(200):
        caption = ", ".join(["first", *tags, f"x{number}"])
        written, *found = texts(caption, "ohwx", shuffle=4, keep=1, drop=0.25)
        assert written == f"ohwx, {caption}"
        plain = texts(caption, "ohwx", shuffle=4, keep=1)[1:]
        assert len(found) == len(plain) == 3
        for text, full in zip(found, plain, strict=True):
            assert text.startswith("ohwx, first, ")
            places = [full.split(", ").index(tag) for tag in text.split(", ")]
            assert places == sorted(places), "the others stay in their order"
            left, orders = left + len(places) - 2, orders + 1
    # 12,600 draws: the share lies within five deviations.
    assert abs(left / orders / 21 - 0.75) < 5 * (0.75 * 0.25 / (21 * orders)) ** 0.5


def test_orders_are_drawn_evenly_and_from_the_tags_alone():
    tags = [f"t{number}" for number in range(5)]
    firsts = dict.fromkeys(tags, 0)
    for number in range(400):
        found = texts(", ".join([*tags, f"x{number}"]), shuffle=4)
        assert len(set(found)) == 4
        assert all(sorted(text.split(", ")) == sorted([*tags, f"x{number}"]) for text in found)
        for text in found[1:]:
            first = text.split(", ")[0]
            firsts[first] = firsts.get(first, 0) + 1
    # 1200 draws of six tags: 200 each, within five deviations of a binomial.
    assert all(abs(firsts[tag] - 200) < 65 for tag in tags)


def test_trigger_prefix_and_suffix_stay_around_what_is_shuffled():
    rules = {"prefix": "photo of ", "suffix": ", 4k", "shuffle": 64, "keep": 1, "most": 256}
    wanted = {f"ohwx, photo of a, {', '.join(order)}, 4k" for order in itertools.permutations("bc")}
    for caption in ("a, b, c", "ohwx, a, b, c"):
        assert set(texts(caption, "ohwx", **rules)) == wanted
    assert texts("ohwx", "ohwx", prefix="photo of ", suffix="it") == ("ohwx, photo of it",)
    assert texts("", "ohwx", prefix="photo") == ("ohwx, photo",)


def test_captions_of_one_image_take_turns():
    lines = "one\n\n two \none\nthree"
    assert texts(lines) == (lines,)
    assert texts(lines, variants="lines") == ("one", "two", "three")
    assert texts(["long", "short", "long"]) == ("long", "short")
    # Of one caption with many choices and one with none, both are there.
    found = texts(["plain", "{a|b|c}{a|b|c}{a|b|c}"], wildcards=True, most=4)
    assert found[0] == "plain"
    assert len(found) == 4
    # Of more captions than may be encoded the same ones come each time, in their order.
    many = [f"caption {number:02}" for number in range(40)]
    found = texts(many, most=8)
    assert list(found) == sorted(found)
    assert len(found) == 8
    assert found != tuple(many[:8])
    assert found == texts(many, most=8)


@pytest.mark.parametrize(
    ("caption", "words"),
    [
        ("a {red|blue car", ("not closed", "character 3")),
        ("a red} car", ("not opened", "character 6")),
        ("a {} car", ("nothing to choose from",)),
        ("a {||} car", ("nothing to choose from",)),
        ("{" * 11 + "a" + "}" * 11, ("more than 10 others",)),
        ("{" * 200_000, ("more than 10 others",)),
        ("{a|{b}", ("not closed", "character 1")),
    ],
)
def test_choices_that_cannot_be_read_are_refused(caption, words):
    with pytest.raises(DatasetError) as error:
        texts(caption, wildcards=True)
    assert all(word in error.value.found for word in ("a.txt", *words))
    assert "dataset.captions.wildcards" in error.value.remedy
    assert texts(caption) == (caption,)
