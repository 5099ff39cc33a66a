"""A self-contained HTML page of generated music: piano rolls, a player, measures, a verdict.

Text is escaped. Music is embedded as JSON, styles and scripts as text.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from html import escape
from importlib.resources import files
from itertools import count
from string import Template
from typing import Any
from urllib.parse import quote

import numpy as np

from musicgen.midi import DRUMS, Score, Track, role
from musicgen.report.pieces import Kept, Mark, Metadata, ReportPiece, Value, note_keys
from musicgen.report.staves import Drawing, draw_pieces
from musicgen.text import pluralize, shortened

SCRIPTS = ("score.js", "synth.js", "colours.js", "roll.js", "player.js", "staves.js", "report.js")
NUM_COLOURS = 8  # --track-0 … --track-7 in style.css
NUM_NOTICES_SHOWN = 2  # more notices than this are folded

# The synthesiser voice of each role. All other roles have the voice "other".
SYNTHESISER_VOICES = {
    DRUMS: "drums",
    **dict.fromkeys(("Piano", "Chromatic percussion"), "piano"),
    **dict.fromkeys(("Guitar", "Ethnic"), "guitar"),
    "Bass": "bass",
    **dict.fromkeys(("Strings", "Ensemble", "Synth pad", "Synth effects"), "strings"),
}

CHORD_SUFFIXES = {quality: quality for quality in ("m", "7", "m7", "sus2", "sus4")}
CHORD_SUFFIXES |= {"M": "", "M7": "maj7", "o": "dim", "o7": "dim7", "/o7": "m7♭5", "+": "aug"}


def render_report(
    *,
    title: str,
    pieces: Sequence[ReportPiece],
    metadata: Metadata,
    notices: Sequence[str] = (),
    summary: str = "",
    explanation: str = "",
    with_staves: bool = False,
) -> str:
    """Return the HTML of a report.

    Args:
        title: title of the page.
        pieces: the pieces, in the order of the page.
        metadata: settings, seed, checkpoint and speed, which are folded.
        notices: sentences about all pieces, such as that a limit was reached.
        summary: HTML above the pieces.
        explanation: sentences on the measures of the pieces.
        with_staves: whether to engrave the pieces, where verovio is installed.
    """
    drawing = draw_pieces(pieces) if with_staves else Drawing()
    no_staves = f'<p class="summary">{text(drawing.notice)}</p>' if drawing.notice else ""
    return render_page(
        asset("page.html"),
        styles=[asset("style.css"), *([asset("staves.css")] if drawing.data else [])],
        scripts=[asset(name) for name in SCRIPTS],
        title=text(title),
        notices=_notices(notices),
        summary=summary + no_staves,
        metadata=fold("How these were made", metadata_list(metadata)),
        contents=_contents_table(pieces) if len(pieces) > 1 else "",
        explanation=f'<p class="summary">{text(explanation)}</p>' if explanation else "",
        pieces="\n".join(_piece(i, piece, drawing) for i, piece in enumerate(pieces)),
        staves=drawing.script(),
    )


def _notices(notices: Sequence[str]) -> str:
    """Return the HTML of notices: paragraphs, or a folded list if there are many."""
    if len(notices) <= NUM_NOTICES_SHOWN:
        return "".join(f'<p class="notice">{text(notice)}</p>\n' for notice in notices)
    entries = "\n".join(f"<li>{text(notice)}</li>" for notice in dict.fromkeys(notices))
    return fold(pluralize(len(notices), "notices"), f"<ul>\n{entries}\n</ul>", "notice") + "\n"


def _piece(index: int, piece: ReportPiece, drawing: Drawing) -> str:
    """Return the HTML of a piece."""
    score = piece.score
    summary = f"{pluralize(score.num_bars, 'bars')}, {pluralize(score.num_notes, 'notes')}"
    new = "continuation" if piece.kept is None or piece.kept.gap_end is None else "gap"
    jump = (
        f'<button type="button" class="jump" title="Play from where the {new} begins" '
        f'aria-label="Play the {new} of {text(piece.title)}">{new.capitalize()}</button>'
    )
    data = score_payload(score, piece.prompt_end, piece.marks, piece.kept)
    num_kept = [sum(track["kept"]) for track in data["tracks"]]
    return Template(asset("piece.html")).substitute(
        index=index,
        title=text(piece.title),
        summary=summary,
        jump=jump if piece.prompt_end > 0 else "",
        downloads=_download(piece, piece.midi_file, "MIDI")
        + _download(piece, piece.audio_file, "WAV"),
        notices=_notices(piece.notices),
        staves=_staves(index, piece, drawing),
        legend="\n".join(map(_legend_entry, count(), score.tracks, num_kept)),
        measures=metadata_list(piece.measures, form=".2f"),
        metadata=fold("Details", metadata_list(piece.metadata)),
        data=embedded_json(data),
    )


def _staves(index: int, piece: ReportPiece, drawing: Drawing) -> str:
    """Return the HTML for the staves of a piece, into which a script draws; "" without them."""
    if not drawing.data:
        return ""
    if index in drawing.missing:
        return f'<p class="summary">{text(drawing.missing[index])}</p>'
    has_gap = piece.kept is not None and piece.kept.gap_end is not None
    colours = f'Prompt <span class="new">{"Gap" if has_gap else "Continuation"}</span>'
    key = f'<p class="summary colours">{colours}</p>' if index in drawing.two_coloured else ""
    label = f'aria-label="Staves of {text(piece.title)}"'
    return f'{key}<div class="staves" tabindex="0" role="group" {label}></div>'


def _legend_entry(number: int, track: Track, num_kept: int) -> str:
    """Return the HTML of a track in the legend, with buttons to mute it and to play it solo."""
    kind, name = role(track), shortened(track.name.strip())
    label = text(name or kind)
    detail = pluralize(len(track.notes), "notes")
    if num_kept:
        detail += ", kept" if num_kept == len(track.notes) else f", {num_kept} of them kept"
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


def _download(piece: ReportPiece, file: str | None, kind: str) -> str:
    """Return the HTML of a link to a file; "" without a file."""
    if file is None:
        return ""
    # Quoted, as text before a colon would be a URL scheme. As bytes, as names may be invalid UTF-8.
    address = quote(os.fsencode(file))
    return (
        f'<a class="download" href="{address}" download '
        f'aria-label="Download {kind} of {text(piece.title)}">{kind}</a>\n'
    )


def _contents_table(pieces: Sequence[ReportPiece]) -> str:
    """Return the HTML of a table with links to the pieces and with their measures."""
    rows = [
        {"Piece": f'<a href="#piece-{index}">{text(piece.title)}</a>'}
        | {text(name): format_value(value, ".2f") for name, value in piece.measures.items()}
        for index, piece in enumerate(pieces)
    ]
    return f'<nav class="contents" aria-label="Pieces" tabindex="0">{_table(rows)}</nav>'


def verdict_section(
    sentences: Iterable[tuple[str, str, str, str]], rows: Sequence[Mapping[str, Any]], plot: bytes
) -> str:
    """Return the HTML of a verdict.

    Args:
        sentences: question, answer, figures and advice of each judgement; the advice may be "".
        rows: rows of a table, which is folded.
        plot: PNG file of the loss by position, which is folded with the table; b"": none.
    """
    entries = "\n".join(
        f"<div><dt>{text(question)}</dt><dd><strong>{text(answer)}.</strong> "
        f"<small>{text(figures)}</small>"
        + (f'<p class="advice">{text(advice)}.</p>' if advice else "")
        + "</dd></div>"
        for question, answer, figures, advice in sentences
    )
    table = _table([{text(k): format_value(value) for k, value in row.items()} for row in rows])
    figures = f'<div class="contents" role="region" aria-label="Figures" tabindex="0">{table}</div>'
    if plot:
        source = f"data:image/png;base64,{base64.b64encode(plot).decode()}"
        figures += f'<p><img src="{source}" alt="Loss by position, with the training length"></p>'
    return (
        f'<section class="verdict" aria-label="Verdict"><dl>\n{entries}\n</dl>'
        f"{fold('All figures', figures)}</section>"
    )


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return the HTML of a table. Cells are HTML; the first column has the headings of rows."""
    labels = list(dict.fromkeys(label for row in rows for label in row))
    head = "".join(f'<th scope="col">{label.replace("_", " ")}</th>' for label in labels)
    body = "\n".join(
        f'<tr><th scope="row">{row[labels[0]]}</th>'
        + "".join(f"<td>{row.get(label, 'n/a')}</td>" for label in labels[1:])
        + "</tr>"
        for row in rows
    )
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>"


