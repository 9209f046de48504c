"""Wan on the command line: from clips and images to an adapter file and moving previews."""

import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from launches import launch
from PIL import Image
from runs import command, metrics, noisy_images
from safetensors.torch import load_file, save_file

from tests.fixtures.clip_files import write_clip
from tests.fixtures.wan_base import make_wan, make_wan_base, wan_to_native
from trainer_core.cli import main
from trainer_core.families.wan.keys import start_channels

FRAMES = 9


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return make_wan_base(tmp_path_factory.mktemp("wan") / "base")


def prepare(base, tmp_path, capsys, monkeypatch):
    """Write a clip, an image and a run file, go there, and give the settings of a tiny run."""
    (template,) = command(capsys, "template", "wan")
    (tmp_path / "run.yaml").write_text(template["run_file"])
    noisy_images(tmp_path / "images", 1, 64)
    write_clip(tmp_path / "images" / "moving.mp4", 2 * FRAMES, rate=16.0, size=(64, 64))
    (tmp_path / "images" / "moving.txt").write_text("a bar that grows")
    monkeypatch.chdir(tmp_path)
    return [
        f"base.path={base}",
        "dataset.resolution=64",
        f"dataset.frames={FRAMES}",
        "adapter.kind=lora",
        "adapter.rank=2",
        "training.steps=3",
        "training.schedule.warmup_steps=0",
        "training.precision=fp32",
        "preview.prompts=[a bar]",
        "preview.every=3",
        "preview.width=64",
        "preview.height=64",
        "preview.steps=2",
        "memory.device=cpu",
        "output.layouts=[comfyui]",
    ]


def trained(capsys, *settings):
    """The adapter's tensors of a run."""
    result = command(capsys, "train", "run.yaml", *settings)[-1]["result"]
    assert result["status"] == "done"
    (file,) = result["adapters"]
    return load_file(file)


@pytest.mark.exhaustive
def test_a_base_that_is_kept_otherwise_trains_the_same(base, tmp_path, capsys, monkeypatch):
    """Swapped and checkpointed blocks to the bit, and a base in fewer bits nearly."""
    settings = [*prepare(base, tmp_path, capsys, monkeypatch), "preview.every=0"]
    plain = trained(capsys, *settings, "output.name=plain")
    ways = {
        "swapped": ("memory.blocks_to_swap=2", "memory.gradient_checkpointing=true"),
        "int8": ("memory.base_format=int8",),
    }
    for name, own in ways.items():
        found = trained(capsys, *settings, f"output.name={name}", *own)
        assert found.keys() == plain.keys()
        for key, value in plain.items():
            if name == "swapped":
                assert torch.equal(found[key], value), key
            elif key.endswith("lora_down.weight"):
                # A step is of the size of the learning rate, whichever way it goes.
                torch.testing.assert_close(found[key], value, rtol=0, atol=1e-3)
        assert any(
            value.any() for key, value in found.items() if "lora_B" in key or "lora_up" in key
        ), sorted(found)[:3]


@pytest.mark.exhaustive
def test_one_of_two_models_that_begin_with_a_frame_trains_from_its_file(
    base, tmp_path, capsys, monkeypatch
):
    settings = [*prepare(base, tmp_path, capsys, monkeypatch)[1:], f"base.encoders={base}"]
    file = tmp_path / "wan2.2_i2v_high_noise_14B.safetensors"
    state = wan_to_native(make_wan(4, in_channels=4 + start_channels(4)).state_dict())
    save_file({name: each.contiguous() for name, each in state.items()}, file)
    settings += [f"base.path={file}", "preview.every=0"]
    # An image has no frame that would be predicted from its first one.
    assert main(["train", "run.yaml", *settings]) == 2
    assert "0.png is an image" in capsys.readouterr().err
    for name in ("0.png", "0.txt"):
        (tmp_path / "images" / name).unlink()
    plain = trained(capsys, *settings, "output.name=first")
    both = trained(capsys, *settings, "output.name=both", "dataset.end_frame=1")
    assert plain.keys() == both.keys()
    assert any(not torch.equal(both[key], value) for key, value in plain.items())
    (run,) = tmp_path.rglob("first/*/run.yaml")
    assert "min: 0.889" in run.read_text()


