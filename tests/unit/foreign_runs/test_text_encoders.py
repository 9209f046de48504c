"""Other programs' training of a text encoder, as `training.text_encoder`."""

import json

import pytest
from fixtures import foreign_files as files

from trainer_core.foreign_runs import read_foreign
from trainer_core.foreign_runs.documents import parse_document

PLACE = "training.text_encoder"


def ai_toolkit(given, text=files.AI_TOOLKIT_FLUX):
    changed = text.replace("content_or_style: style", f"content_or_style: style, {given}")
    return read_foreign([parse_document("a.yaml", changed)])


def one_trainer(model="FLUX_DEV_1", **text_encoder):
    values = json.loads(files.ONE_TRAINER)
    values |= {"model_type": model, "text_encoder": text_encoder}
    return read_foreign([parse_document("o.json", json.dumps(values))])


def settings(run):
    return {k: v for k, v in run.values.items() if k.startswith(PLACE)}


def keys(run, outcome):
    return {note.key for note in run.outcome(outcome)}


def test_ai_toolkits_text_encoder_has_its_rate_and_the_adapters_rank():
    run = ai_toolkit("train_text_encoder: true, text_encoder_lr: 3.0e-5, unet_lr: 2.0e-4")
    assert settings(run) == {
        f"{PLACE}.train": True,
        f"{PLACE}.learning_rate": 3e-5,
        f"{PLACE}.rank": 8,
    }
    assert "train.train_text_encoder" in keys(run, "near")
    # Without a rate that of the denoiser counts.
    run = ai_toolkit("train_text_encoder: true, lr: 2.0e-4")
    assert settings(run)[f"{PLACE}.learning_rate"] == 2e-4


def test_one_trainers_first_text_encoder_is_clip_l():
    run = one_trainer(train=True, learning_rate=1e-5)
    found = {f"{PLACE}.train": True, f"{PLACE}.learning_rate": 1e-5, f"{PLACE}.rank": 20}
    assert settings(run) == found


@pytest.mark.parametrize(
    "run",
    [
        ai_toolkit("train_text_encoder: false, text_encoder_lr: 1.0e-5"),
        one_trainer(train=False, learning_rate=1e-5),
        one_trainer(),
    ],
)
def test_one_that_stays_as_it_is_changes_nothing(run):
    assert settings(run) == {}
    assert not [key for key in keys(run, "lacking") if "text_encoder" in key]


def test_bases_without_clip_l_lack_it():
    run = one_trainer("QWEN", train=True, learning_rate=1e-5)
    assert settings(run) == {}
    assert "text_encoder.train" in keys(run, "lacking")
