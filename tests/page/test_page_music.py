"""The page's tokenizers, grammars, MIDI files, sampling and weights are those of Python."""

import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import musicgen
from musicgen.composer import FAMILIES, compose_groove, compose_pop
from musicgen.errors import UserError
from musicgen.generation.constraints import ConstrainedGrammar, Constraint
from musicgen.generation.constraints.end import end_constraints
from musicgen.generation.constraints.fixed import FixedTempo, FixedTimeSignature
from musicgen.generation.constraints.kept import KeptParts, target_parts
from musicgen.generation.constraints.parallels import NoParallels
from musicgen.generation.model import MusicModel
from musicgen.generation.prompts import make_prompt
from musicgen.generation.sampling import SamplingParams, draw
from musicgen.midi import TEMPO, KeySignature, Score, TimeSignature, Track, dumps, loads, notes_from
from musicgen.midi.key import note_names
from musicgen.midi.score import PITCH_CLASSES
from musicgen.page.document import (
    javascript_step,
    pack_weights,
    with_half_weights,
)
from musicgen.page.tables import tokenizer_tables
from musicgen.random import NoiseKey
from musicgen.report.payload import chord_label
from musicgen.tokenization import REMI, Chorale, Groove2Groove, Songs
from musicgen.tokenization.chorale.frames import SILENCE, score_of_frames
from musicgen.tokenization.chorale.grammar import ChoraleGrammar
from musicgen.tokenization.chords.recognition import with_chords
from musicgen.tokenization.chords.symbols import spelled
from musicgen.tokenization.coordinates import Coordinates
from musicgen.tokenization.grammar import NEVER
from musicgen.tokenization.played_rhythm import printed_rhythm
from musicgen.tokenization.remi.grammar import BarGrammar
from musicgen.tokenization.time_signatures import TIME_SIGNATURES
from musicgen.tokenization.whole_bars import without_long_gaps
from tests.generation.builders import music_model
from tests.midi.test_damaged_files import BROKEN
from tests.midi.test_foreign_files import TITLED
from tests.page.node import needs_node, run_worker
from tests.tokenizers import frozen_tokenizers

SEED = 4242  # of pieces that no model was trained on
BAND = {
    "parts": [
        {"name": "Bass", "program": 33},
        {"name": "Kit", "is_drum": True},
        {"name": "Keys", "words": ["pia"], "takes": [[0, 31], [40, 127]]},
    ],
    "time_signatures": ["4/4", "3/8"],
    "velocity_bins": [20, 120, 10],
    "tempo_bins": None,
    "chords": False,
    "max_bars": 25,
}
SINGERS = [
    [("Singstimme", 0), ("Klavier rechts", 0), ("Bass Guitar", 4), ("Bass", 52)],
    [("Lead Guitar", 0), ("unpiano", 70), ("PIANO_2", 70), ("", 33)],
    [("Flöte", 0), ("T\u00e9nor piano", 0), ("Bass", 1), ("\u00e9voc", 128 - 1)],
]
TOKENIZERS = {
    "remi": REMI(),
    "remi metres": REMI(time_signatures=TIME_SIGNATURES, max_bars=20, chords=False),
    "remi plain": REMI(tempo_bins=None, positions_per_beat=6),
    "songs": frozen_tokenizers()["songs"],
    "songs of a band": Songs(**BAND),
    "chorale": Chorale(lead_probability=0.5),
    "chorale short": Chorale(max_beats=12),
}
pytestmark = needs_node


def run_tokenizer(folder: Path, name: str, body: str, **data: Any) -> Any:
    """Return what a function of data, in the scope of a tokenizer of the page, returns."""
    body = f"const tokenizer = new TOKENIZERS[data.tables.name](data.tables); {body}"
    return run_worker(folder, data | {"tables": tokenizer_tables(TOKENIZERS[name])}, body)