STARTED = {
    "seen": ({"reads": 4 + start_channels(4), "vision": 32}, 2 * (10 + 2), "dataset.end_frame=0.5"),
    "ti2v 5b": ({"of_5b": True}, 2 * 10, "dataset.start_frame=0.5"),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", STARTED)
def test_clips_that_begin_with_a_frame_train_from_a_folder(kind, tmp_path, capsys, monkeypatch):
    own, layers, share = STARTED[kind]
    base = make_wan_base(tmp_path / "base", **own)
    settings = [*prepare(base, tmp_path, capsys, monkeypatch), share, "training.batch_size=2"]
    for name in ("0.png", "0.txt"):
        (tmp_path / "images" / name).unlink()
    write_clip(tmp_path / "images" / "other.mp4", 2 * FRAMES, rate=24.0, size=(64, 64))
    (tmp_path / "images" / "other.txt").write_text("another bar")
    (report,) = command(capsys, "doctor", "run.yaml", *settings)
    assert report["run"]["adapter"]["layers"] == layers
    result = command(capsys, "train", "run.yaml", *settings)[-1]["result"]
    with Image.open(result["pictures"][-1]) as preview:
        assert (preview.n_frames, preview.size) == (FRAMES, (64, 64))
    (file,) = result["adapters"]
    assert sum(key.endswith(".alpha") for key in load_file(file)) == layers


@pytest.mark.exhaustive
def test_one_of_two_models_of_a_folder_trains_and_its_previews_have_both(
    tmp_path, capsys, monkeypatch
):
    two = make_wan_base(tmp_path / "two", border=0.9)
    settings = prepare(two, tmp_path, capsys, monkeypatch)[1:]
    clips = {}
    for part in ("transformer", "transformer_2"):
        own = [*settings, f"base.path={two / part}", f"output.name={part}"]
        result = command(capsys, "train", "run.yaml", *own)[-1]["result"]
        with Image.open(result["pictures"][-1]) as preview:
            clips[part] = preview.n_frames, preview.copy().tobytes()
    assert clips["transformer"][0] == clips["transformer_2"][0] == FRAMES
    assert clips["transformer"] != clips["transformer_2"]

    def encoded():
        kinds = ("latents", "text", "prompts")
        return sorted(file for kind in kinds for file in tmp_path.rglob(f"cache/{kind}/*"))

    made = encoded()
    command(capsys, "cache", "run.yaml", *settings, f"base.path={two / 'transformer'}")
    assert encoded() == made


FSDP = ["accelerate.commands.launch", "--use_fsdp", "--fsdp_version", "2", "--num_processes", "2"]
MACHINES = {
    "accelerate": [*FSDP, "--num_machines", "2", "--main_process_ip", "127.0.0.1"],
    "torchrun": ["torch.distributed.run", "--nnodes", "2", "--master_addr", "127.0.0.1"],
}
"""What both of two machines type: the base in parts, and whole in each."""
NUMBERED = {
    "accelerate": ("--machine_rank", "--main_process_port"),
    "torchrun": ("--node_rank", "--master_port"),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("launcher", MACHINES)
def test_two_machines_train_what_one_does(base, tmp_path, capsys, monkeypatch, launcher):
    """Each is a launch of its own; both see the same folders."""
    settings = [*prepare(base, tmp_path, capsys, monkeypatch), "preview.every=0"]
    settings += ["training.batch_size=2", "output.layouts=[comfyui]"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def machine(number):
        rank, at = NUMBERED[launcher]
        place = [rank, str(number), at, str(port)]
        words = [*MACHINES[launcher], *place, "-m", "trainer_core", "train", "run.yaml"]
        return launch([sys.executable, "-m", *words, *settings, "output.name=two"], seconds=300)

    with ThreadPoolExecutor(2) as pool:
        for done in pool.map(machine, range(2)):
            assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    made = sorted(tmp_path.rglob("cache/*/*"))
    result = command(capsys, "train", "run.yaml", *settings, "output.name=one")[-1]["result"]
    # The first one has encoded everything, once.
    assert sorted(tmp_path.rglob("cache/*/*")) == made
    one = Path(result["folder"])
    (two,) = (one.parents[1] / "two").iterdir()
    for ours, theirs in zip(metrics(two), metrics(one), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-6)


def test_clips_and_images_train_on_the_command_line(base, tmp_path, capsys, monkeypatch):
    settings = prepare(base, tmp_path, capsys, monkeypatch)
    (report,) = command(capsys, "doctor", "run.yaml", *settings)
    assert report["run"]["adapter"]["layers"] == 2 * (8 + 2)
    result = command(capsys, "train", "run.yaml", *settings)[-1]["result"]
    assert result["status"] == "done"
    with Image.open(result["pictures"][-1]) as preview:
        assert (preview.n_frames, preview.size) == (FRAMES, (64, 64))
    (file,) = result["adapters"]
    assert all(key.startswith("diffusion_model.blocks.") for key in load_file(file))
    (told,) = command(capsys, "inspect", file)
    assert told["family"] == "wan"
    sampled = ["sample", "run.yaml", *settings, f"adapter={file}", "preview.frames=5"]
    pictures = [each["path"] for each in command(capsys, *sampled)]
    with Image.open(pictures[0]) as clip:
        assert clip.n_frames == 5
