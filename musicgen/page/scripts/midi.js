// Standard MIDI files, to and from scores. A score has ticksPerBeat, tracks { name, program, isDrum,
// notes: [onset, duration, pitch, velocity] }, tempos [tick, bpm], signatures [tick, numerator,
// denominator], keys [tick, sharps or minus flats] and markers [tick, text]; times are ticks.

const MAX_BYTES = 20e6;
const LAST_TICK = 2 ** 31 - 1;
const DRUM_CHANNEL = 9;
const LONGEST_OPEN = 4; // beats of a note without an end

/** A problem that the person at the page can understand: its message is one line. */
class UserError extends Error {}

const broken = (reason, at) => new UserError(`broken MIDI (${reason} at byte ${at}); get a whole copy`);

class Reader {
  constructor(bytes, at, end) {
    Object.assign(this, { bytes, at, end });
  }

  byte() {
    if (this.at >= this.end) throw broken("an event is cut short", this.at);
    return this.bytes[this.at++];
  }

  /** Read bytes as one number, the highest first. */
  number(count) {
    let value = 0;
    for (let i = 0; i < count; i++) value = value * 256 + this.byte();
    return value;
  }

  variable() {
    let value = 0;
    for (let i = 0; i < 4; i++) {
      const byte = this.byte();
      value = value * 128 + (byte & 127);
      if (byte < 128) return value;
    }
    throw broken("a number of more than 4 bytes", this.at);
  }

  text(count) {
    if (this.at + count > this.end) throw broken("an event is cut short", this.at);
    this.at += count;
    return new TextDecoder().decode(this.bytes.subarray(this.at - count, this.at));
  }
}

/** Return the score in the bytes of a MIDI file; throw a UserError if there is none. */
function readMidi(bytes) {
  if (!bytes.length) throw new UserError("the file is empty; export it again from a music program");
  if (bytes.length > MAX_BYTES) throw new UserError("the file has more than 20 MB; give a shorter piece");
  const reader = new Reader(bytes, 0, bytes.length);
  if (bytes.length < 14 || reader.text(4) !== "MThd") {
    throw new UserError("not a MIDI file (no MThd header); give a standard MIDI file");
  }
  const header = reader.number(4);
  if (header < 6) throw broken("a header of less than 6 bytes", 8);
  const format = reader.number(2);
  if (format > 1) throw new UserError(`MIDI files of format ${format} are not supported; export it again`);
  if (reader.number(2) > 512) throw new UserError("the file has more than 512 tracks; give a smaller one");
  const division = reader.number(2);
  if (!division) throw new UserError("the header says 0 ticks a beat; export it again from a music program");
  if (division >= 0x8000) throw new UserError("its time is in frames (SMPTE), without beats; export it in ticks a beat");
  const score = { ticksPerBeat: division, tracks: [], tempos: [], signatures: [], keys: [], markers: [] };
  reader.at = 8 + header;
  while (reader.at + 8 <= bytes.length) {
    const kind = String.fromCharCode(...bytes.subarray(reader.at, reader.at + 4));
    reader.at += 4;
    const end = reader.at + 4 + reader.number(4);
    if (end > bytes.length) {
      if (kind !== "MTrk") break; // garbage after the last track
      throw new UserError(`cut short: a track ends ${end - bytes.length} bytes past the end of the file; get a whole copy`);
    }
    if (kind === "MTrk") readTrack(new Reader(bytes, reader.at, end), score);
    reader.at = end;
  }
  for (const events of [score.tempos, score.signatures, score.keys, score.markers]) events.sort((a, b) => a[0] - b[0]);
  return score;
}

