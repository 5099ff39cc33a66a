"""What a measure is given: models, folders, pieces.

A measure is a function of these and its own settings, which returns the rows of its table and may
write further files to the folder `out`: `measure(inputs, out, **settings) -> list[TableRow]`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from musicgen.errors import ParameterError
from musicgen.validation import check_int


@dataclass(frozen=True)
class Inputs:
    """What to measure: the settings of `conf/evaluate.yaml`; `root` is its `data.root`."""

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
        check_int("seed", self.seed, 0)

    @property
    def checkpoints(self) -> list[str]:
        """The paths of `runs`, or that of `checkpoint`."""
        return list(self.runs or [self.checkpoint])
