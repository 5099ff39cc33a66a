"""What the page says and shows."""

import pytest

from musicgen.errors import UserError
from musicgen.plugins.page.tables import tokenizer_tables
from musicgen.report.html import chord_label
from musicgen.tokenization import Groove2Groove
from tests.plugins.page.node import needs_node, run_worker

pytestmark = needs_node


def test_markers_are_shown_as_in_reports(tmp_path):
    texts = ["A_M7", "F#_m", "B_/o7", "N_N", "Verse 2", "Fermata", "take_m1"]
    found = run_worker(tmp_path, texts, "return data.map(chordLabel);", ["payload"])
    assert found == [*map(chord_label, texts)]


def test_a_page_says_when_nothing_was_written(tmp_path):
    body = """
        const said = [];
        const page = { from: 4, say: (words) => said.push(words), show() {} };
        for (const start of [3.5, 4]) {
          page.piece = { score: { notes: [{ start }] } };
          Page.prototype.on_done.call(page, { composing: true, tokens: 6, milliseconds: 2000 });
        }
        return said;
    """
    silent, music = run_worker(tmp_path, {}, body, ["page"])
    assert silent.startswith("It wrote no note")
    assert music == "3 tokens a second."


def test_a_page_keeps_its_piece_when_stopped_and_if_a_file_is_none(tmp_path):
    body = """
        const sent = [];
        const page = { composing: true, send: (kind) => sent.push(kind), clear: () => sent.push("clear") };
        Page.prototype.interrupt.call(page);
        return Page.prototype.open.call(page, new File(["no music"], "a.mid")).then(() => sent);
    """
    assert run_worker(tmp_path, {}, body, ["page"]) == ["show", "open"]
    body = """
        session = Object.assign(Object.create(Session.prototype), { earlier: [], composer: { score: "so far", numBars: 5 } });
        onmessage({ data: { kind: "show" } });
        return onmessage({ data: { kind: "open", bytes: [7] } }).then(() => messages);
    """
    shown, refused = run_worker(tmp_path, {}, body)
    assert shown == {"kind": "piece", "score": "so far", "numBars": 5, "canUndo": False}
    assert refused["kind"] == "error"


def test_a_page_of_another_tokenizer_is_refused():
    with pytest.raises(UserError, match="tokenizer=groove2groove has no page"):
        tokenizer_tables(Groove2Groove())
