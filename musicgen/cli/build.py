"""Build what a configuration trains: the module and its data."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from musicgen.checkpoints import CheckpointContent, run_identity
from musicgen.cli.starting import load_source, read_source
from musicgen.data.corpora import Corpus
from musicgen.data.loading import MusicDataModule
from musicgen.data.non_music import ExampleCorpus
from musicgen.data.non_music.datamodule import ExampleDataModule
from musicgen.errors import ParameterError, UserError, parameter_of
from musicgen.models import Transformer
from musicgen.tokenization.base import Tokenizer
from musicgen.training.module import TrainingModule


class Training(NamedTuple):
    """A module and its data, and what to tell the user about what it begins with."""

    module: TrainingModule
    data: MusicDataModule | ExampleDataModule
    notes: list[str]


def build_training(cfg: DictConfig) -> Training:
    """Build the module and the data; load what the run continues or begins from."""
    source = read_source(cfg)
    is_music = cfg.get("tokenizer") is not None
    tokenizer, model, data = build_music(cfg) if is_music else build_examples(cfg)
    config: Any = OmegaConf.to_container(cfg, resolve=True)
    content = CheckpointContent(
        model=config["model"],
        tokenizer=config.get("tokenizer"),
        vocabulary=[] if tokenizer is None else list(tokenizer.vocabulary.tokens),
        vocabulary_hash="" if tokenizer is None else tokenizer.vocabulary.hash,
        config=config,
        identity=run_identity(config),
    )
    task, optimizer, scheduler = (
        instantiate(cfg[name]) for name in ("task", "optimizer", "scheduler")
    )
    module = TrainingModule(model, task, optimizer, scheduler, content, cfg.seed)
    notes = []
    if source is not None:
        notes = load_source(source, model, content, resume=cfg.resume is not None)
    model.recompute = cfg.recompute
    if cfg.compile:
        for layer in model.layers:
            layer.compile()
    return Training(module, data, notes)


def build_music(cfg: DictConfig) -> tuple[Tokenizer, Transformer, MusicDataModule]:
    """Build the tokenizer, the model and the data of a task that is music."""
    tokenizer: Tokenizer = instantiate(cfg.tokenizer, _convert_="all")
    model: Transformer = instantiate(
        cfg.model,
        vocab_size=len(tokenizer.vocabulary),
        match_classes=tokenizer.match_classes,
    )
    with parameter_of("model.position"):
        tokenizer.check_coordinates(model.coordinate_names)
        max_length = model.position.max_length
        if max_length is not None and max_length < cfg.loader.length:
            expected = f"expected at least loader.length={cfg.loader.length}"
            raise ParameterError("max_length", max_length, expected)
    return tokenizer, model, build_data(cfg, tokenizer, model.coordinate_names)


def build_data(
    cfg: DictConfig, tokenizer: Tokenizer, coordinates: Sequence[str] = ("index",)
) -> MusicDataModule:
    """Build the corpus of `data`, and the data module of `loader` that has it."""
    corpus = instantiate(cfg.data, _convert_="all")
    if not isinstance(corpus, Corpus):
        raise UserError(
            f"{type(corpus).__name__} is not music; choose its task, such as task=listops"
        )
    build = partial(instantiate, cfg.loader, corpus=corpus, _convert_="all")
    data: MusicDataModule = build(tokenizer=tokenizer, coordinates=coordinates)
    return data


def build_examples(cfg: DictConfig) -> tuple[None, Transformer, ExampleDataModule]:
    """Build the model and the data of a task that is not music."""
    corpus = instantiate(cfg.data, _convert_="all")
    if not isinstance(corpus, ExampleCorpus):
        raise UserError(f"{type(corpus).__name__} is music, which tokenizer=null cannot read")
    sizes = {name: getattr(corpus, name) for name in ("vocab_size", "input_dim", "num_outputs")}
    model: Transformer = instantiate(cfg.model, **sizes)
    names = model.coordinate_names
    if len(names) > 1 == model.position.num_dims and model.position.name != "none":
        raise UserError(
            f"span has two coordinates, of which position={model.position.name} would read the row "
            "alone; use model.position.coordinates=2, or position=none"
        )
    data = instantiate(cfg.loader, corpus=corpus, coordinates=names, _convert_="all")
    return None, model, data
