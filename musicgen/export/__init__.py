"""Models as ONNX graphs of one decoding step, for programs without torch."""
