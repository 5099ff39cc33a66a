"""The interface of tokenizers: a codec, its crops, the order of its parts, and its file."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from typing_extensions import TypedDict

from musicgen.errors import WRONG_SETTINGS, UserError, errors_name
from musicgen.files import read_json, write_json
from musicgen.midi import Score
from musicgen.package_data import CHORALE_MODEL
from musicgen.tokenization.augmentation import Augmentation, Crops, Rng
from musicgen.tokenization.codec import Codec
from musicgen.tokenization.constraints import Constraint
from musicgen.tokenization.quantization import UNMOVED
from musicgen.tokenization.vocabulary import IntArray
from musicgen.validation import check_schema

MAX_TOKENS_PER_BAR = 1024
"""Generation of N bars adds at most N times as many tokens, whether or not the bars are complete.

No bar of a known corpus has as many. The limit stops a model that does not end its bars.
"""

NUM_FOLLOWING_BARS = 2
"""Number of following bars that decide which candidate for a gap is taken."""

NO_TOKENS = np.empty(0, np.int64)


class ConditioningTokens(NamedTuple):
    """The tokens of a piece with kept parts, to which the other parts are written.

    Attributes:
        ids: those of the kept parts, -1 in place of what is to be written; what follows a gap comes
            first, see `gaps`. [L]
        roles: the decoded track for each of the score's tracks; None: without a decoded track.
        targets: the decoded tracks to be written.
        start: grid step from which they replace the score's.
        stop: grid step at which the last bar of `ids` ends; None: with the ids.
        tick_map: from ticks of the score to those of its whole bars, see `relocate`. [2, N]
        rules: how tracks are read whose names tell other parts, in words.
        gap_end: grid step at which what follows a gap begins; None: nothing follows.
        following: ids of the next bars, of all parts; at most `NUM_FOLLOWING_BARS`.
    """

    ids: IntArray
    roles: Sequence[int | None]
    targets: Sequence[int]
    start: int = 0
    stop: int | None = None
    tick_map: IntArray = UNMOVED
    rules: Sequence[str] = ()
    gap_end: int | None = None
    following: IntArray = NO_TOKENS


class _SavedVocabulary(TypedDict):
    hash: str


class _Saved(TypedDict):
    """What the file of a tokenizer holds."""

    tokenizer: str
    settings: dict[str, Any]
    vocabulary: _SavedVocabulary


class Tokenizer(Codec):
    """A codec with settings, which a file can hold, and what training and prompts need of it.

    `Coordinates(tokenizer)` tells where its tokens are.

    A custom tokenizer implements `encode_with_report`, `decode`, `times`, `grammar`, `find_track`
    and `crops`, sets the attributes, and has a `name` of its own.

    Attributes:
        name: the tokenizer's name in files and messages.
        max_transposition: largest transposition of a training crop, in semitones.
    """

    name: ClassVar[str]
    max_transposition: int

    @property
    @abstractmethod
    def crops(self) -> Crops:
        """The parts of an encoding that begin at a bar."""

    @cached_property
    def augmentation(self) -> Augmentation:
        """The random changes of training crops. They do not change the vocabulary."""
        return Augmentation(self, self.crops, self.max_transposition)

    def rearrange(self, window: IntArray, rng: Rng) -> IntArray:
        """Return a training crop with its parts in a random order, by the settings' probabilities.

        The default has one fixed order. [L] -> [any length]
        """
        return window

    def beginning(self, tokens: IntArray) -> IntArray:
        """Return the ids of the first bars of a piece without what tells of those behind them.

        The default changes nothing. [L] -> [<= L]
        """
        return tokens

    def name_tune(self, score: Score) -> tuple[Score, int | None]:
        """Name the only track of a score after a part if it is a tune; return it with the part.

        Other scores, and tunes of a known instrument, are unchanged, and their part is None.
        """
        return score, None

    def keep_parts(
        self,
        score: Score,
        keep: Sequence[str],
        first: int,
        end: int | None,
        write: Sequence[str] = (),
    ) -> ConditioningTokens:
        """Return a piece in an order in which some parts lead, so that others are written to them.

        Args:
            keep: names of the decoded tracks that lead.
            first: tick up to which the other parts are kept, too.
            end: tick at which the writing ends; None: with the piece.
            write: names of the decoded tracks, or of tracks of the score, that are written; all
                others lead. Empty: those that `keep` does not name.

        Raises:
            UserError: the tokens have no such order, or the piece has no such parts.
        """
        raise UserError(
            "keep, fill and rewrite need a model whose tokens have the parts of a bar one after "
            "another (tokenizer=songs); keep also works with voices, such as "
            f"checkpoint={CHORALE_MODEL}"
        )

    def constraints(self, request: Any, prompts: Sequence[Any]) -> list[Constraint]:
        """Return what a request asks of the tokens after each prompt; by default nothing.

        The first constraints have priority, see `ConstrainedGrammar`.

        Args:
            request: a `GenerationRequest`.
            prompts: the `Prompt` of each sequence.
        """
        return []

    def settings(self) -> dict[str, Any]:
        """Return plain data that rebuilds the tokenizer: `type(t)(**t.settings())`.

        They are the arguments of the class, which are attributes of the same names. A class that
        passes `*args` or `**settings` on has the arguments of its parent, too.

        Raises:
            UserError: an argument is no attribute.
        """
        settings: dict[str, Any] = {}
        for kind in type(self).__mro__:
            if "__init__" not in vars(kind):
                continue
            _, *parameters = signature(vars(kind)["__init__"]).parameters.values()
            passed_on = (Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL)
            named = [p.name for p in parameters if p.kind not in passed_on]
            for name in named:
                if not hasattr(self, name):
                    cure = "its __init__ must keep each argument as an attribute of its name"
                    raise UserError(f"{type(self).__name__} has no attribute {name}; {cure}")
                value = getattr(self, name)
                is_list = isinstance(value, Sequence) and not isinstance(value, str)
                settings[name] = list(value) if is_list else value
            if len(named) == len(parameters):
                break
        return settings

    def to_json(self) -> dict[str, Any]:
        """Return plain data for `from_json`: the class's name, settings and vocabulary.

        Raises:
            UserError: the class has no name of its own, and its file would be read by its parent.
        """
        if "name" not in vars(type(self)):
            raise UserError(
                f"{type(self).__name__} cannot be saved without a name of its own; give the class "
                "an attribute name that no other tokenizer has"
            )
        return {
            "tokenizer": self.name,
            "settings": self.settings(),
            "vocabulary": self.vocabulary.to_json(),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Tokenizer:
        """Build the tokenizer from the data of `to_json`.

        Raises:
            UserError: the data are not a tokenizer's, its class is not imported, or the settings
                now give other tokens.
        """
        try:
            check_schema(_Saved, data)
        except UserError as error:
            raise UserError(f"not a tokenizer ({error})") from None
        name, settings = data["tokenizer"], data["settings"]
        classes = _named_classes(Tokenizer)
        if name not in classes:
            known = ", ".join(sorted(classes))
            raise UserError(
                f"tokenizer {name} is unknown (known: {known}); "
                "import the module that defines its class first"
            )
        try:
            tokenizer = classes[name](**settings)
        except UserError:
            raise
        except WRONG_SETTINGS as error:
            raise UserError(f"its settings are of another version of musicgen ({error})") from None
        if tokenizer.vocabulary.hash != data["vocabulary"]["hash"]:
            raise UserError("its settings give another vocabulary than when it was saved")
        return tokenizer

    def save(self, path: str | Path) -> None:
        """Write settings and vocabulary as JSON, atomically."""
        write_json(path, self.to_json())

    @staticmethod
    def load(path: str | Path) -> Tokenizer:
        """Read a tokenizer of any class from a file that `save` wrote."""
        data = read_json(path)
        with errors_name(path):
            return Tokenizer.from_json(data)


def _named_classes(base: type) -> dict[str, type[Tokenizer]]:
    """Return the subclasses of a class, at any depth, by the names that they define."""
    classes: dict[str, type[Tokenizer]] = {}
    subclasses: Sequence[type[Tokenizer]] = base.__subclasses__()
    for subclass in subclasses:
        if "name" in vars(subclass):
            classes[subclass.name] = subclass
        classes |= _named_classes(subclass)
    return classes
