"""Wrong settings are refused in one line that names them."""

import errno
import re
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from hydra.errors import HydraException, InstantiationException
from hydra.utils import instantiate
from omegaconf import OmegaConf
from omegaconf.errors import ConfigAttributeError

from musicgen.checkpoints import CheckpointContent, trust
from musicgen.cli import errors
from musicgen.cli.arguments import quoted_paths
from musicgen.cli.errors import check_construction, check_types, describe
from musicgen.cli.generate import check_of_use
from musicgen.cli.train import announce_preparation, check_settings
from musicgen.console import log, recorded
from musicgen.data.corpora.folders import ComposedCorpus, MidiFolder
from musicgen.data.loading import MusicDataModule
from musicgen.data.prompt_files import prompt_files
from musicgen.errors import ParameterError, UserError
from musicgen.evaluation.runs import Inputs
from musicgen.models.layer import LayerSettings
from musicgen.report.tables import as_tsv
from musicgen.tokenization import REMI, Groove2Groove
from musicgen.tokenization.quantization import ratio_bins
from musicgen.training import schedules
from musicgen.training.callbacks import LearnMaxNotes, RedrawFeatures
from musicgen.training.module import TrainingModule
from musicgen.training.optimizers import MuonAdamW, adam, adamw
from musicgen.validation import check_settings as check_settings_of
from tests.models.builders import small

SIZES = {"dim": 8, "num_heads": 2, "ff_dim": 8}
COMPOSED = {"num_pieces": 9, "corpus_seed": -1}


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
        ("trainer.num_sanity_val_steps=-3", "trainer.num_sanity_val_steps=-3: expected an integer"),
        ("trainer.check_val_every_n_epoch=0", "trainer.check_val_every_n_epoch=0: expected an int"),
        ("trainer.log_every_n_steps=0", "trainer.log_every_n_steps=0: expected an integer >= 1"),
        ("trainer.val_check_interval=0", "trainer.val_check_interval=0: expected a number > 0"),
        ("trainer.max_epochs=0", "trainer.max_epochs=0: expected at least 1; train=false builds"),
        (
            "+trainer.limit_train_batches=9",
            "trainer.limit_train_batches: give loader.batches_per_e",
        ),
        ("trainer=fsdp optimizer=adamw callbacks=averaged", "callbacks=averaged needs whole matri"),
        ("+trainer.min_steps=999", "trainer.min_steps=999: expected at most trainer.max_steps=600"),
        ("+trainer.logger=true", "trainer.logger: give logger=CHOICE"),
        ("minutes=0", "^minutes=0: expected a number > 0"),
        ("run_name=../../x", "run_name=../../x: expected the name of a folder"),
        ("run_name=''", "run_name=: expected the name of a folder"),
        ("tags=abc", "tags=abc: expected a list of words"),
    ],
)
def test_settings_of_a_training(config, override, message):
    with pytest.raises(UserError, match=message):
        check_settings(config("train", *override.split()))
    check_settings(config("train", "compile=true", "trainer.gradient_clip_val=null"))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.num_layers='2'", "model.num_layers='2': Input should be a valid integer"),
        ("optimizer.lr='1e-3'", "optimizer.lr='1e-3': Input should be a valid number"),
        ("callbacks.best=1", "callbacks.best=1: expected null, or settings with a _target_"),
        ("logger.csv=x", "logger.csv=x: expected null, or settings with a _target_"),
        ("data={}", "data={}: it changes nothing"),
        ("model.position={}", "model.position={}: it changes nothing"),
        ("model._target_=null", "model._target_=None: expected the name of a class"),
        ("model._target_=musicgen.no.X", "model._target_=musicgen.no.X: expected the name of a c"),
    ],
)
def test_values_of_another_type(config, monkeypatch, override, message):
    monkeypatch.setattr(errors, "given_overrides", lambda: [override])
    with pytest.raises(ParameterError, match=message):
        check_types(config("train", override))


@pytest.mark.parametrize(
    ("override", "keyword"),
    [
        ("metric.style._partial_=false", "_partial_ says how metric.style is built"),
        ("~metric.style._partial_", "_partial_ says how metric.style is built"),
        ("+optimizer._args_=[1]", "_args_ says how optimizer is built"),
        ("++sampling._convert_=all", "_convert_ says how sampling is built"),
        ("+model._recursive_=false", "_recursive_ says how model is built"),
        ("++model.position={_partial_:false}", "_partial_ says how model is built"),
    ],
)
def test_how_objects_are_built_is_no_setting(monkeypatch, override, keyword):
    monkeypatch.setattr(errors, "given_overrides", lambda: ["seed=1", override])
    with pytest.raises(UserError, match=f"{re.escape(override)}: {keyword}, which cannot be"):
        check_construction()


