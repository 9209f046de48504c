"""Datasets of clips of other programs are folders of the graph, with the parts trained there."""

import json

import pytest
from PIL import Image

from tests.fixtures.clip_files import write_clip
from trainer_core.data.sources.scan_dataset import scan_all
from trainer_core.errors import ConfigError
from trainer_core.foreign_runs import NamedFiles, read_foreign
from trainer_core.foreign_runs.documents import parse_document
from trainer_core.types import FrameGrid

pytest.importorskip("av")

GRID = FrameGrid(4, 16.0)
WAN = "accelerate launch wan_train_network.py --task t2v-A14B --dit w.safetensors --network_dim 8"
UNSET = "source_fps"


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """A folder of a clip of 80 frames and one of 30, at the rate of the base."""
    folder = tmp_path_factory.mktemp("data")
    for name, frames in (("long", 80), ("short", 30)):
        write_clip(folder / f"{name}.mp4", frames, codec="mpeg4", rate=16, size=(48, 32))
        (folder / f"{name}.txt").write_text("a cat runs")
    return folder


def musubi(datasets, *, command=WAN, in_graph=True):
    head = "[general]\nresolution = [64, 64]\ncaption_extension = '.txt'\nbatch_size = 1\n"
    text = head + "".join(f"[[datasets]]\n{each}\n" for each in datasets)
    documents = [parse_document("run.sh", command), parse_document("sets.toml", text)]
    return read_foreign(documents, in_graph=in_graph)


def ai_toolkit(dataset):
    process = {
        "type": "sd_trainer",
        "network": {"linear": 8},
        "model": {"name_or_path": "w", "arch": "wan22_5b"},
        "datasets": [dataset],
        "sample": {"num_frames": 41, "prompts": ["a cat"]},
    }
    text = json.dumps({"job": "extension", "config": {"process": [process]}})
    return read_foreign([parse_document("x.json", text)], in_graph=True)


def told(run):
    """Keys of the dataset's clips to what became of them."""
    return {note.key.removeprefix("datasets[0]."): note.outcome for note in run.notes}


def parts(run):
    """Clips that are trained, to first frames and lengths of their parts."""
    found = {}
    for sample in scan_all(run.config().dataset, grid=GRID).samples:
        part = sample.clip
        row = found.setdefault(sample.name.partition(" #")[0], [])
        row.append((round(part.start * part.rate), part.frames))
    return found


# What musubi-tuner trains of 80 and of 30 frames at 25 is what its source computes: the start,
# each 25 from the start, or as much as 4k + 1 frames hold.
HEAD, CHUNKS = [(0, 25)], [(0, 25), (25, 25), (50, 25)]


@pytest.mark.parametrize(
    ("keys", "long", "short"),
    [
        ("target_frames = [25]", HEAD, HEAD),
        ("target_frames = [27]\nframe_extraction = 'chunk'", CHUNKS, HEAD),
        ("target_frames = [1]\nframe_extraction = 'full'", [(0, 77)], [(0, 29)]),
        ("frame_extraction = 'full'\nmax_frames = 60", [(0, 57)], [(0, 29)]),
    ],
)
def test_the_parts_of_clips_that_musubi_trains_are_trained(clips, keys, long, short):
    run = musubi([f"video_directory = '{clips}'\nnum_repeats = 3\nsource_fps = 16.0\n{keys}"])
    assert run.values["family"] == "graph_model"
    assert parts(run) == {"long.mp4": long, "short.mp4": short}
    assert run.values["dataset.num_repeats"] == 3
    assert not run.outcome("unknown")
    assert not {note.key for note in run.outcome("lacking")}


@pytest.mark.parametrize(
    ("keys", "near", "lacking", "off"),
    [
        ("target_frames = [25, 1, 45]", {"target_frames"}, {UNSET}, set()),
        (
            "target_frames = [25]\nframe_extraction = 'slide'\nframe_stride = 4\nmax_frames = 9",
            {"target_frames", "frame_extraction"},
            {UNSET, "frame_stride"},
            {"max_frames"},
        ),
        (
            "target_frames = [25]\nframe_extraction = 'uniform'\nframe_sample = 2\n"
            "source_fps = 30.0\nframe_stride = 2",
            {"target_frames", "frame_extraction", "frame_sample", "source_fps"},
            set(),
            {"frame_stride"},
        ),
        (
            "target_frames = [25]\ncontrol_directory = 'c'",
            {"target_frames", "control_directory"},
            {UNSET},
            set(),
        ),
    ],
)
def test_what_musubi_does_otherwise_with_clips_is_told(keys, near, lacking, off):
    run = musubi([f"video_directory = 'v'\n{keys}"])
    found = told(run)
    for outcome, wanted in (("near", near), ("lacking", lacking), ("off", off)):
        assert wanted <= {key for key, each in found.items() if each == outcome}, outcome
    most = {"slide": 10_000, "uniform": 2}
    assert run.values["dataset.max_clips"] == next((most[e] for e in most if e in keys), 1)
    run.config()