def chord_label(text: str) -> str:
    """Return a chord marker for display: `Amaj7/E` for `A_M7_E`; other text is unchanged."""
    root, quality, bass = [*text.split("_"), "", ""][:3]
    if root == quality == "N":
        return "N.C."
    if not root or root[0] not in "ABCDEFG" or quality not in CHORD_SUFFIXES:
        return text
    return root + CHORD_SUFFIXES[quality] + (f"/{bass}" if bass not in ("", root) else "")


def track_voice(track: Track) -> str:
    """Return the synthesiser voice that plays a track."""
    return SYNTHESISER_VOICES.get(role(track), "other")


def tempo_map(score: Score) -> list[list[float]]:
    """Return segments of constant tempo: first tick, its time in seconds, seconds per tick."""
    ticks = np.unique(np.append(0, score.tempos["tick"]))
    seconds = score.seconds_at(ticks)
    rates = score.seconds_at(ticks + 1) - seconds
    return [
        [int(tick), round(float(second), 6), round(float(rate), 12)]
        for tick, second, rate in zip(ticks, seconds, rates, strict=True)
    ]


def score_payload(
    score: Score, prompt_end: int, marks: Sequence[Mark] = (), kept: Kept | None = None
) -> dict[str, Any]:
    """Return a piece as data for JSON, with times in ticks.

    Onsets and bar starts are differences from the previous one, which have fewer digits.

    Args:
        score: prompt and continuation.
        prompt_end: tick at which the continuation, or a gap, begins.
        marks: passages to mark on the piano roll.
        kept: what is kept of a whole piece after `prompt_end`.
    """
    kept_keys = kept.keys() if kept else set()
    end = max(score.end, prompt_end)
    tracks = []
    for track in score.tracks:
        # The player schedules notes in the order of their onsets.
        notes = track.notes[np.argsort(track.notes["onset"], kind="stable")]
        keys = note_keys(replace(track, notes=notes))
        tracks.append(
            {
                "voice": track_voice(track),
                "onset": np.diff(notes["onset"], prepend=0).tolist(),
                **{name: notes[name].tolist() for name in ("duration", "pitch", "velocity")},
                "kept": [int(key in kept_keys) for key in keys],
            }
        )
    return {
        "ticksPerBeat": score.ticks_per_beat,
        "end": end,
        "promptEnd": prompt_end,
        "newEnd": end if kept is None or kept.gap_end is None else min(kept.gap_end, end),
        "tempo": tempo_map(score),
        # Tick, ticks per beat and label of each time signature; the first one is at tick 0.
        "meters": [
            [s.tick, score.ticks_per_beat * 4 / s.denominator, f"{s.numerator}/{s.denominator}"]
            for s in score.time_signatures_from_start()
        ],
        "bars": np.diff(score.bar_starts(), prepend=0).tolist(),
        "markers": [[int(tick), chord_label(text)] for tick, text in score.markers],
        "marks": [list(mark) for mark in marks],
        "tracks": tracks,
    }


