"""Broken and hostile files: whatever is in them, an error in three parts, soon and in little room.

A row of a table is something wrong. Nothing escapes `main`, or reaches the terminal to act on it.
"""

import contextlib
import functools
import json
import os
import shutil
import signal
import struct
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.fixtures.combinations import each_once, some
from trainer_core.cli import main
from trainer_core.demo.run import dataset_folder
from trainer_core.families.registry import embedded_family
from trainer_core.filesystem.text_files import DEEPEST
from trainer_core.tensors.safetensors_reader import MOST_TENSORS

EMBEDDED = embedded_family().embedded
DEEP = 100_000
SECONDS = 60
KEPT = "\n\t"


@contextlib.contextmanager
def soon(seconds=SECONDS):
    """End what takes too long; a wait for a pipe, too."""

    def late(number, frame):
        raise AssertionError(f"not done in {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def told(capsys, *words):
    """Run a command; gives its exit code and what it printed, which a terminal may be shown."""
    capsys.readouterr()
    with soon():
        code = main([*map(str, words)])
    said = capsys.readouterr()
    text = said.out + said.err
    if "--json" not in words:
        strange = {c for c in text if not c.isprintable() and c not in KEPT}
        assert not strange, strange
        assert "\x1b" not in text
    return code, said


def refused(capsys, *words):
    code, said = told(capsys, *words)
    assert code in {1, 2}, said
    for part in ("Found: ", "Expected: ", "To do: "):
        assert said.err.count(part) == 1, said
    assert "Traceback" not in said.err
    assert len(said.out + said.err) < 40_000
    return said.err


def deep_list(levels=DEEP):
    return "[" * levels + "]" * levels


def deep_object(levels=DEEP):
    return '{"a":' * levels + "1" + "}" * levels


def huge(path, size=6 * 2**30):
    with path.open("wb") as file:
        file.truncate(size)
    return path


def pipe(path):
    os.mkfifo(path)
    return path


# A text file of ours may be any of these. Each makes the file at the path that it is given.
TEXTS = {
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a pipe": pipe,
    "6 GiB of nothing": huge,
    "a folder": lambda path: path.mkdir(),
    "no UTF-8": lambda path: path.write_bytes(b"\xff\xfe\x00a"),
    "a lone link": lambda path: path.symlink_to(path.with_name("not there")),
    "deep lists": lambda path: path.write_text(deep_list()),
    "deep objects": lambda path: path.write_text(deep_object()),
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
@pytest.mark.parametrize("verb", some(["train", "doctor", "dataset"], "train"))
def test_run_file(verb, kind, tmp_path, capsys):
    refused(capsys, verb, replaced(tmp_path / "run.yaml", kind))


@pytest.mark.parametrize(
    "text",
    [
        'dataset:\n  path: "a\\0b"\n',
        'base:\n  path: "a\\0b"\n',
        'output:\n  dir: "a\\0b"\n',
        'cache:\n  manifest: "a\\0b"\n',
        'cache:\n  dir: "a\\0b"\n',
        'resume: "a\\0b"\n',
        'adapter:\n  start_from: "a\\0b"\n',
        'preview:\n  controls: [["a\\0b"]]\n',
        "dataset: " + "{a: " * 50 + "1" + "}" * 50,
        "dataset:\n  path: " + "[" * 900 + "]" * 900,
        "preview:\n  prompts: " + "[" * 300 + "]" * 300,
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


def test_unknown_settings_are_counted(tmp_path, capsys):
    path = tmp_path / "run.yaml"
    path.write_text("\n".join(f"unknown_{number}: 1" for number in range(2_000)))
    text = refused(capsys, "train", path)
    assert "2000 problems" in text
    assert "and 1 960 more" in text


@pytest.fixture
def dataset(tmp_path):
    folder = tmp_path / "data"
    shutil.copytree(dataset_folder("generate"), folder)
    return folder


CAPTIONS = [
    kind for kind in TEXTS if kind in {"a device", "a pipe", "6 GiB of nothing", "no UTF-8"}
]


@LINUX
@pytest.mark.parametrize("kind", CAPTIONS)
def test_caption(kind, dataset, capsys):
    caption = sorted(dataset.rglob("*.txt"))[0]
    replaced(caption, kind)
    if kind in {"a device", "a pipe"}:
        # No ordinary file is no caption: the image has none.
        code, said = told(capsys, "dataset", dataset)
        assert code == 2
        assert f"has no caption: {caption.stem}.png" in said.out
        assert f"{caption.name} is no ordinary file" in said.out
    else:
        code, said = told(capsys, "dataset", dataset, "dataset.missing_caption=skip")
        assert code == 2
        assert "cannot be read as a caption" in " ".join(said.out.split())
        assert len(said.out) < 40_000


@pytest.fixture
def nested():
    """Folders deeper than a path may be long and than pytest removes: outside of its own ones."""
    with tempfile.TemporaryDirectory() as place:
        here = Path.cwd()
        os.chdir(place)
        try:
            for _ in range(1500):
                Path("d").mkdir()
                os.chdir("d")
            Path("a.png").write_bytes(b"")
            os.chdir(here)
            yield Path(place)
        finally:
            os.chdir(here)
            subprocess.run(["rm", "-rf", Path(place) / "d"], check=True)


@LINUX
def test_nested_folders(nested, capsys):
    assert "deep" in refused(capsys, "dataset", nested)


def test_names_of_files_reach_no_terminal(dataset, capsys):
    image = sorted(dataset.rglob("*.png"))[0]
    for name in ("\x1b[2Jx", "\u202egpj", "a\x07b", "\x9b31mx", "line\nbreak"):
        shutil.copyfile(image, image.with_name(f"{name}.png"))
    code, said = told(capsys, "dataset", dataset)
    assert code == 2
    assert "\\e[2Jx" in said.out or "\\x1b[2Jx" in said.out
    code, said = told(capsys, "dataset", dataset, "--json")
    assert any("\x1b[2Jx" in text for text in json.loads(said.out)["problems"])


def base_copy(tmp_path):
    folder = tmp_path / "base"
    shutil.copytree(EMBEDDED, folder)
    return folder


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


@LINUX
@pytest.mark.parametrize("kind", some(BROKEN, "a pipe", "deep lists"))
@pytest.mark.parametrize("file", some(CONFIGS, "model_index.json", "vae/config.json"))
def test_configuration_of_a_base(file, kind, tmp_path, capsys):
    replaced(base_copy(tmp_path) / file, kind)
    text = refused(capsys, *training(tmp_path))
    assert Path(file).parts[0] in text
    assert not (tmp_path / "out").exists(), "a run that never started left a folder"


WRONG = {
    "layers without end": ("transformer/config.json", {"num_layers": 10**9}),
    "layers as text": ("transformer/config.json", {"num_layers": "many"}),
    "half a layer": ("transformer/config.json", {"num_layers": 1.5}),
    "no layers": ("transformer/config.json", {"num_layers": None}),
    "heads as text": ("transformer/config.json", {"num_attention_heads": "x"}),
    "heads as list": ("transformer/config.json", {"num_attention_heads": [1]}),
    "axes as text": ("transformer/config.json", {"axes_dims_rope": "16"}),
    "class as list": ("transformer/config.json", {"_class_name": ["a"]}),
    "pipeline as list": ("model_index.json", {"_class_name": ["a"]}),
    "pipeline as object": ("model_index.json", {"_class_name": {}}),
    "encoder's layers": ("text_encoder/config.json", {"num_hidden_layers": 10**9}),
    "inner layers": ("text_encoder/config.json", {"text_config": {"num_hidden_layers": 10**9}}),
    "encoder's heads": ("text_encoder/config.json", {"text_config": {"num_attention_heads": "x"}}),
    "encoder's settings": ("text_encoder/config.json", {"text_config": [1]}),
    "image axes": ("vae/config.json", {"temperal_downsample": 3}),
    "mean as text": ("vae/config.json", {"latents_mean": "abc"}),
    "channels": ("vae/config.json", {"z_dim": "x"}),
    "channels as list": ("vae/config.json", {"dim_mult": "x"}),
    "blocks without end": ("vae/config.json", {"num_res_blocks": 10**9}),
    "list without end": ("vae/config.json", {"dim_mult": [1] * 100_000}),
    "shift as text": ("scheduler/scheduler_config.json", {"shift": "x"}),
    "shift as list": ("scheduler/scheduler_config.json", {"base_shift": [1]}),
    "tokenizer's class": ("tokenizer/tokenizer_config.json", {"tokenizer_class": 5}),
}


@pytest.mark.parametrize(
    "case", some(WRONG, "layers without end", "heads as text", "pipeline as list", "mean as text")
)
def test_wrong_values_in_a_configuration(case, tmp_path, capsys):
    file, change = WRONG[case]
    path = base_copy(tmp_path) / file
    values = json.loads(path.read_text())
    for name, value in change.items():
        inner = values.get(name)
        values[name] = {**inner, **value} if isinstance(value, dict) and value else value
    path.write_text(json.dumps(values))
    settings = ["preview.every=1", "preview.prompts=[a]", "preview.steps=1"]
    text = refused(capsys, *training(tmp_path, *settings))
    assert "base" in text


@pytest.mark.parametrize("part", ["tokenizer.json"])
def test_tokenizer_without_its_parts(part, tmp_path, capsys):
    path = base_copy(tmp_path) / "tokenizer" / part
    path.unlink()
    assert "tokenizer" in refused(capsys, *training(tmp_path))


@pytest.mark.parametrize(
    ("part", "dtype"),
    each_once(["transformer", "text_encoder", "vae"], [torch.int8, torch.int64]),
)
def test_weights_of_integers(part, dtype, tmp_path, capsys):
    path = sorted((base_copy(tmp_path) / part).glob("*.safetensors"))[0]
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith(".weight") and tensors[name].dim() > 1)
    tensors[name] = (tensors[name] * 100).to(dtype)
    save_file(tensors, path, metadata={"format": "pt"})
    text = refused(capsys, *training(tmp_path))
    assert name in text
    assert "stored as" in text
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "names", [{"a": 5}, {"a": "../x.safetensors"}, {"a": "b\0.safetensors"}, [1], "x", None]
)
def test_index_of_weights(names, tmp_path, capsys):
    folder = base_copy(tmp_path) / "transformer"
    index = folder / "diffusion_pytorch_model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": names}))
    refused(capsys, *training(tmp_path))


