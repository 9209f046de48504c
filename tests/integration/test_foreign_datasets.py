"""Datasets as other programs lay them, by their own run files: converted, read and trained."""

from pathlib import Path

import pytest
import yaml
from fixtures.combinations import some
from PIL import Image

from trainer_core.cli import main
from trainer_core.data.sources.scan_dataset import scan_all
from trainer_core.families.run_files import load_config
from trainer_core.training import train
from trainer_core.training.observer import SilentObserver

WORLD = yaml.safe_load(Path(__file__).with_name("foreign_datasets.yaml").read_text("utf-8"))
CASES = WORLD["cases"]
QUICK = ("ai-toolkit edit", "OneTrainer lines", "musubi masks", "flymyai", "sd-scripts folders")


def text_of(content: str | dict) -> str:
    """What a file holds: as it stands, or another text with something in the place of something."""
    if isinstance(content, str):
        return content
    text = WORLD["texts"][content["of"]]
    for old, new in content.get("with", {}).items():
        assert old in text
        text = text.replace(old, new)
    return text + content.get("and", "")


def lay_out(folder: Path, name: str) -> Path:
    for place, content in CASES[name]["files"].items():
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix.lower() not in {".png", ".jpg", ".webp"}:
            path.write_text(text_of(content), encoding="utf-8")
            continue
        Image.new("RGB", (64, 64), (len(place) * 9 % 256, 80, 20)).save(path)
        if content is not None:
            path.with_suffix(".txt").write_text(content, encoding="utf-8")
    return next(folder.glob("job.*"))


@pytest.mark.parametrize("name", some(CASES, *QUICK))
def test_a_dataset_is_read_as_its_program_reads_it_and_trained(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = lay_out(tmp_path, name)
    assert main(["template", "run.yaml", "--from", str(job)]) == 0
    small = [
        *("base.path=embedded", "base.encoders=null", "training.steps=2", "dataset.resolution=64"),
        *("adapter.rank=2", "preview.every=0", "output.dir=out", "memory.device=cpu"),
        *("family=qwen_image", "training.guidance=1"),
        *("training.precision=fp32", "memory.base_format=dense", "training.checkpoint_every=0"),
    ]
    config = load_config("run.yaml", small)
    found = scan_all(config.dataset)
    samples = {
        sample.name: [
            [sample.caption, *sample.more_captions],
            sample.mask and sample.mask.relative_to(tmp_path).as_posix(),
            [each.relative_to(tmp_path).as_posix() for each in sample.controls],
        ]
        for sample in found.samples
    }
    case = CASES[name]
    assert samples == case["read"]
    for words in case.get("told", ()):
        assert any(words in problem for problem in found.problems), (words, found.problems)
    each = case.get("each", {})
    assert [sample.repeats for sample in found.samples] == [
        each.get(sample.name, 1) for sample in found.samples
    ]
    assert config.dataset.num_repeats == case.get("repeats", 1)
    assert config.dataset.mask.background == case.get("background", config.dataset.mask.background)
    assert config.preview.prompts == case.get("prompts", config.preview.prompts)
    assert train(config, SilentObserver()).step == 2


def test_names_of_other_programs_are_never_trained_without_a_conversion(tmp_path):
    lay_out(tmp_path, "OneTrainer")
    lay_out(tmp_path / "other", "ai-toolkit")
    for folder in (tmp_path / "images", tmp_path / "other" / "images"):
        for source in ("auto", "none"):
            dataset = {"path": str(folder), "missing_caption": "empty", "mask": {"source": source}}
            names = {
                sample.name
                for sample in scan_all(load_config({"dataset": dataset}).dataset).samples
            }
            assert not [name for name in names if "label" in name or name.startswith("_")], names
