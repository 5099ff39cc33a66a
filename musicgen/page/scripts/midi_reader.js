// Scores from the bytes of standard MIDI files. A score has ticksPerBeat, tracks { name, program,
// isDrum, notes: [onset, duration, pitch, velocity] }, tempos [tick, bpm], signatures [tick,
// numerator, denominator], keys [tick, sharps or minus flats] and markers [tick, text]; times are
// ticks.

const MAX_BYTES = 20e6;
const LAST_TICK = 2 ** 31 - 1;
const DRUM_CHANNEL = 9;
const LONGEST_OPEN = 4; // beats of a note without an end
// Statuses of events, kinds of channel events, and kinds of meta events.
const META = 0xff;
const [NOTE_OFF, NOTE_ON, PROGRAM_CHANGE, CHANNEL_PRESSURE] = [0x8, 0x9, 0xc, 0xd];
const [TRACK_NAME, MARKER, END_OF_TRACK, TEMPO] = [0x03, 0x06, 0x2f, 0x51];
const [TIME_SIGNATURE, KEY_SIGNATURE] = [0x58, 0x59];

/** A problem that the person at the page can understand: its message is one line. */
class UserError extends Error {}

const broken = (reason, at) =>
  new UserError(`broken MIDI (${reason} at byte ${at}); get a whole copy`);

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
  if (bytes.length > MAX_BYTES) {
    throw new UserError("the file has more than 20 MB; give a shorter piece");
  }
  const reader = new Reader(bytes, 0, bytes.length);
  const ticksPerBeat = readHeader(reader);
  const score = { ticksPerBeat, tracks: [], tempos: [], signatures: [], keys: [], markers: [] };
  while (reader.at + 8 <= bytes.length) {
    const kind = String.fromCharCode(...bytes.subarray(reader.at, reader.at + 4));
    reader.at += 4;
    const end = reader.at + 4 + reader.number(4);
    if (end > bytes.length) {
      if (kind !== "MTrk") break; // garbage after the last track
      const missing = end - bytes.length;
      const reason = `cut short: a track ends ${missing} bytes past the end of the file`;
      throw new UserError(`${reason}; get a whole copy`);
    }
    if (kind === "MTrk") new TrackReader(new Reader(bytes, reader.at, end), score).read();
    reader.at = end;
  }
  for (const events of [score.tempos, score.signatures, score.keys, score.markers]) {
    events.sort((a, b) => a[0] - b[0]);
  }
  return score;
}

/** Read the header of a file; return its ticks in a beat. */
function readHeader(reader) {
  if (reader.end < 14 || reader.text(4) !== "MThd") {
    throw new UserError("not a MIDI file (no MThd header); give a standard MIDI file");
  }
  const length = reader.number(4);
  if (length < 6) throw broken("a header of less than 6 bytes", 8);
  const format = reader.number(2);
  if (format > 1) {
    throw new UserError(`MIDI files of format ${format} are not supported; export it again`);
  }
  if (reader.number(2) > 512) {
    throw new UserError("the file has more than 512 tracks; give a smaller one");
  }
  const division = reader.number(2);
  if (!division) {
    throw new UserError("the header says 0 ticks a beat; export it again from a music program");
  }
  if (division >= 0x8000) {
    const reason = "its time is in frames (SMPTE), without beats";
    throw new UserError(`${reason}; export it in ticks a beat`);
  }
  reader.at = 8 + length;
  return division;
}

/** Adds the events of a track of a file to a score; each channel and program becomes a track. */
class TrackReader {
  constructor(reader, score) {
    Object.assign(this, { reader, score });
    this.tracks = new Map(); // by channel and program
    this.programs = new Array(16).fill(0);
    this.open = new Map(); // notes without an end yet, by channel and pitch
    [this.time, this.name] = [0, ""];
  }

