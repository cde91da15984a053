"""Accounting tests keep their cached results to themselves."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARSEDP_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
