"""From a token cache to batches: random crops for training, beginnings of pieces for evaluation."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from pytorch_lightning.trainer.states import TrainerFn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from musicgen.batches import IGNORED, Batch, StreamDataModule
from musicgen.data.corpora.base import Corpus, evenly_spaced
from musicgen.data.preparation.cache import TokenCache
from musicgen.data.preparation.prepare import ENCODING, EncodedCorpus
from musicgen.errors import ParameterError
from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.coordinates import Coordinates
from musicgen.validation import check_choice, check_float, check_int

WindowStart = Literal["random", "beginning"]
Window = tuple[NDArray[np.int64], int]  # tokens, and the grid steps in a bar of their piece

END_SHARE = 1 / 16
"""Share of random windows that certainly end with their piece, so that the end token is learnt.

It occurs in few windows else: of a long piece, in the last of many."""
SKIP_MULTIPLE, MAX_SKIPPED = 4, 64
"""Bars: the published groove models skip a multiple of 4, at most 64, at the beginning."""


class TrainingWindows(Dataset):
    """An endless stream of bar-aligned, augmented crops; item i depends on the seed and i alone.

    Each run of `num_pieces` items visits every piece once, in a new order.

    A random window begins at a bar drawn uniformly up to the last one from which the piece fills
    it, or at the next bar, from which the window ends with the piece and lacks less than a bar.
    Windows of shorter pieces are the whole piece. Positions of a window are therefore trained
    equally often if pieces are long enough. The tokenizer may then put the window's parts in
    another order, see `PartOrder.rearrange`.

    Args:
        length: L; windows have up to L + 1 tokens.
        window: `random`, or the `beginning` of the piece.
        skip_beginning: probability of leaving out first bars of a window at the beginning: a
            multiple of 4 bars, at most 64 and half of the piece (Liutkus et al. 2021, code).
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
        self._eos = tokenizer.vocabulary.id("EOS")
        self._last_order = (-1, np.empty(0, np.int64))

    def __getitem__(self, item: int) -> Window:
        """Return up to `length` + 1 tokens, and the grid steps in a bar of their piece."""
        window, rng = self._plain_window(item), np.random.default_rng((self.seed, 3, item))
        window = self.tokenizer.part_order.rearrange(window, rng)[: self.length + 1]
        if self.scramble and rng.random() < self.scramble:
            window = self.tokenizer.augmentation.scramble(window, rng)[: self.length + 1]
        return window, self.cache.bar_lengths[self.piece(item)]

    def _plain_window(self, item: int) -> NDArray[np.int64]:
        """Return a window in the order of the encoding."""
        piece = self.piece(item)
        tokens, starts = self.cache.mapped(piece), self.cache.crop_starts(piece)
        rng = np.random.default_rng((self.seed, 1, item))

        def crop(bar: int) -> NDArray[np.int64]:
            return self.tokenizer.augmentation.crop(
                tokens,
                starts[bar:],
                self.length + 1,
                bar_length=self.cache.bar_lengths[piece],
                rng=np.random.default_rng((self.seed, 2, item)),  # changes nothing but the bar
            )

        if self.window == "beginning":
            return crop(self._num_skipped(len(starts), rng))
        # The first bar from which the piece ends within the window.
        last = int(np.searchsorted(starts[:, 0], len(tokens) - self.length - 1))
        last = max(0, min(last, len(starts) - 1))
        bar = last if rng.random() < END_SHARE else int(rng.integers(last + 1))
        at_end, window = bar == last, crop(bar)
        # Augmentation may remove tokens, which earlier bars replace.
        while bar > 0 and len(window) <= self.length:
            bar -= 1
            earlier = crop(bar)
            if at_end and earlier[-1] != self._eos:
                break
            window = earlier
        return window

    def piece(self, item: int) -> int:
        """Return the piece of an item."""
        epoch, index = divmod(item, len(self.pieces))
        if self._last_order[0] != epoch:  # cached, since large ones are slow
            rng = np.random.default_rng((self.seed, 0, epoch))
            self._last_order = epoch, rng.permutation(len(self.pieces))
        return self.pieces[self._last_order[1][index]]

    def _num_skipped(self, num_bars: int, rng: np.random.Generator) -> int:
        """Draw the number of bars to leave out at the beginning."""
        most = min(MAX_SKIPPED, num_bars // 2) // SKIP_MULTIPLE
        if not most or rng.random() >= self.skip_beginning:
            return 0
        return SKIP_MULTIPLE * int(rng.integers(1, most + 1))


class EvalWindows(Dataset):
    """The first `length` + 1 tokens of each piece, from the longest to the shortest.

    Batches of consecutive items therefore need little padding, and the largest comes first.
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
    coordinates: Callable[..., NDArray[np.int64]] | None,
    min_length: int = 0,
) -> Batch:
    """Collate windows of up to L + 1 tokens into a batch, padded at the end.

    Args:
        min_length: of the batch; all batches of L tokens have one shape.
        coordinates: returns those of tokens, given `bar_length`; bars and times count from the
            window's first bar. [L] -> [L, P]. None: the batch has none, as they count tokens.
    """
    ids = [torch.from_numpy(np.ascontiguousarray(window)) for window, _ in items]
    tokens = pad_sequence([row[:-1] for row in ids], batch_first=True, padding_value=pad_id)
    targets = pad_sequence([row[1:] for row in ids], batch_first=True, padding_value=IGNORED)
    missing = max(0, min_length - tokens.shape[1])
    tokens = F.pad(tokens, (0, missing), value=pad_id)
    targets = F.pad(targets, (0, missing), value=IGNORED)
    if coordinates is None:
        return Batch(tokens, targets)
    rows = [torch.from_numpy(coordinates(window[:-1], bar_length=n)) for window, n in items]
    positions = F.pad(pad_sequence(rows, batch_first=True), (0, 0, 0, missing))
    return Batch(tokens, targets, positions)


class MusicDataModule(StreamDataModule):
    """Batches of a corpus's tokens.

    Training uses bar-aligned crops with the tokenizer's augmentations, see `TrainingWindows`;
    validation and test use the beginning of each piece.

    Args:
        window, skip_beginning, scramble: of training windows, see `TrainingWindows`.
        val_pieces: pieces of a validation while training, evenly spaced; None: all.
        coordinates: names of the columns of `Batch.positions`, see `Coordinates`.
        settings: of `EncodedCorpus` and `StreamDataModule`; a pass is one crop of each piece.

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
        """Encode the corpus, in one process."""
        _ = self.encoded.cache

    def setup(self, stage: str) -> None:
        """Open the cache, which the first process names to the others: these list no file."""
        assert self.trainer is not None
        folder = self.encoded.cache.folder if self.trainer.is_global_zero else Path()
        self.encoded.open_cache(self.trainer.strategy.broadcast(folder))

    def train_dataloader(self) -> DataLoader:
        pieces = self.encoded.split("train")
        corpus = self.encoded.cache, pieces, self.tokenizer
        windows = TrainingWindows(*corpus, self.length, self.seed, **self.windows)
        # Of one shape on a GPU, whose layers are compiled for it.
        min_length = self.length if self.on_gpu() else 0
        return self._loader(windows, min_length, batch_sampler=self.stream(len(pieces)))

    def samples_validation(self) -> bool:
        """Return whether validations while training leave out pieces."""
        return self.val_pieces is not None and len(self.encoded.split("val")) > self.val_pieces

    def _fits(self) -> bool:
        return self.trainer is not None and self.trainer.state.fn == TrainerFn.FITTING

    def eval_dataloader(self, split: str) -> DataLoader:
        pieces = self.encoded.split(split)
        if split == "val" and self._fits() and self.samples_validation():
            pieces = evenly_spaced(pieces, self.val_pieces)
        rank, world_size = self.process()
        # A process without a batch would leave the others waiting for it: it gets one without
        # targets.
        length = self.length if rank < len(pieces) else 0
        windows = EvalWindows(self.encoded.cache, pieces[rank::world_size] or pieces[:1], length)
        return self._loader(windows, batch_size=self.batch_size)

    def _loader(self, windows: Dataset, min_length: int = 0, **kwargs: object) -> DataLoader:
        coordinates = None
        if self.coordinates != ("index",):
            coordinates = partial(Coordinates(self.tokenizer).of, names=self.coordinates)
        pad_id = self.tokenizer.vocabulary.pad_id
        collated = partial(collate, pad_id=pad_id, coordinates=coordinates, min_length=min_length)
        return self.loader(windows, collated, **kwargs)
