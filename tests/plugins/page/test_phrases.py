"""Keys with a mode, and counts of the bars left, are those of Python on the page."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from musicgen.generation.decoder import form_biases
from musicgen.generation.model import MusicModel
from musicgen.generation.prompt import empty_prompt, make_prompt
from musicgen.generation.request import PieceParams
from musicgen.midi import KeySignature, Marker, Score, Track, dumps, loads, notes_from
from musicgen.midi.score import DOUBLE_BAR, FERMATA, PITCH_CLASSES
from musicgen.plugins.page.document import read_page, with_half_weights
from musicgen.tokenization.phrases import FULL, LEFT, PIECE
from musicgen.tokenization.vocabulary import within
from tests.generation.builders import music_model
from tests.plugins.page.music import TOKENIZERS, run_tokenizer, with_upbeats
from tests.plugins.page.node import needs_node, run_worker
from tests.plugins.page.test_changes import SESSION

pytestmark = needs_node
NAME = "songs with phrases"
SONGS = TOKENIZERS[NAME]
BAR = 1920
MAJOR, HARMONIC_MINOR = (0, 2, 4, 5, 7, 9, 11), (9, 11, 0, 2, 4, 5, 8)


def song(seed: int) -> Score:
    """A song of random rests, key signatures, chords and signs."""
    rng = np.random.default_rng(seed)
    fifths, scale = int(rng.integers(-7, 8)), (MAJOR, HARMONIC_MINOR)[seed % 2]
    beats = np.flatnonzero(rng.random(64) < rng.choice([0.8, 0.95])) + 4 * (seed % 3)
    tune = [(480 * b, 480, 60 + (rng.choice(scale) + 7 * fifths) % 12, 80) for b in beats]
    chords = [(960 * i, 900, 48 + (rng.choice(scale) + 7 * fifths) % 12, 70) for i in range(4, 36)]
    name = ("Voice", "Piano")[seed % 5 == 4]
    tracks = [Track(name, notes=notes_from(tune)), Track("Piano", notes=notes_from(chords))]
    tracks.append(Track("Drums", is_drum=True, notes=notes_from([(9000, 9, 36, 80)])))
    tonic = KeySignature(0, fifths)
    later = KeySignature(8 * BAR, int(rng.integers(-7, 8)), seed % 4 == 3)
    keys = [[], [tonic], [tonic, later], [tonic._replace(tick=2 * BAR), later]][seed % 4]
    dominant = PITCH_CLASSES[(7 * fifths + 7 - 3 * (seed % 2)) % 12]
    markers = [
        Marker(BAR * i, f"{dominant}_{rng.choice(['M', '7', 'm', 'M7'])}") for i in range(18)
    ]
    signs = rng.choice([DOUBLE_BAR, FERMATA, "Verse"], 6)
    at = np.sort(rng.choice(np.arange(70), 6, replace=False)) * 480
    markers += [Marker(int(tick), str(text)) for tick, text in zip(at, signs, strict=True)]
    return Score(480, tracks, markers=sorted(markers), key_signatures=keys)


def names(tokens, family):
    ids = SONGS.families[family]
    return [SONGS.vocabulary.token(int(token)) for token in tokens if int(token) in ids]


def test_keys_and_counts_are_those_of_python(tmp_path):
    files = [list(dumps(song(seed))) for seed in range(24)]
    body = """
        return data.files.map((bytes) => {
          const score = readMidi(Uint8Array.from(bytes));
          const tokens = tokenizer.encode(score);
          const file = [...writeMidi(tokenizer.decode(tokens))];
          const prompts = [2, 5, 9].map((bars) => makePrompt(tokenizer, score, bars).tokens);
          return { keys: score.keys, tokens, file, prompts };
        });
    """
    seen = set()
    for file, found in zip(files, run_tokenizer(tmp_path, NAME, body, files=files), strict=True):
        score = loads(bytes(file))
        assert found["keys"] == [[*each] for each in score.key_signatures]
        tokens = SONGS.encode(score)
        assert found["tokens"] == tokens.tolist()
        written = loads(bytes(found["file"])).key_signatures
        assert written == SONGS.decode(tokens).key_signatures
        for prompt, bars in zip(found["prompts"], (2, 5, 9), strict=True):
            assert prompt == make_prompt(SONGS, score, "song", bars).tokens.tolist()
        seen |= {*names(tokens, "Left"), *(key[-1] == "m" for key in names(tokens, "Key"))}
    assert seen == {True, False, *(f"Left_{each}" for each in LEFT)}


@pytest.mark.parametrize("key", ["F#m", "A", "-3"])
def test_a_new_piece_has_the_mode_of_its_key_and_no_end(key, tmp_path):
    body = "return emptyPrompt(tokenizer, keySignatures(data.key)).tokens;"
    expected = empty_prompt(SONGS, keys=PieceParams(key=key).key_signatures).tokens
    assert run_tokenizer(tmp_path, NAME, body, key=key) == expected.tolist()
    assert names(expected, "Key") == [{"F#m": "Key_3m", "A": "Key_3"}.get(key, "Key_-3")]
    assert not names(expected, "Left")


@pytest.mark.parametrize("seed", range(4))
def test_parts_are_written_to_a_melody_with_the_keys_and_counts_of_all_parts(seed, tmp_path):
    score = replace(song(seed), markers=[])
    score.tracks[0].notes = score.tracks[0].notes[:20]
    body = """
        const { conditioning } = tokenizer.withMelodyAhead(data.tokens);
        return conditioning.map((token) => token ?? -1);
    """
    tokens = SONGS.encode(score)[:-1]
    found = run_tokenizer(tmp_path, NAME, body, tokens=tokens.tolist())
    assert found == SONGS.keep_parts(SONGS.decode(tokens), ["voice"], 0, None).ids.tolist()
    assert names(found, "Left") == names(tokens, "Left")


def test_a_piece_that_goes_on_has_no_end(tmp_path):
    tune = [replace(track, name="Voice") for track in song(0).tracks[:1]]
    body = f"""
        {SESSION}
        const tokens = () => [...session.composer.tokens];
        model.logits.fill(9, ...tokenizer.families.Left); // which are the more probable
        return (async () => {{
          await send("open", {{ bytes: Uint8Array.from(data.file), maxBars: 9, name: "song" }});
          await send("compose", {{ bars: 12, settings }});
          const composed = tokens();
          await send("accompany", {{ settings }});
          const accompanied = tokens();
          await send("compose", {{ bars: 1, settings }});
          return [composed, accompanied, tokens(), messages.filter(({{ kind }}) => kind === "error")];
        }})();
    """
    file = list(dumps(Score(480, tune)))
    composed, accompanied, continued, errors = run_tokenizer(tmp_path, NAME, body, file=file)
    assert errors == []
    ends = [[x for x in names(each, "Left") if "piece" in x] for each in (composed, continued)]
    assert ends == [[], []]
    assert len(names(composed, "Left")) > 9
    assert names(accompanied, "Left")[-1] == "Left_piece_1"


def test_a_piece_ends_in_the_last_bar_that_is_added(tmp_path):
    body = f"""
        {SESSION}
        const counts = () => session.composer.tokens.flatMap((token) =>
          within(token, tokenizer.families.Bar) ? [null] : within(token, tokenizer.families.Left) ? [token] : []);
        return (async () => {{
          const closing = {{ ...settings, key: "C", closes: true }};
          await send("compose", {{ bars: 6, settings: closing }});
          const closed = counts();
          await send("retake", {{ bars: 2, settings: {{ ...closing, take: 1 }} }});
          const again = counts();
          await send("compose", {{ bars: 3, settings }});
          return {{ closed, again, goesOn: counts(), numBars: session.composer.numBars }};
        }})();
    """
    found = run_tokenizer(tmp_path, NAME, body)
    ends = {
        name: [each and SONGS.vocabulary.token(each)[5:] for each in found[name]]
        for name in ("closed", "again", "goesOn")
    }
    # The first bar is that of the key.
    bars = [None, None, None, "piece_4", None, None, "piece_2", None, "piece_1"]
    assert ends["closed"] == bars
    assert ends["again"] == bars
    assert not any("piece" in each for each in ends["goesOn"] if each)
    assert found["numBars"] == 9


def test_sections_of_a_form_are_phrases(tmp_path):
    body = "return data.asked.map((each) => plannedEnds(...each));"
    asked = [[432, 192, True, 0], [384, 192, True, 0], [384, 192, False, 0], [96, 0, True, 0]]
    asked += [[96, 0, False, 0], [444, 192, True, 12]]
    found = run_tokenizer(tmp_path, NAME, body, asked=asked)
    assert found == [
        [[192, FULL], [384, FULL], [432, PIECE]],
        [[192, FULL], [384, PIECE]],
        [[192, FULL], [384, FULL]],
        [[96, PIECE]],
        [],
        [[204, FULL], [396, FULL], [444, PIECE]],
    ]


@pytest.mark.parametrize("form", [None, "AB"], ids=["no form", "an upbeat and a form"])
def test_a_page_continues_a_song_with_the_tokens_of_python(tmp_path, form):
    copy = None if form is None else {"coordinate": "bar", "max_lag": 4}
    model = music_model(SONGS, num_layers=1, copy=copy)
    model.content.describe = str
    model.save_page(tmp_path / "page.html")
    assert 'id="close"' in (tmp_path / "page.html").read_text(encoding="utf-8")
    content, worker, weights = read_page(tmp_path / "page.html")
    # The upbeat begins with a note, and its bar is filled with silence.
    score = song(1) if form is None else with_upbeats([song(3)])[0]
    body = f"""{worker}
        return unpackWeights(data.weights).then((bytes) => {{
          const {{ composer, sampling }} = new Session({{ ...data.content, bytes }});
          composer.begin(makePrompt(composer.tokenizer, readMidi(Uint8Array.from(data.file)), 4));
          const params = {{ ...sampling, temperature: 0 }};
          const end = composer.endTime + 3 * composer.prompt.barLength;
          const form = formBiases(data.form, 2, composer.model.lagBias?.length ?? 0);
          for (const _ of composer.compose({{ end, seed: 1, params, form, sectionBars: 2 }}));
          return {{ tokens: composer.tokens, form: composer.model.form }};
        }});
    """
    data = {"content": content, "weights": weights, "file": list(dumps(score)), "form": form or ""}
    found = run_worker(tmp_path, data, body, ["weights"])
    exact = MusicModel(with_half_weights(model.model), *list(vars(model).values())[1:])
    options = {} if form is None else {"form": form, "section_bars": 2}
    (piece,) = exact.generate(loads(dumps(score)), prompt_bars=4, bars=3, temperature=0, **options)
    assert found["tokens"] == piece.tokens.tolist()
    if form is not None:
        of_bars = form_biases(form, 2, 4)
        assert found["form"] == torch.roll(of_bars, 1, dims=0).tolist()  # the upbeat is bar 0
    assert within(piece.tokens, SONGS.families["Left"]).any()
    assert piece.prompt.has_upbeat == (form is not None)
