"""Pop piano songs: form, progressions, melody and accompaniment."""
