"""Encode a corpus without training: musicgen-prepare [data=midi_folder data.root=/my/midi]."""

from hydra.utils import instantiate
from omegaconf import DictConfig

from musicgen.console import log
from musicgen.data.corpora import Corpus
from musicgen.data.preparation import EncodedCorpus
from musicgen.errors import UserError


def main(cfg: DictConfig) -> None:
    """Encode the corpus of `data` with the tokenizer, into the cache of `loader`; or a shard."""
    tokenizer = instantiate(cfg.tokenizer, _convert_="all")
    music = instantiate(cfg.data, _convert_="all")
    if not isinstance(music, Corpus):
        raise UserError(f"{type(music).__name__} is not music, and needs no preparation")
    corpus = EncodedCorpus.of(music, tokenizer, cfg.loader)
    if cfg.shard is None:
        log(f"ready: {len(corpus.cache)} pieces in {corpus.cache.folder}")
        return
    corpus.encode_shard(str(cfg.shard))
    log(f"ready: shard {cfg.shard} in {corpus.folder}; without shard= all are joined")
