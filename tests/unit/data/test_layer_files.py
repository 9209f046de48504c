"""Images with the layers that they are made of: which files belong together, and what is wrong."""

import numpy as np
import pytest
from PIL import Image

from tests.fixtures.scanned_folder import settings
from trainer_core.config import DatasetSection
from trainer_core.data.sources.layer_files import require_layers
from trainer_core.data.sources.scan_folder import scan, survey
from trainer_core.errors import ConfigError, DatasetError

LAYERED = ("layered",)


def save(path, size=(64, 48), mode="RGBA"):
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(len(path.name)).integers(0, 256, (size[1], size[0], 4))
    Image.fromarray(values.astype(np.uint8)).convert(mode).save(path)


@pytest.fixture
def dataset(tmp_path):
    """One image of two layers, and one of three."""
    for name, count in (("cat", 2), ("sub/dog", 3)):
        save(tmp_path / f"training_images/{name}.png", mode="RGB")
        (tmp_path / f"training_images/{name}.txt").write_text(f"a {name[-3:]}")
        for index in range(count):
            mode = "RGBA" if index else "RGB"
            save(tmp_path / f"layers/{name}_{index}.png", mode=mode)
    return tmp_path


def refusal(folder, **given):
    with pytest.raises(DatasetError) as error:
        scan(settings(folder, **given))
    assert error.value.expected
    assert error.value.remedy
    return error.value.found


@pytest.mark.parametrize("layout", ["auto", "layered"])
def test_layers_are_found_in_their_order(dataset, layout):
    cat, dog = scan(settings(dataset, layout=layout)).samples
    assert (cat.name, dog.name) == ("training_images/cat.png", "training_images/sub/dog.png")
    assert [path.name for path in cat.layers] == ["cat_0.png", "cat_1.png"]
    assert [path.name for path in dog.layers] == ["dog_0.png", "dog_1.png", "dog_2.png"]
    # An image is its own control image.
    assert cat.controls == (cat.image,)


WRONG = {
    "orphan": (lambda root: save(root / "layers/bird_0.png"), "bird_0.png has no training image"),
    "unnumbered": (lambda root: save(root / "layers/cat.png"), "cat.png does not end in a number"),
    "none": (
        lambda root: [each.unlink() for each in (root / "layers").glob("cat_*")],
        "cat.png has no layers",
    ),
    "gap": (lambda root: save(root / "layers/cat_4.png"), "cat.png has no layer number 2"),
    "late": (
        lambda root: [each.unlink() for each in (root / "layers/sub").glob("dog_[01]*")],
        "begin at number 2",
    ),
    "twice": (
        lambda root: save(root / "layers/cat_1.webp"),
        "cat.png has two layers with the number 1",
    ),
    "size": (
        lambda root: save(root / "layers/cat_1.png", (48, 64)),
        "cat_1.png has 48 x 64 pixels, and its training image has 64 x 48",
    ),
    "opaque": (
        lambda root: save(root / "layers/cat_1.png", mode="RGB"),
        "cat_1.png has no alpha channel",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_refused_by_name(dataset, case):
    spoil, said = WRONG[case]
    spoil(dataset)
    assert said in refusal(dataset)
    # No policy lets it pass: an image without one of its layers is another image.
    assert said in refusal(dataset, missing_control="skip", unreadable="skip")
    # Whoever looks at the folder sees the rest of it all the same.
    assert len(survey(settings(dataset)).samples) == (2 if case in {"orphan", "unnumbered"} else 1)


def test_a_layer_that_cannot_be_read_follows_its_policy(dataset):
    (dataset / "layers/cat_1.png").write_bytes(b"no image")
    assert "cat_1.png cannot be read" in refusal(dataset)
    (left,) = scan(settings(dataset, unreadable="skip")).samples
    assert left.name.endswith("dog.png")


def test_the_base_and_the_dataset_have_to_agree_in_layers(dataset):
    samples = scan(settings(dataset)).samples
    usual = DatasetSection()
    require_layers(samples, usual, "layered", LAYERED)
    with pytest.raises(DatasetError, match=r"cat.png has layers, .* edit"):
        require_layers(samples, usual, "edit", LAYERED)
    plain = scan(settings(dataset / "training_images")).samples
    require_layers(plain, usual, "generate", LAYERED)
    with pytest.raises(DatasetError, match=r"cat\.png has no layers") as error:
        require_layers(plain, usual, "layered", LAYERED)
    assert "NAME_0.png" in error.value.remedy
    with pytest.raises(ConfigError, match="control_area"):
        require_layers(samples, DatasetSection(control_area=4096), "layered", LAYERED)
