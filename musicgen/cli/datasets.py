"""Build the corpus or the data module of a configuration."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf

from musicgen.checkpoints import check_targets
from musicgen.data.corpora import Corpus
from musicgen.data.preparation import EncodedCorpus
from musicgen.datasets import ExampleCorpus
from musicgen.errors import ParameterError, UserError, parameter_of
from musicgen.generation.model import MusicModel
from musicgen.midi import Score, find_midi
from musicgen.models import Transformer
from musicgen.position import NoPosition
from musicgen.tokenization.base import Tokenizer

if TYPE_CHECKING:
    from musicgen.data.loading import MusicDataModule
    from musicgen.datasets.datamodule import ExampleDataModule

T = TypeVar("T")

# The composed corpus that `kind: null` means for each tokenizer.
_KINDS = {"remi": "pop", "groove2groove": "groove", "chorale": "pop"}
_COMPOSED = "data/composed"
_CACHE = "data/cache"  # of corpora whose own cache is not here
_MATCHING_SECONDS = 10


def build_data(
    config: DictConfig | Mapping[str, Any],
    tokenizer: Tokenizer,
    coordinates: Sequence[str] = ("index",),
) -> MusicDataModule:
    """Build the corpus and the data module of a `data` section.

    The settings of the corpus stand in the section itself, where users set them (`data.root=…`);
    its `corpus` lists which of them they are. The others are settings of the data module.
    """
    module_class: type[MusicDataModule] = get_class(config["_target_"])
    with parameter_of("data"):
        corpus, settings = _build_corpus(config, tokenizer)
        if not isinstance(corpus, Corpus):
            raise UserError(
                f"{type(corpus).__name__} is not music; choose its task, such as task=listops"
            )
        return module_class(corpus, tokenizer, coordinates=coordinates, **settings)


def build_examples(
    config: DictConfig, build_model: Callable[..., Transformer]
) -> tuple[Transformer, ExampleDataModule]:
    """Build the data module of a `data` section that is not music, and the model for it.

    Args:
        build_model: takes `vocab_size, input_dim, num_outputs`.
    """
    module_class: type[ExampleDataModule] = get_class(config["_target_"])
    with parameter_of("data"):
        corpus, settings = _build_corpus(config, None)
    if not isinstance(corpus, ExampleCorpus):
        raise UserError(f"{type(corpus).__name__} is music, which tokenizer=null cannot read")
    model = build_model(
        vocab_size=corpus.vocab_size, input_dim=corpus.input_dim, num_outputs=corpus.num_outputs
    )
    if len(model.coordinate_names) > 1 == model.position.num_coordinates and not isinstance(
        model.position, NoPosition
    ):
        raise UserError(
            f"span has two coordinates, of which position={model.position.name} would read the row "
            "alone; use model.position.coordinates=2, or position=none"
        )
    with parameter_of("data"):
        return model, module_class(corpus, coordinates=model.coordinate_names, **settings)


def build_encoded_corpus(
    config: DictConfig | Mapping[str, Any], tokenizer: Tokenizer
) -> EncodedCorpus:
    """Build the corpus of a `data` section without its loader, which needs Lightning."""
    with parameter_of("data"):
        corpus, settings = _build_corpus(config, tokenizer)
        names = inspect.signature(EncodedCorpus).parameters
        settings = {name: value for name, value in settings.items() if name in names}
        return EncodedCorpus(corpus, tokenizer, **settings)


def _build_corpus(
    config: DictConfig | Mapping[str, Any], tokenizer: Tokenizer | None
) -> tuple[Any, dict[str, Any]]:
    """Return the corpus of a `data` section, and the settings that are not the corpus's."""
    plain: Any = config
    if isinstance(config, DictConfig):
        plain = OmegaConf.to_container(config, resolve=True)
    corpus_settings = dict(plain["corpus"])
    kept = plain.keys() - corpus_settings.keys() - {"corpus", "_target_"}
    corpus_class = get_class(corpus_settings.pop("_target_"))
    if corpus_settings.get("kind", "") is None:
        assert tokenizer is not None
        corpus_settings["kind"] = _KINDS[tokenizer.name]
    return corpus_class(**corpus_settings), {name: plain[name] for name in plain if name in kept}


