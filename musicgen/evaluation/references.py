"""Pair generated pieces with the pieces that their prompts were taken from."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from musicgen import load
from musicgen.checkpoints import build
from musicgen.console import log, warn_of_first
from musicgen.errors import UserError, errors_name
from musicgen.evaluation.inputs import Inputs
from musicgen.evaluation.prompt_files import SPLITS, prompt_files
from musicgen.evaluation.training_data import held_out_pieces, open_training_data
from musicgen.generation.prompts import FROM_NOTHING, make_prompt, on_grid
from musicgen.metrics.key import Key, find_key
from musicgen.midi import Score, find_midi, pitched_notes, read, without_suffix
from musicgen.text import pluralize
from musicgen.tokenization.base import Tokenizer

MANIFEST = "generation.json"
"""What generate.py writes about its MIDI files, beside them."""

NUM_SKIPPED_SHOWN = 5

# What tools append to the name of a piece for its samples: song_0, song-2, "song 3", song (4).
# The one number at the end: song_2_0 is of song_2, not of song.
_SAMPLE = re.compile(r"(.+)[ _.-]\(?\d+\)?")


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


class References:
    """The original pieces by name, read once each, through the tokenizer if it is known.

    Quantisation, dropped instruments and metre are then the same on both sides.
    """

    def __init__(
        self, sources: Mapping[str, Callable[[], Score]], place: str, tokenizer: Tokenizer | None
    ) -> None:
        self.sources, self.place, self.tokenizer = sources, place, tokenizer
        self._by_stem = defaultdict(list)
        for name in sources:
            self._by_stem[_stem(name)].append(name)
        self._read: dict[str, Score] = {}

    def read(self, name: str) -> Score:
        """Return a piece from its first bar with a note on; raise `UserError` if it has none."""
        if name not in self._read:
            score = self.sources[name]()
            if self.tokenizer is not None:
                score = make_prompt(self.tokenizer, score, name, None).piece
            self._read[name] = score
        return self._read[name]

    def find(self, file: str, prompt: str | None) -> str:
        """Return the name of a generated file's original.

        It is the prompt that the manifest names, otherwise the file of the same name, or of the
        same name but for a separator and a number at its end.

        Raises:
            UserError: says why there is none.
        """
        if prompt is not None:
            if prompt in self.sources:
                return prompt
            stems, wanted = [_stem(prompt)], f"the prompt {prompt} of {MANIFEST}"
        else:
            numbered = _SAMPLE.fullmatch(_stem(file))
            stems = [_stem(file), *(numbered.groups() if numbered else ())]
            wanted = " or ".join(stems)
        for stem in stems:
            names = self._by_stem.get(stem, [])
            if len(names) > 1:
                folder = PurePosixPath(file).parent
                names = [n for n in names if PurePosixPath(n).parent == folder] or names
            if len(names) > 1:
                raise UserError(f"{len(names)} files named {stem} in {self.place}")
            if names:
                return names[0]
        raise UserError(f"no file named {wanted} in {self.place}")


def read_manifest(folder: Path) -> Manifest:
    """Read what generate.py wrote about a folder; an empty manifest if it wrote nothing.

    Raises:
        UserError: the folder has no MIDI files, or the manifest is damaged, or its tokenizer is not
            one of musicgen.
    """
    find_midi(folder)
    path = folder / MANIFEST
    if not path.is_file():
        return Manifest()
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        pieces = {row["file"]: row for row in content["pieces"]}
        checkpoint = content.get("settings", {}).get("checkpoint")
        config, references = content.get("tokenizer"), content.get("references")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path} is damaged; remove it, or generate again") from None
    with errors_name(path):
        tokenizer = None if config is None else build(config, Tokenizer)
    return Manifest(pieces, tokenizer, references, checkpoint)


def open_references(inputs: Inputs, manifest: Manifest) -> References:
    """Open the originals: a folder, a file, or held-out pieces of a checkpoint's corpus.

    Without the setting, the manifest says where the prompts came from.
    """
    place = inputs.references or manifest.references
    if place is None:
        raise UserError(
            "give references=, the folder of the originals (or val or test: held-out pieces of the "
            "checkpoint's corpus)"
        )
    if place in SPLITS:
        data = open_training_data(load(source_checkpoint(inputs, manifest)), inputs.root)
        sources = held_out_pieces(data, str(place))
    else:
        sources = {name: partial(read, path) for name, path in prompt_files(place).items()}
    return References(sources, f"references={place}", manifest.tokenizer)


def source_checkpoint(inputs: Inputs, manifest: Manifest) -> str:
    """Return the checkpoint of the pieces, if it is still there, else the setting's."""
    known = manifest.checkpoint
    return known if known is not None and Path(known).exists() else inputs.checkpoint


def open_pairs(
    inputs: Inputs, generated: str | None, measure: str
) -> tuple[References, list[Pair]]:
    """Open the originals of a folder of generated files, and pair the files; see `pair_files`."""
    if not generated:
        raise UserError(f"metrics={measure} needs generated=, a folder that generate.py wrote")
    folder = Path(generated).expanduser()
    manifest = read_manifest(folder)
    references = open_references(inputs, manifest)
    return references, pair_files(folder, manifest, references)


def read_continuation(score: Score, prompt_end: int, tokenizer: Tokenizer | None) -> Score:
    """Return the music of a file after its prompt, on the tokenizer's grid if it is known."""
    continuation = score.clip(prompt_end, score.end + 1)
    return continuation if tokenizer is None else on_grid(tokenizer, continuation)


def pair_files(folder: Path, manifest: Manifest, references: References) -> list[Pair]:
    """Pair the generated files with their originals.

    Files without a partner are named with the reasons; raises `UserError` if all are without.
    """
    pairs: list[Pair] = []
    skipped: dict[str, str] = {}
    for path in find_midi(folder):
        file = path.relative_to(folder).as_posix()
        row = manifest.pieces.get(file, {})
        if row.get("prompt") == FROM_NOTHING:
            skipped[file] = "generated without a prompt"
            continue
        try:
            name = references.find(file, row.get("prompt"))
            reference = references.read(name)
            score = read(path)
        except UserError as error:
            skipped[file] = str(error).removeprefix(f"{path}: ")
            continue
        continuation = read_continuation(score, row.get("prompt end", 0), manifest.tokenizer)
        pairs.append(Pair(file, name, continuation, reference, row.get("prompt beats", 0)))
    missing = manifest.pieces.keys() - {pair.file for pair in pairs} - skipped.keys()
    skipped |= dict.fromkeys(sorted(missing), f"named in {MANIFEST}, but not in the folder")
    left_out = [f"left out: {file}: {reason}" for file, reason in skipped.items()]
    if not pairs:
        more = f" (and {len(skipped) - 1} more)" if len(skipped) > 1 else ""
        raise UserError(
            f"nothing to compare: {left_out[0].removeprefix('left out: ')}{more}; give the folder "
            "of the originals as references=DIR, whose files have the names of the generated ones"
        )
    warn_of_first(left_out, NUM_SKIPPED_SHOWN)
    how = "as they are" if references.tokenizer is None else "both on the tokenizer's grid"
    total = len(pairs) + len(skipped)
    log(f"{pluralize(len(pairs), 'pieces')} of {total} in {folder}, with their originals, {how}")
    return pairs


def _stem(name: str) -> str:
    """Return the name of a file without its folder and its MIDI suffix."""
    return without_suffix(PurePosixPath(name).name)
