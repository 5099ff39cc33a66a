"""Settings of earlier runs, which may come from an untrusted source."""
