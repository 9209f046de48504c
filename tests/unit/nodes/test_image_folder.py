"""Images of a graph become files that are named by their content."""

import numpy
import pytest
import torch
from PIL import Image

from tests.unit.nodes.conftest import pack_module
from trainer_core.config.read_run_file import load_config
from trainer_core.data.image import open_image
from trainer_core.data.sources.scan_folder import scan


def images(count, size=8, seed=0):
    """A batch as ComfyUI has it: `[B, H, W, 3]`, in [0, 1]."""
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randint(0, 256, (count, size, size, 3), generator=generator)
    return whole.float() / 255


def write(image_folder, root, batches, texts, controls=(), masks=(), **given):
    whole = image_folder.GivenImages(batches, texts, controls, masks, **given)
    return image_folder.write_image_folder(root, whole)


def read(path):
    with Image.open(path) as image:
        return numpy.asarray(image)


def test_a_batch_is_taken_apart_without_loss(image_folder):
    batch = images(3)
    found = image_folder.single_images([batch[:2], batch[2]])
    assert len(found) == 3
    for ours, theirs in zip(found, batch, strict=True):
        assert ours.dtype == numpy.uint8
        assert (ours == (theirs * 255).round().numpy()).all()


@pytest.mark.parametrize(
    ("batch", "found"),
    [
        (images(2) * 2 - 1, "numbers from -1 to 1"),
        (images(2) * 255, "numbers from 0 to 255"),
        ((images(2) * 255).int(), "numbers from 0 to 255"),
        (images(2)[:0], "there are none"),
    ],
)
def test_numbers_of_another_range_and_empty_batches_are_refused(image_folder, errors, batch, found):
    with pytest.raises(errors.DatasetError) as caught:
        image_folder.single_images([batch])
    assert found in caught.value.found
    with pytest.raises(errors.DatasetError) as caught:
        image_folder.single_masks([batch[..., 0]])
    assert found in caught.value.found


def test_a_transparent_image_becomes_what_its_file_would(image_folder, tmp_path):
    generator = torch.Generator().manual_seed(0)
    batch = torch.randint(0, 256, (1, 9, 9, 4), generator=generator).float() / 255
    batch[0, 0, 0, 3] = 0
    (found,) = image_folder.single_images([batch])
    whole = (batch[0] * 255).round().to(torch.uint8).numpy()
    Image.fromarray(whole).save(tmp_path / "a.png")
    assert (found == numpy.asarray(open_image(tmp_path / "a.png"))).all()
    assert found[0, 0].tolist() == [255, 255, 255]


@pytest.mark.parametrize("shape", [(1, 4, 4, 2), (1, 4, 4, 5), (4, 4), (1, 2, 4, 4, 3)])
def test_what_is_no_image_is_refused(image_folder, errors, shape):
    with pytest.raises(errors.DatasetError, match="images of shape"):
        image_folder.single_images([torch.zeros(shape)])


def test_images_and_texts_lie_side_by_side(image_folder, tmp_path):
    batch = images(2)
    folder = write(image_folder, tmp_path, [batch], ["one", "zwei ü"])
    assert folder.parent == tmp_path
    assert (folder / "00001.txt").read_text(encoding="utf-8") == "zwei ü"
    assert (read(folder / "00001.png") == (batch[1] * 255).round().numpy()).all()
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_the_same_content_is_written_once_and_any_other_anew(image_folder, tmp_path):
    def place(batch, texts, controls=()):
        return write(image_folder, tmp_path, [batch], texts, list(controls))

    batch = images(2)
    first = place(batch, ["a", "b"])
    time = (first / "00000.png").stat().st_mtime_ns
    assert place(batch, ["a", "b"]) == first
    assert (first / "00000.png").stat().st_mtime_ns == time
    pixel = batch.clone()
    pixel[0, 0, 0, 0] = 1 - pixel[0, 0, 0, 0]
    others = [
        place(pixel, ["a", "b"]),
        place(batch, ["a", "c"]),
        place(batch.flip(0), ["a", "b"]),
        place(batch, ["a", "b"], [images(2, seed=1)]),
        place(batch.reshape(2, 4, 16, 3), ["a", "b"]),
    ]
    assert len({first, *others}) == 6


