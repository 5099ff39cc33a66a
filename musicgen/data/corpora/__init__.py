"""Corpora of music: where their pieces are, and how they are read."""

from musicgen.data.corpora.base import SPLITS, Corpus, Piece
from musicgen.data.corpora.chorales import BachChorales, JSBChorales
from musicgen.data.corpora.folders import ComposedCorpus, MidiFolder, ScoreFolder, Songbook
from musicgen.data.corpora.groove2groove import Groove2GrooveMIDI
from musicgen.data.corpora.pop_piano import POP909, Pop1K7
