"""The files of prompts, and pairs of generated pieces with the pieces of their prompts."""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from musicgen import load
from musicgen.checkpoints import build
from musicgen.console import log, warn_of_first
from musicgen.errors import UserError, errors_name
from musicgen.evaluation.inputs import Inputs
from musicgen.evaluation.training_data import open_training_data, piece_readers
from musicgen.generation.prompts import FROM_NOTHING, make_prompt, on_grid
from musicgen.midi import Score, find_music, pitched_notes, read, without_suffix
from musicgen.midi.key import Key, find_key
from musicgen.package_data import own_or_example
from musicgen.text import pluralize
from musicgen.tokenization.base import Tokenizer

MANIFEST = "generation.json"
"""What generate.py writes about its MIDI files, beside them."""

SPLITS = ("val", "test")
NUM_SKIPPED_SHOWN = 5

Originals = Mapping[str, Callable[[], Score]]
"""Functions that read the original pieces, by name."""


class Manifest(NamedTuple):
    """What generate.py says about its folder; empty for any other folder of MIDI files."""

    pieces: Mapping[str, Mapping[str, Any]] = {}  # rows by file name
    tokenizer: Tokenizer | None = None  # of the model
    references: str | list[str] | None = None  # the prompts, as `prompt=` names them
    checkpoint: str | None = None


@dataclass(frozen=True)
class Pair:
    """A generated piece without its prompt, and the piece that its prompt was taken from."""

    file: str  # name of the generated piece
    name: str  # of the reference
    continuation: Score
    reference: Score
    prompt_beats: float  # of the reference, from its beginning, that the model was shown

    @property
    def prompt_end(self) -> int:
        """Tick of the reference at which the prompt ends."""
        return round(self.prompt_beats * self.reference.ticks_per_beat)

    def prompt(self) -> tuple[Score, int]:
        """Return the prompt, and its number of bars."""
        bars = self.reference.bar_starts() < self.prompt_end
        return self.reference.clip(0, self.prompt_end), int(bars.sum())

    def key(self) -> Key | None:
        """Return the key of the prompt, of the whole reference without one."""
        prompt, _ = self.prompt()
        return find_key(pitched_notes(prompt if prompt.num_notes else self.reference))

    def own_continuation(self) -> Score:
        """Return the reference's music after the prompt, as long as the continuation."""
        ticks, new, start = self.reference.ticks_per_beat, self.continuation, self.prompt_end
        return self.reference.clip(start, start + new.end * ticks // new.ticks_per_beat)


def read_manifest(folder: Path) -> Manifest:
    """Read what generate.py wrote about a folder; an empty manifest if it wrote nothing.

    Raises:
        UserError: there is no MIDI file, or the manifest is damaged, or its tokenizer not ours.
    """
    find_music(folder)
    path = folder / MANIFEST
    if not path.is_file():
        return Manifest()
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        pieces = {row["file"]: row for row in content["pieces"]}
        config, references = content.get("tokenizer"), content.get("references")
        checkpoint = content.get("settings", {}).get("checkpoint")
        checkpoint = checkpoint if checkpoint and Path(checkpoint).exists() else None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path} is damaged; remove it, or generate again") from None
    with errors_name(path):
        tokenizer = None if config is None else build(config, Tokenizer)
    return Manifest(pieces, tokenizer, references, checkpoint)


def open_originals(inputs: Inputs, manifest: Manifest) -> Originals:
    """Open the originals: a folder, a file, or held-out pieces of a checkpoint's corpus.

    Without the setting, the manifest says where the prompts came from. Each is read once, from its
    first bar with a note on; through the tokenizer if it is known, so that quantisation, dropped
    instruments and metre are the same on both sides.
    """
    place = inputs.references or manifest.references
    if place is None:
        raise UserError("give the folder of the originals: references=DIR (or val or test)")
    if place in SPLITS:
        data = open_training_data(load(manifest.checkpoint or inputs.checkpoint), inputs.root)
        sources = piece_readers(data, data.split(str(place)))
    else:
        sources = {name: partial(read, path) for name, path in prompt_files(place).items()}

    def original(name: str) -> Score:
        score, tokenizer = sources[name](), manifest.tokenizer
        return score if tokenizer is None else make_prompt(tokenizer, score, name, None).piece

    return {name: cache(partial(original, name)) for name in sources}


def usual_measure(inputs: Inputs) -> str:
    """Return what to measure: a run; or generated files, beside their originals or as a set."""
    folder, place = inputs.generated, inputs.references
    if not folder or place is None or place in SPLITS:
        return "style" if folder or place else "evaluation"
    pieces = read_manifest(Path(folder).expanduser()).pieces
    prompts = [pieces.get(file, {}).get("prompt", file) for file in prompt_files(folder)]
    stems = (
        {without_suffix(PurePosixPath(name).name) for name in names}
        for names in (prompts, prompt_files(place))
    )
    return "style" if set.intersection(*stems) else "descriptors"


