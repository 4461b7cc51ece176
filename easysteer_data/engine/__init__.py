"""All knowledge of vLLM's internals. `README.md` lists each fact relied on, per version."""