@pytest.mark.parametrize(
    ("texts", "controls", "message"),
    [(["a", "b"], 0, "3 images and 2 texts"), (["a"], 2, "3 images and 2 controls")],
)
def test_other_numbers_are_refused_and_nothing_is_written(
    image_folder, errors, tmp_path, texts, controls, message
):
    given = [images(controls)] if controls else []
    with pytest.raises(errors.DatasetError, match=message):
        write(image_folder, tmp_path, [images(3)], texts, given)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_an_error_and_leaves_nothing(
    image_folder, errors, tmp_path
):
    place = tmp_path / "file"
    place.write_text("in the way")
    with pytest.raises(errors.StorageError):
        write(image_folder, place, [images(1)], ["a"])
    assert place.read_text() == "in the way"


def masks(count, high=8, wide=8, seed=5):
    """A batch as ComfyUI has it: `[B, H, W]`, in [0, 1]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, high, wide), generator=generator).float() / 255


@pytest.mark.parametrize("controls", [(), (images(2, seed=1),)], ids=["flat", "paired"])
def test_masks_lie_in_a_folder_of_their_own_and_are_read_as_masks(image_folder, tmp_path, controls):
    whole = masks(2)
    # As a list of one batch and one single mask, as loaders and lists give them.
    given = [whole[:1], whole[1]]
    folder = write(image_folder, tmp_path, [images(2)], ["a", "b"], controls, given)
    for index in (0, 1):
        file = folder / "masks" / f"0000{index}.png"
        assert (read(file) == (whole[index] * 255).round().numpy()).all()
    settings = load_config({"dataset": {"path": str(folder)}}).dataset
    files = [sample.mask for sample in scan(settings).samples]
    assert files == [folder / "masks" / f"0000{index}.png" for index in (0, 1)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([masks(2)], "3 images and 2 masks"),
        ([masks(1), masks(3)], "3 images and 4 masks"),
        ([masks(3, 8, 4)], "mask 0 has 4 x 8 pixels, and its image 8 x 8"),
        ([masks(3)[..., None]], r"masks of shape \(3, 8, 8, 1\)"),
        ([torch.zeros(8)], r"masks of shape \(8,\)"),
    ],
)
def test_masks_of_other_images_are_refused(image_folder, errors, tmp_path, given, message):
    with pytest.raises(errors.DatasetError, match=message):
        write(image_folder, tmp_path, [images(3)], ["a"], (), given)
    assert list(tmp_path.iterdir()) == []


def test_a_dataset_of_images_keeps_what_the_node_says(image_folder, tmp_path):
    whole = image_folder.GivenImages([images(1)], [""], [images(1, seed=2)])
    values = image_folder.image_dataset(tmp_path, whole, {"resolution": 64, "flip": True})
    assert values["path"].startswith(str(tmp_path))
    del values["path"]
    assert values == {
        "resolution": 64,
        "flip": True,
        "layout": "paired",
        "missing_caption": "empty",
    }


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("masked", [False, True])
def test_numbers_that_are_not_finite_are_refused(image_folder, errors, tmp_path, number, masked):
    whole, given = images(2), masks(2)
    (given if masked else whole)[1, 0, 0] = number
    with pytest.raises(errors.DatasetError, match="not finite"):
        write(image_folder, tmp_path, [whole], ["a"], (), [given])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shape", [(1, 7, 16), (1, 2, 7, 16), (1, 16), (2, 3, 4), (7,)])
def test_a_tensor_comes_back_with_its_axes(shape):
    conditioning = pack_module("host.conditioning")
    tensor = torch.randn(shape)
    more = {"pooled_output": torch.randn(1, 8), "guidance": 3.5, "reference_latents": [tensor]}
    stored = conditioning.stored_conditioning([[tensor, more]], "a caption")
    found = conditioning.restored_conditioning(stored, torch.device("cpu"))
    assert found.keys() == {"cross_attn", *more}
    assert torch.equal(found["cross_attn"], tensor)
    assert torch.equal(found["reference_latents"][0], tensor)
    assert torch.equal(found["pooled_output"], more["pooled_output"])
    assert found["guidance"] == 3.5


@pytest.mark.parametrize("filled", [1, 5, 9])
def test_rows_of_zeros_behind_a_text_are_not_kept_and_come_back(filled):
    conditioning = pack_module("host.conditioning")
    text = torch.randn(1, 9, 16)
    text[:, filled:] = 0
    stored = conditioning.stored_conditioning([[text, {}]], "a caption")
    assert max(len(each) for name, each in stored.items() if name != conditioning.FORM) == filled
    found = conditioning.restored_conditioning(stored, torch.device("cpu"))
    assert torch.equal(found["cross_attn"], text)
