"""How surprising a model finds a piece: nats per token, note and bar."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F

from musicgen.errors import UserError
from musicgen.midi import Score
from musicgen.midi.score import FloatArray
from musicgen.models import Transformer
from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.coordinates import Coordinates
from musicgen.tokenization.vocabulary import IntArray, within

NOTE_NATS = np.dtype([("time", "f8"), ("pitch", "i8"), ("bar", "i8"), ("nats", "f8")])
"""Onset in quarters, MIDI pitch or -1, number of the bar, and nats of a note."""


@dataclass(frozen=True)
class Surprisal:
    """The surprisal −log p of each token of a piece, given the tokens before it.

    The first token, with which all pieces begin, is not predicted, and is left out.

    Attributes:
        ids, tokens: ids [L] and names of the tokens, the end token included.
        nats: of each token. [L]
        time: in quarters from the first bar. [L]
        bar: number of the bar, from 0. [L]
        note: number of the note that the token belongs to, from 0 in the order of the tokens; -1:
            none, such as a bar or a chord. A note has the token that begins it, its velocity, its
            duration and its note-off. In chorales, each token of a voice is a note. [L]
        notes: time, pitch, bar and sum of nats of each note. [num_notes] of `NOTE_NATS`
        bars: sum of nats in each bar. The end token counts in the last bar. [num_bars]
        notice: what the vocabulary cannot express of the piece; empty if it expresses everything.
    """

    ids: IntArray
    tokens: list[str]
    nats: FloatArray
    time: FloatArray
    bar: IntArray
    note: IntArray
    notes: np.ndarray
    bars: FloatArray
    notice: str


def surprisal(model: Transformer, tokenizer: Tokenizer, score: Score, name: str) -> Surprisal:
    """Return the surprisal of a whole piece under a model in evaluation mode.

    Args:
        name: of the piece, for messages.

    Raises:
        UserError: the piece has no note that the vocabulary can represent, or it is too long.
    """
    tokens, report = tokenizer.encode_with_report(score)
    summary, longest = report.summary(), model.position.max_length
    if not tokenizer.num_notes(tokens):
        raise UserError(f"{name}: no note that the vocabulary can represent")
    if longest is not None and len(tokens) - 1 > longest:
        raise UserError(
            f"{name}: {len(tokens) - 1:,} tokens, and position={model.position.name} can "
            f"encode {longest:,}; give a part of it, as musicgen.midi.read(FILE).clip(0, TICK)"
        )
    bar_length = tokenizer.bar_length(score)
    notice = summary.describe() if summary.lossy else ""
    coordinates = Coordinates(tokenizer)
    positions = coordinates.of(tokens, model.coordinate_names, bar_length=bar_length)
    device = next(model.parameters()).device
    ids = torch.from_numpy(np.asarray(tokens, np.int64)).to(device)
    inputs = torch.from_numpy(positions[None, :-1]).to(device)
    with torch.inference_mode():
        logits = model(ids[None, :-1], positions=inputs)[0]
        nats = F.cross_entropy(logits.float(), ids[1:], reduction="none").cpu().double().numpy()
    time, bar = coordinates.of(tokens, ("time", "bar"), bar_length=bar_length)[1:].T
    if len(bar) and tokens[-1] == tokenizer.vocabulary.id("EOS"):
        bar[-1] = bar[:-1].max(initial=0)  # the time of the end may be that of another bar
    names = [tokenizer.vocabulary.token(int(each)) for each in tokens]
    note = note_numbers(tokenizer, tokens)[1:]
    quarters = time / tokenizer.steps_per_beat
    begins = np.flatnonzero(np.diff(np.maximum.accumulate(note), prepend=-1) > 0)
    notes = np.zeros(len(begins), NOTE_NATS)
    notes["time"], notes["bar"] = quarters[begins], bar[begins]
    ends = [names[1:][i].rpartition("_")[2] for i in begins]
    notes["pitch"] = [int(each) if each.isdecimal() else -1 for each in ends]
    notes["nats"] = np.bincount(note[note >= 0], nats[note >= 0], len(notes))
    bars = np.zeros(int(bar.max(initial=-1)) + 1)
    np.add.at(bars, bar, nats)
    return Surprisal(tokens[1:], names[1:], nats, quarters, bar, note, notes, bars, notice)


def note_numbers(tokenizer: Tokenizer, tokens: IntArray) -> IntArray:
    """Return the number of the note that each id belongs to, see `Surprisal`: [L] -> [L]."""
    families = tokenizer.families
    begins = np.any([within(tokens, families[name]) for name in tokenizer.note_families], axis=0)
    number = np.cumsum(begins) - 1
    note = np.where(begins, number, -1)
    for name in ("Velocity", "Duration"):
        note = np.where(within(tokens, families.get(name, range(0))), number, note)
    if "NoteOff" in families:  # it ends the last note of its voice
        last: dict[int, int] = {}
        for i, token in enumerate(tokens.tolist()):
            if begins[i]:
                last[token - families["NoteOn"].start] = int(number[i])
            elif token in families["NoteOff"]:
                note[i] = last.get(token - families["NoteOff"].start, -1)
    return note