def open_training_data(model: MusicModel, root: str | Path | None = None) -> EncodedCorpus:
    """Open the corpus that a model was trained on; `root` is its folder now, if it was moved.

    The checkpoint may come from an untrusted source: nothing is downloaded, no folder is made but
    below the current one, and a regular expression must end.

    Raises:
        ValueError: the folder is missing, or the checkpoint names no corpus of musicgen.
    """
    data = model.content.config.get("data")
    if not isinstance(data, Mapping) or not isinstance(data.get("corpus"), Mapping):
        raise UserError(f"{model.path}: does not say what it was trained on; use another")
    # Without the loader's class, which is not needed.
    config = {key: value for key, value in data.items() if key != "_target_"}
    check_targets(config, (Corpus,))
    corpus = dict(config["corpus"])
    composed = "kind" in corpus
    config.setdefault("cache_dir", _CACHE)  # published models have no paths
    if composed:
        corpus.setdefault("root", _COMPOSED)
    if root is None and "root" not in corpus:
        expected = "expected the corpus's folder, which a published model does not know"
        raise ParameterError("data.root", "null", expected)
    if root is not None:
        if not composed and not Path(root).expanduser().exists():
            raise ParameterError("data.root", root, "expected a folder that contains the corpus")
        corpus["root"] = str(root)
    elif composed and not _is_ours(Path(corpus["root"])):  # it would be composed there
        raise UserError(
            f"the model's corpus was composed in {corpus['root']}, which is not here; give another "
            f"folder: data.root={_COMPOSED}"
        )
    if "download" in corpus:
        corpus["download"] = False
    cache = Path(config["cache_dir"])
    if not _is_ours(cache, f"{model.tokenizer.name}-*"):
        config["cache_dir"] = _CACHE
    if group := corpus.get("group"):
        check_expression(group, Path(corpus["root"]).expanduser())
    return build_encoded_corpus(config | {"corpus": corpus}, model.tokenizer)


def _is_ours(folder: Path, content: str = "*") -> bool:
    """Return whether a folder is below the current one, or exists and holds something."""
    here, folder = Path.cwd().resolve(), folder.expanduser()
    return (here / folder).resolve().is_relative_to(here) or any(folder.glob(content))


def check_expression(pattern: str, root: Path) -> None:
    """Match a regular expression to the names below a folder in a process, with a time limit.

    Some expressions take years, and cannot be interrupted in this process.

    Raises:
        UserError: it does not end in time.
    """
    names = [path.relative_to(root).as_posix() for path in find_midi(root)]
    script = "import json, re, sys\npattern, names = json.load(sys.stdin)\n"
    script += "for name in names: re.search(pattern, name)"
    try:
        subprocess.run(
            [sys.executable, "-I", "-c", script],
            input=json.dumps([pattern, names]).encode(),
            timeout=_MATCHING_SECONDS,
            capture_output=True,
        )
    except subprocess.TimeoutExpired:
        raise UserError(
            f"the model's data.group={pattern} does not end on the files below {root}; use another "
            "checkpoint"
        ) from None


def evenly_spaced(items: Sequence[T], count: int | None) -> list[T]:
    """Return `count` of the items, evenly spaced; all of them if there are fewer, or for None."""
    if count is None or count >= len(items):
        return list(items)
    return [items[i * len(items) // count] for i in range(count)]


def held_out_pieces(data: EncodedCorpus, split: str) -> dict[str, Callable[[], Score]]:
    """Return functions that read the pieces of `val` or `test`, by name."""
    pieces = {piece.name: piece for piece in data.corpus.pieces()}
    names = [data.cache.names[i] for i in data.split(split)]
    return {name: partial(data.corpus.read_piece, pieces[name]) for name in names}
