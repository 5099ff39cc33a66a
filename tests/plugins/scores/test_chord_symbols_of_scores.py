"""Chord symbols of a transposing part sound as its notes do, as music21 reads them, too."""

from musicgen.midi import read

HARMONY = "<harmony><root><root-step>{}</root-step></root><kind>{}</kind></harmony>"
NOTE = "<note><pitch><step>D</step><octave>4</octave></pitch><duration>4</duration></note>"
KEY = "<attributes><divisions>1</divisions><key><fifths>{}</fifths></key>{}</attributes>"
CLARINET = "<transpose><diatonic>-1</diatonic><chromatic>-2</chromatic></transpose>"


def test_chords_above_a_transposing_part_sound_as_its_notes_do(tmp_path):
    bars = [
        KEY.format(2, CLARINET) + HARMONY.format("D", "minor") + NOTE,
        KEY.format(0, "") + HARMONY.format("C", "minor") + NOTE,  # of another part: the same chord
    ]
    parts = "".join(
        f'<part id="P{i}"><measure>{bar}</measure></part>' for i, bar in enumerate(bars)
    )
    names = "".join(f'<score-part id="P{i}"><part-name>x</part-name></score-part>' for i in (0, 1))
    path = tmp_path / "clarinet.musicxml"
    path.write_text(f"<score-partwise><part-list>{names}</part-list>{parts}</score-partwise>")
    score = read(path)
    assert score.markers == [(0, "C_m_C")]
    assert score.notes["pitch"].tolist() == [60, 62]

    from music21 import converter, harmony

    sounding = converter.parse(path).toSoundingPitch()
    symbols = sounding.recurse().getElementsByClass(harmony.ChordSymbol)
    assert [each.root().name for each in symbols] == ["C", "C"]
    (tmp_path / "clarinet.abc").write_text('X:1\nK:D transpose=-2\n"Dm"D8|')
    assert read(tmp_path / "clarinet.abc").markers == [(0, "C_m_C")]
