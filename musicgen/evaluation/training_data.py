"""The corpus that a model was trained on."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hydra.utils import get_class

from musicgen.checkpoints import check_targets
from musicgen.data.corpora import ComposedCorpus, Corpus
from musicgen.data.preparation import EncodedCorpus
from musicgen.errors import ParameterError, UserError, parameter_of
from musicgen.generation.model import MusicModel
from musicgen.midi import Score

# Default folders, for models whose folders do not exist on this machine.
_COMPOSED, _CACHE = "data/composed", "data/cache"


def open_training_data(model: MusicModel, root: str | Path | None = None) -> EncodedCorpus:
    """Return the corpus that a model was trained on, encoded by its tokenizer.

    The checkpoint may come from an untrusted source. Therefore only folders below the current one
    are created.

    Args:
        root: folder of the corpus, if it was moved.

    Raises:
        UserError: the folder is missing, or the checkpoint names no corpus of this package.
    """
    config = model.content.config
    if not isinstance(config.get("data"), Mapping) or not isinstance(config.get("loader"), Mapping):
        raise UserError(
            f"{model.path}: the checkpoint does not say on which corpus it was trained; use "
            "another checkpoint"
        )
    settings, loader = dict(config["data"]), dict(config["loader"])
    check_targets(settings, (Corpus,))
    corpus_class: type[Corpus] = get_class(settings.pop("_target_"))
    composed = issubclass(corpus_class, ComposedCorpus)
    if composed:
        settings.setdefault("root", _COMPOSED)  # published models have no paths
    if corpus_class.in_package:
        root = None
    elif root is None and "root" not in settings:
        expected = "expected the folder of the corpus, which a published model does not contain"
        raise ParameterError("data.root", "null", expected)
    if root is not None:
        if not composed and not Path(root).expanduser().exists():
            raise ParameterError("data.root", root, "expected a folder that contains the corpus")
        settings["root"] = str(root)
    elif composed:
        _check_composed(Path(settings["root"]))
    cache = Path(loader.get("cache_dir", _CACHE))
    if not _may_write(cache, f"{model.tokenizer.name}-*"):
        cache = Path(_CACHE)
    if "corpora" in settings:  # of a songbook
        settings["corpora"] = {
            name: _open_part(part, Path(settings["root"]))
            for name, part in settings["corpora"].items()
        }
    with parameter_of("data"):
        corpus = _build_corpus(corpus_class, settings)
    return EncodedCorpus.of(corpus, model.tokenizer, loader | {"cache_dir": cache})


def _open_part(settings: Mapping[str, Any], folder: Path) -> Corpus:
    """Return one of the corpora of a songbook.

    Args:
        settings: its settings.
        folder: folder of the songbook.
    """
    arguments = dict(settings)
    corpus_class: type[Corpus] = get_class(arguments.pop("_target_"))
    # A published model has no paths, but the address of the repository to clone.
    arguments.setdefault("root", arguments.get("source", "composed").rpartition("/")[2])
    if issubclass(corpus_class, ComposedCorpus):
        _check_composed(folder / arguments["root"])
    return _build_corpus(corpus_class, arguments)


def _build_corpus(corpus_class: type[Corpus], settings: Mapping[str, Any]) -> Corpus:
    """Return a corpus from settings that may come from an untrusted source.

    Raises:
        ParameterError: `exclude` is a file.
    """
    if isinstance(settings.get("exclude"), str):
        expected = "expected names of pieces, as no file is read that a checkpoint names"
        raise ParameterError("exclude", settings["exclude"], expected)
    return corpus_class(**settings)


def _check_composed(folder: Path) -> None:
    """Raise `UserError` if a corpus must not be composed in a folder."""
    if not _may_write(folder):
        raise UserError(
            f"the corpus of the model was composed in {folder}, which does not exist here; give a "
            "folder below the current one, in which it is composed again, such as data.root=data"
        )


def _may_write(folder: Path, content: str = "*") -> bool:
    """Return whether a folder is below the current one, or has files that match a pattern."""
    here, folder = Path.cwd().resolve(), folder.expanduser()
    return (here / folder).resolve().is_relative_to(here) or any(folder.glob(content))


def piece_readers(data: EncodedCorpus, pieces: Sequence[int]) -> dict[str, Callable[[], Score]]:
    """Return functions that read the scores of pieces, by name.

    Args:
        pieces: indices in the cache.
    """
    names, by_name = data.cache.names, {piece.name: piece for piece in data.corpus.pieces()}
    return {names[i]: partial(data.corpus.read_piece, by_name[names[i]]) for i in pieces}
