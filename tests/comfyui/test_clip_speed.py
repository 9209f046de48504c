"""A clip of any rate is learned at its own speed: a reader tells how a square moves in previews."""

import json

import pytest

pytestmark = [pytest.mark.comfy, pytest.mark.exhaustive]

WAYS = ("left", "right", "up", "down")
DRAWN = 5


@pytest.mark.parametrize(("rate", "speed"), [(8.0, "right"), (24.0, "third")])
def test_an_adapter_moves_the_square_as_its_prompt_says(comfy_host, tmp_path, rate, speed):
    """The same files at three times the rate show a third of the way: the reader tells it."""
    comfy_host.run("clip_speed_process.py", tmp_path, str(rate), folder=tmp_path)
    (found,) = json.loads((tmp_path / "results.json").read_text(encoding="utf-8")).values()
    assert sorted(map(tuple, found["cached"])) == sorted((way, speed) for way in WAYS)
    for what, least, most in (("trained", 0.8, 1.0), ("base", 0.0, 0.3)):
        wanted = [(way, speed) for way in WAYS for _ in range(DRAWN)]
        right = sum(tuple(each) == other for each, other in zip(found[what], wanted, strict=True))
        assert least <= right / len(wanted) <= most, found[what]
