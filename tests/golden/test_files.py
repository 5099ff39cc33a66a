"""Composed pieces, their tokens, and the MIDI files and notices of continuations stay as they are.

`python -m tests.golden.test_files` writes files.json anew, for a change that means to alter them.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import musicgen
from musicgen.composer import compose_pop
from musicgen.composer.bands import DrumPerformance, compose_band, compose_with_drummer
from musicgen.composer.grooves import compose_groove
from musicgen.composer.songs import compose_song
from musicgen.midi import TEMPO, Score, Track, dumps, notes_from, write
from tests.golden.test_golden import IN_C, chorale
from tests.plugins.beats.test_beats import performed, waltz
from tests.tokenizers import frozen_tokenizers

GOLDEN = Path(__file__).with_name("files.json")


def drummer() -> DrumPerformance:
    hits = [(240 * i, 60, (36, 42, 38, 42)[i % 4], 60 + i % 30) for i in range(8 * 30)]
    drums = Track("Drums", 0, True, notes_from(hits))
    return "rock", Score(480, [drums], np.array([(0, 100)], TEMPO))


COMPOSED: dict[str, Callable[[int], Score]] = {
    "pop": lambda i: compose_pop(3, i),
    "song": lambda i: compose_song(3, i),
    "groove": lambda i: compose_groove(3, ("rock", "ballad")[i % 2], 0, i),
    "band": lambda i: compose_band(3, 0, i),
    "drummer": lambda i: compose_with_drummer(drummer(), 3, 0, i),
}
PERFORMED = performed(waltz(), 0.55 + 0.1 * np.sin(np.arange(72)))[0]
EXAMPLE = "example.mid"
# Checkpoint, prompt and options of continuations that are written as files.
WRITTEN: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "file": ("songs-small", EXAMPLE, {"prompt_bars": 4, "bars": 2}),
    "whole file": ("songs-small", EXAMPLE, {"bars": 1}),
    "plain notes": (
        "songs-small",
        "example_3_4.mid",
        {"prompt_bars": 3, "bars": 2, "performance": "none"},
    ),
    "kept voice": ("songs-small", EXAMPLE, {"keep": "voice"}),
    "rewritten bars": ("songs-small", "example_6_8.mid", {"rewrite": "2"}),
    "performed": ("songs-small", "played.mid", {"prompt_bars": 4, "bars": 2}),
    "performed, on the beats of the file": (
        "songs-small",
        "played.mid",
        {"prompt_bars": 2, "bars": 1, "beats": "file"},
    ),
    "performed, rewritten": ("songs-small", "played.mid", {"rewrite": "3"}),
    "band": ("groove-small", "band.mid", {"prompt_bars": 2, "bars": 2}),
    "other program": (
        "groove-small",
        "band.mid",
        {"prompt_bars": 2, "bars": 1, "program": {"Guitar": "Violin"}},
    ),
    "chorale": ("bach-chorales", "chorale.mid", {"keep": "soprano"}),
    "no file": ("bach-chorales", chorale(IN_C), {"bars": 1}),
}
FILES = {"played.mid": PERFORMED, "band.mid": compose_band(3, 0, 0), "chorale.mid": chorale(IN_C)}


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


@cache
def load(name: str) -> Any:
    return musicgen.load(name)


def composed(name: str) -> list[str]:
    return [digest(dumps(COMPOSED[name](index))) for index in range(3)]


def encoded(name: str) -> list[str]:
    """The tokens of two composed pieces, with what encoding reports and their times."""
    tokenizer, found = frozen_tokenizers()[name], []
    for kind in "pop", "band":
        score = COMPOSED[kind](0)
        if name == "chorale":
            score = chorale([*IN_C, *reversed(IN_C)])
        tokens, report = tokenizer.encode_with_report(score)
        decoded = dumps(tokenizer.decode(tokens))
        found += [
            digest(tokens.astype("<i8").tobytes()),
            digest(tokenizer.times(tokens).astype("<i8").tobytes()),
            digest(decoded),
            report.summary().describe(),
        ]
    return found


def written(name: str, folder: Path) -> list[Any]:
    """The bytes, the cut and the notices of a continuation's file, and of that of its tokens."""
    checkpoint, prompt, options = WRITTEN[name]
    if isinstance(prompt, str) and prompt in FILES:
        write(FILES[prompt], folder / prompt)
        prompt = folder / prompt
    (piece,) = load(checkpoint).generate(prompt, seed=5, **options)
    files = [piece.midi_file(form) for form in ("original", "tokens")]
    rows = [(digest(file.data), int(file.prompt_end), file.notice) for file in files]
    return [*(list(row) for row in rows), piece.notice, piece.prompt.notice]


@pytest.fixture(scope="module")
def golden() -> Iterator[Any]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield json.loads(GOLDEN.read_text())
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", COMPOSED)
def test_composed_pieces(golden, name):
    assert composed(name) == golden["composed"][name]


@pytest.mark.parametrize("name", frozen_tokenizers())
def test_tokens(golden, name):
    assert encoded(name) == golden["tokens"][name]


@pytest.mark.parametrize("name", WRITTEN)
def test_files_of_continuations(golden, name, tmp_path):
    assert written(name, tmp_path) == golden["files"][name]


def write_golden(folder: Path) -> None:
    torch.set_num_threads(1)
    values = {
        "composed": {name: composed(name) for name in COMPOSED},
        "tokens": {name: encoded(name) for name in frozen_tokenizers()},
        "files": {name: written(name, folder) for name in WRITTEN},
    }
    GOLDEN.write_text(json.dumps(values, indent=1) + "\n")


if __name__ == "__main__":
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as name:
        write_golden(Path(name))
