// A small Web Audio synthesiser: one voice for each family of instruments, and drums of filtered
// noise and sine sweeps. It works with any BaseAudioContext, including offline ones.

// partials: amplitudes of the harmonics. decay: time constant at middle C, in seconds, towards
// `sustain`. brightness: cut-off of the low-pass filter, in multiples of the fundamental, at the
// attack and after it.
const VOICES = {
  piano: {
    partials: [1, 0.55, 0.35, 0.22, 0.14, 0.1, 0.06, 0.04, 0.03],
    level: 0.26, attack: 0.004, decay: 1.1, sustain: 0, release: 0.18, brightness: [9, 3], detune: [0],
  },
  guitar: {
    partials: [0.9, 0.8, 0.6, 0.5, 0.3, 0.25, 0.2, 0.14, 0.1, 0.08, 0.06, 0.04],
    level: 0.22, attack: 0.003, decay: 0.6, sustain: 0, release: 0.1, brightness: [14, 2], detune: [0],
  },
  bass: {
    partials: [1, 0.7, 0.4, 0.2, 0.12, 0.08, 0.05],
    level: 0.4, attack: 0.006, decay: 0.9, sustain: 0.25, release: 0.08, brightness: [8, 3], detune: [0],
  },
  strings: {
    partials: Array.from({ length: 16 }, (_, n) => 1 / (n + 1)),
    level: 0.07, attack: 0.08, decay: 0.5, sustain: 0.85, release: 0.3, brightness: [5, 5], detune: [-6, 6],
  },
  other: {
    partials: [1, 0.2, 0.5, 0.12, 0.3, 0.08, 0.15, 0.05, 0.08],
    level: 0.11, attack: 0.03, decay: 0.4, sustain: 0.8, release: 0.12, brightness: [7, 5], detune: [0],
  },
};

// noise: filtered white noise; tone: a sine that sweeps from one frequency to another (Hz).
// decay: time constants in seconds.
const DRUMS = {
  kick: { tone: { from: 130, to: 45, decay: 0.12, level: 0.9 } },
  snare: {
    noise: { type: "highpass", frequency: 1500, decay: 0.07, level: 0.4 },
    tone: { from: 220, to: 170, decay: 0.06, level: 0.3 },
  },
  hat: { noise: { type: "highpass", frequency: 7500, decay: 0.03, level: 0.35 } },
  openHat: { noise: { type: "highpass", frequency: 7000, decay: 0.14, level: 0.22 } },
  tom: { tone: { from: 1, to: 0.6, decay: 0.14, level: 0.6 } }, // in multiples of the note's pitch
  cymbal: { noise: { type: "highpass", frequency: 5000, decay: 0.4, level: 0.2 } },
  percussion: { noise: { type: "bandpass", frequency: 2500, decay: 0.035, level: 0.9 } },
};

// General MIDI percussion keys, by family.
const DRUM_PITCHES = {
  kick: [35, 36],
  snare: [37, 38, 39, 40],
  hat: [42, 44],
  openHat: [46],
  tom: [41, 43, 45, 47, 48, 50],
  cymbal: [49, 51, 52, 53, 55, 57, 59],
};
const DRUM_KIND = new Map(
  Object.entries(DRUM_PITCHES).flatMap(([kind, pitches]) => pitches.map((pitch) => [pitch, kind]))
);
const drumKind = (pitch) => DRUM_KIND.get(pitch) ?? "percussion";

const frequencyOf = (pitch) => 440 * 2 ** ((pitch - 69) / 12);

class Synth {
  constructor(context, volume) {
    this.context = context;
    this.sources = new Set();

    this.master = new GainNode(context, { gain: volume });
    const compressor = new DynamicsCompressorNode(context, {
      threshold: -14, knee: 12, ratio: 6, attack: 0.003, release: 0.2,
    });
    // A saturating curve limits the output to ±1.
    const curve = Float32Array.from({ length: 1025 }, (_, i) => Math.tanh((i - 512) / 512));
    const ceiling = new WaveShaperNode(context, { curve });
    this.master.connect(compressor).connect(ceiling).connect(context.destination);

    this.waves = {};
    for (const [name, voice] of Object.entries(VOICES)) {
      const imag = Float32Array.from([0, ...voice.partials]);
      this.waves[name] = new PeriodicWave(context, { imag, real: new Float32Array(imag.length) });
    }
    this.noise = new AudioBuffer({ length: context.sampleRate, sampleRate: context.sampleRate });
    const samples = this.noise.getChannelData(0);
    for (let i = 0; i < samples.length; i++) samples[i] = Math.random() * 2 - 1;
  }

