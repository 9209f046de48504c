"""Datasets as other programs lay them, by their own run files: converted, read and trained."""

import json
from pathlib import Path

import pytest
from PIL import Image

from trainer_core.cli import main
from trainer_core.data.sources.combined import scan_all
from trainer_core.families.run_files import load_config
from trainer_core.training import train
from trainer_core.training.observer import SilentObserver

AI_TOOLKIT = """
job: extension
config:
  name: boats
  process:
  - type: sd_trainer
    trigger_word: p4per
    network: {type: lora, linear: 4, linear_alpha: 4}
    datasets:
    - {folder_path: images, caption_ext: txt, default_caption: "a [trigger] boat",
       mask_path: masks, resolution: [64]}
    train: {steps: 2, lr: 1.0e-4}
    model: {name_or_path: Qwen/Qwen-Image, arch: qwen_image}
    sample: {prompts: ["[trigger] on a lake"]}
"""
AI_TOOLKIT_EDIT = AI_TOOLKIT.replace("mask_path: masks", "control_path: [before, sketch]").replace(
    "arch: qwen_image", "arch: qwen_image_edit_plus"
)
ONE_TRAINER = {
    "training_method": "LORA", "model_type": "QWEN", "base_model_name": "Qwen/Qwen-Image",
    "masked_training": True, "unmasked_weight": 0.25, "resolution": "64",
    "concepts": [{"path": "images", "text": {"prompt_source": "sample"}}],
}  # fmt: skip
MUSUBI = "python qwen_image_train_network.py --dit x.safetensors --dataset_config sets.toml"
MUSUBI_SETS = """
[general]
caption_extension = ".txt"
resolution = [64, 64]
[[datasets]]
image_directory = "images"
"""
FLYMYAI = """
pretrained_model_name_or_path: Qwen/Qwen-Image-Edit
data_config: {img_dir: images, control_dir: before, img_size: 64, caption_type: txt}
rank: 4
max_train_steps: 2
learning_rate: 1.0e-4
"""
QFLUX = """
trainer: QwenImageEditPlus
model: {pretrained_model_name_or_path: Qwen/Qwen-Image-Edit-2509, lora: {r: 4, lora_alpha: 4}}
data: {init_args: {dataset_path: set, image_size: [64, 64]}}
loss: {mask_loss: true}
train: {max_train_steps: 2}
"""
TWO_FOLDERS = AI_TOOLKIT.replace(
    "    train:", """    - {dataset_path: more, folder_path: none, resolution: [64]}
    - {folder_path: usual, is_reg: true, resolution: [64]}
    train:""")  # fmt: skip
