"""Data sets of the papers' tasks other than music. This package knows nothing of music."""

from musicgen.datasets.aan import AAN
from musicgen.datasets.base import Example, ExampleCorpus
from musicgen.datasets.cifar10 import CIFAR10
from musicgen.datasets.imdb import IMDb
from musicgen.datasets.listops import ListOps
from musicgen.datasets.marks import Marks
from musicgen.datasets.pathfinder import Pathfinder
from musicgen.datasets.wikitext import WikiText

__all__ = [
    "AAN",
    "CIFAR10",
    "Example",
    "ExampleCorpus",
    "IMDb",
    "ListOps",
    "Marks",
    "Pathfinder",
    "WikiText",
]