def pieces(kind: str) -> list[Score]:
    if kind.startswith("remi"):
        return [compose_pop(SEED, i) for i in range(4)]
    # Chords; tracks that are voices by name, in another order, and by height; each with rests.
    rng = np.random.default_rng(0)
    frames = rng.integers(40, 90, (8, 24, 4)).repeat(3, axis=1)
    frames[rng.random(frames.shape) < 0.1] = SILENCE
    named, *others = map(score_of_frames, frames)
    for i, score in enumerate(others):
        score.tracks = [replace(track, name="") for track in score.tracks[: 2 + i % 3]]
    groove = compose_groove(SEED, next(iter(FAMILIES)), 0, 0)
    if kind.startswith("songs"):
        for score, names in zip(others, SINGERS, strict=False):
            for track, (name, program) in zip(score.tracks, names, strict=False):
                track.name, track.program = name, program
        others[0].key_signatures = [KeySignature(2000, -3), KeySignature(9000, 6)]
        others[1].time_signatures = [TimeSignature(0, 3, 8), TimeSignature(4320, 4, 4)]
        others[1].tempos = np.array([(0, 71.0), (2000, 93.0), (2300, 180.0)], TEMPO)
    return [groove, compose_pop(SEED, 0), named, *others]


def random_walk(tokenizer, rng, number: int) -> dict:
    """Take random steps through the grammar; families of tokens are equally probable."""
    grammar = tokenizer.grammar()
    # A chorale begins with a header; with parts, the page may begin within a bar.
    is_in_order = isinstance(tokenizer, REMI)
    options = {
        "tempo": bool(number % 2),
        "metre": bool(number % 3),
        "end": number % 4 != 1,
        "notBefore": int(rng.integers(0, 30)) * (number % 2) * is_in_order,  # before the limit
        "limit": 40 if number % 5 == 4 else None,
        "avoidParallels": bool(number % 2),
    }
    constraints: list[Constraint] = []
    if options["avoidParallels"] and isinstance(grammar, ChoraleGrammar):
        constraints.append(NoParallels(grammar))
    if isinstance(grammar, BarGrammar):
        constraints += [FixedTempo(grammar)] * options["tempo"]
        constraints += [FixedTimeSignature(grammar)] * options["metre"]
    start, limit = np.array([options["notBefore"]]), options["limit"]
    may_end = np.array([0 if options["end"] else NEVER])
    limit = None if limit is None else np.array([limit])
    constraints += end_constraints(grammar, start, may_end, limit)
    grammar = ConstrainedGrammar(grammar, constraints)
    state = grammar.start([np.empty(0, np.int64)])
    tokens, masks = [], []
    while not state.finished.any() and len(tokens) < 300:
        allowed = grammar.allowed(state)[0].numpy()
        masks.append(np.flatnonzero(allowed).tolist())
        kinds = [[i for i in masks[-1] if i in ids] for ids in tokenizer.families.values()]
        kinds = [ids for ids in kinds[::-1] if ids and tokenizer.vocabulary.id("EOS") not in ids]
        tokens.append(int(rng.choice(kinds[rng.integers(len(kinds))] if kinds else masks[-1])))
        state = grammar.advance(state, torch.tensor(tokens[-1:]))
    names = ("index", "time", "bar", "beat", *Coordinates(tokenizer).values)
    length = 3 * tokenizer.steps_per_beat
    places = Coordinates(tokenizer).of(np.array(tokens), names, bar_length=length).tolist()
    return {"tokens": tokens, "masks": masks, "places": places, "names": names, **options}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_masks_and_coordinates_of_random_walks(name, tmp_path):
    tokenizer, rng = TOKENIZERS[name], np.random.default_rng(0)
    walks = [random_walk(tokenizer, rng, number) for number in range(10)]
    assert sum(len(walk["tokens"]) for walk in walks) > 700
    body = """
        return data.walks.map((walk) => {
          const grammar = tokenizer.grammar();
          const places = new Coordinates(tokenizer, walk.names, 3 * tokenizer.stepsPerBeat);
          grammar.fixTempo(walk.tempo);
          grammar.fixTimeSignature(walk.metre);
          grammar.forbidParallels(walk.avoidParallels);
          if (walk.limit) grammar.limit = Math.min(grammar.limit, walk.limit);
          const mask = new Uint8Array(tokenizer.size);
          return walk.tokens.map((token) => {
            grammar.allowed(mask, walk);
            const allowed = [...mask.keys()].filter((i) => mask[i]);
            grammar.advance(token);
            return { allowed, place: places.next(token, grammar) };
          });
        });
    """
    for walk, steps in zip(walks, run_tokenizer(tmp_path, name, body, walks=walks), strict=True):
        for i, step in enumerate(steps):
            assert step["allowed"] == walk["masks"][i], (i, walk["tokens"][: i + 1])
        assert [step["place"] for step in steps] == walk["places"]


