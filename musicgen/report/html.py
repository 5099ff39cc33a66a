"""The report page: text is escaped here, music travels as JSON, style and script are inlined."""

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
from pathlib import Path, PurePath
from string import Template
from urllib.parse import quote

import numpy as np

from musicgen.files import write_text
from musicgen.midi.score import Score
from musicgen.report.payload import family, score_payload

Number = str | int | float | None
Numbers = Mapping[str, Number]

SCRIPTS = ("score.js", "synth.js", "roll.js", "player.js")
NUM_COLOURS = 8  # --track-0 … --track-7 in style.css


@dataclass(frozen=True)
class ReportPiece:
    """One piece of the report.

    Attributes:
        title: any text, such as a file name.
        score: prompt and continuation together.
        prompt_end: the tick of `score` at which the continuation begins; 0 without a prompt.
        midi_file: the piece's MIDI file, relative to the report; None for no link.
        numbers: what is known about this piece, by label; None is shown as n/a.
    """

    title: str
    score: Score
    prompt_end: int
    midi_file: str | None
    numbers: Numbers


def write_report(
    path: Path,
    *,
    title: str,
    pieces: Sequence[ReportPiece],
    numbers: Numbers,
    notices: Sequence[str] = (),
) -> None:
    """Write the report to `path` atomically; missing parent folders are created.

    Args:
        title: the page's heading.
        pieces: shown in this order.
        numbers: what holds for all pieces (settings, seed, checkpoint, speed), by label.
        notices: sentences that the reader must see, such as a limit that was reached.
    """
    write_text(path, render_report(title=title, pieces=pieces, numbers=numbers, notices=notices))


def render_report(
    *,
    title: str,
    pieces: Sequence[ReportPiece],
    numbers: Numbers,
    notices: Sequence[str] = (),
) -> str:
    """The page as text. The arguments are those of `write_report`."""
    style = _resource("style.css")
    script = "\n".join(_resource(name) for name in SCRIPTS)
    return Template(_resource("page.html")).substitute(
        title=_text(title),
        style=style,
        style_hash=_content_hash(style),
        script=script,
        script_hash=_content_hash(script),
        notices="".join(f'<p class="notice">{_text(notice)}</p>\n' for notice in notices),
        numbers=_number_list(numbers),
        contents=_contents_table(pieces) if len(pieces) > 1 else "",
        pieces="\n".join(_piece(index, piece) for index, piece in enumerate(pieces)),
    )


def _piece(index: int, piece: ReportPiece) -> str:
    score = piece.score
    in_prompt = sum(int((track.notes["onset"] < piece.prompt_end).sum()) for track in score.tracks)
    bars = score.bar_starts() if score.num_notes else np.empty(0, np.int64)
    prompt_bars = int((bars < piece.prompt_end).sum())
    summary = f"{_count(len(bars), 'bar')}, {_count(score.num_notes, 'note')}"
    if piece.prompt_end > 0:
        summary += (
            f" · prompt {_count(prompt_bars, 'bar')}, {_count(in_prompt, 'note')}"
            f" · continuation {_count(len(bars) - prompt_bars, 'bar')},"
            f" {_count(score.num_notes - in_prompt, 'note')}"
        )
    return Template(_resource("piece.html")).substitute(
        index=index,
        title=_text(piece.title),
        summary=summary,
        download=_download(piece),
        legend="\n".join(_legend_entry(number, piece) for number in range(len(score.tracks))),
        numbers=_number_list(piece.numbers),
        data=_json(score_payload(score, piece.prompt_end)),
    )


def _legend_entry(number: int, piece: ReportPiece) -> str:
    track = piece.score.tracks[number]
    kind = family(track)[0]
    name = track.name.strip()
    label = _text(name or kind)
    detail = _count(len(track.notes), "note")
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
    # Quoted, a colon is no URL scheme; bytes, since a file name need not be valid Unicode.
    address = quote(os.fsencode(piece.midi_file))
    return (
        f'<a class="download" href="{address}" download '
        f'aria-label="Download MIDI of {_text(piece.title)}">MIDI</a>'
    )


def _contents_table(pieces: Sequence[ReportPiece]) -> str:
    """All pieces, a row each, under the union of their numbers' labels."""
    labels = list(dict.fromkeys(label for piece in pieces for label in piece.numbers))
    head = "".join(f'<th scope="col">{_text(label)}</th>' for label in labels)
    rows = "\n".join(
        f'<tr><th scope="row"><a href="#piece-{index}">{_text(piece.title)}</a></th>'
        + "".join(f"<td>{_text(_number(piece.numbers.get(label)))}</td>" for label in labels)
        + "</tr>"
        for index, piece in enumerate(pieces)
    )
    return (
        '<nav class="contents" aria-label="Pieces" tabindex="0"><table>\n'
        f'<thead><tr><th scope="col">Piece</th>{head}</tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody></table></nav>"
    )


def _number_list(numbers: Numbers) -> str:
    if not numbers:
        return ""
    entries = "\n".join(
        f"<div><dt>{_text(label)}</dt><dd>{_text(_number(value))}</dd></div>"
        for label, value in numbers.items()
    )
    return f'<dl class="numbers">\n{entries}\n</dl>'


def _number(value: Number) -> str:
    """Whole numbers in full (a seed is to be copied), others to four significant digits."""
    if isinstance(value, Real) and not isinstance(value, Integral):
        value = float(value)
        if math.isnan(value):
            return "n/a"
        return f"{value:.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"
    return "n/a" if value is None else str(value)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _text(text: str) -> str:
    """Escaped for element content and quoted attributes; bytes that are no Unicode become `?`."""
    return escape(text.encode("utf-8", "replace").decode())


def _json(data: object) -> str:
    """Compact JSON that holds no `<`, so that no text in it can end the script element."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _content_hash(text: str) -> str:
    """A Content-Security-Policy source that allows this inline text and no other."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _resource(name: str) -> str:
    return files("musicgen.report").joinpath(name).read_text(encoding="utf-8")
