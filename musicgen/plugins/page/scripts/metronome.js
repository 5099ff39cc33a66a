// A metronome: it clicks on the beats of the piece while that plays, and else at the tempo of the page.

const CLICK_SECONDS = 0.03;
const BAR_CLICK = 1760; // Hz, where a bar begins
const BEAT_CLICK = 1175; // Hz, on other beats

/** Return [second, whether a bar begins] of each beat of a piece, from a second on, before another. */
function beatsBetween(score, from, to) {
  const beats = [];
  score.bars.forEach((bar, i) => {
    const end = score.bars[i + 1] ?? score.end;
    if (score.secondsAt(end) <= from || score.secondsAt(bar) >= to) return;
    const [, beat] = score.meters.findLast(([tick]) => tick <= bar);
    for (let tick = bar; tick < end; tick += beat) beats.push([score.secondsAt(tick), tick === bar]);
  });
  return beats.filter(([second]) => second >= from && second < to);
}

class Metronome {
  /** @param page the page, which has player and bpm, in quarters a minute */
  constructor(page) {
    this.page = page;
    this.isOn = false;
    this.session = null; // of the player, at the last look at it
    this.clicks = new Set(); // which have been scheduled and have not ended
  }

  toggle() {
    const { player } = this.page;
    player.wake();
    this.isOn = !this.isOn;
    clearInterval(this.timer);
    this.silence();
    if (!this.isOn) return;
    this.start = player.context.currentTime + START_DELAY; // of its own beats
    this.session = player.session;
    this.next = player.context.currentTime;
    this.schedule();
    this.timer = setInterval(() => this.schedule(), TIMER_INTERVAL);
  }

  /** Schedule what is to come, as the player does; begin again if that has stopped or jumped. */
  schedule() {
    const { player } = this.page;
    const { currentTime } = player.context;
    if (player.session !== this.session) {
      this.silence();
      this.start = this.session?.origin ?? this.start; // its beats go on when the piece stops
      Object.assign(this, { session: player.session, next: currentTime });
    }
    const until = currentTime + LOOKAHEAD;
    for (const [time, isBar] of this.beats(this.next, until)) this.click(time, isBar);
    this.next = until;
  }

  /** Return [time, whether a bar begins] of the beats between two times of the audio clock. */
  beats(from, to) {
    if (this.session) {
      const { origin } = this.session;
      const beats = beatsBetween(this.page.player.card.score, from - origin, to - origin);
      return beats.map(([second, isBar]) => [second + origin, isBar]);
    }
    const period = 60 / this.page.bpm;
    const times = [];
    for (let n = Math.ceil((from - this.start) / period); this.start + n * period < to; n++)
      times.push([this.start + n * period, false]);
    return times;
  }

  click(time, isBar) {
    const { context, master } = this.page.player.synth;
    const oscillator = new OscillatorNode(context, { frequency: isBar ? BAR_CLICK : BEAT_CLICK });
    const envelope = new GainNode(context, { gain: 0 });
    envelope.gain.setValueAtTime(0.5, time).exponentialRampToValueAtTime(0.001, time + CLICK_SECONDS);
    oscillator.connect(envelope).connect(master);
    oscillator.start(time);
    oscillator.stop(time + CLICK_SECONDS);
    oscillator.onended = () => this.clicks.delete(oscillator);
    this.clicks.add(oscillator);
  }

  /** End the clicks that have been scheduled. */
  silence() {
    for (const click of this.clicks) click.stop();
    this.clicks.clear();
  }
}
