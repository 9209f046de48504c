"""Captions that are cut off are a finding, wherever the base's tokenizer is at hand."""

import json

import pytest
from PIL import Image

from tests.fixtures.flux_base import make_flux_base
from trainer_core.bases.locate import locate_base
from trainer_core.cli import main
from trainer_core.config import BaseSection
from trainer_core.families.registry import get_family

LIMIT = 24


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return make_flux_base(tmp_path_factory.mktemp("flux"))


@pytest.fixture
def words(base, tmp_path):
    """What names a dataset with a short caption and a long one, and the base."""
    folder = tmp_path / "images"
    folder.mkdir()
    for name, caption in (("short", "an image"), ("long", "an image of an image " * 20)):
        Image.new("RGB", (64, 64)).save(folder / f"{name}.png")
        (folder / f"{name}.txt").write_text(caption, encoding="utf-8")
    settings = {
        "family": "flux",
        "base.path": base,
        "base.text_length": LIMIT,
        "dataset.path": folder,
        "dataset.resolution": 64,
        "output.dir": tmp_path / "output",
        "memory.device": "cpu",
    }
    return [f"{name}={value}" for name, value in settings.items()]


def lines(capsys, *words: str) -> list[dict]:
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def is_finding(text: str) -> bool:
    return (
        "1 caption(s) have more tokens than base.text_length (24)" in text and "long.png (" in text
    )


def test_the_dataset_report_counts_tokens_and_names_what_is_cut_off(words, capsys):
    (found,) = lines(capsys, "dataset", *words)
    assert found["caption_tokens"]["limit"] == LIMIT
    assert found["caption_tokens"]["shortest"] < LIMIT < found["caption_tokens"]["longest"]
    assert [is_finding(note) for note in found["notes"]] == [True]
    (found,) = lines(capsys, "dataset", *words, "base.text_length=512")
    assert found["notes"] == []


@pytest.mark.exhaustive
def test_the_doctor_and_the_cache_say_it_too(words, capsys):
    (found,) = lines(capsys, "doctor", *words)
    assert any(map(is_finding, found["run"]["dataset"]["notes"]))
    for _ in range(2):  # also where everything is encoded already
        events = lines(capsys, "cache", *words)
        assert [is_finding(e["message"]) for e in events if e.get("event") == "warned"] == [True]


@pytest.mark.parametrize("family", ["flux", "qwen_image"])
def test_the_number_of_tokens_is_where_the_encoders_cut(base, family):
    """At one token less the encoder yields another text; at as many, the same as at more."""
    import torch

    path = str(base) if family == "flux" else "embedded"

    def encoded(length):
        settings = BaseSection(path=path, text_length=length)
        location = locate_base(settings, get_family(family), has_controls=False)
        encoders = get_family(family).load_encoders(location, torch.float32, "cpu")
        return encoders.encode_text("a red diamond on a blue background", ())["text_embeddings"]

    location = locate_base(BaseSection(path=path), get_family(family), has_controls=False)
    count = get_family(family).text.load_token_counter(location)
    tokens = count("a red diamond on a blue background", 0)
    whole, more, less = encoded(tokens), encoded(tokens + 8), encoded(tokens - 1)
    assert len(less) == tokens - 1
    assert len(whole) == tokens
    if family == "qwen_image":
        assert torch.equal(whole, more)
    else:
        assert not torch.allclose(less, whole[: tokens - 1])
