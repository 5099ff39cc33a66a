"""MEI and Humdrum **kern, which verovio reads: keys, tempi, drums and sections by hand."""

import numpy as np
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


def test_keys_of_kern_and_mei_are_minor_if_they_say_so(tmp_path):
    kern = "**kern\n*clefG2\n*k[b-]\n*{}:\n*M4/4\n=1\n1d\n==\n*-\n"
    for name, is_minor in (("d", True), ("F", False)):
        score = read_text(tmp_path, "a.krn", kern.format(name))
        assert score.key_signatures == [(0, -1, is_minor)]
    minor = head().replace('keysig="2s"', 'keysig="2s" key.mode="minor"')
    score = read_text(tmp_path, "a.mei", mei(minor, (whole("b"), "")))
    assert score.key_signatures == [(0, 2, True)]


def test_keys_and_tempi_of_mei(tmp_path):
    tempo = '<tempo tstamp="3" mm="40" mm.unit="2" mm.dots="1"/>'
    text = mei(head('trans.semi="-2" trans.diat="-1"'), (whole("d"), ""), (whole("e"), tempo))
    score = read_text(tmp_path, "a.mei", text)
    assert score.key_signatures == [(0, 0, False)]
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


def played(tmp_path, *bars, **options):
    return quarters(read_text(tmp_path, "a.mei", mei(head(keysig="0"), *bars), **options))


def step(pitch, dur=4, inside="", octave=4):
    return f'<note pname="{pitch}" oct="{octave}" dur="{dur}" {inside}/>'


SCALE = "".join(map(step, "cdef"))


def test_tuplets_inside_tuplets(tmp_path):
    """A fifth of two thirds of a quarter, and in three levels a third of that of two eighths."""
    five = f'<tuplet num="5" numbase="4">{"".join(step(p, 16) for p in "defga")}</tuplet>'
    bar = f'<tuplet num="3" numbase="2">{step("c", 2)}{five}{step("b")}</tuplet>'
    found = played(tmp_path, (bar, ""))
    fifths = [(4 / 3 + i * 2 / 15, 2 / 15) for i in range(5)]
    key = [(0, 4 / 3), *fifths, (2, 2 / 3)]
    assert [row[:2] for row in found] == [pytest.approx(row, abs=1 / 480) for row in key]
    three = f'<tuplet num="3" numbase="2">{"".join(step(p, 16) for p in "abc")}</tuplet>'
    deep = bar.replace(step("a", 16), f"<beam>{three.replace(' 16', ' 32')}</beam>")
    lengths = [row[1] for row in played(tmp_path, (deep, ""))]
    assert lengths[5:8] == [pytest.approx(2 / 15 * 2 / 3, abs=1 / 480)] * 3


def test_repeated_bars_of_mei_are_played(tmp_path):
    first = [(0, 1, 60), (1, 1, 62), (2, 1, 64), (3, 1, 65)]

    def later(bars):
        return [(onset + 4 * bars, *rest) for onset, *rest in first]

    one = played(tmp_path, (SCALE, ""), ("<mRpt/>", ""), ("<mRpt/>", ""), (whole("g"), ""))
    assert one == [*first, *later(1), *later(2), (12, 4, 67)]
    for sign in "<mRpt2/>", '<multiRpt num="2"/>':
        two = played(tmp_path, (SCALE, ""), (whole("g"), ""), (sign, ""), ("<mSpace/>", ""))
        assert two == [*first, (4, 4, 67), *later(2), (12, 4, 67)]
    tied = step("c", 2, 'xml:id="x"') + step("c", 2, 'xml:id="y"')
    tie = '<tie startid="#x" endid="#y"/>'
    assert played(tmp_path, (tied, tie), ("<mRpt/>", "")) == [(0, 4, 60), (4, 4, 60)]
    layers = f'{whole("g")}</layer><layer n="2">{whole("c")}'
    assert len(played(tmp_path, (layers, ""), ("<mRpt/>", ""))) == 4
    lost = read_text(tmp_path, "a.mei", mei(head(), ("<mRpt/>", ""), (whole("g"), "")))
    assert lost.repairs == ["1 sign of repeated beats or bars ignored"]


def test_repeated_beats_of_mei_are_played(tmp_path):
    found = played(tmp_path, (step("c") + step("d") + "<beatRpt/>" * 2, ""))
    assert found == [(0, 1, 60), (1, 1, 62), (2, 1, 62), (3, 1, 62)]
    beam = f"<beam>{step('c', 8)}{step('d', 8)}</beam>"
    found = played(tmp_path, (beam + "<beatRpt/>" + beam + "<beatRpt/>", ""))
    assert found == [(i / 2, 1 / 2, 60 + i % 2 * 2) for i in range(8)]
    three = f'<tuplet num="3" numbase="2">{"".join(step(p, 8) for p in "cde")}</tuplet>'
    found = played(tmp_path, (three + "<beatRpt/>" * 3, ""))
    assert [row[2] for row in found] == [60, 62, 64] * 4
    assert [row[0] for row in found] == pytest.approx([i / 3 for i in range(12)], abs=1 / 480)
    half = played(tmp_path, (step("c") + step("d") + "<halfmRpt/>", ""))
    assert half == [(0, 1, 60), (1, 1, 62), (2, 1, 60), (3, 1, 62)]


