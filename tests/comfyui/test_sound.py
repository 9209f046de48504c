"""Clips are trained with their sound, where a MODEL makes both."""

import json

import numpy as np
import pytest

pytestmark = pytest.mark.comfy


QUICK = ("predicted", "begun", "encoded", "refused", "exchanged", "mixed", "previews")


def looked_at(comfy_host, folder, *jobs):
    comfy_host.run("sound_process.py", folder, *jobs, folder=folder)
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def found(comfy_host, tmp_path_factory):
    return looked_at(comfy_host, tmp_path_factory.mktemp("sound"), *QUICK)


@pytest.mark.parametrize("name", ["predicted", "begun"])
def test_a_clip_and_its_sound_are_predicted_as_ksampler_does(found, name):
    """Also where the clip begins with an image."""
    clip, sound = found[name]
    assert max(clip, sound) < 1e-5


def test_sound_is_encoded_as_comfyuis_node_does(found):
    encoded = found["encoded"]
    assert encoded["shape"] == encoded["empty"] == [8, 9, 16]
    assert encoded["apart"] == 0


@pytest.mark.exhaustive
def test_a_tone_is_learned_and_silent_clips_do_not_teach_silence(comfy_host, tmp_path):
    found = looked_at(comfy_host, tmp_path, "learned", "silent")
    heard, silent = found["learned"], found["silent"]
    # The attentions and the MLP of sound, and those between both.
    assert heard["layers"] == heard["moved"] == silent["layers"] == 2 * 28
    assert (silent["moved"], silent["moved for sound"]) == (2 * 10, 0)
    before, after = heard["errors"]
    assert after < 0.6 * before
    # What a silent clip teaches of its frames reaches the sound through the model alone.
    before, after = silent["errors"]
    assert after > 0.85 * before


def test_a_clip_with_sound_and_one_without_are_trained_in_one_run(found):
    mixed = found["mixed"]
    assert np.isfinite(mixed["losses"]).all()
    assert mixed["moved"] == 2 * 28


def test_previews_have_sound(found):
    # A clip of nine frames, in whole frames of the codec.
    rate, seconds = found["previews"]["rate"], found["previews"]["seconds"]
    assert rate == 16000
    assert seconds == pytest.approx([9 / 25] * 2, abs=1024 / rate)


def test_what_has_no_sound_is_refused(found):
    (without, _, disconnect), (other, expected, connect) = found["refused"]
    assert "makes no sound (LTXV)" in without
    assert disconnect.startswith("Disconnect audio_vae")
    assert other == "VideoVAE at the audio_vae input"
    assert expected == "the VAE that the MODEL's sound is decoded with"
    assert connect == "Connect Load LTXV Audio VAE to audio_vae."


def test_a_cache_without_sound_does_not_serve_a_run_with_it(found):
    assert "audio_vae open, and this node one with audio_vae connected" in found["exchanged"]
