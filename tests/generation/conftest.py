"""Tests decode with torch on every machine, whatever graphs its user has; those of engines ask for one."""

import pytest

from musicgen.export import cached
from musicgen.generation import engines


@pytest.fixture(scope="session", autouse=True)
def _no_graphs(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cached, "CACHE", tmp_path_factory.mktemp("graphs"))
        patch.setattr(engines, "NUM_STEPS_TO_EXPORT", 10**9)  # making a graph takes ten seconds
        yield
