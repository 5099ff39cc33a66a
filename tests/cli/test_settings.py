"""Wrong settings are refused in one line that names them."""

import errno
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf
from omegaconf.errors import ConfigAttributeError

from musicgen.cli import errors
from musicgen.cli.arguments import quoted_paths
from musicgen.cli.errors import check_types, describe
from musicgen.cli.train import announce_preparation, check_settings
from musicgen.console import log, recorded
from musicgen.data.corpora.folders import MidiFolder
from musicgen.errors import ParameterError, UserError
from musicgen.evaluation.references import prompt_files
from musicgen.models.layer import LayerSettings
from musicgen.report.tables import as_tsv
from musicgen.tokenization import REMI
from musicgen.training import schedules
from musicgen.training.callbacks import RedrawFeatures
from musicgen.training.module import TrainingModule
from musicgen.training.optimizers import MuonAdamW, adam, adamw
from tests.models.builders import small

SIZES = {"dim": 8, "num_heads": 2, "ff_dim": 8}


@pytest.mark.parametrize(
    "argument",
    ["", "prompt=", "prompt=''", 'data.root=""', "data.corpora.mine.root=", "out=", "init= "],
)
def test_an_empty_path_is_refused(argument):
    """It would be the current folder with all below it."""
    with pytest.raises(UserError, match="empty"):
        quoted_paths([argument])
    assert quoted_paths(["prompt=null", "data.root=x"]) == ["prompt=null", "data.root='x'"]


def test_an_empty_path_is_refused_in_python():
    with pytest.raises(UserError, match="an empty name of a prompt"):
        prompt_files(["", "x.mid"])
    with pytest.raises(ParameterError, match="root=: expected a folder"):
        MidiFolder("", group=None, exclude=None)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("compile=abc", "compile=abc: expected true or false"),
        ("print_config=maybe", "print_config=maybe: expected true or false"),
        ("test=3", "test=3: expected true or false"),
        ("trainer.gradient_clip_val=-1", "trainer.gradient_clip_val=-1: expected a number >= 0"),
    ],
)
def test_settings_of_a_training(config, override, message):
    with pytest.raises(ParameterError, match=message):
        check_settings(config("train", override))
    check_settings(config("train", "compile=true", "trainer.gradient_clip_val=null"))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.num_layers='2'", "model.num_layers='2': Input should be a valid integer"),
        ("optimizer.lr='1e-3'", "optimizer.lr='1e-3': Input should be a valid number"),
        ("callbacks.best=1", "callbacks.best=1: expected null, or settings with a _target_"),
        ("logger.csv=x", "logger.csv=x: expected null, or settings with a _target_"),
    ],
)
def test_values_of_another_type(config, monkeypatch, override, message):
    monkeypatch.setattr(errors, "given_overrides", lambda: [override])
    with pytest.raises(ParameterError, match=message):
        check_types(config("train", override))


def test_a_section_that_was_taken_away_is_named(config, monkeypatch):
    with pytest.raises(ConfigAttributeError) as caught:
        _ = OmegaConf.create({"seed": 1}, flags={"struct": True}).optimizer
    monkeypatch.setattr(errors, "given_overrides", lambda: ["seed=1", "~optimizer=muon"])
    assert describe(caught.value) == "~optimizer: it is needed; leave this out"
    monkeypatch.setattr(errors, "given_overrides", lambda: ["optimizer=muon"])
    assert describe(caught.value) is None  # a bug, whose traceback is worth more


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (LayerSettings, {**SIZES, "ff_dim": 0}, "ff_dim=0: expected an integer >= 1"),
        (LayerSettings, {**SIZES, "dim": "32"}, "dim='32': expected an integer >= 1"),
        (LayerSettings, {**SIZES, "attention_dim": 0}, "attention_dim=0: expected an integer"),
        (RedrawFeatures, {"probability": 5}, "probability=5: expected a number >= 0 and <= 1"),
    ],
)
def test_settings_of_objects(make, settings, message):
    with pytest.raises(ParameterError, match=message):
        make(**settings)


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (MuonAdamW, {"lr": 0.1, "betas": [0.9]}, "betas=.0.9.: expected two numbers"),
        (adam, {"lr": 0.1, "betas": [0.9, 0.9, 0.9]}, "expected two numbers"),
        (MuonAdamW, {"lr": 0.1, "weight_decay": -5}, "weight_decay=-5: expected a number >= 0"),
        (MuonAdamW, {"lr": 0.1, "momentum": 5}, "momentum=5: expected a number >= 0 and < 1"),
        (adamw, {"lr": 0.1, "weight_decay": -5}, "Invalid weight_decay value: -5"),
    ],
)
def test_settings_of_optimizers(kind, settings, message):
    with pytest.raises(UserError, match=message):
        kind(small(), **settings)


@pytest.mark.parametrize("name", ["warmup_cosine", "warmup_cooldown", "inverse_sqrt"])
def test_a_negative_warmup_is_refused(name):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    others = {"warmup_cosine": {"min_lr": 0}, "warmup_cooldown": {"cooldown": 0.5}}.get(name)
    settings = {} if others is None else {**others, "max_steps": 9}
    with pytest.raises(ParameterError, match="warmup_steps=-5: expected an integer >= 0"):
        getattr(schedules, name)(optimizer, warmup_steps=-5, **settings)


def test_a_schedule_that_torch_refuses_is_named():
    schedule = torch.optim.lr_scheduler.ConstantLR
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    module = SimpleNamespace(
        _new_optimizer=lambda: optimizer, _scheduler=lambda o: schedule(o, factor=5)
    )
    with pytest.raises(UserError, match="scheduler: Constant multiplicative factor"):
        TrainingModule.configure_optimizers(module)


def test_a_warmup_longer_than_the_training_is_said(capsys):
    schedules.warn_of_long_warmup(50, 50)
    assert not capsys.readouterr().err
    schedules.warn_of_long_warmup(50, 49)
    assert "warmup_steps=50: the training ends after 49 steps" in capsys.readouterr().err


class Passing(REMI):
    name = "passing"

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)


class Forgetting(REMI):
    name = "forgetting"

    def __init__(self, loudest=127, **settings):
        super().__init__(**settings)


def test_a_tokenizer_that_passes_its_arguments_on_has_the_settings_of_its_parent():
    assert Passing(max_transposition=0).settings() == REMI(max_transposition=0).settings()
    with pytest.raises(UserError, match="Forgetting has no attribute loudest; its __init__ must"):
        Forgetting().settings()


def test_control_characters_are_not_printed_raw(capsys):
    lines = []
    with recorded(lines.append):
        log("a\x1b[2Jb")
    assert lines == ["a?[2Jb"]
    assert "\x1b[2J" not in capsys.readouterr().err
    assert (
        as_tsv([{"run": "seed=\x1b]0;x", "value": 1}], "style").splitlines()[2] == "seed=?]0;x\t1"
    )


def test_a_file_that_became_too_large_is_one_line():
    with pytest.raises(OSError, match="too large") as caught:
        raise OSError(errno.EFBIG, "File too large", "report.html")
    assert (
        describe(caught.value)
        == "report.html: File too large; give another place, and run it again"
    )


def test_preparation_before_the_minutes_is_said(capsys):
    for minutes, cache in ((None, None), (8, "encoded")):
        announce_preparation(minutes, SimpleNamespace(find_cache=lambda cache=cache: cache))
        assert not capsys.readouterr().err
    announce_preparation(8, SimpleNamespace(find_cache=lambda: None))
    assert "encoded, once; minutes=8 begin after that" in capsys.readouterr().err
