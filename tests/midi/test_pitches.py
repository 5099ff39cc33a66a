from musicgen.midi import pitch_name


def test_pitch_names():
    assert [pitch_name(pitch) for pitch in (0, 60, 61, 127)] == ["C-1", "C4", "C#4", "G9"]
