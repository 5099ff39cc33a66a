"""Generated pieces, the originals of their prompts, and pairs of both."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache, partial
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, NamedTuple, Required

from pydantic import Field
from typing_extensions import TypedDict

from musicgen import load
from musicgen.checkpoints import build
from musicgen.console import log, warn_of_first
from musicgen.data.prompt_files import HELD_OUT, prompt_files
from musicgen.errors import UserError, errors_name
from musicgen.evaluation.runs import Inputs, open_training_data, piece_readers
from musicgen.files import read_json
from musicgen.generation.prompt import NEW_PIECE, make_prompt
from musicgen.generation.source import on_grid
from musicgen.midi import Score, find_music, read, without_suffix
from musicgen.run_folders import MANIFEST
from musicgen.text import pluralize
from musicgen.tokenization.base import Tokenizer
from musicgen.validation import check_schema

WITHOUT_PROMPT = (NEW_PIECE, "from nothing")
"""Names of the prompt of pieces without one, in manifests of this version and of 0.1."""

NUM_SKIPPED_SHOWN = 5

Originals = Mapping[str, Callable[[], Score]]
"""Functions that read the original pieces, by name."""


_SavedPiece = TypedDict(
    "_SavedPiece",
    {
        "file": Required[str],
        "prompt": str,
        "prompt end": Annotated[int, Field(ge=0, lt=2**28)],  # ticks of a MIDI file
        "prompt beats": Annotated[float, Field(ge=0, lt=2**28)],
    },
    total=False,
)


class _SavedSettings(TypedDict, total=False):
    checkpoint: str | None


class _SavedManifest(TypedDict, total=False):
    """What is read of the file."""

    pieces: Required[list[_SavedPiece]]
    tokenizer: dict[str, Any] | None
    references: str | list[str] | None
    settings: _SavedSettings


class Manifest(NamedTuple):
    """A folder of music and its description by generate.py, empty for any other folder."""

    folder: Path
    pieces: Mapping[str, Mapping[str, Any]] = {}  # entries by file name
    tokenizer: Tokenizer | None = None  # tokenizer of the model
    references: str | list[str] | None = None  # the prompts, as in `prompt=`
    checkpoint: str | None = None  # checkpoint of the model, if it still exists


class Pair(NamedTuple):
    """A continuation and the original: the piece that its prompt begins."""

    file: str  # name of the generated file
    name: str  # name of the original
    continuation: Score  # without the prompt
    reference: Score  # the original
    prompt_end: int  # tick of the original at which the prompt ends

    def original_continuation(self) -> Score:
        """Return the music of the original after the prompt, as long as the continuation."""
        new = self.continuation
        length = new.end * self.reference.ticks_per_beat // new.ticks_per_beat
        return self.reference.clip(self.prompt_end, self.prompt_end + length)


def read_manifest(folder: str | Path) -> Manifest:
    """Return the manifest of a folder; an empty one if generate.py did not write the folder.

    Raises:
        UserError: the folder has no MIDI file, the manifest is damaged, or its tokenizer is not in
            this package.
    """
    folder = Path(folder).expanduser()
    find_music(folder)
    path = folder / MANIFEST
    if not path.is_file():
        return Manifest(folder)
    content = read_json(path, folder)
    try:
        check_schema(_SavedManifest, content)
    except UserError as error:
        raise UserError(f"{path} is damaged ({error}); remove it, or generate again") from None
    pieces = {entry["file"]: entry for entry in content["pieces"]}
    config, references = content.get("tokenizer"), content.get("references")
    checkpoint = content.get("settings", {}).get("checkpoint")
    with suppress(OSError):  # its name is too long
        checkpoint = checkpoint if checkpoint and Path(checkpoint).exists() else None
    with errors_name(path):
        tokenizer = None if config is None else build(config, Tokenizer)
    return Manifest(folder, pieces, tokenizer, references, checkpoint)


def open_originals(inputs: Inputs, manifest: Manifest) -> Originals:
    """Return the originals, from files or from a held-out split of the corpus of a checkpoint.

    The setting `references` says where they are, or else the manifest. A piece is read on first
    use, from its first bar with a note. If the tokenizer is known, the piece is encoded and decoded
    by it, so that the original and the continuation have the same quantisation, instruments and
    time signatures.

    Raises:
        UserError: neither the setting nor the manifest says where the originals are.
    """
    place = inputs.references or manifest.references
    if place is None:
        raise UserError(
            "the originals are not known; give their folder, references=DIR, or a split, "
            "references=val or references=test"
        )
    if place in HELD_OUT:
        data = open_training_data(load(manifest.checkpoint or inputs.checkpoint), inputs.root)
        sources = piece_readers(data, data.split(str(place)))
    else:
        sources = {name: partial(read, path) for name, path in prompt_files(place).items()}

    def original(name: str) -> Score:
        score, tokenizer = sources[name](), manifest.tokenizer
        return score if tokenizer is None else make_prompt(tokenizer, score, name, None).piece

    return {name: cache(partial(original, name)) for name in sources}


def default_measure(inputs: Inputs) -> str:
    """Return the measure that `metrics=null` stands for.

    It is `evaluation` for a run and `style` for generated files. It is `descriptors` for generated
    files whose originals are not known, or if no file in the folder `references` has the name of a
    generated file.
    """
    generated, references = inputs.generated, inputs.references
    if inputs.compare:
        return "style_over_time"
    if not generated:
        return "style" if references else "evaluation"
    if references in HELD_OUT:
        return "style"
    manifest = read_manifest(generated)
    if not references:
        return "style" if manifest.references else "descriptors"
    prompts = [
        manifest.pieces.get(file, {}).get("prompt", file) for file in prompt_files(generated)
    ]
    stems = {_stem(name) for name in prompts} & {_stem(name) for name in prompt_files(references)}
    return "style" if stems else "descriptors"


def read_pieces(manifest: Manifest) -> dict[str, tuple[str, dict[str, Any], Score, Score]]:
    """Return the pieces of a folder, by file name.

    Files that cannot be read are left out with a warning.

    Returns:
        Per file: the name of the prompt, or of the file without a prompt; the entry of the
        manifest; the score; and the music after the prompt, on the grid of the tokenizer if that
        is known.

    Raises:
        UserError: no file can be read.
    """
    found = {}
    skipped: list[str] = []
    for path in find_music(manifest.folder):
        file = path.relative_to(manifest.folder).as_posix()
        if file not in manifest.pieces and f"{without_suffix(file)}.mid" in manifest.pieces:
            continue  # the printed score of a piece
        entry: dict[str, Any] = {"prompt": file, "prompt end": 0, "prompt beats": 0}
        entry |= manifest.pieces.get(file, {})
        try:
            score = read(path)
            continuation = score.clip(entry["prompt end"], score.end + 1)
            if manifest.tokenizer is not None:
                continuation = on_grid(manifest.tokenizer, continuation)
        except UserError as error:
            skipped.append(f"left out: {file}: {str(error).removeprefix(f'{path}: ')}")
            continue
        original = file if entry["prompt"] in WITHOUT_PROMPT else entry["prompt"]
        found[file] = original, entry, score, continuation
    warn_of_first(skipped, NUM_SKIPPED_SHOWN)
    if not found:
        raise UserError(f"{manifest.folder}: no file can be read")
    return found


def find_original(file: str, names: Iterable[str]) -> str:
    """Return the name of the original of a file: the same name, or else the only one with its stem.

    Raises:
        UserError: no name, or more than one, has this stem.
    """
    if file in names:
        return file
    found = [name for name in names if _stem(name) == _stem(file)]
    if len(found) != 1:
        count = "no file" if not found else "more than one file"
        raise UserError(f"{count} of the references is named {_stem(file)}")
    return found[0]


def _stem(name: str) -> str:
    """Return the name of a file without folders and suffix."""
    return without_suffix(PurePosixPath(name).name)


def open_pairs(inputs: Inputs, generated: str | None, measure: str) -> tuple[Originals, list[Pair]]:
    """Return the originals of a folder of generated files, and the pairs of file and original.

    The original of a file is the prompt in the manifest, or else the original with the same name.
    Files without an original are left out with a warning.

    Args:
        generated: the folder; None: not given.
        measure: name of the measure, for messages.

    Raises:
        UserError: no folder is given, or no file has an original.
    """
    if not generated:
        raise UserError(f"metrics={measure} needs generated=, a folder that generate.py wrote")
    manifest = read_manifest(generated)
    originals = open_originals(inputs, manifest)
    pairs: list[Pair] = []
    skipped: list[str] = []
    for file, (_, entry, _, continuation) in read_pieces(manifest).items():
        try:
            if entry["prompt"] in WITHOUT_PROMPT:
                raise UserError("generated without a prompt")
            name = find_original(entry["prompt"], originals)
            reference = originals[name]()
        except UserError as error:
            skipped.append(f"{file}: {error}")
            continue
        prompt_end = round(entry["prompt beats"] * reference.ticks_per_beat)
        pairs.append(Pair(file, name, continuation, reference, prompt_end))
    if not pairs:
        raise UserError(
            f"no file has an original: {skipped[0]} (1 of {len(skipped)}); give references=DIR, a "
            "folder whose files have the names of the generated ones"
        )
    warn_of_first([f"left out: {reason}" for reason in skipped], NUM_SKIPPED_SHOWN)
    log(f"{pluralize(len(pairs), 'pieces')} of {len(pairs) + len(skipped)} in {manifest.folder}")
    return originals, pairs
