// The colours of style.css, for canvases.
const NUM_TRACK_COLOURS = 8;

function readColours() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const names = ["surface", "ink", "muted", "line", "bar", "row", "prompt", "accent", "accent-soft", "mark"];
  const colours = Object.fromEntries(names.map((name) => [name, colour(name)]));
  colours.tracks = Array.from({ length: NUM_TRACK_COLOURS }, (_, i) => colour(`track-${i}`));
  colours.mutedTracks = colours.tracks.map((track) => mix(track, colours.muted, 0.65));
  return colours;
}

/** Mix two colours #rrggbb; `share` is the share of the second. */
function mix(first, second, share) {
  const channel = (hex, i) => parseInt(hex.slice(1 + 2 * i, 3 + 2 * i), 16);
  const mixed = [0, 1, 2].map((i) =>
    Math.round(channel(first, i) * (1 - share) + channel(second, i) * share)
  );
  return `rgb(${mixed.join(" ")})`;
}
