"""The page writes other parts to a melody, as Python does, and answers."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from musicgen.generation import kept_prompt
from musicgen.generation.constraints import ConstrainedGrammar
from musicgen.generation.model import MusicModel
from musicgen.midi import Score, Track, dumps, notes_from
from musicgen.plugins.page.document import (
    read_page,
    with_half_weights,
)
from musicgen.tokenization.bar_constraints import KeptSongParts
from musicgen.tokenization.constraints import target_parts
from musicgen.tokenization.voices import SILENCE, score_of_frames
from tests.generation.builders import music_model
from tests.plugins.page.music import TOKENIZERS, plain, run_tokenizer
from tests.plugins.page.node import needs_node, run_worker

pytestmark = needs_node


# In place of a model: all tokens are equally probable, but bars and beats are rare, as the beats
# behind a bar's end would end it soon. The second time it is interrupted.
ACCOMPANIED = """
    const fed = [], masks = [];
    const logits = new Float32Array(tokenizer.size);
    for (const name of ["Bar", "Beat"]) logits.fill(-6, ...(tokenizer.families[name] ?? [0, 0]));
    const model = { tokenizer, logits, split: (params) => [1, params],
      rewind() { fed.length = masks.length = 0; this.grammar = tokenizer.grammar(); },
      feed(token) { masks.push(composer.mask.includes(1) ? [...composer.mask.keys()].filter((i) => composer.mask[i]) : [token]);
        composer.mask.fill(0); fed.push(token); this.grammar.advance(token); } };
    const composer = new Composer(() => model);
    composer.begin(makePrompt(tokenizer, readMidi(Uint8Array.from(data.file)), 99));
    const params = { temperature: 1, top_p: 1, min_p: 0, typical_p: 1, top_k: null, guidance: 1 };
    for (const _ of composer.accompany(composer.melody, { seed: 1, params })) ;
    const [ahead, sampled, whole] = [[...fed], [...masks], composer.tokens];
    const again = composer.accompany(composer.melody, { seed: 2, params });
    for (let i = 0; i < 150; i++) again.next();
    again.return();
    return { ahead, masks: sampled, whole, interrupted: composer.tokens, end: composer.endTime };
