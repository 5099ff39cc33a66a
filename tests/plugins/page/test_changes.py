"""Changes of the piece on the page: undoing them, and its tempo."""

import pytest

from musicgen.midi import dumps, loads
from tests.plugins.page.music import pieces, run_tokenizer
from tests.plugins.page.node import needs_node

pytestmark = needs_node

# A session with a model to which all tokens are equally probable.
SESSION = """
    const model = { tokenizer, logits: new Float32Array(tokenizer.size), split: (params) => [1, params],
      rewind() { this.grammar = tokenizer.grammar(); return 0; },
      get place() { return this.grammar.copy(); }, set place(grammar) { this.grammar = grammar.copy(); },
      feed(token) { this.grammar.advance(token); } };
    const sampling = { top_p: 1, min_p: 0, typical_p: 1, top_k: null, guidance: 1 };
    session = Object.assign(Object.create(Session.prototype), { sampling, job: 0, earlier: [],
      composer: new Composer(() => model), source: null, name: null });
    const send = async (kind, content) => { await onmessage({ data: { kind, ...content } }); };
    const settings = { temperature: 1, seed: 1, take: 0 };
    const last = () => messages.findLast(({ kind }) => kind === "piece");
"""


def test_without_a_melody_there_is_nothing_to_undo(tmp_path):
    body = f"""
        {SESSION}
        return (async () => {{
          await send("accompany", {{ settings }});
          return [messages.at(-1).kind, session.earlier.length];
        }})();
    """
    assert run_tokenizer(tmp_path, "chorale", body) == ["error", 0]


@pytest.mark.parametrize("name", ["songs", "chorale"])
def test_each_change_is_undone(name, tmp_path):
    first, second = (list(dumps(each.clip(0, 8 * 1920))) for each in pieces(name)[:2])
    body = f"""
        {SESSION}
        const states = [];
        const state = () => [[...session.composer.tokens], session.composer.endTime, session.name];
        const change = async (kind, content) => {{ states.push(state()); await send(kind, content); }};
        return (async () => {{
          await change("open", {{ bytes: Uint8Array.from(data.first), maxBars: 4, name: "first" }});
          await change("compose", {{ bars: 2, settings }});
          await change("retake", {{ bars: 1, settings: {{ ...settings, take: 1 }} }});
          await change("accompany", {{ settings }});
          await change("clear");
          await change("open", {{ bytes: Uint8Array.from(data.second), maxBars: 4, name: "second" }});
          await change("begin", {{ maxBars: 2 }});
          await change("listen", {{ notes: [[0, 480, 60, 80]], from: 0, bpm: 90 }});
          await send("listen", {{ notes: [[0, 480, 60, 80], [480, 480, 62, 80]], bpm: 90 }});
          const undone = [];
          while (last().canUndo) {{
            await send("undo");
            undone.push(state());
          }}
          return {{ states, undone: undone.toReversed(), shown: last(), errors: messages.filter(({{ kind }}) => kind === "error") }};
        }})();
    """
    found = run_tokenizer(tmp_path, name, body, first=first, second=second)
    assert found["errors"] == []
    assert found["undone"] == found["states"]
    assert len({len(tokens) for tokens, *_ in found["states"]}) > 3
    assert found["shown"]["name"] is None
    assert found["shown"]["isFile"] is False
    assert not any(track["notes"] for track in found["shown"]["score"]["tracks"])


def test_the_tempo_of_the_page_is_that_of_the_piece_and_of_its_file(tmp_path):
    piece = pieces("songs")[4].clip(0, 4 * 1920)
    body = f"""
        {SESSION}
        const tempos = () => last().score.tempos.map(([, bpm]) => bpm);
        return (async () => {{
          await send("tempo", {{ bpm: 72 }});
          await send("compose", {{ bars: 1, settings }});
          const ofNothing = tempos();
          await send("open", {{ bytes: Uint8Array.from(data.file), maxBars: 99, name: "file" }});
          const ofFile = tempos();
          await send("tempo", {{ bpm: 142 }});
          const chosen = tempos();
          await send("save");
          const file = [...messages.at(-1).bytes];
          await send("tempo", {{ bpm: 60 }});
          await send("undo");
          const undone = tempos();
          await send("clear");
          await send("tempo", {{ bpm: 200 }});
          await send("listen", {{ notes: [[0, 480, 60, 80]], from: 0, bpm: 90 }});
          return {{ ofNothing, ofFile, chosen, undone, played: tempos(), file }};
        }})();
    """
    found = run_tokenizer(tmp_path, "songs", body, file=list(dumps(piece)))
    assert found["ofNothing"][0] == 72
    assert found["ofFile"] == pytest.approx([71, 93, 180], abs=2)  # in bins of the vocabulary
    assert found["chosen"] == [pytest.approx(2 * each, rel=0.03) for each in found["ofFile"]]
    assert found["chosen"][0] == 142
    assert found["undone"] == found["chosen"]
    assert loads(bytes(found["file"])).tempos["bpm"] == pytest.approx(found["chosen"], rel=1e-4)
    assert found["played"] == pytest.approx([90], abs=2)