def read_pieces(
    folder: Path, tokenizer: Tokenizer | None
) -> dict[str, tuple[str, Score, int, Score]]:
    """Return each file that can be read, its piece, music, prompt's end, and what follows that.

    The piece, of which there may be several samples, is the prompt's, without one the file's own.
    What follows is on the tokenizer's grid if that is known.

    Raises:
        UserError: no file can be read.
    """
    found, pieces, skipped = {}, read_manifest(folder).pieces, []
    for path in find_music(folder):
        file = path.relative_to(folder).as_posix()
        row = pieces.get(file, {})
        prompt, end = row.get("prompt", file), row.get("prompt end", 0)
        own = file if prompt == FROM_NOTHING else prompt
        try:
            score = read(path)
            new = score.clip(end, score.end + 1)
            found[file] = own, score, end, new if tokenizer is None else on_grid(tokenizer, new)
        except UserError as error:
            skipped.append(f"left out: {file}: {str(error).removeprefix(f'{path}: ')}")
    warn_of_first(skipped, NUM_SKIPPED_SHOWN)
    if not found:
        raise UserError(f"{folder}: no file can be read")
    return found


def find_original(file: str, names: Iterable[str]) -> str:
    """Return the name of a file's original: the file's own, else the one that has its stem.

    Raises:
        UserError: no name has the stem, or several have it.
    """
    stem = without_suffix(PurePosixPath(file).name)
    if file in names:
        return file
    found = [name for name in names if without_suffix(PurePosixPath(name).name) == stem]
    if len(found) != 1:
        raise UserError(f"no file of the references is named {stem}")
    return found[0]


def open_pairs(inputs: Inputs, generated: str | None, measure: str) -> tuple[Originals, list[Pair]]:
    """Open the originals of a folder of generated files, and pair the files with them.

    The original of a file is the prompt that the manifest names, else the file of the same name.
    Files without one are left out with the reason; raises `UserError` if all are.
    """
    if not generated:
        raise UserError(f"metrics={measure} needs generated=, a folder that generate.py wrote")
    folder = Path(generated).expanduser()
    manifest = read_manifest(folder)
    originals = open_originals(inputs, manifest)
    pairs: list[Pair] = []
    skipped: list[str] = []
    for file, (*_, new) in read_pieces(folder, manifest.tokenizer).items():
        row = manifest.pieces.get(file, {})
        prompt = row.get("prompt", file)
        try:
            if prompt == FROM_NOTHING:
                raise UserError("generated without a prompt")
            name = find_original(prompt, originals)
            reference = originals[name]()
        except UserError as error:
            skipped.append(f"{file}: {error}")
            continue
        pairs.append(Pair(file, name, new, reference, row.get("prompt beats", 0)))
    if not pairs:
        raise UserError(
            f"nothing to compare: {skipped[0]} (1 of {len(skipped)}); give references=DIR, a "
            "folder whose files have the names of the generated ones"
        )
    warn_of_first([f"left out: {reason}" for reason in skipped], NUM_SKIPPED_SHOWN)
    log(f"{pluralize(len(pairs), 'pieces')} of {len(pairs) + len(skipped)} in {folder}")
    return originals, pairs


def prompt_files(prompt: str | Sequence[str]) -> dict[str, Path]:
    """Return the music files of a file or folder, or of several, by names that are unique.

    Raises:
        UserError: a file or folder is missing, or a folder holds no music file.
    """
    found: list[tuple[str, Path]] = []
    for given in [prompt] if isinstance(prompt, str) else prompt:
        path = _in_home(given)
        if path.is_dir():
            found += [(file.relative_to(path).as_posix(), file) for file in find_music(path)]
        elif path.exists():
            found.append((path.name, path))
        else:
            raise UserError(f"{path}: cannot be read (no such file or folder)")
    count = Counter(name for name, _ in found)
    unique = {name if count[name] == 1 else path.as_posix(): path for name, path in found}
    # File names need not be UTF-8.
    return {os.fsencode(k).decode(errors="backslashreplace"): path for k, path in unique.items()}


def absolute_prompts(prompt: str | Sequence[str] | None) -> str | list[str] | None:
    """Return what `prompt_files` takes with absolute paths; a split and None as they are."""
    if prompt is None or prompt in SPLITS:
        return prompt
    names = [prompt] if isinstance(prompt, str) else prompt
    return [str(_in_home(name).absolute()) for name in names]


def _in_home(name: str) -> Path:
    """Return a path with `~` for the home folder, which may also begin the name of a file."""
    try:
        return own_or_example(Path(name).expanduser())
    except RuntimeError:  # no user has this name
        return Path(name)
