"""Tasks of the papers that are not music: data sets, a classification head and its objective.

Nothing imports this package: the files in `conf/` name its classes.
"""

from musicgen.tasks.base import Example, ExampleCorpus
from musicgen.tasks.cifar10 import CIFAR10
from musicgen.tasks.classification import Classification, ClassificationHead
from musicgen.tasks.listops import ListOps
from musicgen.tasks.pathfinder import Pathfinder
from musicgen.tasks.texts import AAN, IMDb
from musicgen.tasks.wikitext import WikiText
