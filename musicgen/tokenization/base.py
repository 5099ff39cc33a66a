"""The interface of tokenizers: a codec, its training crops and part order, and its file."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import TypedDict

from musicgen.errors import WRONG_SETTINGS, UserError, errors_name
from musicgen.files import read_json, write_json
from musicgen.tokenization.augmentation import Augmentation
from musicgen.tokenization.codec import Codec
from musicgen.tokenization.constraints import Constraint
from musicgen.tokenization.crops import Crops
from musicgen.tokenization.part_order import PartOrder
from musicgen.validation import check_schema


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

    A class of one's own implements `encode_with_report`, `decode`, `times`, `grammar`, `find_track`
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

    @cached_property
    def part_order(self) -> PartOrder:
        """The orders in which the parts of a bar may stand."""
        return PartOrder()

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
        passes `**settings` on has the arguments of its parent, too.
        """
        settings = {}
        for name in _argument_names(type(self)):
            value = getattr(self, name)
            is_list = isinstance(value, Sequence) and not isinstance(value, str)
            settings[name] = list(value) if is_list else value
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


def _argument_names(kind: type) -> list[str]:
    """Return the names of the arguments of a class, and of the classes that its `**` go to."""
    names: list[str] = []
    for each in kind.__mro__:
        if "__init__" not in vars(each):
            continue
        _, *parameters = signature(vars(each)["__init__"]).parameters.values()
        names += [p.name for p in parameters if p.kind is not Parameter.VAR_KEYWORD]
        if all(p.kind is not Parameter.VAR_KEYWORD for p in parameters):
            break
    return names
