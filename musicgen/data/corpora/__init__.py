"""Corpora, one file per source."""

from musicgen.data.corpora.bach_chorales import BachChorales
from musicgen.data.corpora.base import SPLITS, Corpus, Piece
from musicgen.data.corpora.composed import ComposedCorpus
from musicgen.data.corpora.groove2groove import Groove2GrooveMIDI
from musicgen.data.corpora.jsb_chorales import JSBChorales
from musicgen.data.corpora.midi_folder import MidiFolder
from musicgen.data.corpora.pop1k7 import Pop1K7
from musicgen.data.corpora.pop909 import POP909
from musicgen.data.corpora.score_folder import ScoreFolder
from musicgen.data.corpora.songbook import Songbook
