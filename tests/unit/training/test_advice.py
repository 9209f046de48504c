"""What is said of a run, when, and how often; the curves are of real runs or by hand."""

import numpy as np
import pytest
from fixtures.tables import table
from PIL import Image, ImageDraw

from trainer_core.training.metrics import advice
from trainer_core.training.metrics.advice import (
    INERT,
    OVERBAKED,
    OVERTURNED,
    RATE,
    STEPS,
    Adviser,
    Course,
    TrainingLooks,
    best_before_rise,
)
from trainer_core.training.observer import CHECKPOINT, Advised, SilentObserver

CURVES = table(__file__, "held-out curves")
"""Losses on held-out images of the embedded base, every 50 steps, with the step that was best."""


class Heard(SilentObserver):
    def __init__(self):
        self.said: list[Advised] = []

    def notify(self, event):
        self.said.append(event)

    @property
    def named(self):
        return [(each.name, each.setting, each.value) for each in self.said]


def adviser(heard, before=(), checkpoints=(), rate=1e-5, steps=1000, **more):
    given = {"keep": more.pop("keep", lambda said: None), "checkpoints": lambda: checkpoints}
    return Adviser(Course(rate, steps, **more), heard, before, **given)


def sized(largest, middle=None):
    return {"blocks.0": 0.0, "blocks.1": largest if middle is None else middle, "rest": largest}


@pytest.mark.parametrize(
    ("change", "step", "more", "said"),
    [
        # At the end ten times as much, and the new rate brings that to where runs learn.
        (INERT / 40, 100, {}, (RATE, 4e-4)),
        (INERT / 40, 99, {}, None),
        (INERT / 40, 120, {"warmup": 30}, None),
        (INERT / 9, 100, {}, None),
        (INERT * 0.9, 20, {"steps": 20}, (RATE, 1e-4)),
        # Wrong layers, or no gradient: no rate is of use.
        (0.0, 100, {}, ("", 0.0)),
        (INERT / 40, 100, {"finds_rate": True}, (STEPS, 10_000)),
        # At most a hundred times as much, and what the setting takes.
        (INERT / 4e4, 100, {}, (RATE, 1e-3)),
        (INERT / 4e4, 100, {"rate": 2.0}, (RATE, 10.0)),
        (INERT / 4e4, 100, {"rate": 9.0}, ("", 0.0)),
    ],
)
def test_an_adapter_that_hardly_moves_gets_the_rate_at_which_it_would(change, step, more, said):
    heard = Heard()
    adviser(heard, **more).size(step, sized(change))
    assert heard.named == ([("hardly_moves", *said)] if said else [])


@pytest.mark.parametrize(
    ("middle", "turns", "said"),
    [
        (OVERBAKED * 0.99, False, []),
        (OVERBAKED * 2, False, [("over_baked", RATE, 1e-4)]),
        (OVERTURNED * 0.99, True, []),
        (OVERTURNED * 2, True, [("over_baked", RATE, 1e-4)]),
    ],
)
def test_an_adapter_that_does_too_much_gets_a_lower_rate(middle, turns, said):
    heard = Heard()
    judge = adviser(heard, rate=1e-3, turns=turns)
    for step in (10, 11, 12):
        judge.size(step, sized(9.0, middle))
    assert heard.named == said


@pytest.mark.parametrize(
    ("best", "more", "said"),
    [
        (570, {"rate": 1e-3}, (RATE, 5e-4)),
        (670, {"rate": 1e-3}, ("", 0.0)),
        (990, {"rate": 9e-4}, ("", 0.0)),
        (1, {"rate": 1e-3}, (RATE, 1e-6)),
        (400, {"rate": 1.0, "finds_rate": True}, (STEPS, 400)),
        (900, {"rate": 1.0, "finds_rate": True}, ("", 0.0)),
    ],
)
def test_less_is_advised_only_where_it_is_clearly_less(best, more, said):
    heard = Heard()
    adviser(heard, **more).ended(1000, best, 0.8, 0.7)
    assert heard.named == [("never_better", *said)]
    assert heard.said[0].message.endswith("Add images.") == (said[0] == "")


@pytest.mark.parametrize("name", CURVES)
def test_a_recorded_loss_that_rises_is_told_with_the_best_step(name):
    losses, best = CURVES[name]["losses"], CURVES[name]["best"]
    found = [best_before_rise(losses[:count]) for count in range(1, len(losses) + 1)]
    first = next((each for each in found if each is not None), None)
    assert (None if first is None else 50 * (first + 1)) == best