@pytest.mark.parametrize(("second", "outcome"), [("81", "exact"), ("25", "near")])
def test_previews_have_the_length_of_the_prompts(tmp_path, second, outcome):
    prompts = tmp_path / "p.txt"
    prompts.write_text(f"a cat --f 81 --w 64\na dog --f {second} --w 64\n")
    command = parse_document("run.sh", f"{WAN} --sample_prompts {prompts}")
    run = read_foreign([command], beside=NamedFiles("run.sh"), in_graph=True)
    assert (run.values["preview.frames"], run.values["preview.width"]) == (81, 64)
    assert told(run)["sample_prompts (f)"] == outcome


def test_single_frames_of_clips_are_no_clips():
    run = musubi(["video_directory = 'v'", "image_directory = 'i'"])
    assert run.values["dataset.path"] == "i"
    assert "save them as such" in {n.key: n.why for n in run.notes}["datasets[0].target_frames"]


def test_images_beside_clips_leave_the_lengths_of_clips(clips, tmp_path):
    Image.new("RGB", (64, 64)).save(tmp_path / "a.png")
    (tmp_path / "a.txt").write_text("a cat")
    keys = "target_frames = [25]\nframe_extraction = 'chunk'\nsource_fps = 16.0"
    images = f"image_directory = '{tmp_path}'\nnum_repeats = 2"
    run = musubi([images, f"video_directory = '{clips}'\n{keys}"])
    assert (run.values["dataset.frames"], run.values["dataset.max_clips"]) == (25, 10_000)
    assert not run.outcome("lacking")
    found = scan_all(run.config().dataset, grid=GRID).samples
    assert sorted(each.clip.frames for each in found if each.clip) == [25] * 4
    other = keys.replace("25", "45")
    run = musubi(
        [f"video_directory = '{name}'\n{keys}" for name in "ab"] + ["image_directory = 'c'"]
    )
    assert not run.outcome("lacking")
    run = musubi([f"video_directory = 'a'\n{keys}", f"video_directory = 'b'\n{other}"])
    assert [note.key for note in run.outcome("lacking")] == ["datasets[1].target_frames"]


def test_a_table_of_clips_is_read(clips):
    rows = [json.dumps({"video_path": str(clips / "long.mp4"), "caption": "a dog"})]
    (clips / "rows.jsonl").write_text("\n".join(rows))
    run = musubi([f"video_jsonl_file = '{clips}/rows.jsonl'\ntarget_frames = [25]"])
    (sample,) = scan_all(run.config().dataset, grid=GRID).samples
    assert (sample.caption, sample.clip.frames) == ("a dog", 25)


def test_clips_are_for_the_graph_alone():
    command = "python zimage_train_network.py --dit z --network_dim 8"
    for in_graph in (False, True):
        run = musubi(["video_directory = 'v'"], command=command, in_graph=in_graph)
        assert "dataset.path" not in run.values
        (note,) = [n for n in run.notes if n.key == "datasets[0].video_directory"]
        assert (note.outcome, "ComfyUI alone" in note.why) == ("lacking", True)


