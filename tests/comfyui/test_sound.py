"""Clips are trained with their sound, where a MODEL makes both."""

import numpy as np
import pytest

pytestmark = pytest.mark.comfy


TONE = 880
"""Of the clips, in hertz."""
QUICK = ("predicted", "begun", "encoded", "refused", "exchanged", "mixed", "previews")


def looked_at(comfy_host, folder, *jobs, model="ltxav"):
    return comfy_host.results("sound_process.py", folder, model, *jobs, inside=True)


@pytest.fixture(scope="module")
def found(comfy_host, tmp_path_factory):
    return looked_at(comfy_host, tmp_path_factory.mktemp("sound"), *QUICK)


@pytest.fixture(scope="module")
def packed(comfy_host, tmp_path_factory):
    """Of MiniMax-H3, which makes nothing without sound and takes one sample a pass."""
    jobs = ("predicted", "encoded", "alone", "whole", "refused")
    return looked_at(comfy_host, tmp_path_factory.mktemp("packed"), *jobs, model="minimax_h3")


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


def test_sound_of_another_shift_is_predicted_and_encoded_as_comfyui_does(packed):
    assert max(packed["predicted"]) < 1e-6
    encoded = packed["encoded"]
    assert encoded["shape"] == encoded["empty"] == [32, 2, 8]
    assert encoded["apart"] == 0


def test_a_clip_and_an_image_without_sound_are_predicted_with_that_of_silence(packed):
    """In a batch, where each is as it is alone."""
    alone = packed["alone"]
    own, other = alone["apart"]
    assert own < 1e-6 < 0.1 < other
    assert alone["image"] == [2, 24, 4, 4]
    assert alone["noise"] == pytest.approx(1.0, abs=0.1)


def test_a_model_that_always_makes_sound_is_trained_and_is_as_before(packed):
    whole = packed["whole"]
    assert np.isfinite(whole["losses"]).all()
    # Attention and MLP of two blocks; nothing of their modulation.
    assert whole["patches"] == whole["layers"] == 2 * 4
    assert (whole["unread"], whole["changed"], whole["grid"]) == ([], [], [])
    assert (whole["rate"], whole["longest"], whole["same_after"]) == (24.0, 5, True)
    assert max(whole["base_error"], whole["sample_error"]) < 1e-6 < 1e-3 < whole["change"]


def test_a_model_that_always_makes_sound_is_refused_without_what_it_needs(packed):
    without, video, other, nothing, rate, distilled = packed["refused"]
    assert "makes no sound (LTXV)" in without[0]
    assert video[0] == "MiniMaxH3VideoVAE at the audio_vae input"
    assert other[0] == "AudioVAE at the audio_vae input"
    assert nothing[0] == "nothing at the audio_vae input, and minimax_h3 (MiniMaxH3)"
    assert {each[2] for each in (video, other)} == {"Connect Load VAE with its file to audio_vae."}
    assert rate[:2] == [
        "clips of 16 frames a second, and minimax_h3 (MiniMaxH3)",
        "24, the rate by which it lays sound beside frames",
    ]
    assert "is distilled, which training would undo" in distilled[0]
    assert "Its guidance is in its weights: put its training adapter" in distilled[2]
    assert "set base.distilled of Base From Model to train" in distilled[2]


@pytest.mark.exhaustive
def test_a_model_that_always_makes_sound_learns_a_tone_and_no_silence(comfy_host, tmp_path):
    jobs = ("mixed", "previews", "learned", "silent", "heard")
    found = looked_at(comfy_host, tmp_path, *jobs, model="minimax_h3")
    assert np.isfinite(found["mixed"]["losses"]).all()
    assert found["previews"]["rate"] == 32000
    # A clip of five frames, in whole frames of the codec.
    assert found["previews"]["seconds"] == pytest.approx([5 / 24] * 2, abs=1024 / 32000)
    (before, after), (base, silent) = found["learned"]["errors"], found["silent"]["errors"]
    assert after < 0.6 * before
    assert silent > 0.85 * base
    # Of the previews' sound: nearer to the tone than of a run without it, and than to others.
    learned, unheard = (
        {int(tone): after / before for tone, (before, after) in run.items()}
        for run in found["heard"]
    )
    assert learned[TONE] < 0.98 * unheard[TONE]
    assert learned[TONE] == min(learned.values())
