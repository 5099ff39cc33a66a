"""A seeded composer: the default corpora, so that everything runs in a fresh clone, offline."""

from musicgen.data.composer.corpus import compose_corpus
from musicgen.data.composer.families import FAMILIES
from musicgen.data.composer.groove import compose_groove
from musicgen.data.composer.pop import compose_pop

__all__ = ["FAMILIES", "compose_corpus", "compose_groove", "compose_pop"]
