"""Sizes, batches and held-out images that cannot be used."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fixtures.bad_input import BadInput, Outcome, write_pair
from trainer_core.config import DatasetSection, RunConfig
from trainer_core.config.problems import check_config
from trainer_core.data.buckets import plan_buckets
from trainer_core.data.cache.cache_file import make_entry
from trainer_core.data.cache.cached_dataset import CachedDataset, CachedItem
from trainer_core.data.sources.combined import scan_all
from trainer_core.families.run_files import load_config
from trainer_core.training.run_batches import require_trained
from trainer_core.types import Bucket

Make = Callable[[Path], Any]


def ruled(**dataset: Any) -> Make:
    def make(folder: Path) -> RunConfig:
        section = {"path": str(folder), **dataset}
        return RunConfig.model_validate({"base": {"path": "embedded"}, "dataset": section})

    return make


def written(text: str) -> Make:
    def make(folder: Path) -> Path:
        path = folder / "run.yaml"
        path.write_text(f"base: {{path: embedded}}\ndataset: {{path: x, {text}}}", encoding="utf-8")
        return path

    return make


def checked(config: RunConfig) -> Outcome:
    check_config(config)
    return Outcome(())


def loaded(path: Path) -> Outcome:
    load_config(path)
    return Outcome(())


def images(*sizes: tuple[int, int], **settings: Any) -> Make:
    def make(folder: Path) -> DatasetSection:
        for number, (width, height) in enumerate(sizes):
            write_pair(folder / f"{number}.png", width=width, height=height)
        return DatasetSection(path=str(folder), **settings)

    return make


def with_folder(extra: dict[str, Any], **settings: Any) -> Make:
    def make(folder: Path) -> DatasetSection:
        write_pair(folder / "own" / "a.png", width=64, height=64)
        write_pair(folder / "own" / "b.png", width=64, height=64)
        write_pair(folder / "more" / "c.png", width=64, height=64)
        further = [{"path": str(folder / "more"), **extra}]
        return DatasetSection(path=str(folder / "own"), folders=further, **settings)

    return make


def empty_validation(folder: Path) -> DatasetSection:
    settings = with_folder({"role": "validation"})(folder)
    (folder / "more" / "c.png").unlink()
    (folder / "more" / "c.txt").unlink()
    return settings


def planned(settings: DatasetSection) -> Outcome:
    """For a family whose sides are multiples of 16."""
    found = scan_all(settings)
    plan = plan_buckets(found.samples, settings, 16, lambda width, height, area: (32, 32))
    return Outcome((*found.problems, *plan.notes), found.samples)


def all_held_out(config: RunConfig) -> Outcome:
    entry = make_entry(Path(config.dataset.path), "text", "a")
    item = CachedItem("a.png", Bucket(32, 32), (), entry, (), entry, entry, validation=True)
    require_trained(config, CachedDataset([item]))
    return Outcome(())


def contradiction(id: str, make: Make, *words: str) -> BadInput:
    return BadInput(id, make, "error", words, run=checked)


def out_of_range(id: str, text: str, *words: str) -> BadInput:
    return BadInput(id, written(text), "error", words, run=loaded)


def refused(id: str, make: Make, *words: str) -> BadInput:
    return BadInput(id, make, "error", words, run=planned)


CASES = [
    contradiction(
        "further resolution that is no size",
        ruled(more_resolutions=[512, 16]),
        "dataset.more_resolutions[1]: 16",
        "32 to 4096",
    ),
    contradiction(
        "negative further resolution", ruled(more_resolutions=[-5]), "dataset.more_resolutions[0]"
    ),
    contradiction(
        "huge further resolution", ruled(more_resolutions=[10**9]), "dataset.more_resolutions[0]"
    ),
    contradiction(
        "further resolution that is the first",
        ruled(resolution=512, more_resolutions=[512]),
        "dataset.more_resolutions[0]: 512",
        "already",
    ),
    contradiction(
        "further resolution named twice",
        ruled(more_resolutions=[512, 256, 512]),
        "dataset.more_resolutions[2]: 512",
    ),
    contradiction(
        "further resolution of a folder",
        ruled(folders=[{"path": "b", "resolution": 256, "more_resolutions": [256]}]),
        "dataset.folders[0].more_resolutions[0]: 256",
    ),
    contradiction(
        "shape limit that is not read",
        ruled(bucketing="longest_side", max_aspect_ratio=2.0),
        "dataset.max_aspect_ratio is 2",
        "longest_side",
    ),
    contradiction(
        "step above the resolution",
        ruled(resolution=64, bucket_step=128),
        "dataset.bucket_step is 128",
        "resolution is 64",
    ),
    contradiction(
        "step above a folder's resolution",
        ruled(bucket_step=128, folders=[{"path": "b", "resolution": 96}]),
        "dataset.bucket_step is 128",
        "resolution is 96",
    ),
    contradiction(
        "validation without images",
        ruled(validation={"every": 10}),
        "dataset.validation",
        "no image is held out",
    ),
    out_of_range("resolution of zero", "resolution: 0", "dataset.resolution", "32"),
    out_of_range("batch of no images", "batch_size: 0", "dataset.batch_size", "1"),
    out_of_range("further resolutions as a word", "more_resolutions: small", "more_resolutions"),
    out_of_range("further resolution as a word", "more_resolutions: [big]", "more_resolutions"),
    out_of_range("unknown way of bucketing", "bucketing: square", "dataset.bucketing", "area"),
    out_of_range("step of a pixel", "bucket_step: 1", "dataset.bucket_step", "8"),
    out_of_range("shape limit below a square", "max_aspect_ratio: 0.5", "max_aspect_ratio"),
    out_of_range(
        "most images held out", "validation: {share: 0.9}", "dataset.validation.share", "0.5"
    ),
    out_of_range(
        "no noise levels",
        "validation: {share: 0.1, noise_levels: 0}",
        "dataset.validation.noise_levels",
    ),
    out_of_range(
        "folder's batch of no images",
        "folders: [{path: b, batch_size: 0}]",
        "batch_size",
        "folders",
    ),
    refused(
        "step that the family cannot train",
        images((64, 64), bucket_step=24, resolution=64),
        "dataset.bucket_step: 24",
        "multiple of 16",
    ),
    refused("image of a few pixels", images((64, 64), (9, 64), resolution=64), "1.png", "9 x 64"),
    BadInput(
        "images that are too small for the resolution",
        images((64, 64), (512, 512), resolution=256),
        "warning",
        ["0.png", "256 x 256", "smaller"],
        run=planned,
    ),
    BadInput(
        "folder's images that are too small for its resolution",
        with_folder({"resolution": 128}, resolution=64),
        "warning",
        ["c.png", "128 x 128"],
        run=planned,
    ),
    BadInput(
        "panorama that is cropped",
        images((640, 64), resolution=64, max_aspect_ratio=2.0),
        "warning",
        ["0.png", "cropped"],
        run=planned,
    ),
    BadInput(
        "all images held out",
        ruled(),
        "error",
        ["all 1 images are held out", "dataset.validation.share"],
        run=all_held_out,
    ),
    BadInput("empty validation folder", empty_validation, "error", ["more"], complete=False),
]
