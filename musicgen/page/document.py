"""One HTML file that composes: a model, compiled to JavaScript, with its tokenizer and a player.

The page loads nothing. Its worker reads MIDI files, encodes them, samples and decodes; grammar and
tokenizer are those of Python, driven by the tables made here.
"""

from __future__ import annotations

import base64
import copy
import zlib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch

from musicgen.checkpoints.content import CheckpointContent
from musicgen.errors import UserError
from musicgen.export.cached import full_graph
from musicgen.export.step import RecurrentStep
from musicgen.files import write_text
from musicgen.midi import Track
from musicgen.midi.key import KEYS, key_fits, spelling
from musicgen.models import Transformer
from musicgen.page.compiler.compile import JavaScriptStep, compile_step
from musicgen.random import NoiseKey
from musicgen.report.markup import asset, embedded_json, render_page, text
from musicgen.report.payload import track_voice
from musicgen.tokenization import REMI, Chorale, Songs
from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.chorale.grammar import LEAD, LEADING
from musicgen.tokenization.chords.recognition import recognition_tables
from musicgen.tokenization.chords.symbols import CHORDS, chord_index
from musicgen.tokenization.coordinates import Coordinates
from musicgen.tokenization.instruments import BASS_PROGRAMS
from musicgen.tokenization.quantization import bin_edges
from musicgen.tokenization.songs.grammar import part_order
from musicgen.tokenization.transposition import Transposition

WORKER = (
    *("midi", "quantization", "sampling", "grammar", "chords", "bars", "chorale", "prompt"),
    *("model", "composer", "worker"),
)
REPORT_SCRIPTS = ("score", "synth", "colours", "roll", "player")  # which the report has, too
SCRIPTS = ("payload", "recorder", "keyboard", "live", "page", "weights", "start")
ACCOMPANY = {"chorale": "Harmonise", "songs": "Accompany"}  # what writes to a melody
HOLD = '<label class="check"><input type="checkbox" id="hold-{0}" checked> hold the {0}</label>'


def save_page(
    model: Transformer,
    tokenizer: Tokenizer,
    content: CheckpointContent,
    path: Path,
    *,
    sampling: Mapping[str, Any],
) -> None:
    """Write the page of a model, titled like its file.

    Args:
        model: in evaluation mode; its weights are stored in half precision.
        sampling: the fields of `SamplingParams`; the page lets people change the temperature.

    Raises:
        UserError: the page cannot have this model, or the extra `onnx` is missing.
    """
    tables = tokenizer_tables(tokenizer, content.config["loader"]["chords"])
    step = javascript_step(with_half_weights(model), sampling["lag_bias"] or ())
    scripts = "\n".join(map(script, WORKER))
    layout = {"buffers": step.buffers, "inputs": step.inputs, "states": step.states}
    data = {
        "tables": tables,
        "step": {**layout, "coordinates": model.coordinate_names},
        "sampling": dict(sampling),
    }
    num = {name: len(tokenizer.families.get(name, ())) for name in ("Tempo", "Bar")}
    holds = {"tempo": num["Tempo"] > 0, "metre": num["Bar"] > 1}
    millions = sum(each.numel() for each in model.parameters()) / 1e6
    page = render_page(
        page_file("page.html"),
        styles=[asset("style.css"), page_file("composer.css")],
        scripts=[*(asset(f"{name}.js") for name in REPORT_SCRIPTS), *map(script, SCRIPTS)],
        title=text(path.stem),
        about=text(f"{content.describe('A model')}, {millions:.1f} million parameters"),
        temperature=str(sampling["temperature"]),
        accompany=tables["accompany"],
        holds="\n".join(HOLD.format(name) for name, has in holds.items() if has),
        content=embedded_json(data),
        worker=f"{scripts}\nconst compileStep = {step.source};",
        weights=pack_weights(step.data),
    )
    write_text(path, page)


def script(name: str) -> str:
    """Return one of the scripts of the page or its worker."""
    return page_file(f"{name}.js")


def page_file(name: str) -> str:
    """Return the text of a file in `page/scripts/`."""
    return files("musicgen.page").joinpath("scripts", name).read_text(encoding="utf-8")


def pack_weights(data: bytes) -> str:
    """Return bytes as text for `unpackWeights` in the page, which adds one to an odd number."""
    pairs = np.frombuffer(data + bytes(len(data) % 2), np.uint8).reshape(-1, 2)
    # High bytes of floats repeat, low ones hardly do.
    return base64.b64encode(zlib.compress(pairs.T.tobytes(), 9)).decode()


