"""What to add to, or project out of, a model's residual stream, where and when. Knows no engine's insides.

`easysteer_data.capture` and `easysteer_data.generate` take these specs.
"""

from __future__ import annotations

from easysteer_data.steering.apply import ApplySpec
from easysteer_data.steering.plan import SteerableModel, SteeringPlan, make_plan
from easysteer_data.steering.spec import Algorithm, Conflict, SteeringSpec, VectorSpec

__all__ = [
    "Algorithm",
    "ApplySpec",
    "Conflict",
    "SteerableModel",
    "SteeringPlan",
    "SteeringSpec",
    "VectorSpec",
    "make_plan",
]
