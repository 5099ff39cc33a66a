"""A small untrained model as `load` returns it."""

from __future__ import annotations

import random
from pathlib import Path

from musicgen.checkpoints import CheckpointContent, build
from musicgen.generation.model import MusicModel
from musicgen.models import Transformer
from musicgen.tokenization import REMI

LINEAR = {
    "_target_": "musicgen.attention.LinearAttention",
    "_partial_": True,
    "decay": "head",
    "feature_map": {"_target_": "musicgen.attention.FAVOR", "_partial_": True, "num_features": 6},
}


def small_model() -> MusicModel:
    config = {
        "_target_": "musicgen.models.Transformer",
        **{"dim": 8, "num_layers": 2, "num_heads": 2, "ff_dim": 12, "init_std": 0.3},
        "position": {"_target_": "musicgen.position.RoPE", "_partial_": True, "site": "query_key"},
        "attention": LINEAR,
    }
    tokenizer = REMI(max_transposition=2)
    vocabulary = tokenizer.vocabulary
    data = {"_target_": "musicgen.data.corpora.MidiFolder", "root": "/home/me/songs"}
    loader = {"length": 16, "chords": "auto", "cache_dir": "/home/me/cache"}
    content = CheckpointContent(
        model=config,
        tokenizer={"_target_": "musicgen.tokenization.REMI", "max_transposition": 2},
        vocabulary=list(vocabulary.tokens),
        vocabulary_hash=vocabulary.hash,
        config={
            "data": data,
            "loader": loader,
            "sampling": {"temperature": 0.7},
            "paths": {"output_dir": "/home/me/outputs"},
        },
        sampling={"temperature": 0.9},
        steps=300,
    )
    model = build(
        config, Transformer, vocab_size=len(vocabulary), match_classes=tokenizer.match_classes
    )
    return MusicModel(model.eval(), tokenizer, content, Path("model.ckpt"))


def flip_a_bit(path: Path, draw: random.Random, within: range | None = None) -> None:
    """Damage a file in one place, anywhere or within a range of bytes."""
    data = bytearray(path.read_bytes())
    data[draw.choice(within or range(len(data)))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)
