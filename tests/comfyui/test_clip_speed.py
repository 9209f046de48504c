"""A clip of any rate is trained at its own speed: what moves is read from what is cached."""

import json

import pytest

pytestmark = [pytest.mark.comfy, pytest.mark.exhaustive]

WAYS = ("left", "right", "up", "down")


def test_clips_of_any_rate_are_trained_at_their_speed(comfy_host, tmp_path):
    comfy_host.run("clip_speed_process.py", tmp_path, folder=tmp_path)
    (found,) = json.loads((tmp_path / "results.json").read_text(encoding="utf-8")).values()
    # The same files at three times the rate show a third of the way: the reader tells a wrong rate.
    for speed in ("right", "third"):
        assert sorted(map(tuple, found[speed])) == sorted((way, speed) for way in WAYS), speed
