"""Check this machine: what is installed, whether every backend is correct, and which is fastest."""