def plain(score: Score) -> dict:
    """Return a score as the page has it, in one order."""
    return {
        "ticksPerBeat": score.ticks_per_beat,
        "tracks": [sorted(map(list, track.notes.tolist())) for track in score.tracks],
        "tempos": [list(each) for each in score.tempos.tolist()],
        "signatures": [list(each) for each in score.time_signatures],
        "markers": [list(each) for each in score.markers],
    }


@pytest.mark.parametrize("name", TOKENIZERS)
def test_pieces_are_encoded_and_decoded_alike(name, tmp_path):
    tokenizer = TOKENIZERS[name]
    scores = pieces(name)
    # Without chords, which the page then recognises; from another bar and at another resolution.
    scores += [replace(score, markers=[]) for score in scores[:2]]
    scores += [replace(score, markers=score.markers[9:]) for score in scores[:1]]
    scores.append(loads(dumps(scores[0].clip(4 * 1920 + 100, scores[0].end))))
    files = [*(list(dumps(score)) for score in scores), list(TITLED.data())]
    body = """
        return data.files.map((bytes) => {
          const score = readMidi(Uint8Array.from(bytes));
          const tokens = tokenizer.encode(score);
          const prompt = makePrompt(tokenizer, score, 3);
          const again = readMidi(writeMidi(tokenizer.decode(tokens)));
          return { score, tokens, prompt, decoded: tokenizer.decode(tokens), again };
        });
    """
    found = run_tokenizer(tmp_path, name, body, files=files)
    for bytes_, result in zip(files, found, strict=True):
        score = loads(bytes(bytes_))
        read = result["score"]
        assert plain(score)["tracks"] == [sorted(t["notes"]) for t in read["tracks"]]
        assert plain(score)["tempos"] == [pytest.approx(each) for each in read["tempos"]]
        assert plain(score)["markers"] == read["markers"]
        score = with_chords(score, "auto") if tokenizer.chords else score
        tokens = tokenizer.encode(score)
        assert result["tokens"] == tokens.tolist()
        decoded = tokenizer.decode(tokens)
        for each in result["decoded"], result["again"]:
            notes = [sorted(track["notes"]) for track in each["tracks"] if track["notes"]]
            assert notes == [notes for notes in plain(decoded)["tracks"] if notes]
            assert each["signatures"] == plain(decoded)["signatures"]
            assert each["markers"] == plain(decoded)["markers"]
            assert [t[0] for t in each["tempos"]] == decoded.tempos["tick"].tolist()
        prompt = make_prompt(tokenizer, score, "prompt", 3)
        assert result["prompt"]["tokens"] == prompt.tokens.tolist()
        assert result["prompt"]["endTime"] == prompt.end_time
        assert result["prompt"]["barLength"] == prompt.bar_length