def with_half_weights(model: Transformer) -> Transformer:
    """Return a copy whose parameters are numbers of half precision."""
    rounded = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in rounded.parameters():
            parameter.copy_(parameter.half())
    return rounded


def javascript_step(model: Transformer, lag_bias: Sequence[float] = ()) -> JavaScriptStep:
    """Compile a model's decoding step; a copy head has `SamplingParams.lag_bias` in its state."""
    step = RecurrentStep(model, NoiseKey((0,)))
    state = {name: tensor.numpy() for name, tensor in step.template.tensors().items()}
    if len(lag_bias):
        state["copied.lag_bias"][0, : len(lag_bias)] = lag_bias
    return compile_step(full_graph(step), state)


def tokenizer_tables(tokenizer: Tokenizer, chord_source: str = "auto") -> dict[str, Any]:
    """Return what the page's tokenizer and grammar read."""
    families = {name: [ids.start, ids.stop] for name, ids in tokenizer.families.items()}
    tables: dict[str, Any] = {
        "name": tokenizer.name,
        "size": len(tokenizer.vocabulary),
        "families": families,
        "stepsPerBeat": tokenizer.steps_per_beat,
        "away": Transposition(tokenizer).tritone().tolist(),
        "changes": {
            name: values.tolist() for name, values in Coordinates(tokenizer).values.items()
        },
        "keyFits": [(k.fifths, fit) for k, fit in zip(KEYS, key_fits().tolist(), strict=True)],
        "spellings": {fifths: spelling(fifths) for fifths in range(-9, 10)},
        "tracks": [
            {"name": x.name, "program": x.program, "isDrum": x.is_drum, "voice": track_voice(x)}
            for x in tokenizer.decode(tokenizer.start_tokens()).tracks
        ],
        "played": tokenizer.find_track(Track("Piano")) or 0,  # with the keys of the page
        "accompany": ACCOMPANY[tokenizer.name] if getattr(tokenizer, "lead_probability", 0) else "",
    }
    if isinstance(tokenizer, Chorale):
        return tables | {
            "max_frames": tokenizer.grammar().limit,
            "pitches": {"start": tokenizer.pitches.start, "size": len(tokenizer.pitches)},
            "lead": LEAD,
            "leading": LEADING if tokenizer.families["Lead"] else [],
        }
    if not isinstance(tokenizer, REMI | Songs):
        raise UserError(f"tokenizer={tokenizer.name} has no page; remi, songs and chorale have")
    return tables | _bar_tables(tokenizer, chord_source)


def _bar_tables(tokenizer: REMI | Songs, chord_source: str) -> dict[str, Any]:
    is_songs, parts = isinstance(tokenizer, Songs), tokenizer.instruments
    grammar = tokenizer.grammar()

    def bins(values: Sequence[int], by_ratio: bool = False) -> dict[str, list[Any]] | None:
        edges = bin_edges(values, by_ratio).tolist()
        return {"values": [*values], "edges": edges} if len(values) else None

    names = [
        f"{note}{accidental}_{chord.partition('_')[2]}"
        for note in "ABCDEFG"
        for accidental in ("", "#", "##", "b", "bb")
        for chord in CHORDS[:11]
    ]
    return {
        "followers": {name: sorted(x) for name, x in grammar.followers.items()},
        "header": tokenizer.header,
        "bar_lengths": tokenizer.signatures.lengths.tolist(),
        "max_bars": tokenizer.max_bars,
        "metres": tokenizer.signatures.fractions,
        "lowest": {"Pitch": tokenizer.pitches.start, "Drum": tokenizer.drums.start},
        "unit": grammar.unit,
        "durations": bins(grammar.durations.tolist(), is_songs),
        "velocities": bins(tokenizer.velocities),
        "tempi": bins(tokenizer.tempi, is_songs),
        "places": part_order(len(parts), is_songs and tokenizer.chords).tolist(),
        "words": [
            [word.lower(), i]
            for i, part in enumerate(tokenizer.parts if isinstance(tokenizer, Songs) else ())
            for word in ([] if parts[i].is_drum else [part["name"], *part.get("words", ())])
        ],
        "programs": [tokenizer.find_track(Track("", program)) for program in range(128)],
        "drums": tokenizer.find_track(Track("", is_drum=True)),
        "basses": [i for i, part in enumerate(parts) if part.program in BASS_PROGRAMS],
        "chords": tokenizer.chords,
        "chordSource": chord_source,
        "chordNames": CHORDS,
        "chordIndices": {name: chord_index(name) for name in (*names, "N_N")},
        "recognition": recognition_tables(),
    }
