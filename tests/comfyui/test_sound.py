"""Clips are trained with their sound, where a MODEL makes both."""

import json

import numpy as np
import pytest

pytestmark = pytest.mark.comfy


@pytest.fixture(scope="module")
def found(comfy_host, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sound")
    comfy_host.run("sound_process.py", folder, folder=folder)
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


def test_a_clip_and_its_sound_are_predicted_as_ksampler_does(found):
    clip, sound = found["predicted"]
    assert max(clip, sound) < 1e-5


def test_sound_is_encoded_as_comfyuis_node_does(found):
    encoded = found["encoded"]
    assert encoded["shape"] == encoded["empty"] == [8, 9, 16]
    assert encoded["apart"] == 0


def test_sound_is_trained_and_silent_clips_change_nothing_of_it(found):
    heard, silent = found["tones"], found["silent"]
    assert np.isfinite(heard["losses"]).all()
    assert heard["layers"] == heard["moved"] == 2 * 28
    assert heard["moved for sound"] > 2 * 10
    assert silent["layers"] == 2 * 28
    assert silent["moved for sound"] == 0
    assert silent["moved"] == 2 * 10
