"""Show the progress of a training: losses, speed, memory, and samples of the music."""
