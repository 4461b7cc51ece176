"""Capture activations on a stock vLLM into WebDataset shards, and serve them to probes and steering vectors."""
