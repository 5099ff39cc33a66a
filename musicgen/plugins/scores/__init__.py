"""Printed scores in MusicXML, Humdrum **kern, MEI and ABC, read, and MusicXML, written."""

from musicgen.plugins.scores.printed_scores import divide_book as divide
from musicgen.plugins.scores.printed_scores import read_score as read
from musicgen.plugins.scores.staves import check_engraver, draw_staves
from musicgen.plugins.scores.write_musicxml import write_musicxml

__all__ = ["check_engraver", "divide", "draw_staves", "read", "write_musicxml"]
