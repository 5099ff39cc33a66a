// Which of four voices sings a note, as in musicgen/tokenization/voices.py. Notes are
// { pitch, onset, end }; times are frames.

/** Return the voice of each track: by name, or by height of up to four without chords; else null. */
function voicesOfTracks(tracks, voiceNames) {
  const names = voiceNames.map((name) => name.toLowerCase());
  const named = tracks.map(({ name }) => names.indexOf(name.trim().toLowerCase()));
  if (!named.includes(-1) && new Set(named).size === named.length) return named;
  const hasChords = ({ notes }) => new Set(notes.map(({ onset }) => onset)).size < notes.length;
  if (tracks.length > CONSTANTS.numVoices || tracks.some(hasChords)) return null;
  const means = tracks.map(
    ({ notes }) => notes.reduce((sum, { pitch }) => sum + pitch, 0) / notes.length,
  );
  const order = [...means.keys()].sort((a, b) => means[b] - means[a]);
  const chosen = nearestVoices(
    order.map((i) => means[i]),
    allVoices(),
    CONSTANTS.voiceCentres,
  );
  return tracks.map((_, i) => chosen[order.indexOf(i)]);
}

const allVoices = () => [...Array(CONSTANTS.numVoices).keys()];

/** Give each note the voice that sings it, -1 beyond four voices; see lead_voices in voices.py. */
function leadVoices(notes) {
  const last = [...CONSTANTS.voiceCentres];
  const busyUntil = allVoices().fill(0);
  const sorted = notes.toSorted((a, b) => a.onset - b.onset || b.pitch - a.pitch || b.end - a.end);
  for (const note of sorted) note.voice = -1;
  for (let first = 0, next; first < sorted.length; first = next) {
    const { onset } = sorted[first];
    next = sorted.findIndex((note, i) => i > first && note.onset > onset);
    if (next < 0) next = sorted.length;
    const free = allVoices().filter((voice) => busyUntil[voice] <= onset);
    const group = outermost(sorted.slice(first, next), free.length);
    nearestVoices(
      group.map(({ pitch }) => pitch),
      free,
      last,
    ).forEach((voice, i) => {
      group[i].voice = voice;
      [last[voice], busyUntil[voice]] = [group[i].pitch, group[i].end];
    });
  }
}

/** Return at most so many notes of a chord, the highest and the lowest ones. */
function outermost(notes, count) {
  if (notes.length <= count) return notes;
  const highest = Math.floor((count + 1) / 2);
  return [...notes.slice(0, highest), ...notes.slice(notes.length - (count - highest))];
}

/** Return as many of the free voices, in order, as there are pitches: those that move least. */
function nearestVoices(pitches, free, last) {
  const choices = (count, voices) => {
    if (!count) return [[]];
    return voices.flatMap((voice, i) => {
      const others = choices(count - 1, voices.slice(i + 1));
      return others.map((rest) => [voice, ...rest]);
    });
  };
  const distance = (voices) =>
    voices.reduce((sum, voice, i) => sum + Math.abs(pitches[i] - last[voice]), 0);
  return choices(pitches.length, free).reduce((best, each) =>
    distance(each) < distance(best) ? each : best,
  );
}

/** Return notes of which each voice sings one at a time: the highest that begins, until the next begins. */
function oneAtATime(notes) {
  const sorted = notes.toSorted(
    (a, b) => a.voice - b.voice || a.onset - b.onset || a.pitch - b.pitch,
  );
  const highest = sorted.filter((note, i) => {
    const next = sorted[i + 1];
    return note.voice !== next?.voice || note.onset !== next.onset;
  });
  highest.forEach((note, i) => {
    const next = highest[i + 1];
    if (next?.voice === note.voice) note.end = Math.min(note.end, next.onset);
  });
  return highest;
}

/** Return the pitch of each frame of the highest voice, or of the only one, until its last note. */
function melodyOf(frames) {
  const { silence } = CONSTANTS;
  const singing = allVoices().filter((voice) =>
    frames.some((pitches) => pitches[voice] !== silence),
  );
  const [highest] = singing;
  if (highest === undefined)
    throw new UserError("no melody to harmonise; play one, or drop a MIDI file");
  if (highest > 0 && singing.length > 1)
    throw new UserError("no note of the soprano, which is the melody");
  const melody = frames.map((pitches) => pitches[highest]);
  return melody.slice(0, 1 + melody.findLastIndex((pitch) => pitch !== silence));
}
