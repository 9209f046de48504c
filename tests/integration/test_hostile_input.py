"""Broken and hostile files: whatever is in them, an error in three parts, soon and in little room.

A row of a table is something wrong. Nothing escapes `main`, or reaches the terminal to act on it.
"""

import functools
import json
import os
import shutil
import signal
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.fixtures.combinations import each_once, rarely, some
from trainer_core.cli import main
from trainer_core.demo.run import dataset_folder
from trainer_core.families.registry import embedded_family
from trainer_core.filesystem.text_files import DEEPEST
from trainer_core.tensors.safetensors_reader import MOST_TENSORS

EMBEDDED = embedded_family().embedded
DEEP = 100_000
KEPT = "\n\t"
LONGEST = 600


def late(number, frame):
    """End what would wait for ever, as for somebody at the other end of a pipe."""
    raise AssertionError(f"not done in {LONGEST} s")


def told(capsys, *words):
    """Run a command; gives its exit code and what it printed, which a terminal may be shown."""
    capsys.readouterr()
    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LONGEST)
    try:
        code = main([*map(str, words)])
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    said = capsys.readouterr()
    text = said.out + said.err
    if "--json" not in words:
        strange = {c for c in text if not c.isprintable() and c not in KEPT}
        assert not strange, strange
    return code, said


def refused(capsys, *words):
    code, said = told(capsys, *words)
    assert code in {1, 2}, said
    for part in ("Found: ", "Expected: ", "To do: "):
        assert said.err.count(part) == 1, said
    assert "Traceback" not in said.err
    assert len(said.out + said.err) < 40_000
    return said.err


def deep_object(levels=DEEP):
    return '{"a":' * levels + "1" + "}" * levels


def huge(path, size=6 * 2**30):
    with path.open("wb") as file:
        file.truncate(size)


# A text file of ours may be any of these. Each makes the file at the path that it is given.
TEXTS = {
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a pipe": os.mkfifo,
    "6 GiB of nothing": huge,
    "a folder": lambda path: path.mkdir(),
    "not UTF-8": lambda path: path.write_bytes(b"a\xff\xfe\x00"),
    "half of UTF-16": lambda path: path.write_bytes(b"\xff\xfe\x00"),
    "a lone link": lambda path: path.symlink_to(path.with_name("not there")),
    "deep lists": lambda path: path.write_text("[" * DEEP + "]" * DEEP),
    "a little too deep": lambda path: path.write_text(deep_object(DEEPEST + 5)),
    "half": lambda path: path.write_text('{"status": "runn'),
    "a number without end": lambda path: path.write_text("9" * 100_000),
    "empty": lambda path: path.write_text(""),
    "a list": lambda path: path.write_text("[1, 2]"),
    "a text": lambda path: path.write_text('"text"'),
    "nothing": lambda path: path.write_text("null"),
}
LINUX = pytest.mark.skipif(os.name == "nt", reason="pipes and devices have other names there")
FRIENDLY_RUN_FILES = {"empty", "nothing"}  # the defaults


def replaced(path, kind):
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    TEXTS[kind](path)
    return path


@LINUX
@pytest.mark.parametrize("kind", [kind for kind in TEXTS if kind not in FRIENDLY_RUN_FILES])
def test_run_file_and_list_of_a_cache(kind, tmp_path, capsys):
    for verb in ("train", "doctor", "dataset"):
        refused(capsys, verb, replaced(tmp_path / "run.yaml", kind))
    path = replaced(tmp_path / "x.cache.json", kind)
    refused(capsys, *run_words(tmp_path / "out", tmp_path / "cache", 1, f"cache.manifest={path}"))


@pytest.mark.parametrize(
    "text",
    [
        'dataset:\n  path: "a\\0b"\n',
        'base:\n  path: "a\\0b"\n',
        'output:\n  dir: "a\\0b"\n',
        'cache:\n  manifest: "a\\0b"\n',
        'resume: "a\\0b"\n',
        'adapter:\n  start_from: "a\\0b"\n',
        'preview:\n  controls: [["a\\0b"]]\n',
        "dataset: " + "{a: " * 50 + "1" + "}" * 50,
        "dataset:\n  path: " + "[" * 900 + "]" * 900,
        "training:\n  steps: " + "9" * 5000,
        "\x1b[31mred: 1\n",
        '"\\e[31mred": 1\n',
        '"\\u202ered": 1\n',
        "x" * 100_000 + ": 1\n",
    ],
    ids=lambda text: text[:30],
)
def test_content_of_a_run_file(text, tmp_path, capsys):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    refused(capsys, "train", path)


@pytest.fixture
def dataset(tmp_path):
    folder = tmp_path / "data"
    shutil.copytree(dataset_folder("generate"), folder)
    return folder


