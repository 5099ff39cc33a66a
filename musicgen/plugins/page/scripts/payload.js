// A score of the worker as the data that the roll and the player of the report read.

const differences = (values) => values.map((value, i) => value - (values[i - 1] ?? 0));

/**
 * Return the piece as score_payload in musicgen/report/html.py does.
 *
 * @param marks passages to mark: first tick, last tick, text
 */
function payloadOf(score, marks = []) {
  const { ticksPerBeat, end, promptEnd } = score;
  const signatures = [...score.signatures];
  if (!signatures.length || signatures[0][0] > 0)
    signatures.unshift([0, ...CONSTANTS.timeSignature]);
  const bars = [];
  signatures.forEach(([tick, numerator, denominator], i) => {
    const length = (4 * ticksPerBeat * numerator) / denominator;
    const stop = signatures[i + 1]?.[0] ?? end;
    for (let start = tick; start < stop; start += length) bars.push(start);
  });
  return {
    ticksPerBeat,
    end: Math.max(end, 1),
    promptEnd: promptEnd < end ? promptEnd : 0,
    tempo: tempoMap(score),
    meters: signatures.map(([tick, n, d]) => [tick, (4 * ticksPerBeat) / d, `${n}/${d}`]),
    bars: differences(bars.length ? bars : [0]),
    markers: score.markers.map(([tick, text]) => [tick, chordLabel(text)]),
    marks,
    tracks: score.tracks.map((track) => trackPayload(track, promptEnd)),
  };
}

function trackPayload({ voice, notes, isKept }, promptEnd) {
  const sorted = notes.toSorted((a, b) => a[0] - b[0]);
  const column = (i) => sorted.map((note) => note[i]);
  const onsets = column(0);
  return {
    voice,
    kept: onsets.map((onset) => Number(isKept && onset < promptEnd)),
    onset: differences(onsets),
    duration: column(1),
    pitch: column(2),
    velocity: column(3),
  };
}

/** Return segments of constant tempo from tick 0 on: [first tick, its time in s, s per tick]. */
function tempoMap({ tempos, ticksPerBeat }) {
  const changes = [...tempos];
  if (!changes.length || changes[0][0] > 0) changes.unshift([0, CONSTANTS.tempo]);
  let [tick, second, rate] = [0, 0, 0];
  return changes.map(([next, bpm]) => {
    second += (next - tick) * rate;
    [tick, rate] = [next, 60 / (bpm * ticksPerBeat)];
    return [tick, second, rate];
  });
}

/** Format a chord marker for display; keep other text. */
function chordLabel(text) {
  const [root, quality] = text.split("_");
  if (root === "N" && quality === "N") return "N.C.";
  const { chordSuffixes } = CONSTANTS;
  return quality in chordSuffixes ? root + chordSuffixes[quality] : text;
}