"""


@pytest.mark.parametrize("name", ["chorale", "chorale in keys"])
def test_a_melody_is_harmonised_in_the_order_that_models_have_learned(name, tmp_path):
    tokenizer, rng = TOKENIZERS[name], np.random.default_rng(2)
    melody = rng.integers(60, 80, 30).repeat(2)
    melody[10:14] = SILENCE
    frames = np.full((60, 4), SILENCE)
    frames[:, 2] = melody  # the only voice, wherever it is
    file = list(dumps(score_of_frames(frames)))
    found = run_tokenizer(tmp_path, name, ACCOMPANIED, file=file)
    ahead, whole, part = (np.array(found[name]) for name in ("ahead", "whole", "interrupted"))
    tokenizer.grammar().start(ahead[None])
    assert tokenizer.vocabulary.token(int(ahead[0])) == "Lead_Soprano"
    assert len(ahead) == tokenizer.opening + 4 * (60 + 16)
    assert plain(tokenizer.decode(ahead)) == plain(tokenizer.decode(whole))
    assert found["end"] == 60
    soprano, *below = tokenizer.decode(whole).tracks
    expected = score_of_frames(np.stack([melody] * 4, axis=1)).tracks[0]
    assert np.array_equal(soprano.notes, expected.notes)
    sung = Score(tracks=[Track("Soprano", notes=expected.notes)])
    kept = tokenizer.keep_parts(sung, ["soprano"], 0, None).ids[:-1]
    assert len(kept) == len(ahead)
    assert (kept == ahead)[kept >= 0].all()
    assert all(len(track.notes) > 20 for track in below)
    assert np.array_equal(tokenizer.decode(part).tracks[0].notes, expected.notes)


@pytest.mark.parametrize("name", ["songs", "songs of a band", "songs with phrases"])
def test_a_melody_is_accompanied_as_in_python(name, tmp_path):
    tokenizer, rng = TOKENIZERS[name], np.random.default_rng(3)
    rows = [(240 * i + 7, 200, int(rng.choice([60, 62, 64, 67])), 80) for i in range(2, 40)]
    lead = tokenizer.instruments[0]
    score = Score(tracks=[Track(lead.name, lead.program, notes=notes_from(rows))])
    file = list(dumps(replace(score, tracks=[Track("Piano", notes=notes_from(rows))])))
    found = run_tokenizer(tmp_path, name, ACCOMPANIED, file=file)
    kept = tokenizer.keep_parts(score, [lead.name], 0, None)
    grammar = tokenizer.grammar()
    targets = target_parts(len(grammar.is_drum), [kept.targets]) | grammar.is_chords
    constrained = ConstrainedGrammar(grammar, [KeptSongParts(grammar, [kept.ids], targets)])
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


@pytest.mark.parametrize("name", ["chorale", "chorale in keys"])
def test_voices_hold_their_notes_until_an_answer_begins(name, tmp_path):
    song = Score(tracks=[Track("Soprano", notes=notes_from([(0, 480, 72, 80)]))])
    body = "return livePrompt(tokenizer, readMidi(Uint8Array.from(data.file)), 13).tokens;"
    tokens = run_tokenizer(tmp_path, name, body, file=list(dumps(song)))
    opening = TOKENIZERS[name].opening
    assert tokens[opening:] == 13 * tokens[opening : opening + 4]


def test_a_page_of_songs_continues_and_accompanies(tmp_path, monkeypatch):
    model = music_model(TOKENIZERS["songs"], num_layers=1)
    model.content.describe = str
    model.save_page(tmp_path / "page.html")
    content, worker, weights = read_page(tmp_path / "page.html")
    body = (
        worker
        + """
        return unpackWeights(data.weights).then((bytes) => {
          const { composer, sampling } = new Session({ ...data.content, bytes });
          composer.begin(livePrompt(composer.tokenizer, readMidi(Uint8Array.from(data.file)), 20));
          for (const _ of composer.compose({ end: 96, seed: 1, params: sampling })) ;
          const { tokens } = composer;
          for (const _ of composer.accompany(composer.melody, { seed: 1, params: sampling })) ;
          const { tracks } = composer.score;
          const found = [tokens, composer.tokens];
          composer.begin(makePrompt(composer.tokenizer, readMidi(Uint8Array.from(data.melody)), 99));
          const params = { ...sampling, temperature: 0, guidance: 9 };
          for (const _ of composer.accompany(composer.melody, { seed: 1, params })) ;
          const copies = composer.negative.snapshots.length;
          return { found, guided: composer.tokens, kept: tracks.map(({ isKept }) => isKept), copies };
        });
    """
    )
    song = Score(tracks=[Track("Voice", notes=notes_from([(0, 480, 60, 80)]))])
    data = {"content": content, "weights": weights}
    tune = 3 * (0, 4, 7, 4, 5, 9, 7, 5, 4, 2, 0, 2)
    rows = [(480 * i, 480, 60 + p, 80) for i, p in enumerate(tune)]
    # Not on the tonic, on which Python closes.
    melody = Score(tracks=[Track("Voice", notes=notes_from(rows))])
    data |= {"file": list(dumps(song)), "melody": list(dumps(melody))}
    done = run_worker(tmp_path, data, body, ["weights"])
    found, kept = done["found"], done["kept"]
    assert kept == [True] + [False] * (len(kept) - 1)
    for tokens in found:
        model.tokenizer.grammar().start(torch.tensor([tokens]))
        assert len(model.tokenizer.bar_starts(np.array(tokens), 48)) == 2
    exact = MusicModel(with_half_weights(model.model), *list(vars(model).values())[1:])
    # The page begins an accompaniment without a composed bar.
    monkeypatch.setattr(kept_prompt, "with_first_bar", lambda tokenizer, score, tokens, rng: tokens)
    pieces = (exact.generate(melody, keep="voice", temperature=0, guidance=x) for x in (1, 9))
    plain, guided = (piece.tokens.tolist() for (piece,) in pieces)
    assert done["guided"] == guided != plain
    assert done["copies"] <= 1 < len(guided) // 32  # of the state of a model that never goes back
    times = model.tokenizer.times(np.array(found[0]))
    assert min(times[times >= 12]) in range(20, 48)  # an answer begins within the bar