  /** Create the gain of one track, so that mute and solo act immediately. */
  channel(level) {
    const gain = new GainNode(this.context, { gain: level });
    gain.connect(this.master);
    return gain;
  }

  /** Schedule one note; return its sounds. Times are in seconds of the clock of the context. */
  note(voice, output, { when, pitch, velocity, duration }) {
    const loudness = (velocity / 127) ** 1.5;
    if (voice === "drums") return this.#drum(DRUMS[drumKind(pitch)], output, when, pitch, loudness);
    return this.#tone(voice, output, when, pitch, loudness, duration);
  }

  /** Silence sounding notes and cancel scheduled ones. */
  stop() {
    this.release(this.sources, 0.006);
  }

  /** End sounds now; they fade with a time constant in seconds. */
  release(sounds, fade = 0.06) {
    const now = this.context.currentTime;
    for (const entry of [...sounds]) {
      entry.envelope.gain.cancelScheduledValues(0);
      entry.envelope.gain.setTargetAtTime(0, now, fade);
      entry.source.stop(now + 5 * fade);
      this.sources.delete(entry);
    }
  }

  #tone(name, output, when, pitch, loudness, duration) {
    const voice = VOICES[name];
    const frequency = frequencyOf(pitch);
    const ceiling = this.context.sampleRate / 2;
    const peak = voice.level * loudness;
    const attackEnd = when + voice.attack;
    const end = Math.max(when + duration, attackEnd + 0.03);
    const decay = voice.decay * 2 ** ((60 - pitch) / 24); // high strings ring shorter

    const envelope = new GainNode(this.context, { gain: 0 });
    envelope.gain.setValueAtTime(0, when);
    envelope.gain.linearRampToValueAtTime(peak, attackEnd);
    envelope.gain.setTargetAtTime(peak * voice.sustain, attackEnd, decay);
    envelope.gain.setTargetAtTime(0, end, voice.release / 3);

    const filter = new BiquadFilterNode(this.context, { type: "lowpass", Q: 0.5 });
    const [bright, mellow] = voice.brightness.map((multiple) =>
      Math.min(ceiling, frequency * multiple * (0.4 + 0.6 * loudness) + 200)
    );
    filter.frequency.setValueAtTime(bright, when);
    filter.frequency.setTargetAtTime(mellow, attackEnd, decay / 3);
    filter.connect(envelope).connect(output);

    return voice.detune.map((detune) => {
      const source = new OscillatorNode(this.context, {
        type: "custom", periodicWave: this.waves[name], frequency, detune,
      });
      source.connect(filter);
      return this.#run(source, envelope, when, end + 2 * voice.release);
    });
  }

  #drum({ noise, tone }, output, when, pitch, loudness) {
    const sounds = [];
    if (noise) {
      const source = new AudioBufferSourceNode(this.context, { buffer: this.noise, loop: true });
      const { type, frequency } = noise;
      const filter = new BiquadFilterNode(this.context, { type, frequency });
      const envelope = this.#strike(noise.level * loudness, noise.decay, when);
      source.connect(filter).connect(envelope).connect(output);
      sounds.push(this.#run(source, envelope, when, when + 7 * noise.decay));
    }
    if (tone) {
      const unit = tone.from === 1 ? frequencyOf(pitch) : 1;
      const source = new OscillatorNode(this.context, { frequency: tone.from * unit });
      source.frequency.setValueAtTime(tone.from * unit, when);
      source.frequency.exponentialRampToValueAtTime(tone.to * unit, when + tone.decay);
      const envelope = this.#strike(tone.level * loudness, tone.decay, when);
      source.connect(envelope).connect(output);
      sounds.push(this.#run(source, envelope, when, when + 7 * tone.decay));
    }
    return sounds;
  }

  #strike(level, decay, when) {
    const envelope = new GainNode(this.context, { gain: 0 });
    envelope.gain.setValueAtTime(level, when);
    envelope.gain.setTargetAtTime(0, when, decay);
    return envelope;
  }

  #run(source, envelope, start, end) {
    const entry = { source, envelope };
    this.sources.add(entry);
    source.onended = () => this.sources.delete(entry);
    source.start(start);
    source.stop(end);
    return entry;
  }
}
