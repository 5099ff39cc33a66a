"""Tasks of the papers that are not music: data sets, a classification head and its objective.

Nothing imports this package: the files in `conf/` name its classes.
"""

from musicgen.plugins.tasks.classification import Classification, ClassificationHead
from musicgen.plugins.tasks.datamodule import Example, ExampleCorpus
from musicgen.plugins.tasks.images import CIFAR10, Pathfinder
from musicgen.plugins.tasks.listops import ListOps
from musicgen.plugins.tasks.texts import AAN, IMDb, WikiText
