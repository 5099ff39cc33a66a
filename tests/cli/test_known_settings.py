"""Added settings are refused where nothing reads them, and accepted where something does."""

from functools import cache

import pytest
from hydra import compose

from musicgen.cli import errors
from musicgen.cli.errors import check_known
from musicgen.errors import UserError


@cache
def _compose(config_name, overrides, return_hydra_config):
    return compose(config_name, [*overrides], return_hydra_config)


@pytest.fixture(autouse=True)
def _composed_once(monkeypatch):
    def composed(config_name, overrides=(), *, return_hydra_config):
        return _compose(config_name, tuple(overrides), return_hydra_config)

    monkeypatch.setattr(errors, "compose", composed)


@pytest.mark.parametrize(
    "added",
    [
        ["++seed=3"],
        ["+tokenizer.positions_per_beat=6"],
        ["+trainer.limit_val_batches=1"],
        ["+callbacks.mine={_target_: mine.Callback}"],
        ["+callbacks.mine._target_=mine.Callback", "+callbacks.mine.every=2"],
        ["+width=64", "model.dim=${width}", "model.ff_dim=${width}"],
        ["+hydra.job.name=mine"],
    ],
)
def test_settings_that_something_reads_are_accepted(config, monkeypatch, added):
    monkeypatch.setattr(errors, "given_overrides", lambda: added)
    check_known(config("train", *(x for x in added if "hydra" not in x)), "train")


@pytest.mark.parametrize("added", ["+minuts=3", "+paths.dir=x", "+callbacks.mine=3", "+wide=64"])
def test_settings_that_nothing_reads_are_refused(config, monkeypatch, added):
    monkeypatch.setattr(errors, "given_overrides", lambda: [added])
    with pytest.raises(UserError, match="no such setting"):
        check_known(config("train", added), "train")
