"""What a training shows: losses, speed, what the model learns, how it sounds."""
