"""MEI and Humdrum **kern, which verovio reads: keys, tempi, drums and sections by hand."""

import pytest

from musicgen.errors import UserError
from musicgen.plugins.scores.printed_scores import read_score

KERN = "**kern\n*clefG2\n*M4/4\n"
SECTIONS = (
    "**kern\n*>[A,B,A]\n*>norep[A,B]\n*>A\n*clefG2\n*M2/4\n=1\n2c\n=2\n2d\n*>B\n=3\n2e\n=\n*-\n"
)


def mei(definition, *measures):
    bars = "".join(
        f'<measure n="{n}"><staff n="1"><layer n="1">{notes}</layer></staff>{signs}</measure>'
        for n, (notes, signs) in enumerate(measures)
    )
    return (
        '<mei xmlns="http://www.music-encoding.org/ns/mei" meiversion="5.0"><meiHead/><music><body>'
        f"<mdiv><score>{definition}<section>{bars}</section></score></mdiv></body></music></mei>"
    )


def head(staff="", keysig="2s"):
    return (
        f'<scoreDef meter.count="4" meter.unit="4" keysig="{keysig}"><staffGrp>'
        f'<staffDef n="1" lines="5" clef.shape="G" clef.line="2" {staff}/></staffGrp></scoreDef>'
    )


def whole(pitch, inside=""):
    return f'<note pname="{pitch}" oct="4" dur="1" {inside}/>'


def read_text(tmp_path, name, text, **options):
    path = tmp_path / name
    path.write_text(text)
    return read_score(path, **options)


def quarters(score):
    return [(n["onset"] / 480, n["duration"] / 480, int(n["pitch"])) for n in score.notes]


def test_tempi_of_kern_are_its_own(tmp_path):
    text = KERN + "*MM90\n=1\n4c\n4d\n*MM60\n4e\n4f\n=2\n*MM80\n1g\n==\n*-\n"
    assert read_text(tmp_path, "a.krn", text).tempos.tolist() == [(0, 90), (960, 60), (1920, 80)]
    none = KERN + "=1\n1c\n=2\n1c\n=3\n1c\n==\n*-\n"
    assert not len(read_text(tmp_path, "a.krn", none).tempos)
    named = "!!!OMD: Vivace [quarter=144]\n" + none
    assert read_text(tmp_path, "a.krn", named).tempos.tolist() == [(0, 144)]


def test_sections_of_kern_are_played_in_the_order_of_their_list(tmp_path):
    for repeats, expected in ((True, [60, 62, 64, 60, 62]), (False, [60, 62, 64])):
        score = read_text(tmp_path, "a.krn", SECTIONS, repeats=repeats)
        assert score.notes["pitch"].tolist() == expected
        assert score.time_signatures == [(0, 2, 4)]


def test_percussion_of_kern_is_drums(tmp_path):
    score = read_text(tmp_path, "a.krn", "**kern\n*clefX\n*M2/4\n=1\n4fR\n4ccR\n==\n*-\n")
    assert (score.tracks[0].is_drum, score.notes["pitch"].tolist()) == (True, [36, 38])
    assert score.repairs == ["2 drums without an instrument placed by their lines"]


def test_keys_and_tempi_of_mei(tmp_path):
    tempo = '<tempo tstamp="3" mm="40" mm.unit="2" mm.dots="1"/>'
    text = mei(head('trans.semi="-2" trans.diat="-1"'), (whole("d"), ""), (whole("e"), tempo))
    score = read_text(tmp_path, "a.mei", text)
    assert score.key_signatures == [(0, 0)]
    assert score.tempos.tolist() == [(2880, 120)]
    assert quarters(score) == [(0, 4, 60), (4, 4, 62)]


def test_empty_bars_of_mei_have_their_time(tmp_path):
    text = mei(head(), (whole("d"), ""), ("<mSpace/>", ""), (whole("e"), ""))
    assert quarters(read_text(tmp_path, "a.mei", text)) == [(0, 4, 62), (8, 4, 64)]


def test_sections_of_mei_are_played_in_the_order_of_an_expansion(tmp_path):
    text = mei(head(), *[(whole(step), "") for step in "def"])
    text = text.replace("<section>", '<section><expansion plist="#A #B #A #C"/>')
    for n, name in enumerate("ABC"):
        text = text.replace(f'<measure n="{n}">', f'<section xml:id="{name}"><measure n="{n}">')
    text = text.replace("</measure>", "</measure></section>")
    for repeats, expected in ((True, [62, 64, 62, 65]), (False, [62, 64, 65])):
        score = read_text(tmp_path, "a.mei", text, repeats=repeats)
        assert score.notes["pitch"].tolist() == expected


def test_cue_notes_are_silent(tmp_path):
    text = mei(head(), (whole("d", 'cue="true"'), ""), (whole("e"), ""))
    assert quarters(read_text(tmp_path, "a.mei", text)) == [(4, 4, 64)]


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.mei", mei(head('notationtype="mensural.white"'), (whole("d"), "")), "mensural"),
        ("a.mei", mei(head().replace('unit="4"', 'unit="-4"'), (whole("d"), "")), "1/-4|4/-4"),
        ("a.krn", "hello", "damaged|no bar|no note"),
    ],
)
def test_music_without_bars_raises_one_line(tmp_path, name, text, reason):
    with pytest.raises(UserError, match=rf"^[^\n]*({reason})[^\n]*$"):
        read_text(tmp_path, name, text)


def test_further_movements_are_named(tmp_path):
    text = mei(head(), (whole("d"), ""))
    start, end = text.index("<mdiv>"), text.index("</mdiv>") + 7
    score = read_text(tmp_path, "a.mei", text[:end] + text[start:end] + text[end:])
    assert score.repairs == ["1 movement after the first left out"]
