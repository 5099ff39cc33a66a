// How a prompt is played, and new notes that are played like it: musicgen/generation/performance.py.
//
// A played note is { part, bar, position, pitch, length, velocity, deviation, articulation }: position
// in the bar, length and deviation from the grid are in quarters, articulation is the played length as a
// multiple of the length on the grid. A part is a track, or one pitch of a track of drums. A group is
// the notes that begin together in a part, the highest first, with the logarithm of the longest length.

/** Return written notes with what they were as played: deviation and duration, in ticks. */
function withPerformance(written, played) {
  const tracks = written.tracks.map((track, i) => ({
    ...track,
    notes: track.notes.map((note, j) => {
      const [onset, duration] = played.tracks[i].notes[j];
      return [...note.slice(0, 4), onset - note[0], duration];
    }),
  }));
  return { ...written, tracks };
}

/**
 * Return how the notes of a score between two grid steps are played: their groups, the last bar, and
 * each note by its part, its grid step from the first one on, and its pitch.
 *
 * @param bars grid steps at which bars begin
 */
function findPerformance(tokenizer, score, bars, first, end) {
  const { stepsPerBeat } = tokenizer;
  const tick = 1 / score.ticksPerBeat;
  const lines = bars.filter((line) => line >= first && line < end);
  const [notes, byPlace] = [[], new Map()];
  const parts = tokenizer.findTracks?.(score.tracks) ?? [...score.tracks.keys()];
  score.tracks.forEach((track, i) => {
    const part = parts[i];
    for (const [onset, written, pitch, velocity, late = 0, duration = written] of track.notes) {
      const step = toGrid(onset, stepsPerBeat, score.ticksPerBeat);
      if (part === null || step < first || step >= end) continue;
      const bar = lines.findLastIndex((line) => line <= step);
      const length = Math.max(1, toGrid(written, stepsPerBeat, score.ticksPerBeat)) / stepsPerBeat;
      const deviation = (onset + late) * tick - step / stepsPerBeat;
      const isWritten = Math.abs(duration * tick - length) < tick;
      const note = {
        part: partOf(track, part, pitch),
        bar,
        position: (step - lines[bar]) / stepsPerBeat,
        pitch,
        length,
        velocity,
        deviation: Math.abs(deviation) < tick ? 0 : deviation,
        articulation: isWritten ? 1 : Math.min(CONSTANTS.longestArticulation, (duration * tick) / length),
      };
      byPlace.set(`${part} ${step - first} ${pitch}`, note);
      if (bar >= lines.length - CONSTANTS.donorBars) notes.push(note);
    }
  });
  return { groups: groupsOf(notes), lastBar: lines.length - 1, byPlace };
}

const partOf = ({ isDrum }, index, pitch) => 128 * index + (isDrum ? pitch : 0);

function groupsOf(notes) {
  const groups = new Map();
  for (const note of notes) {
    const key = `${note.part} ${note.bar} ${note.position}`;
    groups.set(key, [...(groups.get(key) ?? []), note]);
  }
  return [...groups.values()].map((group) => {
    const sorted = group.toSorted((a, b) => b.pitch - a.pitch);
    const { part, bar, position, pitch } = sorted[0];
    const length = Math.log2(greatest(group.map((note) => note.length)));
    return { notes: sorted, part, bar, position, top: pitch, bottom: sorted.at(-1).pitch, length };
  });
}

/**
 * Return a decoded score that is played like its prompt: the notes of the prompt as they were, new ones
 * like similar groups of it.
 *
 * @param prompt what makePrompt returns
 * @param options takesVelocities: the tokens have none; takesTime: notes leave the grid
 */
