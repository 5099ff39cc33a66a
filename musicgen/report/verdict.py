"""The verdict above the music: sentences with their figures, then the table and the losses."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence

from musicgen.report.markup import fold, format_value, text

Sentence = tuple[str, str, str, str]
"""A question, its answer, the figures, and what to do, perhaps nothing."""


def verdict_section(
    sentences: Sequence[Sentence],
    rows: Sequence[Mapping[str, str | int]],
    plot: bytes,
    notes: Sequence[str],
) -> str:
    """Return the section as HTML.

    Args:
        rows: of the table, folded.
        plot: a PNG file: the loss by position, folded with it.
        notes: what was measured, in small print.
    """
    entries = "\n".join(_entry(*sentence) for sentence in sentences)
    image = base64.b64encode(plot).decode()
    figures = (
        f'{_table(rows)}<p><img src="data:image/png;base64,{image}" '
        'alt="Loss by position in nats a token, with the training length"></p>'
    )
    small = "".join(f"<p><small>{text(note)}</small></p>" for note in notes)
    return (
        f'<section class="verdict" aria-label="Verdict"><dl>\n{entries}\n</dl>{small}'
        f"{fold('All figures', figures)}</section>"
    )


def _entry(question: str, answer: str, figures: str, advice: str) -> str:
    more = f'<p class="advice">{text(advice)}.</p>' if advice else ""
    return (
        f"<div><dt>{text(question)}</dt><dd><strong>{text(answer)}.</strong> "
        f"<small>{text(figures)}</small>{more}</dd></div>"
    )


def _table(rows: Sequence[Mapping[str, str | int]]) -> str:
    head = "".join(f'<th scope="col">{text(name)}</th>' for name in rows[0])
    body = "\n".join(
        f'<tr><th scope="row">{text(str(first))}</th>'
        + "".join(f"<td>{format_value(value)}</td>" for value in others)
        + "</tr>"
        for first, *others in (row.values() for row in rows)
    )
    return (
        '<div class="contents" role="region" aria-label="All figures" tabindex="0"><table>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )
