// Chords of a score: its own markers, and recognised before them, as in
// musicgen/tokenization/chord_recognition.py.

/** Return [tick, index of the chord] from a score's markers or its notes, as the model was trained. */
function chordEvents(score, { chordSource, chordIndices, recognition }) {
  if (chordSource === "none") return [];
  const named = score.markers
    .map(([tick, text]) => [tick, chordIndices[chordName(text)]])
    .filter(([, index]) => index !== undefined);
  if (chordSource === "markers") return named;
  const markers = chordSource === "auto" ? named : [];
  const [start, firstMarker] = [firstOnset(score), markers[0]?.[0] ?? Infinity];
  if (firstMarker < start + barTicks(score, firstTimeSignature(score))) return named;
  const recognised = recogniseChords(score, recognition).filter(([tick]) => tick < firstMarker);
  return [...recognised, ...markers];
}

/**
 * Return the key of notes, { fifths, minor }, as find_key in midi/key.py; null without.
 *
 * @param fifths a key signature, which limits the choice to its major and minor key; null: none
 * @param isInside tells which notes count
 */
function findKey(score, { keyFits }, { fifths = null, isInside = () => true } = {}) {
  const weights = new Float64Array(12);
  for (const { isDrum, notes } of score.tracks) {
    if (isDrum) continue;
    for (const [, duration, pitch] of notes.filter(isInside)) weights[pitch % 12] += duration;
  }
  if (weights.every((weight) => weight === weights[0])) return null;
  let [best, highest] = [null, -Infinity];
  keyFits.forEach(([ofKey, profile], i) => {
    const fit = profile.reduce((sum, value, i) => sum + value * weights[i], 0);
    const isAsked = fifths === null || (ofKey - fifths) % 12 === 0;
    if (isAsked && fit > highest)
      [best, highest] = [{ fifths: ofKey, minor: 2 * i >= keyFits.length }, fit];
  });
  return best;
}

/** Return the names of the pitch classes by a key signature, else in the key of notes. */
function noteNames(keys, score, tables) {
  return tables.spellings[keys[0]?.[1] ?? findKey(score, tables)?.fifths];
}

