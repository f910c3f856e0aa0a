"""Endless random scenes of analytic shapes, rendered on the fly: every one a pure function of (seed, index)."""

from data.procedural.config import ProceduralConfig
from data.procedural.generator import Speed, measure_speed, procedural_batch, procedural_views
from data.procedural.writing import write_procedural_scene

__all__ = [
    "ProceduralConfig",
    "Speed",
    "measure_speed",
    "procedural_batch",
    "procedural_views",
    "write_procedural_scene",
]
