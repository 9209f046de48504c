import pytest


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """One cache for all runs: the encoders are loaded once for each precision."""
    return tmp_path_factory.mktemp("cache")
