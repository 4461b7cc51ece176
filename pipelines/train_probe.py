"""A run of activations in, a probe and its figures on held-out groups out.

`python -m pipelines.train_probe experiment=demo`
"""

from __future__ import annotations