@pytest.mark.parametrize("noise", [0.005, 0.02, 0.05])
@pytest.mark.parametrize(
    "curve", [np.ones(40), 0.7 + 0.3 * np.exp(-np.arange(40) / 20)], ids=["flat", "falling"]
)
def test_scatter_is_no_rise(curve, noise):
    random = np.random.default_rng(0)
    told = sum(
        any(best_before_rise(losses[:count]) is not None for count in range(1, 41))
        for losses in (curve + random.normal(0, noise, (100, 40))).tolist()
    )
    assert told <= 2


def test_a_rise_is_told_once_where_the_best_checkpoint_is_there():
    losses = dict(enumerate([0.9, 0.8, 0.7, 0.71, 0.8, 0.85, 0.9, 0.95, 1.0, 1.05], 1))
    for there, said in [([1, 2], []), ([3], [("held_out_rises", CHECKPOINT, 3)])]:
        heard = Heard()
        judge = adviser(heard, checkpoints=there)
        for step in losses:
            judge.held_out(step, losses)
        assert heard.named == said
    assert "rises since step 4: step 3 is the best so far" in heard.said[0].message


def test_a_loss_that_rises_and_never_was_below_the_bases_gets_a_lower_rate():
    losses, heard = dict(enumerate([0.7, 0.72, 0.8, 0.85, 0.9, 0.95, 1.0, 1.05], 1)), Heard()
    judge = adviser(heard, checkpoints=[1], rate=1e-3)
    for step in losses:
        judge.held_out(step, losses, 0.7)
    judge.ended(1000, 1, 0.7, 0.7)
    assert heard.named == [("never_better", RATE, 1e-6)]


def test_nothing_is_said_twice_also_by_a_run_that_goes_on():
    kept, heard = [], Heard()
    for before in ((), *([kept] * 2)):
        judge = adviser(heard, before, keep=lambda said: kept.__setitem__(slice(None), said))
        judge.size(100, sized(0.0))
        judge.ended(1000, 50, 0.3, 0.2)
    assert [each.name for each in heard.said] == ["hardly_moves", "never_better"]
    assert [each["name"] for each in kept] == ["hardly_moves", "never_better"]


def drawn(folder, count=6):
    """Images of one plain background with a shape each at another place."""
    paths = []
    for number in range(count):
        image = Image.new("RGB", (64, 64), (230, 230, 230))
        at = 4 + 8 * number
        ImageDraw.Draw(image).rectangle(
            [at, 50 - at // 2, at + 14, 64 - at // 2], fill=(30, 90, 60)
        )
        paths.append(folder / f"{number}.png")
        image.save(paths[-1])
    return paths


def test_a_preview_that_is_a_training_image_is_told_with_what_is_left_to_do(tmp_path):
    paths = drawn(tmp_path)
    same = Image.open(paths[2]).convert("RGB").resize((96, 96))
    other = Image.new("RGB", (64, 64), (230, 230, 230))
    ImageDraw.Draw(other).ellipse([10, 10, 40, 40], fill=(200, 40, 40))
    for checkpoints, said in [([150, 250], (CHECKPOINT, 150)), ([], (STEPS, 150))]:
        heard = Heard()
        judge = adviser(heard, checkpoints=checkpoints, images=lambda: paths)
        judge.preview(0, other)
        judge.preview(200, other)
        assert heard.said == []
        judge.preview(300, same)
        judge.preview(400, same)
        assert heard.named == [("memorized", *said)]
        assert "2.png" in heard.said[0].message


def test_what_says_nothing_of_memory_is_not_told(tmp_path):
    """Plain images, one that the base drew by itself, and datasets whose images are alike."""
    paths = drawn(tmp_path)
    same, plain = Image.open(paths[2]).convert("RGB"), Image.new("RGB", (64, 64), (230, 230, 230))
    looks = TrainingLooks(paths)
    assert looks.equal_to(plain) is None
    assert looks.equal_to(same) == "2.png"
    assert looks.equal_to(same, is_base=True) is None
    assert looks.equal_to(same) is None
    twin = tmp_path / "twin.png"
    same.save(twin)
    assert TrainingLooks([*paths, twin]).equal_to(same) is None
    assert TrainingLooks([]).equal_to(same) is TrainingLooks(paths[2:3]).equal_to(same) is None
    assert advice.FLAT == 3
