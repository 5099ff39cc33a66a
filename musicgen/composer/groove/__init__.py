"""Multi-track grooves: families of patterns, styles and songs."""
