"""Build the data module of a configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf

from musicgen.checkpoints import check_targets
from musicgen.data.corpora import Corpus
from musicgen.data.loading import MusicDataModule
from musicgen.errors import ParameterError, UserError, parameter_of
from musicgen.generation.model import MusicModel
from musicgen.midi import Score
from musicgen.tokenization.base import Tokenizer

# The composed corpus that `kind: null` means for each tokenizer.
_KINDS = {"remi": "pop", "groove2groove": "groove"}


def build_data(
    config: DictConfig | Mapping[str, Any], tokenizer: Tokenizer, num_position_columns: int = 1
) -> MusicDataModule:
    """Build the corpus and the data module of a `data` section.

    The settings of the corpus stand in the section itself, where users set them (`data.root=…`);
    its `corpus` lists which of them they are. The others are settings of the data module.
    """
    plain: Any = config
    if isinstance(config, DictConfig):
        for key in map(str, config):
            if OmegaConf.is_missing(config, key):
                raise UserError(f"data.{key} is missing; give data.{key}=FOLDER")
        plain = OmegaConf.to_container(config, resolve=True)
    corpus_settings = dict(plain["corpus"])
    settings = {k: v for k, v in plain.items() if k != "corpus" and k not in corpus_settings}
    corpus_class = get_class(corpus_settings.pop("_target_"))
    module_class = get_class(plain["_target_"])
    if "kind" in corpus_settings:
        corpus_settings["kind"] = corpus_settings["kind"] or _KINDS[tokenizer.name]
    with parameter_of("data"):
        return module_class(
            corpus_class(**corpus_settings),
            tokenizer,
            num_position_columns=num_position_columns,
            **settings,
        )


def open_training_data(model: MusicModel, root: str | Path | None = None) -> MusicDataModule:
    """Open the corpus that a model was trained on; `root` is its folder now, if it was moved.

    Raises:
        ValueError: the folder is missing, or the checkpoint names no corpus of musicgen.
    """
    config = dict(model.content.config["data"])
    check_targets(config, (MusicDataModule, Corpus))
    if root is not None:
        if not Path(root).expanduser().is_dir():
            raise ParameterError("data.root", root, "expected a folder that contains the corpus")
        config["corpus"] = {**config["corpus"], "root": str(root)}
    return build_data(config, model.tokenizer)


def held_out_pieces(data: MusicDataModule, split: str) -> dict[str, Callable[[], Score]]:
    """Return functions that read the pieces of `val` or `test`, by name."""
    paths = {piece.name: piece.path for piece in data.corpus.pieces()}
    names = [data.cache.names[i] for i in data.split(split)]
    return {name: partial(data.corpus.read, paths[name]) for name in names}
