import shutil

import pytest

from tests.fixtures.small_disk import small_disk  # noqa: F401
from trainer_core.demo.run import dataset_folder


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """One cache for all runs: the encoders are loaded once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """A folder for each task of the demonstration: all images, and a few of the many edits."""
    folder = tmp_path_factory.mktemp("edits")
    for each in sorted(dataset_folder("edit").glob("*/*")):
        if int(each.stem.removeprefix("ordinary_")) <= 8:
            (folder / each.parent.name).mkdir(exist_ok=True)
            shutil.copy(each, folder / each.parent.name)
    return {"generate": dataset_folder("generate"), "edit": folder}