function performed(score, { performance, endTime, barLength }, stepsPerBeat, options) {
  if (!performance?.groups.length) return score;
  const step = score.ticksPerBeat / stepsPerBeat;
  const [promptEnd, barTicks] = [endTime * step, barLength * step];
  const [playedAs, added] = [new Map(), []];
  score.tracks.forEach((track, part) => {
    for (const note of track.notes) {
      const [onset, duration, pitch] = note;
      const own = performance.byPlace.get(`${part} ${onset / step} ${pitch}`);
      if (own && onset < promptEnd) playedAs.set(note, own);
      else {
        const fromEnd = onset - promptEnd;
        const bar = Math.floor(fromEnd / barTicks);
        const position = (fromEnd - bar * barTicks) / score.ticksPerBeat;
        const length = duration / score.ticksPerBeat;
        added.push({ part: partOf(track, part, pitch), bar, position, pitch, length, note });
      }
    }
  });
  for (const group of groupsOf(added)) {
    const donors = nearestGroup(group, performance).notes;
    group.notes.forEach(({ note }, i) => {
      const last = group.notes.length - 1;
      let place = Math.round((i * (donors.length - 1)) / Math.max(1, last));
      if (i > 0 && i < last) place = Math.max(1, Math.min(place, donors.length - 2)); // not the melody's
      playedAs.set(note, donors[Math.min(place, donors.length - 1)]);
    });
  }
  const tracks = score.tracks.map((track) => {
    const notes = track.notes.map((note) => [note, playedAs.get(note)]);
    return { ...track, notes: playedNotes(track, notes, score.ticksPerBeat, promptEnd, options) };
  });
  return { ...score, tracks };
}

/** Return the group of the prompt that is most like a new one. Bars before the prompt's end are its own. */
function nearestGroup(group, { groups, lastBar }) {
  const { bar } = group;
  const numBars = lastBar + 1;
  const place = bar % (2 * numBars); // back to the first bar and forth again
  const newModel = place < numBars ? lastBar - place : place - numBars;
  const modelBar = bar < 0 ? numBars + bar : newModel;
  let [nearest, leastDistance] = [null, Infinity];
  for (const other of groups) {
    const distance = groupDistance(group, other, modelBar);
    if (distance < leastDistance) [nearest, leastDistance] = [other, distance];
  }
  return nearest;
}

/** Return how unlike two groups are, as musicgen/midi/donors.py does. */
function groupDistance(a, b, modelBar) {
  const { donorWeights: weights, donorLimits: limits, samePosition } = CONSTANTS;
  const between = Math.abs(a.position - b.position);
  const inBeat = Math.abs((a.position % 1) - (b.position % 1));
  const isDownbeat = ({ position }) => position < samePosition;
  return (
    weights.part * (a.part !== b.part) +
    weights.bar * Math.min(limits.bars, Math.abs(modelBar - b.bar)) +
    weights.position * (between > samePosition) +
    weights.subdivision * Math.min(inBeat, 1 - inBeat) +
    weights.downbeat * (isDownbeat(a) !== isDownbeat(b)) +
    weights.chord * (a.notes.length > 1 && b.notes.length === 1) +
    weights.size * Math.min(limits.notes, Math.abs(a.notes.length - b.notes.length)) +
    weights.length * Math.min(limits.octaves, Math.abs(a.length - b.length)) +
    weights.top * Math.abs(a.top - b.top) +
    weights.bottom * Math.abs(a.bottom - b.bottom)
  );
}

/** Return the notes of a track as they are played; none sounds on into the next one of its pitch. */
function playedNotes(track, notes, ticksPerBeat, promptEnd, { takesVelocities, takesTime }) {
  const onsets = [...new Set(notes.map(([[onset]]) => onset))].sort((a, b) => a - b);
  const places = new Map(onsets.map((onset, i) => [onset, i]));
  const gap = (onset, i) => Math.abs((onsets[places.get(onset) + i] ?? Infinity) - onset) * CONSTANTS.mostMoved;
  const played = notes.map(([[onset, duration, pitch, velocity], like]) => {
    if (!like) return [onset, duration, pitch, velocity];
    const loudness = takesVelocities ? like.velocity : velocity;
    if (!takesTime) return [onset, duration, pitch, loudness];
    const wanted = Math.round(like.deviation * ticksPerBeat);
    const moved = onset + Math.max(-gap(onset, -1), Math.min(gap(onset, 1), wanted));
    const begin = Math.max(Math.round(moved), onset < promptEnd ? 0 : promptEnd);
    return [begin, Math.max(1, Math.round(duration * like.articulation)), pitch, loudness];
  });
  const next = new Map();
  for (let i = played.length - 1; i >= 0; i--) {
    const [onset, duration, pitch] = played[i];
    const following = next.get(pitch);
    const isApart = following && notes[i][0][0] + notes[i][0][1] <= following.written;
    if (isApart) played[i][1] = Math.max(1, Math.min(duration, following.onset - onset));
    next.set(pitch, { onset, written: notes[i][0][0] });
  }
  return played;
}
