"""A rule-based composer of piano pop, songs and grooves, for corpora that need no download."""

from musicgen.composer.bands import compose_band
from musicgen.composer.corpus import compose_corpus
from musicgen.composer.families import FAMILIES
from musicgen.composer.grooves import compose_groove
from musicgen.composer.songs import compose_pop, compose_song