@pytest.mark.parametrize("late", [30, 1])
def test_a_played_rhythm_is_read_as_in_python(late, tmp_path):
    score, rng = pieces("songs")[0], np.random.default_rng(0)
    for track in score.tracks:
        played = track.notes[: len(track.notes) // 3]  # the others stay
        played["onset"] += rng.integers(0, late, len(played))
        played["onset"][::9] += score.ticks_per_beat // 24
        played["duration"] -= rng.integers(3, 30, len(played))
    file = dumps(score)
    body = "return printedRhythm(readMidi(Uint8Array.from(data)));"
    found = run_worker(tmp_path, list(file), body)
    expected = plain(printed_rhythm(loads(file)))["tracks"]
    assert expected != plain(loads(file))["tracks"]
    assert [sorted(track["notes"]) for track in found["tracks"]] == expected


@pytest.mark.parametrize("stray", [[470], [70, 600], [66, 67, 132]])
def test_long_silence_is_left_out_as_in_python(stray, tmp_path):
    score = compose_pop(SEED, 0).clip(0, 7680)
    score.time_signatures = [TimeSignature(0, 4, 4), TimeSignature(8 * 1920, 3, 4)]
    notes = score.tracks[0].notes
    late = notes[:1].repeat(len(stray))
    late["onset"] = np.array(stray) * 1920 + 7
    score.tracks[0].notes = np.concatenate([notes, late])
    score.tempos = np.append(score.tempos, np.array([(100 * 1920, 90)], score.tempos.dtype))
    body = "return withoutLongGaps(readMidi(Uint8Array.from(data)));"
    found = run_worker(tmp_path, list(dumps(score)), body)
    shorter = plain(without_long_gaps(loads(dumps(score)))[0])
    assert [sorted(t["notes"]) for t in found["tracks"]] == shorter["tracks"]
    assert found["signatures"] == shorter["signatures"]
    assert found["tempos"] == [pytest.approx(each) for each in shorter["tempos"]]


@pytest.mark.parametrize("name", ["remi", "chorale"])
def test_damaged_files_are_read_or_refused_in_one_line(name, tmp_path):
    rng = np.random.default_rng(1)
    good = np.frombuffer(dumps(pieces(name)[0].clip(0, 8 * 1920)), np.uint8)
    files = [list(data) for data, _ in BROKEN.values()]
    for _ in range(150):
        damaged = good[: rng.integers(20, 2 * len(good))].copy()
        damaged[rng.integers(12, len(damaged), 3)] = rng.integers(0, 256, 3)
        files.append(damaged.tolist())
    body = """
        return data.files.map((bytes) => {
          try {
            const prompt = makePrompt(tokenizer, readMidi(Uint8Array.from(bytes)), 8);
            return prompt.tokens.length > 0;
          } catch (error) {
            return error instanceof UserError ? error.message : `crash: ${error.stack}`;
          }
        });
    """
    found = run_tokenizer(tmp_path, name, body, files=files)
    for (kind, _), answer in zip(BROKEN.items(), found, strict=False):
        assert isinstance(answer, str), kind
    errors = [answer for answer in found if answer is not True]
    assert not [each for each in errors if "\n" in each or each.startswith("crash")]
    assert 20 < len(errors) - len(BROKEN) < 145


def test_markers_are_shown_as_in_reports(tmp_path):
    texts = ["A_M7", "F#_m", "B_/o7", "N_N", "Verse 2", "Fermata", "take_m1"]
    found = run_worker(tmp_path, texts, "return data.map(chordLabel);", ["payload"])
    assert found == [*map(chord_label, texts)]


def test_chords_are_spelled_as_in_python(tmp_path):
    songs = [compose_pop(SEED, i) for i in range(6)]
    songs += [replace(songs[0], key_signatures=[KeySignature(9, n)]) for n in (-5, 6)]
    songs.append(loads(dumps(Score(tracks=[]))))
    body = """
        return data.files.map((bytes) => {
          const score = readMidi(Uint8Array.from(bytes));
          const names = noteNames(score.keys, score, tokenizer);
          return [score.keys, data.texts.map((text) => spelled(text, names))];
        });
    """
    texts = ["A#_m7", "C#_M", "E_7", "N_N", "Verse 2"]
    files = [list(dumps(song)) for song in songs]
    found = run_tokenizer(tmp_path, "remi", body, files=files, texts=texts)
    for song, (keys, markers) in zip(songs, found, strict=True):
        names = note_names(song) or PITCH_CLASSES
        assert keys == [*map(list, song.key_signatures)]
        assert markers == [spelled(text, names) for text in texts]
    assert len({markers[0] for _, markers in found}) == 2  # A#_m7 and Bb_m7


# In place of a model: all tokens are equally probable. The second time it is interrupted.
ACCOMPANIED = """
    const fed = [], masks = [];
    const logits = new Float32Array(tokenizer.size);
    const model = { tokenizer, logits, split: (params) => [1, params],
      rewind() { fed.length = masks.length = 0; this.grammar = tokenizer.grammar(); },
      feed(token) { masks.push(composer.mask.includes(1) ? [...composer.mask.keys()].filter((i) => composer.mask[i]) : [token]);
        composer.mask.fill(0); fed.push(token); this.grammar.advance(token); } };
    const composer = new Composer(() => model);
    composer.begin(makePrompt(tokenizer, readMidi(Uint8Array.from(data.file)), 99));
    const params = { temperature: 1, top_p: 1, min_p: 0, typical_p: 1, top_k: null, guidance: 1 };
    for (const _ of composer.accompany({ seed: 1, params })) ;
    const [ahead, sampled, whole] = [[...fed], [...masks], composer.tokens];
    const again = composer.accompany({ seed: 2, params });
    for (let i = 0; i < 150; i++) again.next();
    again.return();
    return { ahead, masks: sampled, whole, interrupted: composer.tokens, end: composer.endTime };
"""


def test_a_melody_is_harmonised_in_the_order_that_models_have_learned(tmp_path):
    tokenizer, rng = TOKENIZERS["chorale"], np.random.default_rng(2)
    melody = rng.integers(60, 80, 30).repeat(2)
    melody[10:14] = SILENCE
    frames = np.full((60, 4), SILENCE)
    frames[:, 2] = melody  # the only voice, wherever it is
    file = list(dumps(score_of_frames(frames)))
    found = run_tokenizer(tmp_path, "chorale", ACCOMPANIED, file=file)
    ahead, whole, part = (np.array(found[name]) for name in ("ahead", "whole", "interrupted"))
    tokenizer.grammar().start(ahead[None])
    assert tokenizer.vocabulary.token(int(ahead[0])) == "Lead_Soprano"
    assert len(ahead) == 1 + 4 * (60 + 16)
    assert plain(tokenizer.decode(ahead)) == plain(tokenizer.decode(whole))
    assert found["end"] == 60
    soprano, *below = tokenizer.decode(whole).tracks
    expected = score_of_frames(np.stack([melody] * 4, axis=1)).tracks[0]
    assert np.array_equal(soprano.notes, expected.notes)
    assert all(len(track.notes) > 20 for track in below)
    assert np.array_equal(tokenizer.decode(part).tracks[0].notes, expected.notes)


@pytest.mark.parametrize("name", ["songs", "songs of a band"])
def test_a_melody_is_accompanied_as_in_python(name, tmp_path):
    tokenizer, rng = TOKENIZERS[name], np.random.default_rng(3)
    rows = [(240 * i + 7, 200, int(rng.choice([60, 62, 64, 67])), 80) for i in range(2, 40)]
    lead = tokenizer.instruments[0]
    score = Score(tracks=[Track(lead.name, lead.program, notes=notes_from(rows))])
    file = list(dumps(replace(score, tracks=[Track("Piano", notes=notes_from(rows))])))
    found = run_tokenizer(tmp_path, name, ACCOMPANIED, file=file)
    kept = tokenizer.part_order.keep_parts(score, [lead.name], 0, None)
    grammar = tokenizer.grammar()
    targets = target_parts(grammar, [kept.written])
    constrained = ConstrainedGrammar(grammar, [KeptParts(grammar, [kept.given], targets)])
    state = constrained.start([np.empty(0, np.int64)])
    for token, mask in zip(found["ahead"], found["masks"], strict=True):
        assert np.flatnonzero(constrained.allowed(state)[0]).tolist() == mask
        state = constrained.advance(state, torch.tensor([token]))
    melody, *others = tokenizer.decode(np.array(found["whole"])).tracks
    assert [x[0] for x in melody.notes.tolist()] == [240 * i for i in range(2, 40)]
    assert any(len(track.notes) > 20 for track in others)
    for tokens in found["whole"], found["interrupted"]:
        grammar.start(torch.tensor([tokens]))
        assert tokenizer.decode(np.array(tokens)).tracks[0] == melody
    assert found["end"] == 5 * 48


def test_voices_hold_their_notes_until_an_answer_begins(tmp_path):
    song = Score(tracks=[Track("Soprano", notes=notes_from([(0, 480, 72, 80)]))])
    body = "return livePrompt(tokenizer, readMidi(Uint8Array.from(data.file)), 13).tokens;"
    tokens = run_tokenizer(tmp_path, "chorale", body, file=list(dumps(song)))
    assert tokens[1:] == 13 * tokens[1:5]


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
        session = Object.assign(Object.create(Session.prototype), { composer: { score: "so far", numBars: 5 } });
        onmessage({ data: { kind: "show" } });
        return onmessage({ data: { kind: "open", bytes: [7] } }).then(() => messages);
    """
    shown, refused = run_worker(tmp_path, {}, body)
    assert shown == {"kind": "piece", "score": "so far", "numBars": 5}
    assert refused["kind"] == "error"


def test_a_page_of_another_tokenizer_is_refused():
    with pytest.raises(UserError, match="tokenizer=groove2groove has no page"):
        tokenizer_tables(Groove2Groove())


def test_a_page_of_songs_continues_and_accompanies(tmp_path):
    model = music_model(TOKENIZERS["songs"])
    model.content.describe = str
    model.save_page(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    parts = dict(re.findall(r'id="(content|worker|weights)">(.*?)</script>', page, re.DOTALL))
    body = (
        parts["worker"]
        + """
        return unpackWeights(data.weights).then((bytes) => {
          const { composer, sampling } = new Session({ ...data.content, bytes });
          composer.begin(livePrompt(composer.tokenizer, readMidi(Uint8Array.from(data.file)), 20));
          for (const _ of composer.compose({ end: 96, seed: 1, params: sampling })) ;
          const { tokens } = composer;
          for (const _ of composer.accompany({ seed: 1, params: sampling })) ;
          const { tracks } = composer.score;
          const found = [tokens, composer.tokens];
          composer.begin(makePrompt(composer.tokenizer, readMidi(Uint8Array.from(data.melody)), 99));
          const params = { ...sampling, temperature: 0, guidance: 3 };
          for (const _ of composer.accompany({ seed: 1, params })) ;
          const copies = composer.negative.snapshots.length;
          return { found, guided: composer.tokens, kept: tracks.map(({ isKept }) => isKept), copies };
        });
    """
    )
    song = Score(tracks=[Track("Voice", notes=notes_from([(0, 480, 60, 80)]))])
    data = {"content": json.loads(parts["content"]), "weights": parts["weights"]}
    rows = [(480 * i, 480, 60 + p, 80) for i, p in enumerate((0, 4, 7, 4, 5, 9, 7, 5, 4, 2, 0, 0))]
    melody = Score(tracks=[Track("Voice", notes=notes_from(rows))])
    data |= {"file": list(dumps(song)), "melody": list(dumps(melody))}
    done = run_worker(tmp_path, data, body, ["weights"])
    found, kept = done["found"], done["kept"]
    assert kept == [True] + [False] * (len(kept) - 1)
    for tokens in found:
        model.tokenizer.grammar().start(torch.tensor([tokens]))
        assert len(model.tokenizer.bar_starts(np.array(tokens), 48)) == 2
    exact = MusicModel(with_half_weights(model.model), *list(vars(model).values())[1:])
    pieces = (exact.generate(melody, keep="voice", temperature=0, guidance=x) for x in (1, 3))
    plain, guided = (piece.tokens.tolist() for (piece,) in pieces)
    assert done["guided"] == guided != plain
    assert done["copies"] <= 1 < len(guided) // 32  # of the state of a model that never goes back
    times = model.tokenizer.times(np.array(found[0]))
    assert min(times[times >= 12]) in range(20, 48)  # an answer begins within the bar


@torch.inference_mode()
def test_a_copy_head_has_the_temperature_of_the_page(tmp_path):
    model = with_half_weights(musicgen.load("songs-small").model)
    tokenizer = TOKENIZERS["songs"]
    tokens = tokenizer.encode(compose_pop(SEED, 0))[:60]
    step = javascript_step(model)
    layout = {"buffers": step.buffers, "inputs": step.inputs, "states": step.states}
    data = {
        "step": {**layout, "coordinates": model.coordinate_names},
        "bytes": list(step.data),
        "tokens": tokens.tolist(),
    }
    # The last tokens at several temperatures: after others, alone, and after going back.
    body = f"""
        const bytes = Uint8Array.from(data.bytes).buffer;
        const model = new Model(data.step, {step.source}, bytes, tokenizer);
        const read = (tokens, temperature) => {{
          for (let i = model.rewind(tokens, 16, temperature); i < tokens.length; i++) model.feed(tokens[i]);
          return [...model.logits];
        }};
        const [drawn, filters] = model.split({{ temperature: 0.5, top_p: 0.9 }});
        read(data.tokens.slice(0, 48), 1);
        const found = [1, drawn, 2].map((temperature) => read(data.tokens, temperature));
        found.push(read(data.tokens.slice(0, 48), 2), read(data.tokens, drawn));
        return {{ found, filters, greedy: model.split({{ temperature: 0 }}) }};
    """
    answer = run_tokenizer(tmp_path, "songs", body, **data)
    assert answer["filters"] == {"temperature": 1, "top_p": 0.9}
    assert answer["greedy"] == [1, {"temperature": 0}]
    positions = torch.from_numpy(Coordinates(tokenizer).of(tokens, model.coordinate_names))[None]
    ids = torch.from_numpy(tokens)[None]
    pairs = zip(answer["found"], [(60, 1), (60, 0.5), (60, 2), (48, 2), (60, 0.5)], strict=True)
    for found, (length, temperature) in pairs:
        last, before = slice(length - 1, length), slice(length - 1)
        _, state = model.forward_with_state(
            ids[:, before], positions=positions[:, before], noise=NoiseKey((0,))
        )
        state.copied.temperature.fill_(temperature)
        expected, _ = model.forward_with_state(
            ids[:, last], positions=positions[:, last], noise=NoiseKey((0,)), state=state
        )
        np.testing.assert_allclose(found, expected[0, 0], atol=2e-3)


@pytest.mark.parametrize(
    "settings",
    [{}, {"temperature": 0.7, "top_p": 0.9}, {"top_k": 4, "min_p": 0.1}, {"typical_p": 0.6}],
)
def test_tokens_are_drawn_alike(settings, tmp_path):
    rng, params = np.random.default_rng(0), SamplingParams(**settings)
    logits = np.log(rng.dirichlet(np.full(12, 0.5), 200))
    allowed, uniform = rng.random((200, 12)) < 0.7, rng.random(200)
    allowed[:, 0] = True
    drawn = [x.tolist() for x in (logits, allowed.astype(int), uniform)]
    body = """
        const [logits, allowed, uniform, params] = data;
        return logits.map((row, i) => sampleToken(row, allowed[i], params, uniform[i]));
    """
    masked = torch.from_numpy(np.where(allowed, logits, -np.inf))
    for process in params.processors():
        masked = process(torch.empty(200, 0), masked)
    expected = draw(masked, torch.from_numpy(uniform))
    assert run_worker(tmp_path, [*drawn, asdict(params)], body) == expected.tolist()


def test_weights_are_unpacked_bit_for_bit(tmp_path):
    halves = np.arange(1 << 16, dtype=np.uint16)  # all numbers of half precision
    noise = np.random.default_rng(0).integers(0, 256, 1001, dtype=np.uint8)
    parts = [halves.tobytes(), noise.tobytes(), b""]
    body = """
        return Promise.all(data.map(unpackWeights)).then((all) => all.map((each) => [...new Uint8Array(each)]));
    """
    found = run_worker(tmp_path, [*map(pack_weights, parts)], body, ["weights"])
    assert [bytes(each)[: len(part)] for each, part in zip(found, parts, strict=True)] == parts
    assert [len(each) for each in found] == [1 << 17, 1002, 0]
