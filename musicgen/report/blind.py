"""Blind comparison: one HTML page on which a listener votes between continuations of several runs.

The runs' names stay hidden until the votes are counted; pairs come in random order, on random
sides. The page saves a listener's votes as a file, and counts the files of other listeners too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from musicgen.midi.score import Score
from musicgen.report.markup import embedded_json, render_page, text
from musicgen.report.payload import score_payload

SCRIPTS = ("score.js", "synth.js", "player.js", "blind/votes.js", "blind/blind.js")

Trial = tuple[str, Sequence[tuple[Score, int]]]
"""What was continued, and each run's score with the tick at which its continuation begins."""


def render_blind(*, title: str, runs: Sequence[str], trials: Sequence[Trial]) -> str:
    """Return the page as text.

    Args:
        runs: their names, in the order of each trial's scores.
    """
    listed = []
    for name, scores in trials:
        versions = [score_payload(score, end) for score, end in scores]
        listed.append({"title": name, "versions": versions})
    content = {"runs": list(runs), "trials": listed}
    # Votes belong to this page's music; a file of votes for another page is refused.
    identity = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    return render_page(
        "blind/blind.html",
        styles=("style.css", "blind/blind.css"),
        scripts=SCRIPTS,
        title=text(title),
        question="Which continuation do you prefer?",
        data=embedded_json({"page": identity, **content}),
    )
