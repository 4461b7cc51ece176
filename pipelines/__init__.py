"""One thin file a stage: reads the config with Hydra, builds typed settings, calls the package."""
