"""Self-contained HTML page about generated music: piano rolls, a player, metadata.

Text is escaped here, music is embedded as JSON, style and script are inlined.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from numbers import Integral, Real
from pathlib import PurePath
from string import Template
from urllib.parse import quote

from musicgen.midi.score import Score, Track
from musicgen.report.payload import family, score_payload
from musicgen.text import pluralize

Value = str | int | float | None
Metadata = Mapping[str, Value]  # by label

SCRIPTS = ("score.js", "synth.js", "roll.js", "player.js")
NUM_COLOURS = 8  # --track-0 … --track-7 in style.css


@dataclass(frozen=True)
class ReportPiece:
    """One piece of the report."""

    title: str
    score: Score  # prompt and continuation together
    prompt_end: int  # the tick at which the continuation begins; 0 without a prompt
    midi_file: str | None  # relative to the report; None for no link
    metadata: Metadata


def render_report(
    *,
    title: str,
    pieces: Sequence[ReportPiece],
    metadata: Metadata,
    notices: Sequence[str] = (),
) -> str:
    """Return the page as text.

    Args:
        metadata: of all pieces: settings, seed, checkpoint, speed.
        notices: highlighted sentences, such as a limit that was reached.
    """
    style = _asset("style.css")
    script = "\n".join(_asset(name) for name in SCRIPTS)
    return Template(_asset("page.html")).substitute(
        title=_text(title),
        style=style,
        style_hash=_content_hash(style),
        script=script,
        script_hash=_content_hash(script),
        notices="".join(f'<p class="notice">{_text(notice)}</p>\n' for notice in notices),
        metadata=_metadata_list(metadata),
        contents=_contents_table(pieces) if len(pieces) > 1 else "",
        pieces="\n".join(_piece(index, piece) for index, piece in enumerate(pieces)),
    )


def _piece(index: int, piece: ReportPiece) -> str:
    score = piece.score
    payload = score_payload(score, piece.prompt_end)
    data = json.dumps(payload, separators=(",", ":"), allow_nan=False)
    return Template(_asset("piece.html")).substitute(
        index=index,
        title=_text(piece.title),
        summary=_summary(score, piece.prompt_end),
        download=_download(piece),
        legend="\n".join(_legend_entry(*entry) for entry in enumerate(score.tracks)),
        metadata=_metadata_list(piece.metadata),
        data=data.replace("<", "\\u003c"),  # so that no text can close the script element
    )


def _summary(score: Score, prompt_end: int) -> str:
    """Return the numbers of bars and notes, in all and of prompt and continuation."""
    starts = score.bar_starts() if score.num_notes else score.bar_starts()[:0]
    bars, prompt_bars = len(starts), int((starts < prompt_end).sum())
    prompt_notes = sum(int((track.notes["onset"] < prompt_end).sum()) for track in score.tracks)

    def size(bars: int, notes: int) -> str:
        return f"{pluralize(bars, 'bars')}, {pluralize(notes, 'notes')}"

    if prompt_end <= 0:
        return size(bars, score.num_notes)
    return (
        f"{size(bars, score.num_notes)} · prompt {size(prompt_bars, prompt_notes)} · "
        f"continuation {size(bars - prompt_bars, score.num_notes - prompt_notes)}"
    )


def _legend_entry(number: int, track: Track) -> str:
    kind = family(track)[0]
    name = track.name.strip()
    label = _text(name or kind)
    detail = pluralize(len(track.notes), "notes")
    if name and kind.casefold() not in name.casefold():
        detail = f"{kind}, {detail}"
    switches = "".join(
        f'<button type="button" class="{action.lower()}" aria-pressed="false" '
        f'title="{action}" aria-label="{action} {label}">{action[0]}</button>'
        for action in ("Mute", "Solo")
    )
    return (
        f'<li data-track="{number}"><span class="swatch track-{number % NUM_COLOURS}"></span>'
        f'<span class="name">{label} <small>{detail}</small></span>{switches}</li>'
    )


def _download(piece: ReportPiece) -> str:
    if piece.midi_file is None:
        return ""
    assert not PurePath(piece.midi_file).is_absolute(), "midi_file is relative to the report"
    # Quoted, so that a colon ends no URL scheme; as bytes, as file names may be invalid Unicode.
    address = quote(os.fsencode(piece.midi_file))
    return (
        f'<a class="download" href="{address}" download '
        f'aria-label="Download MIDI of {_text(piece.title)}">MIDI</a>'
    )


def _contents_table(pieces: Sequence[ReportPiece]) -> str:
    """Return a table with one row per piece, under the labels of all pieces' metadata."""
    labels = list(dict.fromkeys(label for piece in pieces for label in piece.metadata))
    head = "".join(f'<th scope="col">{_text(label)}</th>' for label in labels)
    rows = "\n".join(
        f'<tr><th scope="row"><a href="#piece-{index}">{_text(piece.title)}</a></th>'
        + "".join(f"<td>{_value(piece.metadata.get(label))}</td>" for label in labels)
        + "</tr>"
        for index, piece in enumerate(pieces)
    )
    return (
        '<nav class="contents" aria-label="Pieces" tabindex="0"><table>\n'
        f'<thead><tr><th scope="col">Piece</th>{head}</tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody></table></nav>"
    )


def _metadata_list(metadata: Metadata) -> str:
    if not metadata:
        return ""
    entries = "\n".join(
        f"<div><dt>{_text(label)}</dt><dd>{_value(value)}</dd></div>"
        for label, value in metadata.items()
    )
    return f'<dl class="metadata">\n{entries}\n</dl>'


def _value(value: Value) -> str:
    """Format integers in full (seeds are copied), floats to four significant digits."""
    if isinstance(value, Real) and not isinstance(value, Integral):
        value = float(value)
        if math.isnan(value):
            return "n/a"
        return f"{value:.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"
    return "n/a" if value is None else _text(str(value))


def _text(text: str) -> str:
    """Escape text for elements and quoted attributes; bytes that are not Unicode become `?`."""
    return escape(text.encode("utf-8", "replace").decode())


def _content_hash(text: str) -> str:
    """Return a Content-Security-Policy source that allows only this inline text."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _asset(name: str) -> str:
    return files("musicgen.report").joinpath("page", name).read_text(encoding="utf-8")
