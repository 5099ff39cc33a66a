// Scores: what readMidi returns and what tokenizers decode; their fields are listed in midi_reader.js.

const allNotes = (score) => score.tracks.flatMap((track) => track.notes);

/** Return the least of some numbers; Infinity without any. */
const least = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);

/** Return the greatest of some numbers; 0 without any above it. */
const greatest = (values) => values.reduce((a, b) => Math.max(a, b), 0);

/** Return the last event, an array that begins with its time, of those until `time`. */
const latestAt = (events, time) => events.findLast(([at]) => at <= time);

/** Return the time signature in force at a tick: [numerator, denominator]. */
function timeSignatureAt(score, tick) {
  const [, ...signature] = latestAt(score.signatures, tick) ?? [0, ...CONSTANTS.timeSignature];
  return signature;
}

/** Return the time signatures from tick 0 on. */
function signaturesFromStart(score) {
  const later = score.signatures.filter(([tick]) => tick > 0);
  return [[0, ...timeSignatureAt(score, 0)], ...later];
}

/** Return the ticks in a bar of a time signature. */
function barTicks({ ticksPerBeat }, [numerator, denominator]) {
  return Math.max(1, Math.floor((4 * ticksPerBeat * numerator) / denominator));
}

/** Return the time signature of the first note; of the next bar if its own is incomplete. */
function firstTimeSignature(score) {
  const [signatures, start] = [signaturesFromStart(score), firstOnset(score)];
  const [, ...first] = signatures.find(([tick], i) => {
    const [next, ...following] = signatures[i + 1] ?? [Infinity, 1, 1];
    return next > start && next - tick >= barTicks(score, following);
  });
  return first;
}

/** Tell whether the first bar has a time signature of its own, shorter than the next bar's. */
function hasUpbeat(score) {
  const [, second] = barsOf(score, 2);
  return second !== undefined && second[0] < barTicks(score, second.slice(1));
}

/** Return tempi that begin with `bpm`; later ones are as much faster or slower than before. */
function temposFrom(tempos, bpm) {
  const [, first] = latestAt(tempos, 0) ?? [0, CONSTANTS.tempo];
  const later = tempos.filter(([tick]) => tick > 0);
  return [[0, bpm], ...later.map(([tick, each]) => [tick, (each * bpm) / first])];
}

/** Return the tick of the first note; 0 without notes. */
function firstOnset(score) {
  const first = least(allNotes(score).map(([onset]) => onset));
  return Number.isFinite(first) ? first : 0;
}

/** Return the tick of the last event of a score and its chords. */
function lastTick(score, chords) {
  const events = [...allNotes(score), ...score.tempos, ...score.markers, ...chords];
  return greatest(events.map(([tick]) => tick));
}

/** Return [first tick, numerator, denominator] of each bar until the last note ends. */
function barsOf(score, maxBars) {
  const signatures = signaturesFromStart(score);
  const end = Math.max(1, greatest(allNotes(score).map(([onset, duration]) => onset + duration)));
  const bars = [];
  signatures.forEach(([tick, ...signature], i) => {
    const length = barTicks(score, signature);
    const stop = Math.min(signatures[i + 1]?.[0] ?? end, end, tick + length * maxBars);
    for (let start = tick; start < stop && bars.length < maxBars; start += length) {
      bars.push([start, ...signature]);
    }
  });
  return bars;
}