@pytest.mark.parametrize(
    "own",
    [
        ["+metric.mine._target_=mine.measure", "+metric.mine._partial_=true"],
        ["++metric.mine={_target_:mine.measure,_partial_:true}"],
        ["model.position._target_=mine.Encoding", "+model.position._convert_=all"],
        ["data.root=my_args_here", "run_name=a_partial_run"],
    ],
)
def test_own_objects_are_built_in_any_way(monkeypatch, own):
    monkeypatch.setattr(errors, "given_overrides", lambda: own)
    check_construction()


def test_a_section_that_was_taken_away_is_named(config, monkeypatch):
    with pytest.raises(ConfigAttributeError) as caught:
        _ = OmegaConf.create({"seed": 1}, flags={"struct": True}).optimizer
    monkeypatch.setattr(errors, "given_overrides", lambda: ["seed=1", "~optimizer=muon"])
    assert describe(caught.value) == "~optimizer: it is needed; leave this out"
    monkeypatch.setattr(errors, "given_overrides", lambda: ["optimizer=muon"])
    assert describe(caught.value) is None  # a bug, whose traceback is worth more


@pytest.mark.parametrize(
    ("key", "error", "line"),
    [
        ("optimizer.lr", TypeError("Muon() missing 1 required argument: 'lr'"), "it is needed"),
        ("checkpoint", KeyError("checkpoint"), "it is needed"),
        ("model", AttributeError("Missing key x\n    full_key: model.x\n    y"), "it is needed"),
        (
            "seed",
            HydraException("Could not delete from config. 'seed' does not exist."),
            "there is nothing to take away",
        ),
    ],
)
def test_a_setting_that_was_taken_away_is_named(monkeypatch, key, error, line):
    with pytest.raises(type(error)) as caught:
        raise error
    assert describe(caught.value) != f"~{key}: {line}; leave this out"
    monkeypatch.setattr(errors, "given_overrides", lambda: [f"~{key}"])
    assert describe(caught.value) == f"~{key}: {line}; leave this out"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (MemoryError("Unable to allocate 477. GiB"), "x.max_factor=1e9: Unable to allocate 477."),
        (RuntimeError("can't allocate memory: you"), "x.max_factor=1e9: can't allocate memory: "),
        (OSError(errno.ELOOP, "Too many levels", "a/b"), "a/b: Too many levels; give another pl"),
        (
            InstantiationException("Target 'os.system' is blocklisted\nfull_key: model"),
            "model._target_: Target 'os.system' is blocklisted",
        ),
    ],
)
def test_errors_of_the_system_are_one_line(monkeypatch, error, line):
    monkeypatch.setattr(errors, "given_overrides", lambda: ["seed=1", "x.max_factor=1e9"])
    with pytest.raises(type(error)) as caught:
        raise error
    assert describe(caught.value).startswith(line)


