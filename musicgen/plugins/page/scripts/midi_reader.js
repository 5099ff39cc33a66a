// Scores from the bytes of standard MIDI files. A score has ticksPerBeat, tracks { name, program,
// isDrum, notes: [onset, duration, pitch, velocity] }, tempos [tick, bpm], signatures [tick,
// numerator, denominator], keys [tick, sharps or minus flats, whether minor] and markers [tick, text];
// times are ticks.

const MAX_BYTES = 20e6;
const LAST_TICK = 2 ** 31 - 1;
const LONGEST_WRAPPER = 1024; // bytes before the header, such as those of RIFF
const DRUM_CHANNEL = 9;
const BANK = 0; // a controller
const SILENCES = [120, 123]; // controllers that end all notes of their channel
// Messages of GS and XG that make a part one of drums or, by 0, of melodies; the parts of GS.
const DRUM_PART =
  /A.B\x12@([\x10-\x1f])\x15([\x00-\x02])|C.L\x08([\x00-\x0f])\x07([\x00-\x05])/s;
const GS_CHANNELS = [9, 0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14, 15];
const DRUM_BANKS = [120, 126, 127]; // of GM2 and XG
const MELODY_BANK = 121; // of GM2: channel 9 is like any other
const LONGEST_OPEN = 4; // beats of a note without an end
// Statuses of events, kinds of channel events, and kinds of meta events.
const META = 0xff;
const FIRST_REAL_TIME = 0xf8; // the first status of messages without data
const [NOTE_OFF, NOTE_ON, CONTROL_CHANGE] = [0x8, 0x9, 0xb];
const [PROGRAM_CHANGE, CHANNEL_PRESSURE] = [0xc, 0xd];
const [TRACK_NAME, INSTRUMENT_NAME, MARKER, PORT] = [0x03, 0x04, 0x06, 0x21];
const [END_OF_TRACK, TEMPO, TIME_SIGNATURE, KEY_SIGNATURE] = [0x2f, 0x51, 0x58, 0x59];

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
    return readText(this.bytes.subarray(this.at - count, this.at));
  }
}

/** Return a text with one letter for each byte. */
function latinText(bytes) {
  return Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");
}

/** Return a text: UTF-8, Shift-JIS or Latin-1, whichever fits, as `read_text` does in Python. */
function readText(bytes) {
  const latin = latinText(bytes);
  const isJapanese = /[\x81-\x9f]/.test(latin) || !/[A-Za-z]/.test(latin);
  for (const encoding of isJapanese ? ["utf-8", "shift_jis"] : ["utf-8"]) {
    try {
      return new TextDecoder(encoding, { fatal: true }).decode(bytes);
    } catch {
      continue;
    }
  }
  return latin;
}

/** Return where the four letters of a chunk stand between two places; -1: nowhere. */
function findChunk(bytes, kind, from, to = bytes.length) {
  const letters = [...kind].map((letter) => letter.charCodeAt(0));
  for (let at = from; at + 4 <= Math.min(to, bytes.length); at++) {
    if (letters.every((letter, i) => bytes[at + i] === letter)) return at;
  }
  return -1;
}