UNREADABLE = ["a device", "a pipe", "6 GiB of nothing", "not UTF-8", "half of UTF-16"]


@LINUX
@pytest.mark.parametrize("kind", UNREADABLE)
def test_caption(kind, dataset, capsys):
    caption = sorted(dataset.rglob("*.txt"))[0]
    replaced(caption, kind)
    # What is not an ordinary file is no caption: the image has none.
    ordinary = kind not in {"a device", "a pipe"}
    skipped = ["dataset.missing_caption=skip"] if ordinary else []
    code, said = told(capsys, "dataset", dataset, *skipped)
    assert code == 2
    shown = " ".join(said.out.split())
    assert ("cannot be read as a caption" in shown) == ordinary
    assert (f"{caption.name} is not an ordinary file" in shown) != ordinary
    assert len(said.out) < 40_000


def base_copy(tmp_path):
    return Path(shutil.copytree(EMBEDDED, tmp_path / "base"))


def training(tmp_path, *settings):
    return (
        *("train", f"base.path={tmp_path / 'base'}", f"dataset.path={dataset_folder('generate')}"),
        *(f"output.dir={tmp_path / 'out'}", "training.steps=1", "dataset.resolution=64"),
        *("memory.device=cpu", "memory.threads=1", "adapter.targets=attention"),
        *settings,
    )


CONFIGS = [
    "model_index.json",
    "transformer/config.json",
    "scheduler/scheduler_config.json",
    "text_encoder/config.json",
    "tokenizer/tokenizer_config.json",
    "vae/config.json",
]
BROKEN = ["a pipe", "6 GiB of nothing", "deep lists", "a little too deep", "half", "a list"]
QUICK_CONFIGS = [("model_index.json", "a pipe"), ("vae/config.json", "deep lists")]


@LINUX
@pytest.mark.parametrize(
    ("file", "kind"), [*QUICK_CONFIGS, *rarely(each_once(CONFIGS, BROKEN[::-1]))]
)
def test_configuration_of_a_base(file, kind, tmp_path, capsys):
    replaced(base_copy(tmp_path) / file, kind)
    assert Path(file).parts[0] in refused(capsys, *training(tmp_path))
    assert not (tmp_path / "out").exists(), "a run that never started left a folder"


WRONG = {
    "layers without end": ("transformer/config.json", {"num_layers": 10**9}),
    "layers as text": ("transformer/config.json", {"num_layers": "many"}),
    "half a layer": ("transformer/config.json", {"num_layers": 1.5}),
    "no layers": ("transformer/config.json", {"num_layers": None}),
    "heads as text": ("transformer/config.json", {"num_attention_heads": "x"}),
    "axes as text": ("transformer/config.json", {"axes_dims_rope": "16"}),
    "class as list": ("transformer/config.json", {"_class_name": ["a"]}),
    "pipeline as list": ("model_index.json", {"_class_name": ["a"]}),
    "encoder's layers": ("text_encoder/config.json", {"num_hidden_layers": 10**9}),
    "inner layers": ("text_encoder/config.json", {"text_config": {"num_hidden_layers": 10**9}}),
    "encoder's heads": ("text_encoder/config.json", {"text_config": {"num_attention_heads": "x"}}),
    "encoder's settings": ("text_encoder/config.json", {"text_config": [1]}),
    "image axes": ("vae/config.json", {"temperal_downsample": 3}),
    "mean as text": ("vae/config.json", {"latents_mean": "abc"}),
    "channels": ("vae/config.json", {"z_dim": "x"}),
    "blocks without end": ("vae/config.json", {"num_res_blocks": 10**9}),
    "list without end": ("vae/config.json", {"dim_mult": [1] * 100_000}),
    "shift as text": ("scheduler/scheduler_config.json", {"shift": "x"}),
    "shift as list": ("scheduler/scheduler_config.json", {"base_shift": [1]}),
    "tokenizer's class": ("tokenizer/tokenizer_config.json", {"tokenizer_class": 5}),
    "no tokenizer": ("tokenizer/tokenizer.json", None),
}
QUICK_VALUES = ("layers without end", "heads as text", "pipeline as list", "mean as text")


@pytest.mark.parametrize("case", some(WRONG, *QUICK_VALUES, "no tokenizer"))
def test_wrong_values_in_a_configuration(case, tmp_path, capsys):
    file, change = WRONG[case]
    path = base_copy(tmp_path) / file
    if change is None:
        path.unlink()
    else:
        values = json.loads(path.read_text())
        for name, value in change.items():
            inner = values.get(name)
            values[name] = {**inner, **value} if isinstance(value, dict) and value else value
        path.write_text(json.dumps(values))
    settings = ["preview.every=1", "preview.prompts=[a]", "preview.steps=1"]
    assert "base" in refused(capsys, *training(tmp_path, *settings))