/** Return the marker of a chord, whose root has a name with a sharp, with other names of the notes. */
function spelled(text, names) {
  return text.replace(
    /^([A-G]#?)(?=_)/,
    (root) => names?.[CONSTANTS.noteNames.indexOf(root)] ?? root,
  );
}

/** Return the name of a chord without its bass, of which the vocabulary has none. */
function chordName(text) {
  return text === "N_N_N" ? "N_N" : text.split("_").slice(0, 2).join("_");
}

/**
 * Return [tick, index of the chord] where the chord changes, from tick 0 on; drums do not count.
 *
 * Finds the chords, one per beat, with the highest sum of fits minus the cost of changes.
 */
function recogniseChords(score, model) {
  const notes = score.tracks.filter((track) => !track.isDrum).flatMap((track) => track.notes);
  if (!notes.length) return [];
  const { edges, costs } = beatsOf(score, model);
  const chords = bestPath(chordFits(soundingPitches(notes, edges), model), costs);
  const changes = [...chords.keys()].filter((beat) => chords[beat] !== chords[beat - 1]);
  return changes.map((beat) => [edges[beat], chords[beat]]);
}

/** Return the ticks of the beats and of their end, and the cost of a change on each. */
function beatsOf(score, { maxBeats, changeBar, changeMiddle, changeBeat }) {
  const bars = barsOf(score, maxBeats);
  const [edges, costs] = [[], []];
  bars.forEach(([start, numerator, denominator], i) => {
    const length = Math.floor((4 * score.ticksPerBeat * numerator) / denominator);
    const end = bars[i + 1]?.[0] ?? start + length;
    const count = beatsInBar(numerator, denominator);
    for (let beat = 0; beat < count; beat++) {
      edges.push(start + Math.floor((beat * (end - start)) / count));
      if (beat === 0) costs.push(changeBar);
      else costs.push(2 * beat === count ? changeMiddle : changeBeat);
    }
    if (i === bars.length - 1) edges.push(end);
  });
  return { edges: edges.slice(0, maxBeats + 1), costs: costs.slice(0, maxBeats) };
}

/** Return the number of quarters, of dotted quarters in 6/8 etc., or of eighths in 5/8 etc. */
function beatsInBar(numerator, denominator) {
  if (denominator <= 4) return Math.floor((numerator * 4) / denominator);
  return numerator % 3 === 0 ? numerator / 3 : numerator;
}

/** Return the part of each beat on which each pitch sounds, and the first pitch, a C. */
function soundingPitches(notes, edges) {
  const pitches = notes.map(([, , pitch]) => pitch);
  const lowest = least(pitches) - (least(pitches) % 12);
  const width = Math.floor((greatest(pitches) - lowest) / 12) * 12 + 12;
  const size = edges.length + 1;
  const steps = new Float64Array(width * size);
  for (const [onset, duration, pitch] of notes) {
    for (const [tick, sign] of [
      [onset, 1],
      [onset + duration, -1],
    ]) {
      const time = beatAt(tick, edges);
      const at = (pitch - lowest) * size + Math.floor(time);
      const rest = sign * (time - Math.floor(time));
      steps[at] += sign - rest;
      steps[at + 1] += rest;
    }
  }
  const sounding = Array.from({ length: edges.length - 1 }, () => new Float64Array(width));
  for (let pitch = 0; pitch < width; pitch++) {
    let sum = 0;
    for (let beat = 0; beat < sounding.length; beat++) {
      sum += steps[pitch * size + beat];
      sounding[beat][pitch] = Math.min(Math.max(sum, 0), 1);
    }
  }
  return { sounding, lowest };
}

/** Return where a tick is between the beats, as a number of beats. */
function beatAt(tick, edges) {
  const low = edges.findLastIndex((edge) => edge <= tick);
  if (low < 0 || low === edges.length - 1) return Math.max(0, low);
  return low + (tick - edges[low]) / (edges[low + 1] - edges[low]);
}

/** Return the fit of each beat to each chord and, last, to no chord. */
function chordFits({ sounding, lowest }, model) {
  const {
    templates,
    penalties,
    high,
    highWeight,
    bassBeats,
    nothingFits,
    silence,
    chordInSilence,
  } = model;
  return sounding.map((pitches) => {
    const features = new Float64Array(24);
    pitches.forEach((part, i) => (features[i % 12] += part * (lowest + i < high ? 1 : highWeight)));
    const total = features.reduce((a, b) => a + b);
    if (total < 1e-6) return [...penalties.map(() => chordInSilence), silence];
    for (let i = 0; i < 12; i++) features[i] /= total;
    const bass = pitches.findIndex((part) => part > bassBeats);
    if (bass >= 0) features[12 + (bass % 12)] = 1;
    const fits = penalties.map((penalty) => -penalty);
    features.forEach((feature, i) => {
      if (feature) templates[i].forEach((weight, chord) => (fits[chord] += feature * weight));
    });
    return [...fits, nothingFits];
  });
}

/** Return the chords with the best sum of fits minus costs of changes. */
function bestPath(fits, costs) {
  const best = (values) => values.reduce((at, value, i) => (value > values[at] ? i : at), 0);
  const [sums, thresholds] = [[fits[0]], []];
  for (let i = 1; i < fits.length; i++) {
    // All changes on a beat cost the same, so a change always leaves the best chord so far.
    const before = sums[i - 1];
    const threshold = before[best(before)] - costs[i];
    thresholds.push(threshold);
    sums.push(fits[i].map((fit, chord) => fit + Math.max(before[chord], threshold)));
  }
  let chord = best(sums.at(-1));
  const path = [chord];
  for (let i = sums.length - 2; i >= 0; i--) {
    if (sums[i][chord] < thresholds[i]) chord = best(sums[i]);
    path.push(chord);
  }
  return path.reverse();
}
