"""Multi-track grooves: families of rhythm patterns, styles and songs."""