@pytest.mark.parametrize(
    ("keys", "says", "outcomes", "wanted"),
    [
        (
            {"auto_frame_count": True, "fps": 16, "num_frames": 9},
            {"frames": 1025, "max_clips": 1, "fps": 16.0},
            {"auto_frame_count": "exact", "fps": "near", "num_frames": "off"},
            {"long.mp4": [(0, 77)], "short.mp4": [(0, 29)]},
        ),
        (
            {"num_frames": 25, "do_i2v": True, "do_audio": True, "fps": 16},
            {"frames": 25, "start_frame": 1.0, "fps": None, "max_clips": None},
            {"num_frames": "near", "do_i2v": "exact", "do_audio": "lacking", "fps": "off"},
            {"long.mp4": CHUNKS, "short.mp4": HEAD},
        ),
        (
            {"num_frames": 25, "shrink_video_to_frames": False},
            {"frames": 25, "fps": 24.0, "start_frame": None},
            {"shrink_video_to_frames": "near", "fps": "default"},
            None,
        ),
        (
            {"num_frames": 1, "fps": 24},
            {"frames": None, "fps": None},
            {"num_frames": "off", "fps": "off"},
            None,
        ),
    ],
)
def test_clips_of_ai_toolkit(clips, keys, says, outcomes, wanted):
    run = ai_toolkit({"folder_path": str(clips), "caption_ext": "txt", "resolution": 64, **keys})
    assert {key: run.values.get(f"dataset.{key}") for key in says} == says
    assert outcomes.items() <= told(run).items()
    assert not run.outcome("unknown")
    if wanted is not None:
        assert parts(run) == wanted
    assert run.values["preview.frames"] == 41


def diffusion_pipe(tmp_path, dataset, run="", kind="wan"):
    """A training as that program has it: the run names the file of its dataset."""
    (tmp_path / "sets.toml").write_text(dataset)
    rest = f"max_steps = 40\nsave_every_n_steps = 20\ndataset = '{tmp_path}/sets.toml'\n{run}"
    model = f"[model]\ntype = '{kind}'\nckpt_path = 'w'\ndtype = 'bfloat16'\n[adapter]\nrank = 8\n"
    text = f"{rest}\n{model}type = 'lora'\n[optimizer]\ntype = 'adamw_optimi'\nlr = 2e-5\n"
    path = tmp_path / "run.toml"
    document = parse_document(str(path), text)
    return read_foreign([document], beside=NamedFiles(str(path)), in_graph=True)


def directories(*folders, head=""):
    return head + "".join(f"[[directory]]\npath = '{folder}'\n" for folder in folders)


@pytest.mark.parametrize(
    ("buckets", "mode", "outcomes", "wanted"),
    [
        # A clip goes to the longest bucket that it fills; 25 and 77 are lengths of the base.
        ([1, 25], "single_beginning", {"frame_buckets": "near"}, (HEAD, HEAD)),
        ([25, 77], "", {"frame_buckets": "near"}, ([(0, 77)], [(0, 29)])),
        ([25], "single_middle", {"video_clip_mode": "near"}, (HEAD, HEAD)),
        ([25], "multiple_overlapping", {"video_clip_mode": "near"}, (CHUNKS, HEAD)),
    ],
)
def test_clips_of_diffusion_pipe(clips, tmp_path, buckets, mode, outcomes, wanted):
    run = diffusion_pipe(
        tmp_path,
        directories(clips, head=f"resolutions = [64]\nframe_buckets = {buckets}\n"),
        f"video_clip_mode = '{mode}'" if mode else "",
    )
    assert parts(run) == dict(zip(("long.mp4", "short.mp4"), wanted, strict=True))
    found = {note.key.removeprefix("directory[0]."): note.outcome for note in run.notes}
    assert outcomes.items() <= found.items()
    assert not run.outcome("unknown", "lacking")
    assert run.values["dataset.max_aspect_ratio"] == 1.0
    assert run.values["adapter.targets"] == [r"(.*_)?blocks\..*"]


def test_sizes_of_buckets_of_diffusion_pipe(tmp_path):
    head = "size_buckets = [[96, 64, 33], [64, 64, 1], [64, 96, 65]]\n"
    run = diffusion_pipe(tmp_path, directories("a", head=head))
    own = [run.values[f"dataset.{key}"] for key in ("resolution", "more_resolutions", "frames")]
    assert own == [78, [64], 65]
    assert run.values["dataset.max_aspect_ratio"] == 1.5
    with pytest.raises(ConfigError, match="size_buckets is 100"):
        diffusion_pipe(tmp_path, directories("a", head="size_buckets = 100\n"))
    images = diffusion_pipe(tmp_path, directories("a", head="resolutions = [64]\n"))
    assert "only images of it" in {n.key: n.why for n in images.notes}["directory[0].frame_buckets"]


def test_a_file_of_diffusion_pipe_that_trains_no_adapter_is_refused(tmp_path):
    text = "dataset = 'd'\n[model]\ntype = 'wan'\n[optimizer]\ntype = 'adamw'\nlr = 1e-5\n"
    with pytest.raises(ConfigError, match="whole model"):
        read_foreign([parse_document("x.toml", text)], in_graph=True)
