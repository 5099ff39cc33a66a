"""Batches from a token cache: random crops for training, beginnings of pieces for evaluation."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from pytorch_lightning.trainer.states import TrainerFn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from musicgen.batches import IGNORED, Batch, StreamDataModule
from musicgen.data.corpora.base import Corpus, evenly_spaced
from musicgen.data.preparation.cache import TokenCache
from musicgen.data.preparation.prepare import ENCODING, EncodedCorpus
from musicgen.errors import ParameterError
from musicgen.midi.score import IntArray
from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.coordinates import Coordinates
from musicgen.validation import check_choice, check_float, check_int

WindowStart = Literal["random", "beginning"]
Window = tuple[IntArray, int]  # tokens, and the grid steps in a bar of their piece

END_SHARE = 1 / 16
"""Share of random windows that are forced to end with their piece, so that the model learns the
end token. Otherwise few windows of a long piece contain it."""
SKIP_MULTIPLE, MAX_SKIPPED = 4, 64
"""Bars skipped at the beginning: a multiple of 4, at most 64, as in the published groove models."""


class TrainingWindows(Dataset):
    """An endless stream of bar-aligned, augmented crops of pieces.

    Item i is a function of the seed and i. Each epoch of `len(pieces)` items has every piece once,
    in a new random order.

    With `window="random"`, a window begins at a random bar, at the latest at the first bar whose
    window reaches the end of the piece. Such a window may lack less than a bar of its full length.
    Pieces that are shorter than a window are used whole. All positions of a window are therefore
    trained equally often if pieces are long enough.

    The tokenizer may then change the order of the parts, see `Tokenizer.rearrange`.

    Args:
        cache: the tokens of the corpus.
        pieces: indices of the pieces in the cache.
        length: L; windows have up to L + 1 tokens.
        seed: seed of all random draws.
        window: `random`, or `beginning` of the piece.
        skip_beginning: with `beginning`, the probability of skipping the first bars. Their number
            is a multiple of 4, at most 64 and at most half of the piece, as in the code of Liutkus
            et al. 2021.
        scramble: probability of `Augmentation.scramble`.
    """

    def __init__(
        self,
        cache: TokenCache,
        pieces: list[int],
        tokenizer: Tokenizer,
        length: int,
        seed: int,
        *,
        window: WindowStart = "random",
        skip_beginning: float = 0.0,
        scramble: float = 0.0,
    ) -> None:
        self.cache, self.pieces, self.tokenizer = cache, pieces, tokenizer
        self.length, self.seed, self.scramble = length, seed, scramble
        self.window, self.skip_beginning = window, skip_beginning
        self._last_order = (-1, np.empty(0, np.int64))

    def __getitem__(self, item: int) -> Window:
        """Return up to `length` + 1 tokens, and the number of grid steps in a bar of the piece."""
        window, rng = self._plain_window(item), np.random.default_rng((self.seed, 3, item))
        window = self.tokenizer.rearrange(window, rng)[: self.length + 1]
        if self.scramble and rng.random() < self.scramble:
            window = self.tokenizer.augmentation.scramble(window, rng)[: self.length + 1]
        return window, self.cache.bar_lengths[self.piece(item)]

    def _plain_window(self, item: int) -> IntArray:
        """Return a window [≤ length + 1] with the parts in the order of the encoding."""
        piece = self.piece(item)
        tokens, starts = self.cache.mapped(piece), self.cache.crop_starts(piece)
        rng = np.random.default_rng((self.seed, 1, item))

        def crop(bar: int) -> IntArray:
            return self.tokenizer.augmentation.crop(
                tokens,
                starts[bar:],
                self.length + 1,
                bar_length=self.cache.bar_lengths[piece],
                # The same draws for every bar, so that windows differ in the first bar only.
                rng=np.random.default_rng((self.seed, 2, item)),
            )

        if self.window == "beginning":
            return crop(self._num_skipped(len(starts), rng))
        # The first bar whose window reaches the end of the piece.
        last = int(np.searchsorted(starts[:, 0], len(tokens) - self.length - 1))
        last = max(0, min(last, len(starts) - 1))
        bar = last if rng.random() < END_SHARE else int(rng.integers(last + 1))
        at_end, window = bar == last, crop(bar)
        # Augmentation may remove tokens. Earlier bars then fill the window.
        while bar > 0 and len(window) <= self.length:
            bar -= 1
            earlier = crop(bar)
            if at_end and earlier[-1] != self.tokenizer.vocabulary.id("EOS"):
                break
            window = earlier
        return window

    def piece(self, item: int) -> int:
        """Return the index in the cache of the piece of an item."""
        epoch, index = divmod(item, len(self.pieces))
        last_epoch, order = self._last_order
        if epoch != last_epoch:  # cached, as a permutation of a large corpus is slow
            order = np.random.default_rng((self.seed, 0, epoch)).permutation(len(self.pieces))
            self._last_order = epoch, order
        return self.pieces[order[index]]

    def _num_skipped(self, num_bars: int, rng: np.random.Generator) -> int:
        """Return a random number of bars to skip at the beginning."""
        most = min(MAX_SKIPPED, num_bars // 2) // SKIP_MULTIPLE
        if not most or rng.random() >= self.skip_beginning:
            return 0
        return SKIP_MULTIPLE * int(rng.integers(1, most + 1))


class EvalWindows(Dataset):
    """The first `length` + 1 tokens of each piece, from the longest piece to the shortest.

    Batches of consecutive items therefore need little padding, and the largest batch comes first.
    """

    def __init__(self, cache: TokenCache, pieces: list[int], length: int) -> None:
        self.cache, self.length = cache, length
        lengths = np.minimum(cache.lengths[pieces], length + 1)
        self.pieces = [pieces[i] for i in np.argsort(-lengths, kind="stable")]

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, item: int) -> Window:
        piece = self.pieces[item]
        window = self.cache.mapped(piece)[: self.length + 1].astype(np.int64)
        return window, self.cache.bar_lengths[piece]


def collate(
    items: Sequence[Window],
    pad_id: int,
    coordinates: Callable[..., IntArray] | None,
    min_length: int = 0,
) -> Batch:
    """Return a batch of windows of up to L + 1 tokens, padded at the end.

    Args:
        items: tokens of each window, and the number of grid steps in a bar.
        pad_id: padding token.
        coordinates: returns the coordinates [L, P] of tokens [L] for a `bar_length`; bars and times
            count from the first bar of the window. None: positions are token indices, and the
            batch has none.
        min_length: smallest L of the batch. With the largest L, all batches have one shape.
    """
    windows = [torch.from_numpy(np.ascontiguousarray(window)) for window, _ in items]
    tokens = pad_sequence([x[:-1] for x in windows], batch_first=True, padding_value=pad_id)
    targets = pad_sequence([x[1:] for x in windows], batch_first=True, padding_value=IGNORED)
    missing = max(0, min_length - tokens.shape[1])
    tokens = F.pad(tokens, (0, missing), value=pad_id)
    targets = F.pad(targets, (0, missing), value=IGNORED)
    if coordinates is None:
        return Batch(tokens, targets)
    columns = [
        torch.from_numpy(coordinates(window[:-1], bar_length=bar_length))
        for window, bar_length in items
    ]
    positions = F.pad(pad_sequence(columns, batch_first=True), (0, 0, 0, missing))
    return Batch(tokens, targets, positions)


class MusicDataModule(StreamDataModule):
    """Data module with batches of the tokens of a corpus.

    Training uses bar-aligned crops with the augmentations of the tokenizer (`TrainingWindows`).
    Validation and test use the beginning of each piece (`EvalWindows`).

    Args:
        corpus: the pieces.
        tokenizer: encodes them.
        window, skip_beginning, scramble: see `TrainingWindows`.
        val_pieces: number of pieces for validation during training, evenly spaced; None: all.
        coordinates: names of the columns of `Batch.positions`, see `Coordinates`.
        settings: settings of `EncodedCorpus` and `StreamDataModule`. An epoch is one crop of each
            piece.

    Attributes:
        encoded: the corpus and its tokens.
    """

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: Tokenizer,
        *,
        window: WindowStart,
        skip_beginning: float,
        scramble: float,
        val_pieces: int | None,
        coordinates: Sequence[str] = ("index",),
        **settings: Any,
    ) -> None:
        encoding = {name: settings.pop(name) for name in ENCODING & settings.keys()}
        super().__init__(coordinates=coordinates, **settings)
        self.prepare_data_per_node = False  # all machines read the cache that one has made
        self.encoded = EncodedCorpus(corpus, tokenizer, **encoding)
        check_choice("window", window, get_args(WindowStart))
        check_float("skip_beginning", skip_beginning, maximum=1)
        check_float("scramble", scramble, maximum=1)
        check_int("val_pieces", val_pieces, none_means="all")
        if skip_beginning and window != "beginning":
            raise ParameterError(
                "skip_beginning", skip_beginning, "expected 0, or window=beginning"
            )
        Coordinates(tokenizer).check(coordinates)
        self.tokenizer, self.val_pieces = tokenizer, val_pieces
        self.windows: dict[str, Any] = {
            "window": window,
            "skip_beginning": skip_beginning,
            "scramble": scramble,
        }

    def prepare_data(self) -> None:
        """Encode the corpus; Lightning calls this in one process."""
        _ = self.encoded.cache

    def setup(self, stage: str) -> None:
        """Open the cache. The first process finds it, and the others open the same folder."""
        assert self.trainer is not None
        folder = self.encoded.cache.folder if self.trainer.is_global_zero else Path()
        self.encoded.open_cache(self.trainer.strategy.broadcast(folder))

    def train_dataloader(self) -> DataLoader:
        pieces = self.encoded.split("train")
        windows = TrainingWindows(
            self.encoded.cache,
            pieces,
            self.tokenizer,
            self.length,
            self.seed,
            **self.windows,
        )
        # Batches of one shape on a GPU, where layers are compiled for it.
        min_length = self.length if self.on_gpu() else 0
        return self._loader(windows, min_length, batch_sampler=self.stream(len(pieces)))

    def samples_validation(self) -> bool:
        """Return whether validations while training leave out pieces."""
        return self.val_pieces is not None and len(self.encoded.split("val")) > self.val_pieces

    def eval_dataloader(self, split: str) -> DataLoader:
        pieces = self.encoded.split(split)
        is_training = self.trainer is not None and self.trainer.state.fn == TrainerFn.FITTING
        if split == "val" and is_training:
            pieces = evenly_spaced(pieces, self.val_pieces)
        own, missing = self.eval_items(len(pieces))
        windows = EvalWindows(self.encoded.cache, [pieces[i] for i in own], self.length)
        without_targets = EvalWindows(self.encoded.cache, pieces[:missing], length=0)
        return self._loader(windows + without_targets, min_length=1, batch_size=self.share())

    def _loader(self, windows: Dataset, min_length: int = 0, **kwargs: object) -> DataLoader:
        coordinates = None
        if self.coordinates != ("index",) or not self.tokenizer.counts_all:
            coordinates = partial(Coordinates(self.tokenizer).of, names=self.coordinates)
        padded = partial(
            collate,
            pad_id=self.tokenizer.vocabulary.pad_id,
            coordinates=coordinates,
            min_length=min_length,
        )
        return self.loader(windows, padded, **kwargs)