  read() {
    const { reader } = this;
    let running = 0; // status of the event before, which need not be repeated
    while (reader.at < reader.end) {
      this.time += reader.variable();
      if (this.time > LAST_TICK) throw broken("a time past 2^31 ticks", reader.at);
      if (reader.at >= reader.end) break;
      const status = reader.bytes[reader.at] & 0x80 ? reader.byte() : running;
      if (status === META) {
        const kind = reader.byte();
        const content = this.#content();
        if (kind === END_OF_TRACK) break;
        this.#meta(kind, content);
      } else if (status === 0xf0 || status === 0xf7) {
        reader.text(reader.variable());
        running = 0;
      } else if (status >= 0x80 && status < 0xf0) {
        running = status;
        this.#channelEvent(status >> 4, status & 15);
      } else {
        throw broken("an event that is not supported", reader.at);
      }
    }
    this.#endOpenNotes();
    this.#addTracks();
  }

  /** Return a reader of the bytes of an event, which begin with their number. */
  #content() {
    const { reader } = this;
    const length = reader.variable();
    const content = new Reader(reader.bytes, reader.at, reader.at + length);
    if (content.end > reader.end) throw broken("an event is cut short", reader.at);
    reader.at = content.end;
    return content;
  }

  #meta(kind, content) {
    const { score, time } = this;
    const length = content.end - content.at;
    if (kind === TRACK_NAME) this.name = content.text(length);
    if (kind === MARKER) score.markers.push([time, content.text(length)]);
    if (kind === TEMPO && length >= 3) {
      const microseconds = content.number(3); // of a beat
      if (microseconds) score.tempos.push([time, 6e7 / microseconds]);
    }
    if (kind === TIME_SIGNATURE && length >= 2) {
      const [numerator, power] = [content.byte(), content.byte()];
      if (numerator && power <= 6) score.signatures.push([time, numerator, 2 ** power]);
    }
    if (kind === KEY_SIGNATURE && length >= 1) {
      const fifths = (content.byte() << 24) >> 24; // of a signed byte
      if (Math.abs(fifths) <= 7) score.keys.push([time, fifths]);
    }
  }

  #channelEvent(kind, channel) {
    const { reader, time } = this;
    const first = reader.byte();
    const hasOneByte = kind === PROGRAM_CHANGE || kind === CHANNEL_PRESSURE;
    const second = hasOneByte ? 0 : reader.byte();
    if (kind === PROGRAM_CHANGE) this.programs[channel] = first & 127;
    if (kind !== NOTE_ON && kind !== NOTE_OFF) return;
    if (first > 127) throw broken("a pitch past 127", reader.at);
    if (second > 127) throw broken("a velocity past 127", reader.at);
    const key = channel * 128 + first;
    if (!this.open.has(key)) this.open.set(key, []);
    if (kind === NOTE_ON && second > 0) {
      const note = [time, 0, first, second];
      this.#track(channel).notes.push(note);
      this.open.get(key).push(note);
    } else {
      const note = this.open.get(key).shift();
      if (note) note[1] = time - note[0];
    }
  }

  #track(channel) {
    const program = this.programs[channel];
    const id = channel * 128 + program;
    if (!this.tracks.has(id)) {
      this.tracks.set(id, { program, isDrum: channel === DRUM_CHANNEL, notes: [] });
    }
    return this.tracks.get(id);
  }

  #endOpenNotes() {
    const longest = LONGEST_OPEN * this.score.ticksPerBeat;
    for (const note of [...this.open.values()].flat()) {
      note[1] = Math.max(1, Math.min(this.time - note[0], longest));
    }
  }

  #addTracks() {
    const instruments = [...this.tracks.keys()].map((id) => {
      const channel = id >> 7;
      return `${channel === DRUM_CHANNEL} ${this.programs[channel]}`;
    });
    // The name of several instruments is the title of the piece.
    const name = new Set(instruments).size > 1 ? "" : this.name;
    const namesDrums = /^(drums?( ?(set|kit)s?)?|kit|percussion)$/i.test(name.trim());
    for (const track of this.tracks.values()) {
      const isDrum = track.isDrum || (namesDrums && !track.program);
      this.score.tracks.push({ name, ...track, isDrum });
    }
  }
}
