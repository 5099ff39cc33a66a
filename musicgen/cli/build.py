"""Build the training module and the data of a configuration."""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf, open_dict

from musicgen.batches import StreamDataModule
from musicgen.checkpoints import (
    CheckpointContent,
    check_targets,
    load_for_resume,
    load_initial,
    read_checkpoint,
    run_identity,
    trust_argument,
)
from musicgen.cli.arguments import add_override, given_overrides, override_key
from musicgen.console import warn
from musicgen.data.corpora import Corpus
from musicgen.data.corpora.base import read_names
from musicgen.data.loading import MusicDataModule
from musicgen.errors import ParameterError, UserError, errors_name, parameter_of
from musicgen.models import Transformer
from musicgen.run_folders import find_checkpoint
from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.coordinates import Coordinates, match_classes
from musicgen.training.module import TrainingModule

_GROUPS = ("position", "attention", "span")
_SECTIONS = ("model", "tokenizer", "sampling", "loader")


def build_training(cfg: DictConfig) -> tuple[TrainingModule, StreamDataModule, list[str]]:
    """Return the module, its data, and lines about what the run starts from.

    The weights of `resume` or `init` are loaded.
    """
    path = source = None
    notes: list[str] = []
    checkpoint: dict[str, Any] = {}
    if cfg.resume or cfg.init is not None:
        path = Path(cfg.resume) if cfg.resume else find_checkpoint(cfg.init, setting="init")
        checkpoint = read_checkpoint(path)
        with errors_name(path):
            source = CheckpointContent.from_plain(checkpoint)
            adopt_settings(cfg, source)
        if cfg.resume:
            notes += keep_batch_size(cfg, source.config)
        cfg.init = source.config.get("init") if cfg.resume else str(path)  # for the record
        # With `minutes`, the clock decides when the run ends.
        by_steps = cfg.resume and cfg.train and cfg.minutes is None
        if by_steps and 0 <= cfg.trainer.max_steps < source.steps:
            expected = f"the run has taken {source.steps:,} steps already; give a larger number"
            raise ParameterError("trainer.max_steps", cfg.trainer.max_steps, expected)
    tokenizer, model, data = build_music(cfg) if cfg.get("tokenizer") else build_examples(cfg)
    config: Any = OmegaConf.to_container(cfg, resolve=True)
    content = CheckpointContent(
        model=config["model"],
        tokenizer=config.get("tokenizer"),
        vocabulary=[] if tokenizer is None else list(tokenizer.vocabulary.names),
        vocabulary_hash="" if tokenizer is None else tokenizer.vocabulary.hash,
        config=config,
        identity=run_identity(config),
    )
    module = TrainingModule(
        model,
        task=instantiate(cfg.task),
        optimizer=instantiate(cfg.optimizer),
        scheduler=instantiate(cfg.scheduler),
        content=content,
        seed=cfg.seed,
        compiled=compiles(cfg),
    )
    if trust := trust_argument(config):
        notes.append(f"it has classes of your own: give {trust} to resume, generate and evaluate")
    if path is not None and source is not None:
        with errors_name(path):
            if cfg.resume:
                notes.append(f"continues {source.describe(path)}")
                if changed := load_for_resume(checkpoint, content, model):
                    notes.append(f"from step {source.steps:,} on: {', '.join(changed)}")
            else:
                notes.append(f"begins with the weights of {source.describe(path)}")
                if new := load_initial(checkpoint, content, model):
                    notes.append(new)
    model.recompute = cfg.recompute
    return module, data, notes


def compiles(cfg: DictConfig) -> bool:
    """Return whether layers are compiled: as `compile` says, else on a GPU."""
    if cfg.compile is not None:
        return bool(cfg.compile)
    on_gpu = cfg.trainer.accelerator in ("gpu", "cuda", "auto") and torch.cuda.is_available()
    if on_gpu and not any(map(shutil.which, ("cc", "gcc", "clang"))):
        warn("torch.compile needs a C compiler, and none is found: training runs uncompiled")
        return False
    return on_gpu


def build_music(cfg: DictConfig) -> tuple[Tokenizer, Transformer, MusicDataModule]:
    """Return the tokenizer, the model and the data of a task that is music."""
    tokenizer: Tokenizer = instantiate(cfg.tokenizer, _convert_="all")
    sizes = {"vocab_size": len(tokenizer.vocabulary), "match_classes": match_classes(tokenizer)}
    coordinates = Coordinates(tokenizer)
    if cfg.model.get("musical_key") and "key" not in coordinates.names:
        expected = "expected false, or tokens with keys, such as those of tokenizer=songs"
        raise ParameterError("model.musical_key", True, expected)
    model: Transformer = instantiate(cfg.model, **sizes, coordinates=coordinates.of)
    with parameter_of("model.position"):
        coordinates.check(model.coordinate_names)
    with parameter_of("data"):
        read_exclusions(cfg.data)
    corpus = instantiate(cfg.data, _convert_="all")
    if not isinstance(corpus, Corpus):
        raise UserError(f"{type(corpus).__name__} is not music; choose its task, as task=listops")
    data = instantiate(
        cfg.loader,
        corpus=corpus,
        tokenizer=tokenizer,
        coordinates=model.coordinate_names,
        _convert_="all",
    )
    return tokenizer, model, data