def test_a_class_of_other_arguments_is_named(monkeypatch):
    given = ["optimizer._target_=torch.optim.SGD"]
    monkeypatch.setattr(errors, "given_overrides", lambda: given)
    with pytest.raises(TypeError) as caught:
        instantiate({"_target_": "torch.optim.SGD", "_partial_": True, "adamw_lr": 1})([])
    assert describe(caught.value).startswith(f"{given[0]}: SGD.__init__() got an unexpected")


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (LayerSettings, {**SIZES, "ff_dim": 0}, "ff_dim=0: expected an integer >= 1"),
        (LayerSettings, {**SIZES, "dim": "32"}, "dim='32': expected an integer >= 1"),
        (LayerSettings, {**SIZES, "attention_dim": 0}, "attention_dim=0: expected an integer"),
        (LayerSettings, {**SIZES, "dropout": 1}, "dropout=1: expected a number >= 0 and < 1"),
        (RedrawFeatures, {"probability": 5}, "probability=5: expected a number >= 0 and <= 1"),
        (Groove2Groove, {"tracks": None}, "tracks=None: expected a list of instruments"),
        (Groove2Groove, {"tracks": [{"name": "X", "takes": 5}]}, "ranges ascending, of X"),
        (Groove2Groove, {"tracks": [{"name": "X", "takes": [1, 2]}]}, "ranges ascending, of X"),
        (REMI, {"tempo_bins": [0, 30, 3]}, "tempo_bins=.0, 30, 3.: expected .lowest, highest"),
        (ratio_bins, {"bins": 5}, "tempo_bins=5: expected .lowest, highest, number."),
        (ratio_bins, {"bins": [30, "x", 3]}, "tempo_bins=.30, 'x', 3.: expected .lowest"),
        (small, {"cycles": [0]}, "cycles=0: expected an integer >= 2"),
        (small, {"num_layers": 10**6}, "num_layers=1000000: expected an integer from 1 to 1000"),
        (partial(MidiFolder, "x", exclude=None), {"group": "["}, "group=.: expected a regular"),
        (partial(ComposedCorpus, "x", kind="pop"), COMPOSED, "corpus_seed=-1: expected an integer"),
        (
            partial(Inputs, "x", device="cpu", seed=0),
            {"split": "abc"},
            "split=abc: expected one of",
        ),
        (partial(Inputs, "x", "val", "cpu", 0), {"runs": 5}, "runs=5: expected a list of"),
        (
            partial(Inputs, "x", "val", "cpu", 0),
            {"compare": [5]},
            "compare=.5.: expected a list of",
        ),
        (trust, {"module": ".."}, "trust=..: expected the name of a module"),
        (
            check_settings_of,
            {"name": "limits", "settings": None, "function": check_types},
            "limits=None",
        ),
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
        (adamw, {"lr": 0.1, "weight_decay": -5}, "^weight_decay=-5: expected a number >= 0"),
        (adam, {"lr": -1}, "^lr=-1: expected a number > 0"),
        (adam, {"lr": 0.1, "eps": -1}, "^eps=-1: expected a number >= 0"),
        (adam, {"lr": 0.1, "betas": [0.9, 1.2]}, "^betas=1.2: expected a number >= 0 and < 1"),
        (adam, {"lr": 0.1, "betas": ["a", 0.9]}, "^betas=a: expected a number"),
        (adam, {"lr": 0.1, "train": "["}, "^train=.: expected a regular expression"),
        (MuonAdamW, {"lr": 0.1, "adamw_lr": -1}, "^adamw_lr=-1: expected a number > 0"),
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


def test_a_constant_factor_lasts():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule = schedules.constant(optimizer, factor=0.5)
    for _ in range(9):  # torch's ends after five steps
        optimizer.step()
        schedule.step()
    assert schedule.get_last_lr() == [0.5]
    with pytest.raises(ParameterError, match="factor=nan: expected a number > 0 and <= 1"):
        schedules.constant(optimizer, factor=float("nan"))


def test_the_number_of_notes_that_is_given_stays():
    given = CheckpointContent({}, {}, [], "", {"sampling": {"max_notes": 3}})
    module = Mock(TrainingModule, content=given)
    data = Mock(MusicDataModule, tokenizer=Groove2Groove())  # of which nothing is counted
    LearnMaxNotes().on_fit_start(SimpleNamespace(datamodule=data), module)
    assert module.content.sampling is None


def model_with_keys(tokenizer):
    names = ("index", "time", "bar", "key")
    return SimpleNamespace(tokenizer=tokenizer, model=SimpleNamespace(coordinate_names=names))


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"section_bars": 4}, "section_bars=4: it has no effect without form"),
        ({"sampling": {"guidance": 2}}, "sampling.guidance=2: it has no effect without keep"),
        ({"sampling": {"guidance": 2}, "key": 3}, "it has no effect without .* a named key"),
        ({"sampling": {"max_notes": [1]}}, "sampling.max_notes=.1.: it has no effect without a mo"),
        ({"sampling": {"avoid_parallels": True}}, "it has no effect without a model of chorales"),
    ],
)
def test_settings_without_effect_are_refused(options, line):
    plain = {"form": None, "section_bars": None, "sampling": {"guidance": 1}}
    plain |= {"keep": None, "fill": None, "rewrite": None, "key": None}
    model = model_with_keys(REMI())
    check_of_use(model, plain)
    sampling = {**plain["sampling"], **options.get("sampling", {})}
    with pytest.raises(ParameterError, match=line):
        check_of_use(model, {**plain, **options, "sampling": sampling})


@pytest.mark.parametrize("setting", ["keep", "fill", "rewrite", "key"])
def test_guidance_is_for_pieces_with_something_to_keep_and_for_keys(setting):
    options = {"form": None, "section_bars": None, "sampling": {"guidance": 2}}
    options |= {"keep": None, "fill": None, "rewrite": None, "key": None, setting: "bass"}
    check_of_use(model_with_keys(REMI()), options)


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
