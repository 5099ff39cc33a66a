"""The page that composes: one HTML file with a model as JavaScript, its tokenizer and a player."""
