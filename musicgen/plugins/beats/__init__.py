"""Beats and bars of performances: the plugin that finds them, and brings music onto them."""

from musicgen.plugins.beats.beat_map import on_beats, onto_beats
from musicgen.plugins.beats.beats import Beats, find_beats, read_beats

__all__ = ["Beats", "find_beats", "on_beats", "onto_beats", "read_beats"]
