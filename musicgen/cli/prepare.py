"""Prepare a corpus without training: musicgen-prepare [data=pop909 data.root=... ...].

Several machines, or one of Hydra's launchers, share the work: shard=1/8, or -m shard=1/8,2/8,...
"""

from __future__ import annotations

from hydra.utils import instantiate
from omegaconf import DictConfig

from musicgen.console import log
from musicgen.data.preparation import EncodedCorpus, Shard
from musicgen.tokenization.base import Tokenizer


def main(cfg: DictConfig) -> None:
    """Encode a corpus or a shard of it and log the result."""
    tokenizer: Tokenizer = instantiate(cfg.tokenizer, _convert_="all")
    corpus = EncodedCorpus.of(instantiate(cfg.data, _convert_="all"), tokenizer, cfg.loader)
    cache = corpus.prepare_shard(Shard.parse(str(cfg.shard)))
    if cache is not None:
        log(f"ready: {len(cache)} pieces in {cache.folder}")
