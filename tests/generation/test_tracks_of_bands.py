from musicgen.generation.source import tracks_with_notes
from musicgen.midi import Score, Track, notes_from
from musicgen.tokenization import Groove2Groove
from tests.generation.builders import music_model


def test_a_band_has_no_other_tracks_than_its_file():
    bar = [(480 * beat, 240, 36, 80) for beat in range(4)]
    drums = Track("Drums", 0, True, notes_from(bar))
    late = Track("Bass", 33, notes=notes_from([(4 * 1920, 240, 40, 80)]))  # behind the prompt
    model = music_model(Groove2Groove())
    for tracks, expected in (([drums], {1}), ([drums, late], {0, 1})):
        pieces = model.generate(Score(480, tracks), prompt_bars=1, bars=2, num_samples=4)
        playing = [i for piece in pieces for i in tracks_with_notes(piece.new_score)]
        assert {*playing} == expected
    (piece,) = model.generate(None, bars=2)
    assert len(tracks_with_notes(piece.new_score)) > 2
