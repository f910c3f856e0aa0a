"""Novel-view synthesis: encode posed photos once into a small state, render any camera from it."""

from nvs import trajectory
from nvs.checkpoint import load_model, save_model
from nvs.model import LaCT, ModelConfig
from nvs.renderer import Renderer
from nvs.scene_state import SceneState
from nvs.trained_range import TrainedRange

__all__ = [
    "LaCT",
    "ModelConfig",
    "Renderer",
    "SceneState",
    "TrainedRange",
    "load_model",
    "save_model",
    "trajectory",
]