TABLE = MUSUBI_SETS.replace('image_directory = "images"', 'image_jsonl_file = "images/all.jsonl"')
CONCEPTS = [
    {"path": "images/", "include_subdirectories": True},
    {"path": "more", "text": {"prompt_source": "sample", "enable_tag_shuffling": True}},
    {"path": "named", "text": {"prompt_source": "filename"}},
    {"path": "told", "text": {"prompt_source": "concept", "prompt_path": "lines.txt"}},
    {"path": "off", "enabled": False},
]
FILES = {
    "ai-toolkit folders": {
        "job.yaml": TWO_FOLDERS,
        "images/10_boat/a.png": "one", "images/5_sea/a.png": "two", "images/b.png": None,
        "images/b_mask.png": None, "images/metadata.jsonl": '{"file_name": "b.png", "text": "x"}',
        "masks/a.png": None, "masks/b.png": None, "none/x.png": "not read",
        "more/c.png": None, "more/d.png": "\ufefftwo\r\nlines", "usual/e.png": "a [trigger]",
        "usual/f.png": None,
    },
    "ai-toolkit edit names": {
        "job.yaml": AI_TOOLKIT_EDIT.replace("[before, sketch]", "lost, control_path_1: before"),
        "images/x/a.png": "one", "images/y/a.png": "two", "before/a.webp": None,
    },
    "OneTrainer concepts": {
        "job.json": json.dumps({**ONE_TRAINER, "concepts": CONCEPTS}),
        "images/10_boat/a.png": "one\r\ntwo", "images/10_boat/a-masklabel.PNG": None,
        "more/b.png": "x, y\nz", "named/a red boat.png": "not read", "told/c.png": "not read",
        "lines.txt": "three\n", "off/d.png": "not read",
    },
    "musubi names": {
        "job.txt": MUSUBI + " --edit", "sets.toml": TABLE,
        "images/all.jsonl": '{"image_path": "images/a.png", "caption": "a boat", '
        '"control_path_0": "./images/c.png"}\n',
        "images/a.png": None, "images/c.png": None,
    },
    "musubi masks": {
        "job.txt": MUSUBI, "sets.toml": MUSUBI_SETS + "num_repeats = 3\n",
        "images/a.png": "a boat", "images/a_mask.png": None,
    },
    "qwen-image-finetune names": {
        "job.yaml": QFLUX,
        "set/images/a.png": "paint it", "set/control/a.png": None, "set/control/a_mask.png": None,
        "set/images/b.png": None, "set/control/b.png": "said here",
    },
    "qwen-image-finetune table": {
        "job.yaml": QFLUX.replace("set,", "set/all.csv,"),
        "set/all.csv": "path_target,path_control,path_control_1,prompt,path_mask\n"
        "set/a.png,set/b.png,set/c.png,paint it,set/d.png\n",
        "set/a.png": None, "set/b.png": None, "set/c.png": None, "set/d.png": None,
    },
    "ai-toolkit": {
        "job.yaml": AI_TOOLKIT,
        "images/a.png": "a photo of [trigger]", "images/b.png": "P4per in a park",
        "images/deep/c.png": "a boat", "images/d.png": None,
        "masks/a.png": None, "masks/c.jpg": None,
        "images/_controls/a.depth.png": None, "images/_latent_cache/a.png": None,
    },
    "ai-toolkit edit": {
        "job.yaml": AI_TOOLKIT_EDIT,
        "images/a.png": "make it [name]", "images/b.png": "p4per",
        "before/a.png": None, "before/b.jpg": None, "sketch/a.png": None, "sketch/b.png": None,
    },
    "OneTrainer": {
        "job.json": json.dumps(ONE_TRAINER),
        "images/a.png": "one\n\ntwo", "images/a-masklabel.png": None, "images/b.png": None,
        "images/b-condlabel.png": None, "images/deep/c.png": "not of this concept",
    },
    "OneTrainer names": {
        "job.json": json.dumps(ONE_TRAINER).replace('"sample"', '"filename"'),
        "images/a red boat.png": None,
    },
    "OneTrainer lines": {
        "job.json": json.dumps(ONE_TRAINER).replace(
            '"sample"', '"concept", "prompt_path": "lines.txt"'
        ),
        "lines.txt": "one\ntwo\n",
        "images/a.png": None,
    },
    "musubi": {
        "job.txt": MUSUBI, "sets.toml": MUSUBI_SETS,
        "images/a.png": "a boat", "images/without.png": None, "images/deep/c.png": "not read",
        "images/a_0064x0064_qi.safetensors": "cache",
    },
    "musubi edit": {
        "job.txt": MUSUBI + " --edit", "sets.toml": MUSUBI_SETS + 'control_directory = "before"\n',
        "images/a.png": "paint it", "before/a_0000.png": None,
    },
    "musubi table": {
        "job.txt": MUSUBI,
        "sets.toml": TABLE,
        "images/all.jsonl": '{"image_path": "a.png", "caption": "a boat"}\n',
        "images/a.png": None,
    },
    "flymyai": {
        "job.yaml": FLYMYAI,
        "images/a.png": "paint it", "images/without.png": None, "before/a.png": None,
        "before/without.png": None,
    },
    "qwen-image-finetune": {
        "job.yaml": QFLUX,
        "set/training_images/a.png": "paint it",
        "set/control_images/a.png": None, "set/control_images/a_control_1.png": None,
        "set/control_images/a_mask.png": None,
    },
}  # fmt: skip
"""Each program's run file and folder: an image's value is its caption."""

