"""Music as tokens: encoding, decoding, and grammars."""

from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.chorale.tokenizer import Chorale
from musicgen.tokenization.groove2groove.tokenizer import Groove2Groove
from musicgen.tokenization.remi.metre import METRES
from musicgen.tokenization.remi.tokenizer import REMI
from musicgen.tokenization.songs.tokenizer import Songs

__all__ = ["METRES", "REMI", "Chorale", "Groove2Groove", "Songs", "Tokenizer"]