/** Return the score in the bytes of a MIDI file; throw a UserError if there is none. */
function readMidi(bytes) {
  if (!bytes.length) throw new UserError("the file is empty; export it again from a music program");
  if (bytes.length > MAX_BYTES) {
    throw new UserError("the file has more than 20 MB; give a shorter piece");
  }
  bytes = bytes.subarray(Math.max(0, findChunk(bytes, "MThd", 0, LONGEST_WRAPPER)));
  const reader = new Reader(bytes, 0, bytes.length);
  const ticksPerBeat = readHeader(reader);
  const score = { ticksPerBeat, tracks: [], tempos: [], signatures: [], keys: [], markers: [] };
  const tracks = [];
  while (reader.at + 8 <= bytes.length) {
    const start = reader.at;
    const isTrack = findChunk(bytes, "MTrk", start, start + 4) === start;
    reader.at += 4;
    const end = start + 8 + reader.number(4);
    if (isTrack) {
      const track = readTrack(bytes, start + 8, end, score);
      tracks.push(track);
      reader.at = track.next;
    } else if (end > bytes.length) {
      break; // garbage after the last track
    } else {
      reader.at = end;
    }
  }
  endAcrossTracks(tracks);
  for (const track of tracks) track.endOpenNotes();
  addTracks(score, tracks);
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

/**
 * Read a track up to its end-of-track event, whatever its length says; `next` is where the next
 * chunk begins.
 */
function readTrack(bytes, start, end, score) {
  const size = bytes.length;
  // A length may be too small: where it ends, neither a chunk nor the file's end follows.
  const after = String.fromCharCode(...bytes.subarray(end, end + 4));
  const isShort = end < size && !/^[A-Za-z ]{4}$/.test(after);
  const following = findChunk(bytes, "MTrk", Math.max(start, Math.min(end, size)));
  const longest = following >= 0 ? following : size;
  const limit = isShort ? longest : Math.min(end, size);
  const track = new TrackReader(new Reader(bytes, start, limit), score);
  track.read();
  if (track.isEnded) {
    const stop = track.reader.at;
    const another = findChunk(bytes, "MTrk", stop, Math.max(stop, end));
    track.next = another >= 0 ? another : Math.min(Math.max(stop, end), size);
  } else if (end > size) {
    const reason = `cut short: a track ends ${end - size} bytes past the end of the file`;
    throw new UserError(`${reason}; get a whole copy`);
  } else {
    track.next = end;
  }
  return track;
}

/** End the notes whose ends stand in other tracks of their port and channel. */
function endAcrossTracks(tracks) {
  const open = tracks.flatMap((track) => {
    const lists = [...track.open].map(([key, notes]) => [track.onPort(key, 2048), notes]);
    return lists.flatMap(([key, notes]) => notes.map((note) => ({ key, note, notes })));
  });
  if (!open.length) return;
  const ends = new Map(open.map(({ key }) => [key, []]));
  for (const track of tracks) {
    for (const [channel, pitch, time] of track.looseEnds) {
      for (const each of pitch === null ? Array(128).keys() : [pitch]) {
        ends.get(track.onPort(channel * 128 + each, 2048))?.push(time);
      }
    }
  }
  for (const times of ends.values()) times.sort((a, b) => b - a);
  for (const { key, note, notes } of open.sort((a, b) => a.note[0] - b.note[0])) {
    const times = ends.get(key);
    while (times.length && times.at(-1) <= note[0]) times.pop();
    if (times.length) {
      notes.shift();
      note[1] = times.pop() - note[0];
    }
  }
}

/**
 * Add tracks to a score: each channel and program of a track is a track of its own. A channel
 * without a program in its track has the program that another track sets.
 */
function addTracks(score, tracks) {
  const programs = new Map(
    [...tracks].reverse().flatMap((track) => {
      return [...track.firstPrograms].map(([channel, program]) => [track.onPort(channel), program]);
    }),
  );
  const drums = drumChannels(tracks);
  for (const track of tracks) {
    const parts = new Map();
    for (const { channel, own, note } of track.notes) {
      const place = track.onPort(channel);
      const elsewhere = track.firstPrograms.has(channel) ? 0 : (programs.get(place) ?? 0);
      const [program, isDrum] = [own ?? elsewhere, drums.has(place)];
      const id = (isDrum ? DRUM_CHANNEL : channel) * 256 + 2 * program + isDrum;
      if (!parts.has(id)) parts.set(id, { program, isDrum, notes: [] });
      parts.get(id).notes.push(note);
    }
    const name = track.uniqueName();
    const namesDrums = /^(drums?( ?(set|kit)s?)?|kit|percussion)$/i.test(name.trim());
    for (const id of [...parts.keys()].sort((a, b) => a - b)) {
      const part = parts.get(id);
      score.tracks.push({ name, ...part, isDrum: part.isDrum || (namesDrums && !part.program) });
    }
  }
}

/** Return the channels of drums: those with a bank of drums, and 9 without one of melodies. */
function drumChannels(tracks) {
  const banks = tracks.flatMap((track) => {
    return [...track.banks, ...track.parts].map(([channel, bank]) => [track.onPort(channel), bank]);
  });
  const withBank = (of) => banks.filter(([, bank]) => of.includes(bank)).map(([place]) => place);
  const melodies = withBank([MELODY_BANK]);
  const usual = tracks.map((track) => track.onPort(DRUM_CHANNEL));
  const drums = usual.filter((place) => !melodies.includes(place));
  return new Set([...withBank(DRUM_BANKS), ...drums]);
}

/** Adds the events of a track of a file to a score, but for its notes, which it keeps. */
class TrackReader {
  constructor(reader, score) {
    Object.assign(this, { reader, score });
    this.notes = []; // with channel and program; null: before the first program of the channel
    this.programs = new Map(); // the last of each channel, and as `firstPrograms` the first
    this.firstPrograms = new Map();
    this.banks = new Map(); // before the first note of their channel
    this.parts = new Map(); // banks that messages select
    this.struck = new Set(); // channels
    this.looseEnds = []; // channel, pitch and time of ends of no note; null: of all pitches
    this.open = new Map(); // notes without an end yet, by channel and pitch
    [this.time, this.name, this.isEnded] = [0, "", false];
    [this.instrumentName, this.port] = ["", 0];
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
        this.isEnded = kind === END_OF_TRACK;
        if (this.isEnded) break;
        this.#meta(kind, content);
      } else if (status === 0xf0 || status === 0xf7) {
        const content = this.#content();
        this.#readPart(latinText(reader.bytes.subarray(content.at, content.end)));
      } else if (status >= 0x80 && status < 0xf0) {
        running = status;
        this.#channelEvent(status >> 4, status & 15);
      } else if (status < FIRST_REAL_TIME) {
        throw broken("an event that is not supported", reader.at);
      }
    }
  }

  /** Return a number that tells this track's channel, or its key, from those of other ports. */
  onPort(number, count = 16) {
    return this.port * count + number;
  }

  /** Take note of a SysEx message that makes a part one of drums or of melodies. */
  #readPart(message) {
    const match = DRUM_PART.exec(message);
    if (!match) return;
    const number = (match[1] ?? match[3]).charCodeAt(0);
    const isDrum = (match[2] ?? match[4]) !== "\0";
    this.parts.set(GS_CHANNELS[number - 16] ?? number, isDrum ? DRUM_BANKS[0] : MELODY_BANK);
  }

  /** Return the name of the track; if it has several instruments, it is the title of the piece. */
  uniqueName() {
    const instruments = [...this.struck].map((channel) => {
      return `${channel === DRUM_CHANNEL} ${this.programs.get(channel)}`;
    });
    return new Set(instruments).size > 1 ? "" : this.name || this.instrumentName;
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
    if (kind === INSTRUMENT_NAME) this.instrumentName = content.text(length);
    if (kind === PORT && length) this.port = content.byte();
    if (kind === MARKER && length) score.markers.push([time, content.text(length)]);
    if (kind === TEMPO && length >= 3) {
      const microseconds = content.number(3); // of a beat
      if (microseconds) score.tempos.push([time, 6e7 / microseconds]);
    }
    if (kind === TIME_SIGNATURE && length >= 2) {
      const [numerator, power] = [content.byte(), content.byte()];
      if (numerator > 1 && power <= 6) score.signatures.push([time, numerator, 2 ** power]);
    }
    if (kind === KEY_SIGNATURE && length >= 2) {
      const fifths = (content.byte() << 24) >> 24; // of a signed byte
      if (Math.abs(fifths) <= 7) score.keys.push([time, fifths, content.byte() === 1]);
    }
  }

  #channelEvent(kind, channel) {
    const { reader, time } = this;
    const first = reader.byte();
    const hasOneByte = kind === PROGRAM_CHANGE || kind === CHANNEL_PRESSURE;
    const second = hasOneByte ? 0 : reader.byte();
    if (kind === PROGRAM_CHANGE) {
      if (!this.firstPrograms.has(channel)) this.firstPrograms.set(channel, first & 127);
      this.programs.set(channel, first & 127);
    }
    if (kind === CONTROL_CHANGE && first === BANK && !this.struck.has(channel)) {
      this.banks.set(channel, second);
    }
    if (kind === CONTROL_CHANGE && SILENCES.includes(first)) this.#silence(channel);
    if (kind !== NOTE_ON && kind !== NOTE_OFF) return;
    if (first > 127) throw broken("a pitch past 127", reader.at);
    if (second > 127) throw broken("a velocity past 127", reader.at);
    const key = channel * 128 + first;
    if (!this.open.has(key)) this.open.set(key, []);
    if (kind === NOTE_ON && second > 0) {
      const note = [time, 0, first, second];
      this.struck.add(channel);
      this.notes.push({ channel, own: this.programs.get(channel) ?? null, note });
      this.open.get(key).push(note);
    } else {
      const note = this.open.get(key).shift();
      if (note) note[1] = time - note[0];
      else this.looseEnds.push([channel, first, time]);
    }
  }

  /** End all notes of a channel that began before. */
  #silence(channel) {
    for (const [key, notes] of this.open) {
      while (key >> 7 === channel && notes.length && notes[0][0] < this.time) {
        const note = notes.shift();
        note[1] = this.time - note[0];
      }
    }
    this.looseEnds.push([channel, null, this.time]);
  }

  /** End the notes that have no end, as length_without_end in midi/tracks.py does. */
  endOpenNotes() {
    const longest = LONGEST_OPEN * this.score.ticksPerBeat;
    for (const [key, open] of this.open) {
      if (!open.length) continue;
      const isOpen = new Set(open);
      const ends = this.notes
        .filter(({ channel, note }) => channel * 128 + note[2] === key && !isOpen.has(note))
        .map(({ note: [onset, duration] }) => onset + duration)
        .sort((a, b) => a - b);
      let next = 0;
      for (const note of open) {
        while (ends[next] <= note[0]) next++;
        const rest = Math.max(1, Math.min(this.time - note[0], longest));
        note[1] = next < ends.length ? ends[next] - note[0] : rest;
      }
    }
  }
}
