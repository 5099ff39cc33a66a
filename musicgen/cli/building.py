"""Build what a configuration trains: the module and its data."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from musicgen.checkpoints import CheckpointContent, run_identity
from musicgen.cli.datasets import build_data, build_examples
from musicgen.cli.starting import load_source, read_source
from musicgen.data.loading import MusicDataModule
from musicgen.data.non_music.datamodule import ExampleDataModule
from musicgen.errors import ParameterError, parameter_of
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
    tokenizer, model, data = _build(cfg)
    config: Any = OmegaConf.to_container(cfg, resolve=True)
    content = CheckpointContent(
        model=config["model"],
        tokenizer=config.get("tokenizer"),
        vocabulary=[] if tokenizer is None else list(tokenizer.vocabulary.tokens),
        vocabulary_hash="" if tokenizer is None else tokenizer.vocabulary.hash,
        config=config,
        identity=run_identity(config),
    )
    module = TrainingModule(
        model,
        instantiate(cfg.task),
        instantiate(cfg.optimizer),
        instantiate(cfg.scheduler),
        content,
        cfg.seed,
    )
    notes = []
    if source is not None:
        notes = load_source(source, model, content, resume=cfg.resume is not None)
    model.recompute = cfg.recompute
    if cfg.compile:
        for layer in model.layers:
            layer.compile()
    return Training(module, data, notes)


def _build(
    cfg: DictConfig,
) -> tuple[Tokenizer | None, Transformer, MusicDataModule | ExampleDataModule]:
    """Build the tokenizer, None for data that are not music, the model and the data."""
    build_model = partial(instantiate, cfg.model)
    if cfg.get("tokenizer") is None:
        return None, *build_examples(cfg, build_model)
    tokenizer: Tokenizer = instantiate(cfg.tokenizer, _convert_="all")
    model: Transformer = build_model(
        vocab_size=len(tokenizer.vocabulary),
        match_classes=tokenizer.match_classes,
    )
    with parameter_of("model.position"):
        tokenizer.check_coordinates(model.coordinate_names)
    max_length = model.position.max_length
    if max_length is not None and max_length < cfg.loader.length:
        expected = f"expected at least loader.length={cfg.loader.length}"
        raise ParameterError("model.position.max_length", max_length, expected)
    return tokenizer, model, build_data(cfg, tokenizer, model.coordinate_names)
