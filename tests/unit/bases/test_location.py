"""Finding and checking a base before anything is loaded from it."""

import json
import shutil
import subprocess
import sys

import pytest

from tests.fixtures.flux_base import make_flux_base
from tests.fixtures.qwen_base import make_qwen_base
from trainer_core.bases.locate import locate_base
from trainer_core.config import BaseSection
from trainer_core.errors import BaseModelError, ConfigError
from trainer_core.families.diffusers_parts import read_shift
from trainer_core.families.registry import get_family


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bases")
    make_qwen_base(folder / "qwen", "generate", layers=1)
    make_qwen_base(folder / "edit", "edit", layers=1)
    make_qwen_base(folder / "plus", "edit_plus", layers=1)
    make_flux_base(folder / "flux")
    make_flux_base(folder / "kontext", kontext=True)
    return folder


@pytest.fixture
def bases(made, tmp_path):
    """A copy of the bases that a test may damage."""
    return shutil.copytree(made, tmp_path / "bases")


def locate(path, family="qwen_image", controls=False, **settings):
    return locate_base(
        BaseSection(path=str(path), **settings), get_family(family), has_controls=controls
    )


def refusal(kind, *args, **settings):
    with pytest.raises(kind) as error:
        locate(*args, **settings)
    assert error.value.found
    assert error.value.expected
    assert error.value.remedy
    return error.value


@pytest.mark.parametrize(
    ("name", "family", "controls", "variant", "text_length"),
    [
        ("qwen", "qwen_image", False, "generate", 1024),
        ("edit", "qwen_image", True, "edit", 1024),
        ("edit", "qwen_image", False, "generate", 1024),
        ("plus", "qwen_image", True, "edit_plus", 1024),
        ("flux", "flux", False, "generate", 256),
        ("kontext", "flux", True, "edit", 256),
    ],
)
def test_the_variant_follows_dataset_and_base(made, name, family, controls, variant, text_length):
    location = locate(made / name, family, controls)
    asked = locate(made / name, family, controls, variant=variant, text_length=77)
    assert (asked.variant, asked.text_length) == (variant, 77)
    assert location.variant == variant
    assert location.text_length == text_length
    assert location.folder == location.encoders == made / name
    assert not location.embedded


@pytest.mark.parametrize(
    ("name", "family", "controls", "variant", "part"),
    [
        ("qwen", "qwen_image", True, "generate", "base.variant: generate"),
        ("edit", "qwen_image", False, "edit", "base.variant: edit"),
        ("kontext", "flux", True, "edit_plus", "base.variant: edit_plus"),
    ],
)
def test_a_variant_that_contradicts_is_refused(made, name, family, controls, variant, part):
    error = refusal(ConfigError, made / name, family, controls, variant=variant)
    assert part in error.found


@pytest.mark.parametrize(("name", "family"), [("qwen", "qwen_image"), ("flux", "flux")])
def test_controls_on_a_base_that_cannot_edit_are_refused(made, name, family):
    error = refusal(BaseModelError, made / name, family, True)
    assert "Pipeline" in error.found


@pytest.mark.parametrize(
    "part",
    [
        *("transformer", "vae", "text_encoder", "tokenizer", "scheduler", "processor"),
        *("transformer/diffusion_pytorch_model.safetensors", "vae/config.json"),
        *("tokenizer/tokenizer_config.json", "model_index.json"),
    ],
)
def test_what_is_missing_is_named(bases, part):
    place = bases / "edit" / part
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    error = refusal(BaseModelError, bases / "edit", controls=True)
    assert part.partition("/")[0] in error.found
    assert str(bases / "edit") in error.found


def test_weights_that_can_run_code_are_not_read(bases):
    place = bases / "qwen" / "vae"
    weights = place / "diffusion_pytorch_model.safetensors"
    weights.rename(place / "diffusion_pytorch_model.bin")
    assert ".safetensors" in refusal(BaseModelError, bases / "qwen").expected


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_damaged_index_is_named(bases, text):
    (bases / "qwen" / "model_index.json").write_text(text)
    assert "model_index.json" in refusal(BaseModelError, bases / "qwen").found


def test_a_file_and_a_missing_folder_are_refused(made, tmp_path):
    assert "is a file" in refusal(BaseModelError, made / "qwen" / "model_index.json").found
    assert "does not exist" in refusal(BaseModelError, tmp_path / "nothing").found
    assert "base.encoders" in refusal(BaseModelError, made / "qwen", encoders="/nowhere").found


def test_the_identity_follows_what_decides_the_encodings(bases):
    plain = locate(bases / "edit", controls=True).identity
    shutil.copytree(bases / "edit", bases / "copy")
    assert locate(bases / "copy", controls=True).identity == plain
    shutil.rmtree(bases / "copy" / "transformer")
    shutil.copytree(bases / "qwen" / "transformer", bases / "copy" / "transformer")
    assert locate(bases / "copy", controls=True).identity == plain
    changed = [
        locate(bases / "edit", controls=True, text_length=100).identity,
        locate(bases / "edit", controls=True, variant="edit_plus").identity,
        locate(bases / "edit").identity,
    ]
    config = bases / "copy" / "processor" / "preprocessor_config.json"
    config.write_text(config.read_text() + " ")
    changed.append(locate(bases / "copy", controls=True).identity)
    weights = bases / "edit" / "vae" / "diffusion_pytorch_model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(bytes(content))
    changed.append(locate(bases / "edit", controls=True).identity)
    assert len({plain, *changed}) == 6


def test_a_schedule_that_is_not_drawn_here_is_refused(bases):
    location = locate(bases / "qwen")
    path = bases / "qwen" / "scheduler" / "scheduler_config.json"
    path.write_text(json.dumps({"use_karras_sigmas": True}))
    with pytest.raises(BaseModelError, match="use_karras_sigmas"):
        read_shift(location)


HUB = """
import sys
from trainer_core.bases.locate import locate_base
from trainer_core.config import BaseSection
from trainer_core.errors import BaseModelError
from trainer_core.families.registry import get_family
family = get_family("qwen_image")
for name in sys.argv[1:]:
    try:
        print("located", locate_base(BaseSection(path=name), family, False).folder)
    except BaseModelError as error:
        print("refused", error.found)
"""


def test_a_hub_id_is_looked_up_only_when_there_is_no_such_folder(made, tmp_path):
    snapshot = tmp_path / "hub" / "models--someone--base" / "snapshots" / ("0" * 40)
    shutil.copytree(made / "qwen", snapshot)
    refs = tmp_path / "hub" / "models--someone--base" / "refs"
    refs.mkdir()
    (refs / "main").write_text("0" * 40)

    # A folder of that name comes before what the hub has.
    shutil.copytree(made / "qwen", tmp_path / "here" / "local" / "base")
    shutil.copytree(snapshot.parents[1], tmp_path / "hub" / "models--local--base")
    done = subprocess.run(
        [sys.executable, "-c", HUB, "someone/base", "someone/other", "local/base"],
        cwd=tmp_path / "here",
        env={"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path / "hub")},
        capture_output=True,
        text=True,
        check=True,
    )
    found, absent, beside = done.stdout.splitlines()
    assert found == f"located {snapshot}"
    assert absent.startswith("refused ")
    assert "someone/other" in absent
    assert beside == "located local/base"