def write_header(path, header, size=0):
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + size)
    return path


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


@pytest.mark.parametrize("verb", some(["inspect", "convert", "train", "prove"], "inspect", "train"))
@pytest.mark.parametrize("case", some(HEADERS, "a crowd", "deep", "strange keys"))
def test_header(verb, case, tmp_path, capsys):
    path = write_header(tmp_path / "x.safetensors", HEADERS[case]())
    words = {
        "inspect": ("inspect", path),
        "prove": ("inspect", path, "--prove"),
        "convert": ("convert", path, tmp_path / "out.safetensors", "--to", "kohya"),
        "train": (*training(tmp_path), f"base.path={path}"),
    }[verb]
    refused(capsys, *words)


LAYER = "diffusion_model.transformer_blocks.0.attn.to_q"


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


@pytest.mark.parametrize("verb", some(["inspect", "prove", "convert", "merge"], "inspect"))
def test_unknown_keys_are_counted(verb, tmp_path, capsys):
    unknown = {f"strange\x1b[31m.{number}.weight": torch.zeros(1) for number in range(5_000)}
    path = adapter(tmp_path / "x.safetensors", unknown)
    out = tmp_path / "out.safetensors"
    words = {
        "inspect": ("inspect", path),
        "prove": ("inspect", path, "--prove"),
        "convert": ("convert", path, out, "--to", "kohya"),
        "merge": ("merge", "embedded", path, out),
    }[verb]
    _, said = told(capsys, *words)
    assert len(said.out + said.err) < 40_000


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
@pytest.mark.parametrize("file", ["run.json", "checkpoints/000002/state.json"])
def test_run_folder(file, kind, finished, tmp_path, capsys):
    shutil.copytree(finished / "out", tmp_path / "out")
    place = tmp_path / "out" / "run" / "v0"
    replaced(place / file, kind)
    checkpoint = place / "checkpoints" / "000002"
    refused(capsys, *run_words(tmp_path / "out", finished / "cache", 4, f"resume={checkpoint}"))


