"""Piano pop, and songs for voice and piano: form, progressions, melody and accompaniment."""