READ = {
    "ai-toolkit folders": {
        "10_boat/a.png": (["p4per, one"], "masks/a.png", []),
        "5_sea/a.png": (["p4per, two"], "masks/a.png", []),
        "b.png": (["a p4per boat"], "masks/b.png", []),
        "more/c.png": (["p4per"], None, []),
        "more/d.png": (["p4per, two\nlines"], None, []),
        "usual/e.png": (["a p4per"], None, []),
        "usual/f.png": ([""], None, []),
    },
    "ai-toolkit edit names": {
        "x/a.png": (["p4per, one"], None, ["before/a.webp"]),
        "y/a.png": (["p4per, two"], None, ["before/a.webp"]),
    },
    "OneTrainer concepts": {
        "10_boat/a.png": (["one", "two"], "images/10_boat/a-masklabel.PNG", []),
        "more/b.png": (["x, y", "z"], None, []),
        "named/a red boat.png": (["a red boat"], None, []),
        "told/c.png": (["three"], None, []),
    },
    "musubi names": {"a.png": (["a boat"], None, ["images/c.png"])},
    "musubi masks": {"a.png": (["a boat"], None, [])},
    "qwen-image-finetune names": {
        "images/a.png": (["paint it"], "set/control/a_mask.png", ["set/control/a.png"]),
        "images/b.png": (["said here"], None, ["set/control/b.png"]),
    },
    "qwen-image-finetune table": {"a.png": (["paint it"], "set/d.png", ["set/b.png", "set/c.png"])},
    "ai-toolkit": {
        "a.png": (["a photo of p4per"], "masks/a.png", []),
        "b.png": (["P4per in a park"], None, []),
        "d.png": (["a p4per boat"], None, []),
        "deep/c.png": (["p4per, a boat"], "masks/c.jpg", []),
    },
    "ai-toolkit edit": {
        "a.png": (["make it p4per"], None, ["before/a.png", "sketch/a.png"]),
        "b.png": (["p4per"], None, ["before/b.jpg", "sketch/b.png"]),
    },
    "OneTrainer": {
        "a.png": (["one", "two"], "images/a-masklabel.png", []),
        "b.png": ([""], None, []),
    },
    "OneTrainer names": {"a red boat.png": (["a red boat"], None, [])},
    "OneTrainer lines": {"a.png": (["one", "two"], None, [])},
    "musubi": {"a.png": (["a boat"], None, [])},
    "musubi edit": {"a.png": (["paint it"], None, ["before/a_0000.png"])},
    "musubi table": {"a.png": (["a boat"], None, [])},
    "flymyai": {"a.png": (["paint it"], None, ["before/a.png"])},
    "qwen-image-finetune": {
        "training_images/a.png": (
            *(["paint it"], "set/control_images/a_mask.png"),
            ["set/control_images/a.png", "set/control_images/a_control_1.png"],
        )
    },
}
"""Sample to its texts, mask and control images."""

TOLD = {
    "ai-toolkit": ["made by ai-toolkit: control images", "made by ai-toolkit: cache"],
    "OneTrainer": [
        *("made by OneTrainer: a-masklabel.png", "made by OneTrainer: condition image"),
        "folder(s) are not read (dataset.subfolders)",
    ],
    "musubi": ["without.png has no caption", "(dataset.subfolders)"],
    "flymyai": ["without.png has no caption"],
}
TIMES = {"musubi masks": {3}}
MASKED = {"ai-toolkit": 0.0, "OneTrainer": 0.25, "qwen-image-finetune": 1.0}


def lay_out(folder: Path, name: str) -> Path:
    for place, content in FILES[name].items():
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix.lower() not in {".png", ".jpg", ".webp"}:
            path.write_text(content, encoding="utf-8")
            continue
        Image.new("RGB", (64, 64), (len(place) * 9 % 256, 80, 20)).save(path)
        if content is not None:
            path.with_suffix(".txt").write_text(content, encoding="utf-8")
    return next(folder.glob("job.*"))


@pytest.mark.parametrize("name", FILES)
def test_a_dataset_is_read_as_its_program_reads_it_and_trained(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = lay_out(tmp_path, name)
    assert main(["template", "run.yaml", "--from", str(job)]) == 0
    small = [
        *("base.path=embedded", "base.encoders=null", "training.steps=2", "dataset.resolution=64"),
        *("adapter.rank=2", "preview.every=0", "output.dir=out", "memory.device=cpu"),
        *("training.precision=fp32", "memory.base_format=dense", "training.checkpoint_every=0"),
    ]
    config = load_config("run.yaml", small)
    found = scan_all(config.dataset)
    samples = {
        sample.name: (
            [sample.caption, *sample.more_captions],
            sample.mask and sample.mask.relative_to(tmp_path).as_posix(),
            [each.relative_to(tmp_path).as_posix() for each in sample.controls],
        )
        for sample in found.samples
    }
    assert samples == READ[name]
    for words in TOLD.get(name, ()):
        assert any(words in problem for problem in found.problems), (words, found.problems)
    assert {sample.repeats for sample in found.samples} == {1}
    assert {config.dataset.num_repeats} == TIMES.get(name, {1})
    if name in MASKED:
        assert config.dataset.mask.background == MASKED[name]
    if name == "ai-toolkit":
        assert config.preview.prompts == ["p4per on a lake"]
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
