"""The four commands.

What files and folders the arguments name is checked first, before libraries that take seconds to
import.
"""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig

from musicgen.cli.command import command
from musicgen.console import log
from musicgen.errors import UserError
from musicgen.run_folders import find_checkpoint


@command("train")
def train(cfg: DictConfig) -> float | None:
    """Train a model; return the best validation loss, if any, for sweeps."""
    if cfg.init is not None:
        find_checkpoint(str(cfg.init), setting="init")
    _check_corpus(cfg)
    from musicgen.cli.train import main

    return main(cfg)


@command("generate")
def generate(cfg: DictConfig) -> None:
    """Continue prompts."""
    from musicgen.evaluation.prompt_files import SPLITS, prompt_files

    if cfg.prompt is not None and cfg.prompt not in SPLITS:
        prompt_files(cfg.prompt)
    find_checkpoint(str(cfg.checkpoint))
    from musicgen.cli.generate import main

    main(cfg)


@command("evaluate")
def evaluate(cfg: DictConfig) -> None:
    """Measure music or models."""
    from musicgen.evaluation.prompt_files import SPLITS

    for name in ("generated", "references"):
        folder = cfg[name]
        if folder is not None and folder not in SPLITS and not Path(folder).expanduser().exists():
            raise UserError(f"{name}={folder}: no such folder; give one that holds .mid files")
    if cfg.metrics is None and not (cfg.generated or cfg.references or cfg.compare):
        for run in [cfg.checkpoint] if cfg.runs is None else cfg.runs:
            find_checkpoint(str(run), setting="checkpoint" if cfg.runs is None else "runs")
    from musicgen.cli.evaluate import main

    main(cfg)


@command("prepare")
def prepare(cfg: DictConfig) -> None:
    """Encode a corpus without training."""
    _check_corpus(cfg)
    from hydra.utils import instantiate

    from musicgen.data.preparation import EncodedCorpus

    tokenizer = instantiate(cfg.tokenizer, _convert_="all")
    corpus = EncodedCorpus.of(instantiate(cfg.data, _convert_="all"), tokenizer, cfg.loader)
    log(f"ready: {len(corpus.cache)} pieces in {corpus.cache.folder}")


def _check_corpus(cfg: DictConfig) -> None:
    """Raise `UserError` if a folder of MIDI files is missing."""
    if cfg.data._target_.endswith(".MidiFolder"):
        root = Path(cfg.data.root).expanduser()
        if not root.is_dir():
            problem = "a file, not a folder" if root.exists() else "no such folder"
            raise UserError(f"data.root={cfg.data.root}: {problem}; give a folder with MIDI files")
