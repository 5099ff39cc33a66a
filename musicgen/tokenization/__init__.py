"""Music as tokens: encoding, decoding, and grammars."""

import yaml

from musicgen.package_data import CONF, choices
from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.chorale.tokenizer import Chorale
from musicgen.tokenization.groove2groove.tokenizer import Groove2Groove
from musicgen.tokenization.remi.metre import METRES
from musicgen.tokenization.remi.tokenizer import REMI
from musicgen.tokenization.songs.tokenizer import Songs

__all__ = [
    "METRES",
    "REMI",
    "Chorale",
    "Groove2Groove",
    "Songs",
    "Tokenizer",
    "frozen_tokenizers",
]


def frozen_tokenizers() -> dict[str, Tokenizer]:
    """Return the tokenizers of `conf/tokenizer` by name: their vocabularies never change."""
    found: dict[str, Tokenizer] = {}
    kinds = {kind.__name__: kind for kind in (REMI, Groove2Groove, Chorale, Songs)}
    for name in choices("tokenizer"):
        settings = yaml.safe_load((CONF / "tokenizer" / f"{name}.yaml").read_text(encoding="utf-8"))
        kind = kinds[settings.pop("_target_").rpartition(".")[2]]
        found[name] = kind(**settings)
    return found
