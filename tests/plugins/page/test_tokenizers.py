"""The page's tokenizers, grammars, chords and MIDI files are those of Python."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from musicgen.composer import compose_pop
from musicgen.generation.constraints import ConstrainedGrammar, Constraint, end_constraints
from musicgen.generation.prompt import empty_prompt, make_prompt
from musicgen.metrics.part_writing import FIFTH, SILENT, UNISON, parallel_intervals
from musicgen.midi import KeySignature, Score, TimeSignature, dumps, loads
from musicgen.midi.key import named_key, note_names
from musicgen.midi.score import PITCH_CLASSES
from musicgen.tokenization import REMI
from musicgen.tokenization.bar_constraints import (
    LowestPitches,
    PlannedEnds,
    REMIChords,
    SongsChords,
)
from musicgen.tokenization.bar_grammar import BarGrammar
from musicgen.tokenization.bar_headers import FixedKey, FixedTempo, FixedTimeSignature
from musicgen.tokenization.chorale_grammar import ChoraleGrammar, NoParallels
from musicgen.tokenization.chord_recognition import with_chords
from musicgen.tokenization.chords import CHORDS, spelled
from musicgen.tokenization.coordinates import Coordinates
from musicgen.tokenization.grammar import NEVER
from musicgen.tokenization.phrases import FULL, PIECE
from musicgen.tokenization.quantization import printed_rhythm
from musicgen.tokenization.whole_bars import without_long_gaps
from tests.midi.test_damaged_files import BROKEN
from tests.midi.test_foreign_files import TITLED
from tests.plugins.page.music import SEED, TOKENIZERS, pieces, plain, run_tokenizer
from tests.plugins.page.node import needs_node, run_worker

pytestmark = needs_node


def random_walk(tokenizer, rng, number: int) -> dict:
    """Take random steps through the grammar; families of tokens are equally probable."""
    grammar = tokenizer.grammar()
    eos = tokenizer.vocabulary.id("EOS")
    families = [np.array(ids, int) for ids in reversed(tokenizer.families.values())]
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
    if tokenizer.families.get("Chord") and number % 4 == 3:
        times = np.sort(rng.choice(400, 6, replace=False))
        progression = np.stack([times, rng.permutation(len(CHORDS))[:6]], axis=1)
        options["progression"] = progression.tolist()
        if isinstance(tokenizer, REMI):
            constraints.append(REMIChords(grammar, [progression]))
        else:
            targets = np.ones((1, len(tokenizer.families["Part"])), bool)
            constraints.append(SongsChords(grammar, [progression], targets))
    if options["avoidParallels"] and isinstance(grammar, ChoraleGrammar):
        constraints.append(NoParallels(grammar))
    if isinstance(grammar, BarGrammar):
        constraints += [FixedKey(grammar), *[FixedTempo(grammar)] * options["tempo"]]
        constraints += [FixedTimeSignature(grammar)] * options["metre"]
    if getattr(tokenizer, "lowest_pitches", np.zeros(0)).any():
        constraints.append(LowestPitches(grammar, tokenizer.lowest_pitches))
    start, limit = np.array([options["notBefore"]]), options["limit"]
    may_end = np.array([0 if options["end"] else NEVER])
    limit = None if limit is None else np.array([limit])
    if tokenizer.families.get("Left") and number % 2:
        ends = [[each, int(rng.integers(3))] for each in (144, 336, 576)][: number // 2]
        # The first of the bars of 11/8 in walk 7 has the counts of both ends.
        options["plan"] = [[2 * 66, FULL], [4 * 66, PIECE]] if number == 7 else ends
        plan = np.array(options["plan"], np.int64).reshape(-1, 2)
        constraints.append(PlannedEnds(grammar, [plan]))
    constraints += end_constraints(grammar, start, may_end, limit)
    grammar = ConstrainedGrammar(grammar, constraints)
    state = grammar.start([np.empty(0, np.int64)])
    tokens, masks = [], []
    while not state.finished.any() and len(tokens) < 300:
        allowed = grammar.allowed(state)[0].numpy()
        masks.append(np.flatnonzero(allowed).tolist())
        kinds = [ids[allowed[ids]] for ids in families]
        kinds = [ids for ids in kinds if len(ids) and eos not in ids]
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
          if (walk.plan) grammar.planEnds(walk.plan);
          if (walk.progression) grammar.followProgression(walk.progression);
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


@pytest.mark.parametrize("name", TOKENIZERS)
def test_pieces_are_encoded_and_decoded_alike(name, tmp_path):
    tokenizer = TOKENIZERS[name]
    scores = pieces(name)
    # Without chords, which the page then recognises; from another bar and at another resolution.
    scores += [replace(score, markers=[]) for score in scores[:2]]
    scores += [replace(score, markers=score.markers[9:]) for score in scores[:1]]
    scores.append(loads(dumps(scores[0].clip(4 * 1920 + 100, scores[0].end))))
    files = [list(dumps(score)) for score in scores]
    if name != "songs of a quartet":  # which the titled piano does not fit
        files.append(list(TITLED.data()))
    body = """
        return data.files.map((bytes) => {
          const score = readMidi(Uint8Array.from(bytes));
          const inBars = tokenizer.inBars(score);
          const tokens = tokenizer.encode(inBars, inBars.chords);
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
            assert each["keys"] == [list(key) for key in decoded.key_signatures]
            assert [t[0] for t in each["tempos"]] == decoded.tempos["tick"].tolist()
        prompt = make_prompt(tokenizer, score, "prompt", 3)
        assert result["prompt"]["tokens"] == prompt.tokens.tolist()
        assert result["prompt"]["endTime"] == prompt.end.step
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
        assert keys == [[*each] for each in song.key_signatures]
        assert markers == [spelled(text, names) for text in texts]
    assert len({markers[0] for _, markers in found}) == 2  # A#_m7 and Bb_m7


def test_parallels_are_those_of_the_measure(tmp_path):
    rng = np.random.default_rng(0)
    before, after = rng.choice([SILENT, 48, 55, 60, 62, 67, 74], (2, 500, 2))
    body = "return data.map(([before, after]) => parallelInterval(before, after));"
    moves = list(zip(before.tolist(), after.tolist(), strict=True))
    expected = parallel_intervals(before, after).tolist()
    assert run_worker(tmp_path, moves, body) == expected
    assert {SILENT, UNISON, FIFTH} <= {*expected}


def test_a_new_chorale_begins_with_the_key_that_is_asked_for(tmp_path):
    body = """
        return data.keys.map((key) => {
          const composer = new Composer(() => ({ tokenizer }));
          composer.begin(emptyPrompt(tokenizer, keySignatures(key)));
          return composer.tokens;
        });
    """
    keys = ["", "Am", "F#m", "Bb", "-3"]
    found = run_tokenizer(tmp_path, "chorale in keys", body, keys=keys)
    for key, tokens in zip(keys, found, strict=True):
        signatures = [named_key(key).signature] if key else []
        prompt = empty_prompt(TOKENIZERS["chorale in keys"], keys=signatures)
        assert tokens == prompt.tokens.tolist()
        assert len(tokens) == 1 + bool(key)