def test_copies_of_mei_are_written_out(tmp_path):
    bar = step("c", 2, 'xml:id="a"') + '<note copyof="#a"/>'
    assert played(tmp_path, (bar, "")) == [(0, 2, 60), (2, 2, 60)]
    beam = f'<beam xml:id="b">{step("c")}{step("d")}</beam><beam copyof="#b" xml:id="c"/>'
    again = '<beam copyof="#c"/><beam copyof="#b"/>'
    found = played(tmp_path, (beam, ""), (again, ""))
    assert found == [(i, 1, 60 + i % 2 * 2) for i in range(8)]
    cycle = f'<beam xml:id="b">{step("c")}<beam copyof="#b"/></beam>'
    assert played(tmp_path, (cycle + step("d"), ""))[0] == (0, 1, 60)


def test_microtones_of_mei_are_named(tmp_path):
    bar = step("c", 4, 'accid="1qs"') + step("d", 4, 'accid="fu"') + step("e", 4, 'accid="ff"')
    score = read_text(tmp_path, "a.mei", mei(head(keysig="0"), (bar + step("f"), "")))
    assert score.repairs == ["2 microtones rounded"]
    assert score.notes["pitch"].tolist()[2:] == [62, 65]


def test_what_is_crossed_out_is_silent(tmp_path):
    bar = f"<supplied>{step('c', 2)}</supplied><del>{step('a')}</del><add>{step('d', 2)}</add>"
    assert played(tmp_path, (bar, "")) == [(0, 2, 60), (2, 2, 62)]


@pytest.mark.parametrize(
    ("sign", "moved"),
    [
        ('dis="8" dis.place="above" startid="#p" endid="#q"', 12),
        ('dis="15" dis.place="below" tstamp="2" tstamp2="0m+3"', -24),
        ('dis="8" dis.place="above" tstamp="2" tstamp2="0m+3.5"', 12),
    ],
)
def test_signs_of_octaves_move_what_stands_below_them(tmp_path, sign, moved):
    bar = step("c") + step("d", 4, 'xml:id="p"') + step("e", 4, 'xml:id="q"') + step("f")
    found = played(tmp_path, (bar, f'<octave staff="1" {sign}/>'))
    assert [row[2] for row in found] == [60, 62 + moved, 64 + moved, 65]
    sounding = bar.replace("/>", ' oct.ges="5"/>')
    assert [r[2] for r in played(tmp_path, (sounding, f'<octave staff="1" {sign}/>'))][1] == 74
    across = f'<octave staff="1" {sign.replace("0m+", "1m+")}/>'
    if "tstamp2" in sign:
        later = played(tmp_path, (bar, across), (SCALE, ""))
        assert [row[2] for row in later[3:8]] == [
            65 + moved,
            *(p + moved for p in (60, 62, 64)),
            65,
        ]


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


@pytest.mark.parametrize(
    ("units", "bpm"),
    [("", 60), ('mm.unit="2"', 120), ('mm.unit="2" mm.dots="1"', 180), ('mm.unit="8"', 30)],
)
def test_tempi_of_mei_count_their_units(tmp_path, units, bpm):
    sign = f'<tempo tstamp="3" staff="1" mm="60" {units}/>'
    score = read_text(tmp_path, "a.mei", mei(head(), (whole("c"), ""), (whole("d"), sign)))
    np.testing.assert_allclose(score.tempos.tolist()[-1], (1920 + 960, bpm))


@pytest.mark.parametrize("place", ['startid="#p"', 'startid="#q"', 'tstamp="2" staff="1"'])
def test_tempi_and_fermatas_of_mei_stand_at_their_notes_or_beats(tmp_path, place):
    first = step("d", 4, 'xml:id="p"')
    chord = f'<chord dur="4" xml:id="q">{first}{step("f")}</chord>'
    signs = f'<tempo {place} midi.bpm="90"/><fermata {place}/>'
    bars = (whole("c"), ""), (step("c") + chord + step("e", 2), signs)
    score = read_text(tmp_path, "a.mei", mei(head(), *bars))
    assert score.tempos.tolist() == [(2400, 90)]
    assert score.markers == [(2400, "Fermata")]


@pytest.mark.parametrize(
    ("pitch", "expected"), [("c", [(0, 8, 60)]), ("e", [(0, 4, 60), (4, 4, 64)])]
)
def test_a_tie_of_mei_joins_notes_of_a_pitch_alone(tmp_path, pitch, expected):
    ids = ['xml:id="a"', 'xml:id="b"']
    tie = '<tie startid="#a" endid="#b"/>'
    music = mei(head(keysig="0"), (whole("c", ids[0]), tie), (whole(pitch, ids[1]), ""))
    assert quarters(read_text(tmp_path, "a.mei", music)) == expected