def read_exclusions(corpus: DictConfig) -> None:
    """Replace a file in `exclude`, at any depth, by the names of pieces in it.

    So a run's record names no file, which evaluate.py would read on another machine.
    """
    for name, value in corpus.items():
        if OmegaConf.is_dict(value):
            with parameter_of(str(name)):
                read_exclusions(value)
        elif name == "exclude" and isinstance(value, str):
            corpus.exclude = sorted(read_names(value))


def build_examples(cfg: DictConfig) -> tuple[None, Transformer, StreamDataModule]:
    """Return the model and the data of a task that is not music."""
    target: Any = get_object(cfg.data._target_)
    if isinstance(target, type) and issubclass(target, Corpus):
        raise UserError(
            f"{target.__name__} is music, which tokenizer=null cannot read; choose the data of a "
            "task, as task=listops, or a task of music, as task=pop_piano"
        )
    corpus = instantiate(cfg.data, _convert_="all")
    sizes = {name: getattr(corpus, name) for name in ("vocab_size", "input_dim", "num_outputs")}
    model: Transformer = instantiate(cfg.model, **sizes)
    names = model.coordinate_names
    if len(names) > 1 == model.position.num_dims and model.position.name != "none":
        raise UserError(
            f"span has two coordinates, of which position={model.position.name} would read the row "
            "alone; use model.position.coordinates=2, or position=none"
        )
    return None, model, instantiate(cfg.loader, corpus=corpus, coordinates=names, _convert_="all")


def adopt_settings(cfg: DictConfig, content: CheckpointContent) -> None:
    """Replace `model`, `tokenizer`, `sampling` and `loader.length` by those of a checkpoint.

    Settings of the command line stay. The checkpoint may come from an untrusted source.
    """
    saved: Any = {"model": content.model, "tokenizer": content.tokenizer}
    saved["sampling"] = content.config.get("sampling") or OmegaConf.to_container(cfg.sampling)
    loader = content.config.get("loader") or {}
    saved["loader"] = {"length": loader.get("length", cfg.loader.length)}
    check_targets([saved, content.config.get("init")])
    for part in _GROUPS:  # a training length that follows `loader.length` is the checkpoint's
        own, old = (model.get(part) or {} for model in (cfg.model, content.model))
        if "training_length" in own and OmegaConf.is_interpolation(own, "training_length"):
            own["training_length"] = old.get("training_length", own["training_length"])
    here = OmegaConf.create(OmegaConf.to_container(cfg, resolve=True))
    adopted: Any = OmegaConf.create(saved)
    for name in _given_settings(cfg):
        OmegaConf.update(adopted, name, OmegaConf.select(here, name), merge=False)
    with open_dict(cfg):
        cfg.loader.length = adopted.loader.length
        for section in ("model", "tokenizer", "sampling"):
            cfg[section] = adopted[section]


def keep_batch_size(cfg: DictConfig, saved: Mapping[str, Any]) -> list[str]:
    """Multiply `loader.batch_size` of a run in which it counted the sequences of one process.

    So it is in runs of several processes by the first version. Their batches stay as large as they
    were, unless the command line gives another size.

    Args:
        saved: the run's configuration, which may come from an untrusted source.

    Returns:
        A line if it was multiplied.
    """
    loader, trainer = (saved.get(name) or {} for name in ("loader", "trainer"))
    devices, nodes = trainer.get("devices", 1), trainer.get("num_nodes", 1)
    of_first_version = "matmul_precision" not in saved  # a setting that came with the change
    if not of_first_version or cfg.loader.batch_size != loader.get("batch_size"):
        return []
    if devices in ("auto", -1):  # GPUs: on a CPU that is one process
        devices = torch.cuda.device_count()
    if not isinstance(devices, int) or not isinstance(nodes, int) or devices * nodes < 2:
        return []
    size = cfg.loader.batch_size = cfg.loader.batch_size * devices * nodes
    add_override(f"loader.batch_size={size}")
    return [f"loader.batch_size={size} counts the sequences of all processes; the run's, of one"]


def _given_settings(cfg: DictConfig) -> Iterator[str]:
    """Yield those of these settings that the command line sets, directly or through a group."""
    for name in map(override_key, given_overrides()):
        if name == "task":
            yield from ("tokenizer", "sampling")
        elif name == "model":
            yield from (f"model.{key}" for key in cfg.model if key not in _GROUPS)
        elif name == "experiment" and cfg.optimizer.get("train") is not None:
            yield from ("model.copy", "loader.length")  # it trains a part that it adds
        elif name in _GROUPS:
            yield f"model.{name}"
        elif name.partition(".")[0] in _SECTIONS:
            yield name
