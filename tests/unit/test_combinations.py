"""The cases that stand for a full product of options."""

from itertools import combinations, product

from fixtures.combinations import each_once, pairwise


def test_every_pair_of_options_is_in_some_case():
    axes = ["abcd", "123", "xyzw", "?!"]
    cases = pairwise(*axes)
    for i, j in combinations(range(len(axes)), 2):
        assert {(case[i], case[j]) for case in cases} == set(product(axes[i], axes[j]))
    assert len(cases) <= 24
    assert len(cases) < len(list(product(*axes))) / 3


def test_every_option_is_in_some_case():
    cases = each_once("abcde", "12", "xyz")
    assert len(cases) == 5
    assert [set(column) for column in zip(*cases, strict=True)] == [set("abcde"), {*"12"}, {*"xyz"}]
