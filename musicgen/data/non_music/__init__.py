"""Data sets of the papers' tasks other than music. This package knows nothing of music."""

from musicgen.data.non_music.base import Example, ExampleCorpus
from musicgen.data.non_music.cifar10 import CIFAR10
from musicgen.data.non_music.listops import ListOps
from musicgen.data.non_music.pathfinder import Pathfinder
from musicgen.data.non_music.texts import AAN, IMDb
from musicgen.data.non_music.wikitext import WikiText
