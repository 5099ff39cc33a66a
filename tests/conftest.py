"""Shared by all tests: configurations are composed once a session."""

import gc
import os
from functools import cache
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import settings
from omegaconf import DictConfig, OmegaConf

import musicgen.cli  # noqa: F401 (registers a resolver of conf/)

if "PYTEST_XDIST_WORKER" in os.environ:  # several share the cores
    os.environ["OMP_NUM_THREADS"] = "1"

gc.disable()  # what is imported and collected stays, and would be searched again and again


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(20_000, 50)
    gc.enable()


# The same examples in every run, and on slow machines.
settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile("same")

ROOT = Path(__file__).parents[1]
OmegaConf.register_new_resolver("run_id", lambda folder: "test", replace=True)


@cache
def _compose(config_name: str, choices: tuple[str, ...]) -> DictConfig:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose(config_name, list(choices))


def _is_value(override: str) -> bool:
    """Return whether an override sets or adds a value, and neither chooses nor removes a section."""
    key = override.lstrip("+").partition("=")[0]
    return (
        not key.startswith(("~", "hydra")) and not (ROOT / "conf" / key.partition("@")[0]).is_dir()
    )


def _config(config_name: str, *overrides: str) -> DictConfig:
    choices = tuple(override for override in overrides if not _is_value(override))
    cfg = _compose(config_name, choices).copy()  # a composition takes a fifth of a second
    for value in OverridesParser.create().parse_overrides([*filter(_is_value, overrides)]):
        is_added = value.is_add() or value.is_force_add()
        OmegaConf.update(cfg, value.key_or_group, value.value(), force_add=is_added)
    return cfg


@pytest.fixture(scope="session")
def config():
    """A configuration from conf/: `config("train", "position=none")`."""
    return _config


@pytest.fixture(autouse=True)
def _seed() -> None:
    import torch  # which the process that starts the others does without

    torch.default_generator.manual_seed(0)  # `torch.manual_seed` formats the stack, for GPUs
    torch.set_flush_denormal(False)  # which the commands set, and Hypothesis refuses
