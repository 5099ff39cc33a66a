"""Measures and their inputs, with the settings of conf/."""

from typing import Any

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from musicgen.cli.evaluate import read_inputs


@pytest.fixture
def settings(config) -> Any:
    return OmegaConf.to_container(config("evaluate"))


@pytest.fixture
def inputs(settings):
    """`inputs(generated="folder")`."""
    return lambda **changed: read_inputs({**settings, **changed})


@pytest.fixture
def measure(settings):
    """`measure("style", anchor_pieces=0)`: a function of inputs and the folder `out`."""
    return lambda name, **changed: instantiate(settings["metric"][name] | changed, _convert_="all")
