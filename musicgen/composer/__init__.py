"""A rule-based composer of piano pop, songs and grooves, for corpora that need no download."""

from musicgen.composer.corpus import compose_corpus
from musicgen.composer.groove.bands import compose_band
from musicgen.composer.groove.families import FAMILIES
from musicgen.composer.groove.song import compose_groove
from musicgen.composer.pop.song import compose_pop, compose_song