@LINUX
@pytest.mark.parametrize("kind", some(TEXTS, "deep lists"))
@pytest.mark.parametrize("file", ["metrics.jsonl", "lock.json"])
def test_run_folder_that_goes_on(file, kind, finished, tmp_path, capsys):
    """What only tells of a run must not stop it, or is refused; nothing else."""
    shutil.copytree(finished / "out", tmp_path / "out")
    replaced(tmp_path / "out" / "run" / "v0" / file, kind)
    words = run_words(tmp_path / "out", finished / "cache", 3, "resume=latest")
    code, said = told(capsys, *words)
    assert code == 0 or "To do:" in said.err


@pytest.mark.parametrize("what", ["adapter.", ".exp_avg", ".step"])
def test_training_state_that_lacks_a_tensor(what, finished, tmp_path, capsys):
    shutil.copytree(finished / "out", tmp_path / "out")
    checkpoint = tmp_path / "out" / "run" / "v0" / "checkpoints" / "000002"
    path = checkpoint / "training_state.safetensors"
    tensors = load_file(path)
    del tensors[next(name for name in sorted(tensors) if what in name)]
    save_file(tensors, path)
    words = run_words(tmp_path / "out", finished / "cache", 4, f"resume={checkpoint}")
    refused(capsys, *words)
    # A checkpoint of an earlier version keeps no hash.
    state = json.loads((checkpoint / "state.json").read_text())
    state.pop("sha256", None)
    (checkpoint / "state.json").write_text(json.dumps(state))
    refused(capsys, *words)


@LINUX
@pytest.mark.parametrize("kind", TEXTS)
def test_manifest(kind, tmp_path, capsys):
    path = replaced(tmp_path / "x.cache.json", kind)
    refused(capsys, *run_words(tmp_path / "out", tmp_path / "cache", 1, f"cache.manifest={path}"))
