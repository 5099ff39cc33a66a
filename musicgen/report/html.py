"""A self-contained HTML page of generated music: piano rolls, a player, measures, a verdict.

Text is escaped. Music is embedded as JSON, styles and scripts as text.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from string import Template
from typing import Any
from urllib.parse import quote

from musicgen.midi import Score, Track, role
from musicgen.report.markup import (
    Metadata,
    asset,
    embedded_json,
    fold,
    format_value,
    metadata_list,
    render_page,
    text,
)
from musicgen.report.payload import Mark, score_payload
from musicgen.text import pluralize, shortened

SCRIPTS = ("score.js", "synth.js", "colours.js", "roll.js", "player.js", "report.js")
NUM_COLOURS = 8  # --track-0 … --track-7 in style.css
NUM_NOTICES_SHOWN = 2  # more notices than this are folded


@dataclass(frozen=True)
class ReportPiece:
    """A piece of the report."""

    title: str  # such as the name of the prompt
    score: Score  # prompt and continuation
    prompt_end: int  # tick at which the continuation begins; 0 without a prompt
    midi_file: str | None  # path relative to the report; None: no link
    metadata: Metadata  # technical details, which are folded
    measures: Metadata = field(default_factory=dict)  # measures, which are shown
    notices: Sequence[str] = ()  # such as what the vocabulary cannot express
    audio_file: str | None = None  # path of a WAV file, like `midi_file`
    marks: Sequence[Mark] = ()  # passages to mark on the piano roll
    kept: Score | None = None  # notes of kept parts after `prompt_end`


def render_report(
    *,
    title: str,
    pieces: Sequence[ReportPiece],
    metadata: Metadata,
    notices: Sequence[str] = (),
    summary: str = "",
    explanation: str = "",
) -> str:
    """Return the HTML of a report.

    Args:
        title: title of the page.
        pieces: the pieces, in the order of the page.
        metadata: settings, seed, checkpoint and speed, which are folded.
        notices: sentences about all pieces, such as that a limit was reached.
        summary: HTML above the pieces.
        explanation: sentences on the measures of the pieces.
    """
    return render_page(
        asset("page.html"),
        styles=[asset("style.css")],
        scripts=[asset(name) for name in SCRIPTS],
        title=text(title),
        notices=_notices(notices),
        summary=summary,
        metadata=fold("How these were made", metadata_list(metadata)),
        contents=_contents_table(pieces) if len(pieces) > 1 else "",
        explanation=f'<p class="summary">{text(explanation)}</p>' if explanation else "",
        pieces="\n".join(_piece(index, piece) for index, piece in enumerate(pieces)),
    )


def _notices(notices: Sequence[str]) -> str:
    """Return the HTML of notices: paragraphs, or a folded list if there are many."""
    if len(notices) <= NUM_NOTICES_SHOWN:
        return "".join(f'<p class="notice">{text(notice)}</p>\n' for notice in notices)
    entries = "\n".join(f"<li>{text(notice)}</li>" for notice in dict.fromkeys(notices))
    return fold(pluralize(len(notices), "notices"), f"<ul>\n{entries}\n</ul>", "notice") + "\n"


def _piece(index: int, piece: ReportPiece) -> str:
    """Return the HTML of a piece."""
    score = piece.score
    bars = len(score.bar_starts()) if score.num_notes else 0
    summary = f"{pluralize(bars, 'bars')}, {pluralize(score.num_notes, 'notes')}"
    jump = (
        '<button type="button" class="jump" title="Play from where the continuation begins" '
        f'aria-label="Play the continuation of {text(piece.title)}">Continuation</button>'
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
        legend="\n".join(map(_legend_entry, count(), score.tracks, num_kept)),
        measures=metadata_list(piece.measures, form=".2f"),
        metadata=fold("Details", metadata_list(piece.metadata)),
        data=embedded_json(data),
    )


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
