"""Build the corpus and the data module of a configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hydra.utils import instantiate
from omegaconf import DictConfig

from musicgen.data.corpora import Corpus
from musicgen.data.loading import MusicDataModule
from musicgen.data.non_music import ExampleCorpus
from musicgen.data.non_music.datamodule import ExampleDataModule
from musicgen.errors import UserError
from musicgen.models import Transformer
from musicgen.position import NoPosition
from musicgen.tokenization.base import Tokenizer


def build_data(
    cfg: DictConfig, tokenizer: Tokenizer, coordinates: Sequence[str] = ("index",)
) -> MusicDataModule:
    """Build the corpus of `data`, and the data module of `loader` that has it."""
    corpus = instantiate(cfg.data, _convert_="all")
    if not isinstance(corpus, Corpus):
        raise UserError(
            f"{type(corpus).__name__} is not music; choose its task, such as task=listops"
        )
    data: MusicDataModule = instantiate(
        cfg.loader, corpus=corpus, tokenizer=tokenizer, coordinates=coordinates, _convert_="all"
    )
    return data


def build_examples(
    cfg: DictConfig, build_model: Callable[..., Transformer]
) -> tuple[Transformer, ExampleDataModule]:
    """Build a corpus that is not music, the model for it, and its data module.

    Args:
        build_model: takes `vocab_size, input_dim, num_outputs`.
    """
    corpus = instantiate(cfg.data, _convert_="all")
    if not isinstance(corpus, ExampleCorpus):
        raise UserError(f"{type(corpus).__name__} is music, which tokenizer=null cannot read")
    model = build_model(
        vocab_size=corpus.vocab_size, input_dim=corpus.input_dim, num_outputs=corpus.num_outputs
    )
    if len(model.coordinate_names) > 1 == model.position.num_dims and not isinstance(
        model.position, NoPosition
    ):
        raise UserError(
            f"span has two coordinates, of which position={model.position.name} would read the row "
            "alone; use model.position.coordinates=2, or position=none"
        )
    coordinates = model.coordinate_names
    return model, instantiate(cfg.loader, corpus=corpus, coordinates=coordinates, _convert_="all")
