"""Bars and parts that are written anew on the page are those of Python's `fill=`."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from musicgen.composer import compose_song
from musicgen.generation.constraints import ConstrainedGrammar
from musicgen.generation.model import MusicModel
from musicgen.midi import dumps, loads
from musicgen.plugins.page.document import read_page, with_half_weights
from musicgen.tokenization import Songs
from musicgen.tokenization.bar_constraints import KeptSongParts, SongsChords
from musicgen.tokenization.constraints import target_parts
from musicgen.tokenization.coordinates import Coordinates
from tests.generation.builders import music_model
from tests.plugins.page.music import TOKENIZERS, run_tokenizer
from tests.plugins.page.node import needs_node, run_worker
from tests.plugins.page.test_changes import SESSION

pytestmark = needs_node

GAPS = Songs(**TOKENIZERS["songs"].settings() | {"gap_probability": 0.5})
# In place of a model: all tokens are equally probable. The last of two takes is read with its masks.
REWRITE = """
    const fed = [], masks = [], places = [], takes = [];
    const logits = new Float32Array(tokenizer.size);
    const model = { tokenizer, logits, split: (params) => [1, params],
      rewind(tokens, barLength, temperature, gapEnd) {
        this.places = new Coordinates(tokenizer, data.names, barLength, gapEnd);
        this.grammar = tokenizer.grammar();
        return 0;
      },
      get place() { return { length: fed.length, grammar: this.grammar.copy(), places: this.places.copy() }; },
      set place({ length, grammar, places: before }) {
        fed.length = masks.length = places.length = length;
        [this.grammar, this.places] = [grammar.copy(), before.copy()];
      },
      feed(token) {
        masks.push([...composer.mask.keys()].filter((i) => composer.mask[i]));
        composer.mask.fill(0);
        fed.push(token);
        this.grammar.advance(token);
        places.push(this.places.next(token, this.grammar));
      } };
    const composer = new Composer(() => model);
    composer.begin(makePrompt(tokenizer, readMidi(Uint8Array.from(data.file)), 12));
    const params = { temperature: 1, top_p: 1, min_p: 0, typical_p: 1, top_k: null, guidance: 1 };
    const last = {};
    const onTake = (state) => takes.push(state.tokens) && Object.assign(last,
      { fed: [...fed], masks: [...masks], places: [...places] });
    const before = [...composer.tokens];
    const asked = { ...data.gap, progression: null, seed: 1, count: 2, params, onTake };
    for (const _ of composer.rewrite(asked));
    return { ...last, takes, before, after: composer.tokens };
