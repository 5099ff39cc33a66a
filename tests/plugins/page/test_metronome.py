"""The metronome of the page clicks on the beats, each once."""

import pytest

from musicgen.report.html import asset
from tests.plugins.page.node import needs_node, run_worker

pytestmark = needs_node

# Two bars of 3/4 at 60 quarters a minute, then bars of 6/8 at 120.
SCORE = """
    const noMusic = { ticksPerBeat: 480, tracks: [], markers: [], promptEnd: 0 };
    const score = new Score(payloadOf({ ...noMusic, end: 2 * 1440 + 2 * 1440,
      tempos: [[0, 60], [2880, 120]], signatures: [[0, 3, 4], [2880, 6, 8]] }));
"""
SCRIPTS = ["payload", "metronome"]


def test_beats_are_those_of_bars_time_signatures_and_tempi(tmp_path):
    body = f"{asset('score.js')} {SCORE} return data.map(([from, to]) => beatsBetween(score, from, to));"
    spans = [(0, 99), (1.5, 4), (6.1, 6.6), (99, 100)]
    whole, later, fast, none = run_worker(tmp_path, spans, body, SCRIPTS)
    slow = [[second, second in (0, 3)] for second in range(6)]
    assert whole == [*slow, *([6 + n / 4, n in (0, 6)] for n in range(12))]
    assert later == [[2, False], [3, True]]
    assert fast == [[6.25, False], [6.5, False]]
    assert none == []


def test_each_beat_is_clicked_once_and_beats_go_on_when_the_piece_stops(tmp_path):
    body = f"""
        {asset("score.js")} {SCORE}
        globalThis.LOOKAHEAD = 1.3; // s, of the player
        const player = {{ context: {{ currentTime: 10 }}, session: {{ origin: 9.5 }}, card: {{ score }} }};
        const metronome = Object.assign(new Metronome({{ player, bpm: 90 }}), {{ start: 0, next: 10 }});
        const clicks = [];
        let stopped = 0;
        Object.assign(metronome, {{ session: player.session, silence: () => stopped++,
          click: (time, isBar) => clicks.push([time, isBar]) }});
        const runUntil = (time) => {{
          for (; player.context.currentTime < time; player.context.currentTime += 0.25) metronome.schedule();
          return clicks.splice(0);
        }};
        const playing = runUntil(13);
        player.session = null;
        const free = runUntil(15);
        player.session = {{ origin: 15 }};
        return {{ playing, free, again: runUntil(16), stopped }};
    """
    found = run_worker(tmp_path, None, body, SCRIPTS)
    assert found["playing"] == [[9.5 + n, n == 3] for n in range(1, 5)]
    assert [time for time, _ in found["free"]] == pytest.approx(
        [9.5 + n * 2 / 3 for n in range(6, 10)]
    )
    assert found["again"] == [[15, True], [16, False], [17, False]]
    assert found["stopped"] == 2
