"""A small untrained model: as `load` returns it, as a checkpoint, and as damaged files."""

import random
from pathlib import Path
from typing import Any

from musicgen.checkpoints import CONTENT_KEY, CheckpointContent, build
from musicgen.generation.model import MusicModel
from musicgen.models import Transformer
from musicgen.tokenization import REMI
from musicgen.tokenization.coordinates import match_classes

SPE = {"_target_": "musicgen.position.SineSPE", "_partial_": True, "num_realizations": 4}
FAVOR = {"_target_": "musicgen.attention.FAVOR", "_partial_": True, "num_features": 6}
MODEL = {
    "_target_": "musicgen.models.Transformer",
    **{"dim": 8, "num_layers": 2, "num_heads": 2, "ff_dim": 12, "init_std": 0.3},
    "position": {"_target_": "musicgen.position.RoPE", "_partial_": True, "site": "query_key"},
    "attention": {
        "_target_": "musicgen.attention.LinearAttention",
        **{"_partial_": True, "decay": "head", "feature_map": FAVOR},
    },
}


def small_model(**settings: Any) -> MusicModel:
    """Build a model of REMI with settings of the model."""
    tokenizer = REMI(max_transposition=2)
    vocabulary = tokenizer.vocabulary
    config = {
        "data": {"_target_": "musicgen.data.corpora.MidiFolder", "root": "/home/me/songs"},
        "loader": {"length": 16, "chords": "auto", "cache_dir": "/home/me/cache"},
        "sampling": {"temperature": 0.7},
        "paths": {"output_dir": "/home/me/outputs"},
    }
    content = CheckpointContent(
        model=MODEL | settings,
        tokenizer={"_target_": "musicgen.tokenization.REMI", "max_transposition": 2},
        vocabulary=list(vocabulary.names),
        vocabulary_hash=vocabulary.hash,
        config=config,
        sampling={"temperature": 0.9},
        steps=300,
    )
    sizes = {"vocab_size": len(vocabulary), "match_classes": match_classes(tokenizer)}
    model = build(content.model, Transformer, **sizes)
    return MusicModel(model.eval(), tokenizer, content, Path("model.ckpt"))


def as_checkpoint(model: Transformer, content: CheckpointContent) -> dict[str, Any]:
    """Return what a checkpoint holds, as plain data."""
    weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    return {"state_dict": weights, CONTENT_KEY: content.to_plain()}


def flip_a_bit(path: Path, draw: random.Random, within: range | None = None) -> None:
    """Damage a file in one place, anywhere or within a range of bytes."""
    data = bytearray(path.read_bytes())
    data[draw.choice(within or range(len(data)))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)
