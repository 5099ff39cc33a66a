"""The four commands.

The checkpoints that the arguments name are looked for first, before libraries that take seconds to
import.
"""

from __future__ import annotations

from omegaconf import DictConfig

from musicgen.cli.command import command
from musicgen.console import log
from musicgen.run_folders import find_checkpoint


@command("train")
def train(cfg: DictConfig) -> float | None:
    """Train a model; return the best validation loss, if any, for sweeps."""
    if cfg.init is not None:
        find_checkpoint(str(cfg.init), setting="init")
    from musicgen.cli.train import main

    return main(cfg)


@command("generate")
def generate(cfg: DictConfig) -> None:
    """Continue prompts."""
    find_checkpoint(str(cfg.checkpoint))
    from musicgen.cli.generate import main

    main(cfg)


@command("evaluate")
def evaluate(cfg: DictConfig) -> None:
    """Measure music or models."""
    if cfg.metrics is None and not (cfg.generated or cfg.references or cfg.compare):
        for run in [cfg.checkpoint] if cfg.runs is None else cfg.runs:
            find_checkpoint(str(run), setting="checkpoint" if cfg.runs is None else "runs")
    from musicgen.cli.evaluate import main

    main(cfg)


@command("prepare")
def prepare(cfg: DictConfig) -> None:
    """Encode a corpus without training."""
    from hydra.utils import instantiate

    from musicgen.data.preparation import EncodedCorpus

    tokenizer = instantiate(cfg.tokenizer, _convert_="all")
    corpus = EncodedCorpus.of(instantiate(cfg.data, _convert_="all"), tokenizer, cfg.loader)
    log(f"ready: {len(corpus.cache)} pieces in {corpus.cache.folder}")
