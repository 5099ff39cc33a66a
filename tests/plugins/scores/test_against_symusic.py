"""Tunes in ABC notation, against the independent reader in symusic, which is abc2midi.

abc2midi begins some notes a tick or two late, and lets an accidental hold in all octaves of a bar, where
print (and this reader) lets it hold in its own: no tune here has the same letter in two octaves
after an accidental.
"""

import pytest
import symusic

from musicgen.plugins.scores import read

TICKS = 480  # in a quarter, of both readers
TUNES = {
    "a reel with a triplet": "M:4/4\nL:1/8\nK:D\nD2FA dAFA|B2gB fBeB|A2FA DEFG|(3ABc d2 e4|]",
    "a jig with ties": "M:6/8\nL:1/8\nQ:3/8=100\nK:Em\nE2F GFE|B3-B2f|edB AGF|E3-E2z|]",
    "a waltz in flats": "M:3/4\nL:1/4\nK:Bb\nB,2D|F>GA|_e=e^f|B3-|B2z|]",
    "a march in a mode": "M:2/4\nL:1/16\nK:A dor\nA4 c2BA|e3d c2B2|^G<A B<c d4-|d2c2 A4|]",
    "compound metres": "M:9/8\nL:1/8\nK:G mix\nG2A B2c def|g3 f2e d3|[M:6/8]GAB c2d|(4cdef g3|]",
    "seven eighths": "M:7/8\nL:1/16\nK:E phr\nE2F2G2 A4 B4|(7efgabc'd' e4 d2 B2 z4|]",
    "five quarters": "M:5/4\nL:1/8\nK:F#m\nF2A2c2 (5edcBA F2|^E2F4 z2 G2|c'2b2a2 g/f/e f2|]",
    "chords": (
        "%%MIDI chordattack 0\nM:4/4\nL:1/4\nK:Cm\n"
        "[CEG]2 [B,DF]>G|[C2E2G2]-[CEG] z|^F/2=F/2_E/4D/4C/2 c2|C,4|]"
    ),
    "changes of key, metre and unit": (
        "M:4/4\nL:1/8\nK:C\nCDEF GABc|[K:Eb]EFGA Bcde|[L:1/4]e2B2|[K:C][M:3/4]E F ^G|=G3|]"
    ),
    "two voices": "M:3/4\nL:1/8\nK:Dm\nV:1\nA2 d2 ^c2|d6|]\nV:2\nD,4 E,2|F,3 G,A,2|]",
    "a key of its own": "M:4/4\nL:1/4\nK:D exp ^f _b\nF4|B2 c2|]",
    "a clef alone": "M:4/4\nL:1/4\nK:G treble\nF4|G2 c2|]",
    "a clef": "M:4/4\nL:1/4\nK:D clef=bass\nF4|D2 C2|]",
}


@pytest.mark.parametrize("name", TUNES)
def test_notes_are_those_of_symusic(tmp_path, name):
    text = f"X:1\nT:{name}\n{TUNES[name]}\n"
    path = tmp_path / "tune.abc"
    path.write_text(text)
    ours, theirs = read(path), symusic.Score.from_abc(text)
    found = [
        sorted((n["onset"] / TICKS, n["pitch"], n["duration"] / TICKS) for n in track.notes)
        for track in ours.tracks
    ]
    expected = [
        sorted((n.time / TICKS, n.pitch, n.duration / TICKS) for n in track.notes)
        for track in theirs.tracks
        if len(track.notes)
    ]
    assert theirs.tpq == TICKS
    assert len(found) == len(expected)
    for notes, others in zip(found, expected, strict=True):
        assert len(notes) > 2
        assert notes == [pytest.approx(row, abs=2.5 / TICKS) for row in others]