def crowd(count, name="k{}"):
    return {
        name.format(i): {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(count)
    }


@functools.cache
def crowded_header():
    entry = b'"k%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    return b"{" + b",".join(entry % number for number in range(MOST_TENSORS + 1)) + b"}"


def header_of(entries):
    return json.dumps(entries, separators=(",", ":")).encode()


HEADERS = {
    "a crowd": crowded_header,
    "deep": lambda: deep_object().encode(),
    "escapes": lambda: header_of({"\x1b[2Jx": 1}),
    "many unknown": lambda: header_of(crowd(20_000)),
    "strange keys": lambda: header_of(crowd(200, "\x1b[31m\u202e{}")),
    "a long key": lambda: header_of(crowd(3, "k" * 1_000_000 + "{}")),
}
LAYER = "diffusion_model.transformer_blocks.0.attn.to_q"


def words_of(verb, path, tmp_path):
    out = tmp_path / "out.safetensors"
    return {
        "inspect": ("inspect", path),
        "prove": ("inspect", path, "--prove"),
        "convert": ("convert", path, out, "--to", "kohya"),
        "merge": ("merge", "embedded", path, out),
        "train": (*training(tmp_path), f"base.path={path}"),
    }[verb]


QUICK_HEADERS = [("inspect", "a crowd"), ("train", "deep"), ("inspect", "strange keys")]


@pytest.mark.parametrize(
    ("verb", "case"),
    [*QUICK_HEADERS, *rarely(each_once(["convert", "train", "prove", "inspect"], HEADERS))],
)
def test_header(verb, case, tmp_path, capsys):
    header, path = HEADERS[case](), tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    refused(capsys, *words_of(verb, path, tmp_path))


def adapter(path, extra=None, metadata=None):
    tensors = {
        f"{LAYER}.lora_down.weight": torch.ones(2, 128),
        f"{LAYER}.lora_up.weight": torch.ones(128, 2),
        **(extra or {}),
    }
    save_file(tensors, path, metadata)
    return path


def test_long_metadata_is_told_in_short(tmp_path, capsys):
    metadata = {
        "a note": "x" * 5_000_000,
        "json": "[" + "1," * 1_000_000 + "1]",
        "\x1b[2J": "\x1b]0;",
    }
    metadata |= {f"key {number}": "v" for number in range(10_000)}
    path = adapter(tmp_path / "x.safetensors", metadata=metadata)
    code, said = told(capsys, "inspect", path, "--verbose")
    assert code == 0
    assert len(said.out) < 60_000
    assert "more characters" in said.out
    assert "--json tells all" in said.out
    code, said = told(capsys, "inspect", path, "--json")
    assert len(json.loads(said.out)["metadata"]["a note"]) == 5_000_000


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A short run, to be broken in copies."""
    folder = tmp_path_factory.mktemp("finished")
    words = run_words(folder / "out", folder / "cache", 2)
    assert main([*map(str, words)]) == 0
    return folder


def run_words(out, cache, steps, *settings):
    return (
        *("train", f"dataset.path={dataset_folder('generate')}", f"output.dir={out}"),
        *(f"cache.dir={cache}", f"training.steps={steps}", "training.checkpoint_every=2"),
        *("dataset.resolution=64", "output.name=run", "adapter.targets=attention"),
        *("memory.device=cpu", "memory.threads=1", *settings),
    )


@LINUX
@pytest.mark.parametrize("kind", some(TEXTS, "a pipe", "half"))
def test_run_folder(kind, finished, tmp_path, capsys):
    for number, file in enumerate(("run.json", "checkpoints/000002/state.json")):
        out = tmp_path / str(number)
        shutil.copytree(finished / "out", out)
        replaced(out / "run" / "v0" / file, kind)
        checkpoint = out / "run" / "v0" / "checkpoints" / "000002"
        refused(capsys, *run_words(out, finished / "cache", 4, f"resume={checkpoint}"))


@LINUX
@pytest.mark.parametrize("kind", some(TEXTS, "deep lists"))
def test_run_folder_that_goes_on(kind, finished, tmp_path, capsys):
    """What only tells of a run must not stop it, or is refused; nothing else."""
    for file in ("metrics.jsonl", "lock.json"):
        shutil.copytree(finished / "out", tmp_path / file)
        replaced(tmp_path / file / "run" / "v0" / file, kind)
        words = run_words(tmp_path / file, finished / "cache", 3, "resume=latest")
        code, said = told(capsys, *words)
        assert code == 0 or "To do:" in said.err
