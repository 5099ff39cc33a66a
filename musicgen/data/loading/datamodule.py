"""The LightningDataModule of a corpus."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, get_args

from torch.utils.data import DataLoader, Dataset

from musicgen.batches import StreamDataModule
from musicgen.data.corpora.base import Corpus
from musicgen.data.loading.windows import (
    EvalWindows,
    PositionedWindows,
    TrainingWindows,
    WindowStart,
    collate,
)
from musicgen.data.preparation.prepare import EncodedCorpus
from musicgen.errors import ParameterError
from musicgen.tokenization.base import Tokenizer
from musicgen.validation import check_choice, check_float


class MusicDataModule(StreamDataModule):
    """Batches of a corpus's tokens.

    Training uses bar-aligned crops with the tokenizer's augmentations, see `TrainingWindows`;
    validation and test use the beginning of each piece.

    Args:
        window, skip_beginning: where training windows begin; see `TrainingWindows`.
        coordinates: names of the columns of `Batch.positions`, see `TokenCoordinates`.
        encoding: as for `EncodedCorpus`. All others are as for `StreamDataModule`; a pass over the
            data is one crop of each piece.

    Attributes:
        encoded: the corpus and its tokens.
    """

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: Tokenizer,
        *,
        length: int,
        batch_size: int,
        batches_per_epoch: int | None,
        window: WindowStart,
        skip_beginning: float,
        seed: int,
        num_workers: int | None,
        coordinates: Sequence[str] = ("index",),
        **encoding: Any,
    ) -> None:
        super().__init__(
            length=length,
            batch_size=batch_size,
            batches_per_epoch=batches_per_epoch,
            seed=seed,
            num_workers=num_workers,
            coordinates=coordinates,
        )
        self.encoded = EncodedCorpus(corpus, tokenizer, **encoding)
        check_choice("window", window, get_args(WindowStart))
        check_float("skip_beginning", skip_beginning, maximum=1)
        if skip_beginning and window != "beginning":
            raise ParameterError(
                "skip_beginning", skip_beginning, "expected 0, or window=beginning"
            )
        tokenizer.check_coordinates(coordinates)
        self.tokenizer = tokenizer
        self.window, self.skip_beginning = window, skip_beginning

    def prepare_data(self) -> None:
        """Encode the corpus, in one process."""
        _ = self.encoded.cache

    def train_dataloader(self) -> DataLoader:
        pieces = self.encoded.split("train")
        windows = TrainingWindows(
            self.encoded.cache,
            pieces,
            self.tokenizer,
            self.length,
            self.seed,
            window=self.window,
            skip_beginning=self.skip_beginning,
        )
        return self._loader(windows, batch_sampler=self.stream(len(pieces)))

    def eval_dataloader(self, split: str) -> DataLoader:
        pieces = self.encoded.split(split)
        rank, world_size = self.process()
        # A process without a batch would leave the others waiting for it: it gets one without
        # targets.
        length = self.length if rank < len(pieces) else 0
        windows = EvalWindows(self.encoded.cache, pieces[rank::world_size] or pieces[:1], length)
        return self._loader(windows, batch_size=self.batch_size)

    def _loader(self, dataset: TrainingWindows | EvalWindows, **kwargs: object) -> DataLoader:
        pad_id = self.tokenizer.vocabulary.pad_id
        items: Dataset = dataset
        if self.coordinates != ("index",):
            items = PositionedWindows(dataset, self.tokenizer, self.coordinates)
        return self.loader(items, partial(collate, pad_id=pad_id), **kwargs)