"""
NAMES = ("index", "time", "bar", "beat", *Coordinates(GAPS).values)


def kept_by_python(tokenizer, tokens, gap):
    """The conditioning tokens of Python, which reads what the tokens hold."""
    score = tokenizer.decode(tokens)
    step = score.ticks_per_beat // tokenizer.steps_per_beat
    first, end = gap["from"] * step, gap["to"] * step
    if not gap["keepsChords"]:
        score.markers = [m for m in score.markers if not first <= m.tick < end]
    names = [tokenizer.part_names[part] for part in gap["parts"]]
    return tokenizer.keep_parts(score, [], first, end, names)


@pytest.mark.parametrize("name", ["gaps", "songs", "songs with phrases", "gaps with phrases"])
@pytest.mark.parametrize(
    ("bars", "parts", "keeps_chords"),
    [((2, 4), [0, 1, 3], True), ((0, 3), [3], True), ((4, 5), [0, 1, 2, 3, 6], False)],
)
def test_a_gap_has_the_tokens_masks_and_positions_of_python(
    bars, parts, keeps_chords, name, tmp_path, monkeypatch
):
    has_marks = name.startswith("gaps")
    if has_marks:
        settings = TOKENIZERS[name.replace("gaps", "songs")].settings()
        monkeypatch.setitem(TOKENIZERS, name, Songs(**settings | {"gap_probability": 0.5}))
    tokenizer, score = TOKENIZERS[name], compose_song(5, 0)
    lines = [*range(0, 49 * 13, 48)]
    gap = {
        "from": lines[bars[0]],
        "to": lines[bars[1]],
        "parts": parts,
        "keepsChords": keeps_chords,
    }
    found = run_tokenizer(tmp_path, name, REWRITE, file=list(dumps(score)), gap=gap, names=NAMES)
    before = np.array(found["before"])
    assert found["after"] == found["before"]
    kept = kept_by_python(tokenizer, before, gap)
    num_known = int(np.flatnonzero(kept.ids < 0)[0])
    assert found["fed"][:num_known] == kept.ids[:num_known].tolist()
    future = tokenizer.future_length(kept.ids)
    assert (future > 0) == has_marks
    fed = np.array(found["fed"])
    expected = Coordinates(tokenizer).of(fed, NAMES, bar_length=48, gap_end=gap["to"])
    assert found["places"] == expected.tolist()
    grammar = tokenizer.grammar()
    targets = target_parts(len(grammar.is_drum), [kept.targets]) | grammar.is_chords
    asked = [np.empty((0, 2), np.int64)]
    if keeps_chords:
        asked = [chords_until(tokenizer, before, gap["to"])]
    constrained = ConstrainedGrammar(
        grammar,
        [
            KeptSongParts(grammar, [kept.ids], targets),
            SongsChords(grammar, asked, targets, always_chooses=True),
        ],
    )
    state = constrained.start([kept.ids[:num_known]])
    for token, mask in zip(fed[num_known:], found["masks"][num_known:], strict=True):
        allowed = np.flatnonzero(constrained.allowed(state)[0]).tolist()
        assert allowed == (mask or [int(token)])
        state = constrained.advance(state, torch.tensor([token]))


def chords_until(tokenizer, tokens, end):
    ids = tokenizer.families["Chord"]
    times = tokenizer.times(tokens)
    chords = [
        (time, id_ - ids.start) for time, id_ in zip(times, tokens, strict=True) if id_ in ids
    ]
    return np.array([chord for chord in chords if chord[0] < end])


def inside(part, note, gap):
    return part in gap["parts"] and gap["from"] * 40 <= note[0] < gap["to"] * 40


@pytest.mark.parametrize("number", range(6))
def test_all_that_is_not_written_anew_stays_note_for_note(number, tmp_path):
    rng = np.random.default_rng(number)
    song = compose_song(number, 0)
    for track in song.tracks:  # played: not on the grid
        track.notes["onset"] += rng.integers(0, 20, len(track.notes))
    first, parts = int(rng.integers(6)), rng.permutation(7)[: 1 + number].tolist()
    gap = {"from": 48 * first, "to": 48 * (first + int(rng.integers(1, 4))), "parts": parts}
    gap["keepsChords"] = number % 2 > 0
    body = f"""
        {SESSION}
        const tracks = (score) => readMidi(writeMidi(score)).tracks.map((track) => track.notes);
        return (async () => {{
          const bytes = Uint8Array.from(data.file);
          await send("open", {{ bytes, maxBars: 8, name: "song" }});
          const [before, chords] = [session.composer.score.tracks.map((x) => x.notes), last().score.markers];
          await send("rewrite", {{ ...data.gap, settings }});
          const untouched = session.composer.score.tracks.map((x) => x.notes);
          const scores = messages.filter(({{ kind }}) => kind === "take").map(({{ score }}) => score);
          await send("keep", {{ take: 2 }});
          const after = session.composer.score.tracks.map((x) => x.notes);
          await send("save");
          const saved = [...messages.at(-1).bytes];
          await send("compose", {{ bars: 1, settings }});
          const continued = session.composer.score.tracks.map((x) => x.notes);
          await send("undo");
          await send("undo");
          return {{ before, untouched, takes: scores.map((x) => x.tracks.map((y) => y.notes)), after, saved,
            continued, undone: session.composer.score.tracks.map((x) => x.notes), chords,
            newChords: scores[2].markers, errors: messages.filter(({{ kind }}) => kind === "error") }};
        }})();
    """
    found = run_tokenizer(tmp_path, "songs", body, file=list(dumps(song)), gap=gap)
    assert found["errors"] == []
    before, after = found["before"], found["after"]
    assert found["untouched"] == before == found["undone"]
    assert found["takes"][2] == after != before
    assert len({str(take) for take in found["takes"]}) == 3
    saved = {
        track.name: sorted(track.notes.tolist()) for track in loads(bytes(found["saved"])).tracks
    }
    end = 8 * 1920
    for part, (old, new) in enumerate(zip(before, after, strict=True)):
        # New notes may be played a little before the first bar line, as others of the piece are.
        stays = [note for note in old if not inside(part, note, gap)]
        assert [note for note in new if note in stays] == stays
        name = TOKENIZERS["songs"].instruments[part].name
        assert saved.get(name, []) == sorted(map(tuple, new))
        assert [x for x in found["continued"][part] if x[0] < end - 40 and x in new] == [
            x for x in new if x[0] < end - 40
        ]
    if gap["keepsChords"]:
        assert found["newChords"] == found["chords"]
    else:
        outside = [m for m in found["chords"] if not inside(parts[0], m, gap)]
        assert [m for m in found["newChords"] if m in outside] == outside


def test_a_page_fills_a_gap_with_the_tokens_of_python(tmp_path):
    model = music_model(GAPS)
    model.content.describe = str
    model.save_page(tmp_path / "page.html")
    content, worker, weights = read_page(tmp_path / "page.html")
    song = replace(compose_song(5, 0).clip(0, 6 * 1920), markers=[])
    body = f"""{worker}
        return unpackWeights(data.weights).then((bytes) => {{
          const {{ composer, sampling }} = new Session({{ ...data.content, bytes }});
          composer.begin(makePrompt(composer.tokenizer, readMidi(Uint8Array.from(data.file)), 99));
          const found = [];
          const onTake = () => found.push([...composer.model.tokens]);
          const gap = {{ from: 96, to: 192, parts: [0], keepsChords: false, progression: null }};
          for (const guidance of [1, 9]) {{
            const params = {{ ...sampling, temperature: 0, guidance }};
            for (const _ of composer.rewrite({{ ...gap, seed: 1, count: 2, params, onTake }}));
          }}
          return found;
        }});
    """
    data = {"content": content, "weights": weights, "file": list(dumps(song))}
    plain, again, guided, again_guided = run_worker(tmp_path, data, body, ["weights"])
    exact = MusicModel(with_half_weights(model.model), *list(vars(model).values())[1:])
    for scale, found in (1, plain), (9, guided):
        (piece,) = exact.generate(song, fill="voice 3-4", temperature=0, guidance=scale)
        assert found[:-1] == piece.tokens.tolist()  # the page reads the bar behind the gap, too
    assert (again, again_guided) == (plain, guided)
    assert plain != guided
