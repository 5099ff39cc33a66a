"""Train the network of `musicgen.plugins.beats.network` on random performances; write its weights.

    python -m benchmarks.beat_network CLONES --out musicgen/plugins/beats/beat_network.npz

CLONES is the folder of the three corpora of `data=songbook`. It learns from music that may be
published: these printed songs and piano pieces, and pieces by the project's composer, performed as
`benchmarks.beat_performance` says, each time anew. Nothing is learnt from recordings, nor from
POP909. Composers in `HELD_OUT` are left out, to measure with. `--start` goes on from weights.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import measure
from benchmarks.beat_performance import Piece, perform
from musicgen.composer.corpus import compose_corpus
from musicgen.data.corpora.base import Corpus, evenly_spaced
from musicgen.data.corpora.base import Piece as CorpusPiece
from musicgen.errors import UserError
from musicgen.midi import read, write
from musicgen.plugins.beats.network import FRAME_RATE, NUM_FEATURES, Array, frame_features

CHANNELS, LAYERS, WIDTH = 32, 10, 5
CROP, BATCH = 50 * FRAME_RATE, 6  # frames, and performances in a step
LEARNING_RATE = 3e-3
HELD_OUT = ("Brahms", "Schumann", "Hensel", "Wolf")
SHARES = {
    "chopin": 0.17, "openscore_lieder": 0.17, "polish_piano": 0.17,
    "pop": 0.24, "songs": 0.14, "bands": 0.07, "groove": 0.04,
}  # fmt: skip
PRINTED = {
    "chopin": "humdrum-chopin-first-editions",
    "openscore_lieder": "Lieder",
    "polish_piano": "humdrum-polish-scores",
}
MIN_NOTES = 60
COMPOSED = {"pop": 250, "songs": 300, "bands": 200, "groove": 100}


class Network(nn.Module):
    """Residual layers of dilated convolutions, from features to log odds of beats and bars."""

    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Conv1d(NUM_FEATURES, CHANNELS, 3, padding=1)
        self.conv = nn.ModuleList(
            nn.Conv1d(CHANNELS, CHANNELS, WIDTH, dilation=2**i, padding=WIDTH // 2 * 2**i)
            for i in range(LAYERS)
        )
        self.mix = nn.ModuleList(nn.Conv1d(CHANNELS, CHANNELS, 1) for _ in range(LAYERS))
        self.out = nn.Conv1d(CHANNELS, 2, 1)
        for layer in self.mix:
            nn.init.zeros_(layer.bias)
            layer.weight.data *= 0.3

    def forward(self, features: Tensor) -> Tensor:
        """[B, features, F] -> [B, 2, F]"""
        hidden = self.inp(features)
        for conv, mix in zip(self.conv, self.mix, strict=True):
            hidden = hidden + mix(F.relu(conv(hidden)))
        return self.out(hidden)

    def save(self, path: Path) -> None:
        """Write the weights in half precision, as `beat_network` reads them."""
        arrays = {}
        for name, weight in self.state_dict().items():
            array = weight.numpy()
            if array.ndim == 3:  # [out, in, width] -> [width, in, out], without a width of 1
                array = array.transpose(2, 1, 0)
                array = array if name.startswith(("inp", "conv")) else array[0]
            arrays[name] = array.astype(np.float16)
        np.savez(path, **arrays)

    def load(self, path: Path) -> None:
        with np.load(path) as arrays:
            state = {name: torch.from_numpy(arrays[name].astype(np.float32)) for name in arrays}
        for name, weight in state.items():
            if name.endswith("weight"):
                state[name] = weight.permute(2, 1, 0) if weight.ndim == 3 else weight.T[..., None]
        self.load_state_dict(state)


def read_pieces(root: Path, cache: Path, limit: int) -> dict[str, list[Piece]]:
    """Return the printed scores below `root` and composed pieces, by corpus.

    Args:
        cache: folder of MIDI files of the scores, which are read once, and of composed pieces.
        limit: how many scores of a corpus are read at most.
    """
    pieces: dict[str, list[Piece]] = {}
    for kind, count in COMPOSED.items():
        paths = compose_corpus(cache / "composed" / kind, kind=kind, num_pieces=count, seed=4711)
        pieces[kind] = [Piece.of(read(path), is_composed=True) for path in paths]
    for name, folder in PRINTED.items():
        corpus = measure.corpus(name, root / folder)
        training = [p for p in corpus.pieces() if not any(held in p.name for held in HELD_OUT)]
        paths = [as_midi(corpus, piece, cache / name) for piece in evenly_spaced(training, limit)]
        pieces[name] = [Piece.of(read(path), is_composed=False) for path in paths if path]
    return {name: [p for p in found if len(p.notes) >= MIN_NOTES] for name, found in pieces.items()}


def as_midi(corpus: Corpus, piece: CorpusPiece, cache: Path) -> Path | None:
    """Return the MIDI file of a printed score, written on first use; None if it has no music."""
    path = cache / f"{piece.name.replace('/', '__')}.mid"
    if not path.exists():
        try:
            score = corpus.read_piece(piece)
        except UserError:
            return None
        if not score.num_notes:
            return None
        write(score, path)
    return path


def example(piece: Piece, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """Return features [CROP, features], targets [CROP, 2] and which frames are music [CROP]."""
    performance = perform(piece, rng)
    features = frame_features(performance.notes)
    num_frames = len(features)
    targets = np.zeros((num_frames, 2), np.float32)
    for column, times in enumerate((performance.beats, performance.bars)):
        frames = np.clip((times * FRAME_RATE + 0.5).astype(np.int64), 0, num_frames - 1)
        for shift, weight in ((-1, 0.5), (1, 0.5), (0, 1.0)):
            near = np.clip(frames + shift, 0, num_frames - 1)
            targets[near, column] = np.maximum(targets[near, column], weight)
    start = int(rng.integers(0, max(1, num_frames - CROP + 1)))
    crop = slice(start, start + CROP)
    missing = CROP - len(features[crop])
    is_music = np.pad(np.ones(CROP - missing, np.float32), (0, missing))
    rows = ((0, missing), (0, 0))
    return np.pad(features[crop], rows), np.pad(targets[crop], rows), is_music


def batch(pieces: dict[str, list[Piece]], rng: np.random.Generator) -> tuple[Tensor, ...]:
    """Return tensors of `BATCH` examples, frames last."""
    names = [name for name in SHARES if pieces.get(name)]
    shares = np.array([SHARES[name] for name in names])
    examples = []
    while len(examples) < BATCH:
        own = pieces[names[rng.choice(len(names), p=shares / shares.sum())]]
        examples.append(example(own[rng.integers(len(own))], rng))
    features, targets, is_music = (
        torch.from_numpy(np.stack(x)) for x in zip(*examples, strict=True)
    )
    return features.transpose(1, 2), targets.transpose(1, 2), is_music[:, None]


def train(network: Network, pieces: dict[str, list[Piece]], args: argparse.Namespace) -> None:
    """Train for some minutes, with a learning rate that falls along a cosine."""
    rng = np.random.default_rng(args.seed)
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=args.lr, weight_decay=1e-3, betas=(0.9, 0.98)
    )
    start, step, losses = time.monotonic(), 0, list[float]()
    while (done := (time.monotonic() - start) / 60 / args.minutes) < 1:
        step += 1
        decay = 0.02 + 0.98 * (1 + np.cos(np.pi * done)) / 2
        for group in optimizer.param_groups:
            group["lr"] = args.lr * min(1, step / 100) * decay
        features, targets, is_music = batch(pieces, rng)
        loss = F.binary_cross_entropy_with_logits(network(features), targets, reduction="none")
        mean = (loss * is_music).sum() / is_music.sum()
        optimizer.zero_grad()
        mean.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1)
        optimizer.step()
        losses.append(mean.item())
        if step % 50 == 0:
            print(f"step {step}: loss {np.mean(losses[-50:]):.4f}, {100 * done:.0f}%", flush=True)
            network.save(args.out)
    network.save(args.out)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("clones", type=Path, help="the folder of the printed corpora")
    parser.add_argument("--out", type=Path, required=True, help="weights to write (.npz)")
    parser.add_argument("--start", type=Path, help="weights to start from")
    parser.add_argument("--cache", type=Path, default=Path("outputs/beat_network"))
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--lr", type=float, default=LEARNING_RATE)
    parser.add_argument("--limit", type=int, default=10**6, help="scores of a corpus at most")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    network = Network()
    if args.start:
        network.load(args.start)
    train(network, read_pieces(args.clones, args.cache, args.limit), args)


if __name__ == "__main__":
    main()
