"""Printed scores in MusicXML, Humdrum **kern, MEI and ABC: the plugin that reads them."""

from musicgen.plugins.scores.printed_scores import divide_book as divide
from musicgen.plugins.scores.printed_scores import read_score as read

__all__ = ["divide", "read"]
