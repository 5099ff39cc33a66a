// The bytes of a standard MIDI file of a score, see midi_reader.js.

const PITCHED_CHANNELS = [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14, 15];
const END = -1; // rank of events at one tick: ends of notes come before beginnings
const BEGINNING = 1;

/** Return the bytes of a MIDI file (format 1) of a score. */
function writeMidi(score) {
  const tracks = [headEvents(score), ...score.tracks.map(trackEvents)];
  const { ticksPerBeat } = score;
  const header = [0, 1, 0, tracks.length, ticksPerBeat >> 8, ticksPerBeat & 255];
  return Uint8Array.from([...chunk("MThd", header), ...tracks.flatMap(trackChunk)]);
}

/** Return [tick, bytes] of the events that are of no track. */
function headEvents({ tempos, signatures, keys, markers }) {
  return [
    ...tempos.map(([tick, bpm]) => [tick, tempoEvent(bpm)]),
    ...signatures.map(([tick, numerator, denominator]) => {
      return [tick, metaEvent(TIME_SIGNATURE, [numerator, Math.log2(denominator), 24, 8])];
    }),
    ...keys.map(([tick, fifths, minor]) => {
      return [tick, metaEvent(KEY_SIGNATURE, [fifths & 255, minor ? 1 : 0])];
    }),
    ...markers.map(([tick, text]) => [tick, metaEvent(MARKER, textBytes(text))]),
  ];
}

/** Return [tick, bytes, rank] of the events of a track. */
function trackEvents(track, number) {
  const channel = track.isDrum ? DRUM_CHANNEL : PITCHED_CHANNELS[number % PITCHED_CHANNELS.length];
  const status = (kind) => (kind << 4) | channel;
  const events = [
    [0, metaEvent(TRACK_NAME, textBytes(track.name))],
    [0, [status(PROGRAM_CHANGE), track.program]],
  ];
  for (const [onset, duration, pitch, velocity] of track.notes) {
    events.push([onset, [status(NOTE_ON), pitch, velocity], BEGINNING]);
    events.push([onset + duration, [status(NOTE_OFF), pitch, 0], END]);
  }
  return events;
}

/** Return the chunk of a track; the order of events of equal tick and rank is kept. */
function trackChunk(events) {
  const first = -2; // rank of events that are not notes
  const sorted = events.toSorted((a, b) => a[0] - b[0] || (a[2] ?? first) - (b[2] ?? first));
  let now = 0;
  const content = sorted.flatMap(([tick, bytes]) => {
    const delta = variableBytes(tick - now);
    now = tick;
    return [...delta, ...bytes];
  });
  return chunk("MTrk", [...content, 0, ...metaEvent(END_OF_TRACK, [])]);
}

function chunk(kind, content) {
  const size = content.length;
  const sizeBytes = [size >>> 24, (size >> 16) & 255, (size >> 8) & 255, size & 255];
  return [...textBytes(kind), ...sizeBytes, ...content];
}

function metaEvent(kind, content) {
  return [META, kind, ...variableBytes(content.length), ...content];
}

function tempoEvent(bpm) {
  const microseconds = Math.min(0xffffff, Math.round(6e7 / bpm)); // of a beat
  return metaEvent(TEMPO, [microseconds >> 16, (microseconds >> 8) & 255, microseconds & 255]);
}

const textBytes = (text) => [...new TextEncoder().encode(text)];

/** Return a number as a MIDI file has lengths and times: 7 bits a byte, the highest first. */
function variableBytes(value) {
  const groups = [value & 127];
  while ((value >>>= 7)) groups.unshift((value & 127) | 128);
  return groups;
}
