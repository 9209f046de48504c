"""What `dataset`, `doctor` and `inspect` say, on real folders and the embedded base."""

import json

import pytest
from PIL import Image

from tests.fixtures.opened_files import opened_files
from trainer_core.cli import main
from trainer_core.commands.doctor import missing_packages


@pytest.fixture
def images(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for number, size in enumerate([(64, 64), (64, 64), (128, 64)]):
        Image.new("RGB", size, (number * 50, 0, 0)).save(folder / f"{number}.png")
        (folder / f"{number}.txt").write_text(f"image {number}", encoding="utf-8")
    return folder


def report(capsys, *words: str, code: int = 0) -> dict:
    assert main([*words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_dataset_report_counts(images, capsys):
    found = report(capsys, "dataset", str(images), "dataset.resolution=64")
    assert found["samples"] == 3
    assert found["with_captions"] == 3
    assert found["picture_sizes"] == {"64x64": 2, "128x64": 1}
    assert sum(found["buckets"].values()) == 3
    assert found["schedule"]["steps"] is None
    assert found["problems"] == []
    assert found["train_would_stop"] is None


def test_dataset_report_says_what_is_not_mirrored_and_nothing_for_a_terminal(images, capsys):
    (images / "0.txt").write_text("a left hand", encoding="utf-8")
    settings = ["dataset.resolution=64", "dataset.flip=true", "output.name=database"]
    assert main(["dataset", str(images), *settings, "--looks"]) == 0
    told = capsys.readouterr().out
    assert "1 of 3 images, such as 0.png, are never mirrored" in told
    assert "left (1)" in told
    assert "64x64: 2 images, 2 batches" in told
    assert "VRAM" not in told, "that of a base that nobody named"
    assert "\x1b" not in told
    assert "steps are" not in told, "those of no run file are nobody's"
    (images / "2.png").unlink()
    (images / "2.txt").unlink()
    assert main(["dataset", str(images), "dataset.resolution=64", "training.steps=40"]) == 0
    told = capsys.readouterr().out
    assert "64x64: 2 images" in told
    assert "96x32" not in told
    assert "never mirrored" not in told
    assert "40 steps are" in told


def test_dataset_report_tells_every_problem_and_that_train_would_stop(images, capsys):
    (images / "0.txt").unlink()
    (images / "1.png").write_bytes(b"")
    found = report(capsys, "dataset", str(images), "dataset.resolution=64", code=2)
    assert found["samples"] == 1
    assert "0.png" in " ".join(found["problems"])
    assert "1.png" in " ".join(found["problems"])
    assert found["train_would_stop"]


@pytest.mark.parametrize("spoiled", [False, True])
def test_dataset_report_opens_every_file_once(images, spoiled, capsys):
    for path in images.glob("*.png"):
        Image.open(path).save(path.with_suffix(".jpg"))
        path.unlink()
    if spoiled:
        (images / "0.jpg").write_bytes(b"")
    with opened_files(images) as opened:
        report(capsys, "dataset", str(images), "dataset.resolution=64", code=2 * spoiled)
    assert opened == {f"{number}.{kind}": 1 for number in range(3) for kind in ("jpg", "txt")}


def test_each_missing_package_is_one_line_with_the_remedy():
    versions = {"torch": "2.8.0", "diffusers": None, "peft": "0.17.1", "accelerate": "1.0"}
    lines = missing_packages({**versions, "transformers": "5.0.0", "tensorboard": None})
    assert len(lines) == 3
    assert lines[0].startswith("diffusers is not installed")
    assert lines[1].startswith("peft 0.17.1 is older than")
    assert all("pip install" in line and "\n" not in line for line in lines)


def test_doctor_says_what_a_run_would_adapt(images, tmp_path, capsys):
    run_file = tmp_path / "run.yaml"
    run_file.write_text(
        "dataset: {path: images, resolution: 64}\nadapter: {kind: lora, rank: 4}\n"
        "memory: {blocks_to_checkpoint: 0, device: cpu}\ntraining: {steps: 70}\n",
        encoding="utf-8",
    )
    found = report(capsys, "doctor", str(run_file))
    from trainer_core.adapters import attach
    from trainer_core.bases.locate import locate_base
    from trainer_core.config import AdapterConfig, BaseSection
    from trainer_core.families.registry import get_family

    family = get_family("qwen_image")
    import torch

    location = locate_base(BaseSection(), get_family("qwen_image"), False)
    transformer = family.load_transformer(location, torch.float32, "cpu")
    parameters = sum(p.numel() for p in transformer.parameters())
    unused = family.layers.unused(transformer)
    adapter = attach(
        transformer,
        AdapterConfig(kind="lora", rank=4),
        presets=family.layers.presets,
        unused=unused,
    )
    run = found["run"]
    assert (found["problems"], run["steps"]) == ([], 70)
    assert ("allocator" in found) == torch.cuda.is_available()
    assert run["base"]["parameters"] == parameters
    assert run["adapter"]["layers"] == len(adapter.names)
    trainable = sum(p.numel() for p in adapter.parameters())
    assert run["adapter"]["trainable_parameters"] == trainable
    assert run["dataset"]["samples"] == 3
    assert set(run["memory_estimate"]) == {"base", "adapter", "activations", "total"}
    assert "memory_plans" not in run, "on a CPU nothing is planned"
    assert set(run["memory_free"]) == {"device_memory", "ram"}


def test_doctor_collects_all_problems(images, tmp_path, capsys):
    (images / "0.txt").unlink()
    words = (
        f"dataset.path={images}",
        "dataset.resolution=64",
        f"output.dir={images / '0.png'}",
        "adapter.targets=['no\\.such\\.layer']",
    )
    problems = report(capsys, "doctor", *words, code=2)["problems"]
    assert [text.split(":")[0] for text in problems] == ["output.dir", "dataset", "adapter"]


def test_inspect_refuses_what_is_no_adapter(tmp_path, capsys):
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"nothing")
    assert main(["inspect", str(path)]) == 2
    assert "x.safetensors" in capsys.readouterr().err
    assert main(["inspect", str(tmp_path / "none.safetensors")]) == 2
    assert main(["inspect"]) == 2