/** Add the events of a track to a score; each channel and program becomes a track of its own. */
function readTrack(reader, score) {
  const tracks = new Map();
  const programs = new Array(16).fill(0);
  const open = new Map(); // notes without an end yet, by channel and pitch
  let [time, running, name] = [0, 0, ""];
  while (reader.at < reader.end) {
    time += reader.variable();
    if (time > LAST_TICK) throw broken("a time past 2^31 ticks", reader.at);
    if (reader.at >= reader.end) break;
    let status = running;
    if (reader.bytes[reader.at] & 0x80) status = reader.byte();
    if (status === 0xff) {
      const kind = reader.byte();
      const length = reader.variable();
      const content = new Reader(reader.bytes, reader.at, reader.at + length);
      if (content.end > reader.end) throw broken("an event is cut short", reader.at);
      reader.at = content.end;
      if (kind === 0x2f) break;
      if (kind === 0x03) name = content.text(length);
      if (kind === 0x06) score.markers.push([time, content.text(length)]);
      if (kind === 0x51 && length >= 3) {
        const perBeat = content.number(3);
        if (perBeat) score.tempos.push([time, 6e7 / perBeat]);
      }
      if (kind === 0x58 && length >= 2) {
        const [numerator, power] = [content.byte(), content.byte()];
        if (numerator && power <= 6) score.signatures.push([time, numerator, 2 ** power]);
      }
      if (kind === 0x59 && length >= 1) {
        const fifths = (content.byte() << 24) >> 24; // of a signed byte
        if (Math.abs(fifths) <= 7) score.keys.push([time, fifths]);
      }
    } else if (status === 0xf0 || status === 0xf7) {
      reader.text(reader.variable());
      running = 0;
    } else if (status >= 0x80 && status < 0xf0) {
      running = status;
      const [kind, channel] = [status >> 4, status & 15];
      const first = reader.byte();
      const second = kind === 0xc || kind === 0xd ? 0 : reader.byte();
      if (kind === 0xc) programs[channel] = first & 127;
      if (kind > 0x9) continue;
      if (first > 127) throw broken("a pitch past 127", reader.at);
      if (second > 127) throw broken("a velocity past 127", reader.at);
      const key = channel * 128 + first;
      if (!open.has(key)) open.set(key, []);
      if (kind === 0x9 && second > 0) {
        const [program, isDrum] = [programs[channel], channel === DRUM_CHANNEL];
        const id = channel * 128 + program;
        if (!tracks.has(id)) tracks.set(id, { program, isDrum, notes: [] });
        const note = [time, 0, first, second];
        tracks.get(id).notes.push(note);
        open.get(key).push(note);
      } else {
        const note = open.get(key).shift();
        if (note) note[1] = time - note[0];
      }
    } else {
      throw broken("an event that is not supported", reader.at);
    }
  }
  for (const note of [...open.values()].flat()) {
    note[1] = Math.max(1, Math.min(time - note[0], LONGEST_OPEN * score.ticksPerBeat));
  }
  const instruments = [...tracks.keys()].map((id) => [id >> 7 === DRUM_CHANNEL, programs[id >> 7]].join());
  if (new Set(instruments).size > 1) name = ""; // it is their title
  const namesDrums = /^(drums?( ?(set|kit)s?)?|kit|percussion)$/i.test(name.trim());
  for (const each of tracks.values()) score.tracks.push({ name, ...each, isDrum: each.isDrum || (namesDrums && !each.program) });
}

/** Return the bytes of a MIDI file (format 1) of a score. */
function writeMidi(score) {
  const chunk = (kind, content) => {
    const size = content.length;
    return [...[...kind].map((each) => each.charCodeAt(0)), size >>> 24, (size >> 16) & 255, (size >> 8) & 255, size & 255, ...content];
  };
  const meta = (kind, content) => [0xff, kind, ...variableBytes(content.length), ...content];
  const words = (text) => [...new TextEncoder().encode(text)];
  const head = [
    ...score.tempos.map(([tick, bpm]) => {
      const perBeat = Math.min(0xffffff, Math.round(6e7 / bpm));
      return [tick, meta(0x51, [perBeat >> 16, (perBeat >> 8) & 255, perBeat & 255])];
    }),
    ...score.signatures.map(([tick, top, bottom]) => [tick, meta(0x58, [top, Math.log2(bottom), 24, 8])]),
    ...(score.keys ?? []).map(([tick, fifths]) => [tick, meta(0x59, [fifths & 255, 0])]),
    ...score.markers.map(([tick, text]) => [tick, meta(0x06, words(text))]),
  ];
  const tracks = score.tracks.map((track, number) => {
    const channel = track.isDrum ? DRUM_CHANNEL : [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14, 15][number % 15];
    const events = [[0, meta(0x03, words(track.name))], [0, [0xc0 | channel, track.program]]];
    for (const [onset, duration, pitch, velocity] of track.notes) {
      events.push([onset, [0x90 | channel, pitch, velocity], 1], [onset + duration, [0x80 | channel, pitch, 0], 0]);
    }
    return events;
  });
  const body = [head, ...tracks].flatMap((events) => {
    // Ends before beginnings at one tick; the sort is stable.
    events.sort((a, b) => a[0] - b[0] || (a[2] ?? -1) - (b[2] ?? -1));
    let now = 0;
    const content = events.flatMap(([tick, bytes]) => {
      const delta = variableBytes(tick - now);
      now = tick;
      return [...delta, ...bytes];
    });
    return chunk("MTrk", [...content, 0, ...meta(0x2f, [])]);
  });
  const { ticksPerBeat } = score;
  const header = [0, 1, 0, tracks.length + 1, ticksPerBeat >> 8, ticksPerBeat & 255];
  return Uint8Array.from([...chunk("MThd", header), ...body]);
}

function variableBytes(value) {
  const groups = [value & 127];
  while ((value >>>= 7)) groups.unshift((value & 127) | 128);
  return groups;
}
