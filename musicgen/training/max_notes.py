"""How many notes each instrument plays at once, learned for sampling."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytorch_lightning as pl

from musicgen.data.corpora.base import evenly_spaced
from musicgen.data.loading import MusicDataModule
from musicgen.data.preparation import EncodedCorpus
from musicgen.tokenization import Groove2Groove
from musicgen.training.module import TrainingModule


class LearnMaxNotes(pl.Callback):
    """Learn how many notes each instrument plays at once: `max_notes` of `SamplingParams`.

    Models that are not trained to the end begin notes and forget to close them. The number holds
    for all but one in a thousand of the notes of training pieces; tokens without instruments have
    none. It is in every checkpoint.
    """

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        data = trainer.datamodule  # type: ignore[attr-defined]
        if isinstance(data, MusicDataModule) and isinstance(data.tokenizer, Groove2Groove):
            sampling = {"max_notes": max_notes_at_once(data.encoded, data.tokenizer)}
            assert isinstance(pl_module, TrainingModule)
            pl_module.content = replace(pl_module.content, sampling=sampling)


def max_notes_at_once(encoded: EncodedCorpus, tokenizer: Groove2Groove) -> list[int]:
    """Return for each instrument how many notes sound at once at 99.9% of its note-ons.

    Of at most 200 training pieces, evenly spaced.
    """
    pieces = evenly_spaced(encoded.cache.pieces("train"), 200)
    counts = [tokenizer.events.notes_at_once(encoded.cache[i]) for i in pieces]
    of_instruments = (np.concatenate(each) for each in zip(*counts, strict=True))
    # An instrument that never plays may play one note.
    most = (np.quantile(c, 0.999, method="higher") if len(c) else 1 for c in of_instruments)
    return [int(number) for number in most]
