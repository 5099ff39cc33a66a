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

# Folders for models whose own folders do not exist here.
_COMPOSED, _CACHE = "data/composed", "data/cache"


def open_training_data(model: MusicModel, root: str | Path | None = None) -> EncodedCorpus:
    """Return the corpus that a model was trained on, encoded by its tokenizer.

    The checkpoint may come from an untrusted source. Therefore only folders below the current one
    are created.

    Args:
        root: the corpus's folder, if it was moved.

    Raises:
        UserError: the folder is missing, or the checkpoint names no corpus of musicgen.
    """
    config = model.content.config
    if not isinstance(config.get("data"), Mapping) or not isinstance(config.get("loader"), Mapping):
        raise UserError(f"{model.path}: it does not say what it was trained on; use another")
    settings, loader = dict(config["data"]), dict(config["loader"])
    check_targets(settings, (Corpus,))
    corpus_class: type[Corpus] = get_class(settings.pop("_target_"))
    composed = issubclass(corpus_class, ComposedCorpus)
    if composed:
        settings.setdefault("root", _COMPOSED)  # published models have no paths
    if corpus_class.in_package:
        root = None
    elif root is None and "root" not in settings:
        expected = "expected the corpus's folder, which a published model does not know"
        raise ParameterError("data.root", "null", expected)
    if root is not None:
        if not composed and not Path(root).expanduser().exists():
            raise ParameterError("data.root", root, "expected a folder that contains the corpus")
        settings["root"] = str(root)
    elif composed:
        _check_composed(Path(settings["root"]))
    cache = Path(loader.get("cache_dir", _CACHE))
    if not _is_ours(cache, f"{model.tokenizer.name}-*"):
        cache = Path(_CACHE)
    if "corpora" in settings:  # of a songbook
        settings["corpora"] = {
            name: _open_part(own, Path(settings["root"]))
            for name, own in settings["corpora"].items()
        }
    with parameter_of("data"):
        corpus = _build_corpus(corpus_class, settings)
    return EncodedCorpus.of(corpus, model.tokenizer, loader | {"cache_dir": cache})


def _open_part(settings: Mapping[str, Any], folder: Path) -> Corpus:
    """Return a corpus of a songbook, which is below the songbook's folder."""
    own = dict(settings)
    part: type[Corpus] = get_class(own.pop("_target_"))
    # A published model has no paths, but knows what to clone.
    own.setdefault("root", own.get("source", "composed").rpartition("/")[2])
    if issubclass(part, ComposedCorpus):
        _check_composed(folder / own["root"])
    return _build_corpus(part, own)


def _build_corpus(kind: type[Corpus], settings: Mapping[str, Any]) -> Corpus:
    """Return a corpus of settings that may come from an untrusted source."""
    if isinstance(settings.get("exclude"), str):
        expected = "expected names of pieces: a file that a checkpoint names is not read"
        raise ParameterError("exclude", settings["exclude"], expected)
    return kind(**settings)


def _check_composed(folder: Path) -> None:
    """Raise unless a folder is ours: a corpus would be composed there."""
    if not _is_ours(folder):
        raise UserError(
            f"the model's corpus was composed in {folder}, which does not exist here; give a "
            "folder below the current one, in which it is composed again, such as data.root=data"
        )


def _is_ours(folder: Path, content: str = "*") -> bool:
    """Return whether a folder is below the current one, or holds what the pattern matches."""
    here, folder = Path.cwd().resolve(), folder.expanduser()
    return (here / folder).resolve().is_relative_to(here) or any(folder.glob(content))


def piece_readers(data: EncodedCorpus, pieces: Sequence[int]) -> dict[str, Callable[[], Score]]:
    """Return functions that read pieces of the cache, by name."""
    names, by_name = data.cache.names, {piece.name: piece for piece in data.corpus.pieces()}
    return {names[i]: partial(data.corpus.read_piece, by_name[names[i]]) for i in pieces}
