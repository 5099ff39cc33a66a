"""The settings that all measures share, such as models and folders.

A measure is a function `measure(inputs, out, **settings) -> list[TableRow]`. It returns the rows of
its table, and may write plots and other tables to the folder `out`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from musicgen.errors import ParameterError
from musicgen.validation import check_int, check_seed


@dataclass(frozen=True)
class Inputs:
    """The shared settings of `conf/evaluate.yaml`, where they are explained; `root` is `data.root`.

    Raises:
        ParameterError: a setting is invalid.
    """

    checkpoint: str
    split: str
    device: str
    seed: int
    generated: str | None = None
    references: str | Sequence[str] | None = None
    compare: Sequence[str] | None = None
    runs: Sequence[str] | None = None
    root: str | None = None
    max_pieces: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("compare", self.compare), ("runs", self.runs)):
            if isinstance(value, str):
                raise ParameterError(name, value, "expected a list of different folders: [A,B]")
        check_int("max_pieces", self.max_pieces, none_means="all")
        check_seed("seed", self.seed)

    @property
    def checkpoints(self) -> list[str]:
        """The paths of `runs`, or the path of `checkpoint` without them."""
        return list(self.runs or [self.checkpoint])
