import pytest

from tests.fixtures.small_disk import small_disk  # noqa: F401


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """One cache for all runs: the encoders are loaded once."""
    return tmp_path_factory.mktemp("cache")