def render_page(
    template: str, *, scripts: Sequence[str], styles: Sequence[str], **fields: str
) -> str:
    """Return a page from a template, with embedded scripts and styles.

    The Content-Security-Policy of the page allows these by their hashes.

    Args:
        template: text with the fields of `string.Template`.
        scripts: JavaScript, in the order of execution.
        styles: CSS.
        fields: HTML for the other fields of the template, by name.
    """
    style, script = "\n".join(styles), "\n".join(scripts)
    return Template(template).substitute(
        fields,
        style=style,
        style_hash=_content_hash(style),
        script=script,
        script_hash=_content_hash(script),
    )


def metadata_list(metadata: Metadata, form: str = ".4g") -> str:
    """Return the HTML of a list of labels and values; "" if it is empty.

    Args:
        form: format of floats.
    """
    if not metadata:
        return ""
    entries = "\n".join(
        f"<div><dt>{text(label)}</dt><dd>{format_value(value, form)}</dd></div>"
        for label, value in metadata.items()
    )
    return f'<dl class="metadata">\n{entries}\n</dl>'


def fold(summary: str, body: str, kind: str = "") -> str:
    """Return a closed `details` element; "" if the body is empty.

    Args:
        summary, body: HTML.
        kind: class of the element.
    """
    if not body:
        return ""
    attribute = f' class="{kind}"' if kind else ""
    return f"<details{attribute}><summary>{summary}</summary>\n{body}\n</details>"


def format_value(value: Value, form: str = ".4g") -> str:
    """Return a value as escaped text: floats in the format `form`, lists as on the command line."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(format_value, value))}]"
    if isinstance(value, float | np.floating):
        value = float(value)
        if math.isnan(value):
            return "n/a"
        return f"{value:.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:{form}}"
    return "n/a" if value is None else text(str(value))


def text(text: str) -> str:
    """Return text escaped for elements and quoted attributes; invalid Unicode becomes `?`."""
    return escape(text.encode("utf-8", "replace").decode())


def embedded_json(data: Any) -> str:
    """Return data as JSON that is safe inside of a script element."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def asset(name: str, folder: str = "report/page") -> str:
    """Return the text of a file in a folder of the package."""
    return files("musicgen").joinpath(folder, name).read_text(encoding="utf-8")


def _content_hash(content: str) -> str:
    """Return a Content-Security-Policy source that allows only this inline text."""
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
