"""For all tests: no deadline, since the first call of a compiled loop compiles it; the same cases in every run."""

import gc
import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("compiled", deadline=None, derandomize=True)
settings.load_profile("compiled")

gc.disable()  # nothing that is imported while tests are collected is garbage


def pytest_collection_finish():
    """Look for garbage from here on, among what the tests make."""
    gc.freeze()
    gc.enable()


BESIDE = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data():
    """The folder of the real data sets, as SPARSEDP_DATA names it; skips the test where there is none."""
    with pytest.MonkeyPatch.context() as patch:
        if not os.environ.get("SPARSEDP_DATA") and BESIDE.is_dir():
            patch.setenv("SPARSEDP_DATA", str(BESIDE))
        if not os.environ.get("SPARSEDP_DATA"):
            pytest.skip("the real data sets are not here: set SPARSEDP_DATA (docs/data-sets.md)")
        yield Path(os.environ["SPARSEDP_DATA"])


@pytest.fixture(scope="session")
def processes():
    """Processes that tests of several processes share."""
    from support.processes import Processes

    started = Processes()
    yield started
    started.close()


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    """A finished run whose prepared data is gone, with its raw file: not to be changed."""
    from support.served import serve

    return serve(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def exported(served, tmp_path_factory):
    """The same run as an exported folder: not to be changed."""
    from sparsedp.runs.export import export_run

    folder = tmp_path_factory.mktemp("exported") / "out"
    export_run(served.run, folder)
    return folder


@pytest.fixture(scope="session")
def own(tmp_path_factory):
    """A finished run of somebody's own model: not to be changed."""
    from support.served import serve

    return serve(tmp_path_factory.mktemp("own"), model="support.served:OwnModel", model_options={"width": 2})


@pytest.fixture(scope="session")
def exported_own(own, tmp_path_factory):
    """The same as an exported folder: not to be changed."""
    from sparsedp.runs.export import export_run

    folder = tmp_path_factory.mktemp("exported-own") / "out"
    export_run(own.run, folder, trust=True)
    return folder
