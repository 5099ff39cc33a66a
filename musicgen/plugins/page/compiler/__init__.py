"""A compiler of decoding steps: an ONNX graph becomes JavaScript loops over typed arrays.

The graph is compiled for one sequence. Shapes are known, so that reshaping, slicing and transposing
cost nothing: a value is a strided view of a buffer. Elementwise operations are fused into the loop
that needs them. What depends on weights alone is computed here. Equal loops become one function.
"""
