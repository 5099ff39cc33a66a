"""One HTML file that composes: a model, compiled to JavaScript, with its tokenizer and a player.

The page loads nothing. Its worker reads MIDI files, encodes them, samples and decodes. Its grammar
and tokenizer equal those of Python, and are driven by the tables of `tables.py`.
"""

from __future__ import annotations

import base64
import copy
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from musicgen.checkpoints.content import CheckpointContent
from musicgen.export.cached import full_graph
from musicgen.export.step import RecurrentStep
from musicgen.files import write_text
from musicgen.models import Transformer
from musicgen.plugins.page.compile import compile_step
from musicgen.plugins.page.tables import constants, tokenizer_tables
from musicgen.random import NoiseKey
from musicgen.report.html import asset, embedded_json, render_page, text
from musicgen.tokenization.base import Tokenizer

_SCRIPTS = "plugins/page/scripts"
WORKER_SCRIPTS = (
    "scores",
    "midi_reader",
    "midi_writer",
    "quantization",
    "whole_bars",
    "chords",
    "phrases",
    "progression",
    "sampling",
    "grammar",
    "coordinates",
    "bar_tokenizer",
    "bar_grammar",
    "gaps",
    "chorale_tokenizer",
    "chorale_voices",
    "chorale_grammar",
    "performance",
    "prompt",
    "model",
    "composer",
    "worker",
)
REPORT_SCRIPTS = ("score", "synth", "colours", "roll", "player")  # shared with the report
PAGE_SCRIPTS = (
    "payload",
    "recorder",
    "keyboard",
    "live",
    "metronome",
    "rewriting",
    "page",
    "weights",
    "start",
)
# Fields of the page by the family of tokens that they set, and the fewest tokens of it.
_SETTINGS = (
    (
        "Chord",
        1,
        "<label>Chords of what is added"
        '<input type="text" id="chords" placeholder="C Am F G"></label>',
    ),
    (
        "Key",
        1,
        '<label>Key of a new piece<input type="text" id="key" placeholder="Eb"></label>',
    ),
    (
        "Tempo",
        1,
        '<label class="check"><input type="checkbox" id="fix-tempo" checked> fix the tempo</label>',
    ),
    (
        "Bar",
        2,
        '<label class="check"><input type="checkbox" id="fix-time-signature" checked>'
        " fix the time signature</label>",
    ),
    (
        "Left",
        1,
        '<label class="check"><input type="checkbox" id="close"> end in the last bar added</label>',
    ),
)
_FORM = (
    '<label>Form<input type="text" id="form" placeholder="AABA"></label>\n'
    "<label>Bars in a section"
    '<input type="number" id="section-bars" min="1" max="999" value="8"></label>'
)


def save_page(
    model: Transformer,
    tokenizer: Tokenizer,
    content: CheckpointContent,
    path: Path,
    *,
    sampling: Mapping[str, Any],
) -> None:
    """Write the page of a model. Its title is the name of the file.

    Args:
        model: in evaluation mode; its weights are stored in half precision.
        sampling: the fields of `SamplingParams`. The page has a slider for the temperature.

    Raises:
        UserError: a page cannot run this model, or packages of the extra `onnx` are missing.
    """
    tables = tokenizer_tables(tokenizer, content.config["loader"]["chords"])
    step, layout, weights = javascript_step(with_half_weights(model), sampling["lag_bias"] or ())
    data = {"tables": tables, "step": layout, "sampling": dict(sampling)}
    fields = [
        field
        for family, fewest, field in _SETTINGS
        if len(tokenizer.families.get(family, ())) >= fewest
    ]
    if model.copy_head is not None and model.copy_head.coordinate == "bar":
        fields.append(_FORM)
    worker = [constants_script(), *map(script, WORKER_SCRIPTS), f"const compileStep = {step};"]
    millions = sum(each.numel() for each in model.parameters()) / 1e6
    page = render_page(
        asset("page.html", _SCRIPTS),
        styles=[asset("style.css"), asset("composer.css", _SCRIPTS)],
        scripts=[
            constants_script(),
            *(asset(f"{name}.js") for name in REPORT_SCRIPTS),
            *map(script, PAGE_SCRIPTS),
        ],
        title=text(path.stem),
        about=text(f"{content.describe('A model')}, {millions:.1f} million parameters"),
        temperature=str(sampling["temperature"]),
        accompany=tables["accompany"],
        asked="\n".join(fields),
        content=embedded_json(data),
        worker="\n".join(worker),
        weights=pack_weights(weights),
    )
    write_text(path, page)


def read_page(path: Path) -> tuple[dict[str, Any], str, str]:
    """Return the content, the worker and the weights of a page that `save_page` wrote.

    The content has the tables of the tokenizer, the layout of the step, and the sampling settings;
    the worker is a program; the weights are packed, see `pack_weights`.
    """
    page = path.read_text(encoding="utf-8")
    parts = dict(re.findall(r'id="(content|worker|weights)">(.*?)</script>', page, re.DOTALL))
    return json.loads(parts["content"]), parts["worker"], parts["weights"]


def constants_script() -> str:
    """Return the script that gives the other scripts the constants of Python."""
    return f"const CONSTANTS = {embedded_json(constants())};"


def script(name: str) -> str:
    """Return one of the scripts of the page or its worker."""
    return asset(f"{name}.js", _SCRIPTS)


def pack_weights(data: bytes) -> str:
    """Return bytes as text; `unpackWeights` in the page restores them.

    A zero byte is added to an odd number of bytes.
    """
    pairs = np.frombuffer(data + bytes(len(data) % 2), np.uint8).reshape(-1, 2)
    # Low bytes come before high ones: high bytes of floats repeat, which compresses well.
    return base64.b64encode(zlib.compress(pairs.T.tobytes(), 9)).decode()


def with_half_weights(model: Transformer) -> Transformer:
    """Return a copy of a model with its parameters rounded to half precision."""
    rounded = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in rounded.parameters():
            parameter.copy_(parameter.half())
    return rounded


def javascript_step(
    model: Transformer, lag_bias: Sequence[float] = ()
) -> tuple[str, dict[str, Any], bytes]:
    """Compile a model's decoding step; return its source, layout and data, see `compile_step`.

    The layout also has the `coordinates`, the names of the columns of the positions.

    Args:
        lag_bias: `SamplingParams.lag_bias`.
    """
    step = RecurrentStep(model, NoiseKey((0,)))
    state = {name: tensor.numpy() for name, tensor in step.template.tensors().items()}
    settings = {name: tensor.numpy() for name, tensor in step.settings.items()}
    if len(lag_bias):
        settings["copy.lag_bias"][0, : len(lag_bias)] = lag_bias
    source, layout, data = compile_step(full_graph(step), state, settings)
    return source, {**layout, "coordinates": model.coordinate_names}, data
