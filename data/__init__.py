"""Captures on disk -> cameras and images."""

from data.archive import unpack_into
from data.bundled import bundled_scenes
from data.cameras import Cameras, join_cameras
from data.errors import UsageError, UserError
from data.files import PHOTO_SUFFIXES, check_free, read_json, write_atomic
from data.finding import find_scenes
from data.frames import Frame
from data.images import PhotoCache
from data.made_scenes import remove_partial_scene
from data.meshes.loading import MESH_SUFFIXES, find_meshes, load_mesh
from data.meshes.rendering import require_open3d
from data.meshes.scenes import MeshSceneConfig, write_mesh_scene
from data.normalization import Normalization
from data.normalization import fit as fit_normalization
from data.parsers import is_plain_photos, list_scenes
from data.photos.scene import PhotoSceneConfig, write_photo_scene
from data.photos.video import VIDEO_SUFFIXES
from data.procedural import (
    ProceduralConfig,
    measure_speed,
    procedural_batch,
    procedural_views,
    write_procedural_scene,
)
from data.sampling import draw_count, draw_views, every, spread
from data.scene import Scene, open_scene
from data.shards.writing import ShardConfig, write_shards
from data.views import Views, join_views, stack_views
from data.writers import SceneFormat, write_scene

__all__ = [
    "MESH_SUFFIXES",
    "PHOTO_SUFFIXES",
    "VIDEO_SUFFIXES",
    "Cameras",
    "Frame",
    "MeshSceneConfig",
    "Normalization",
    "PhotoCache",
    "PhotoSceneConfig",
    "ProceduralConfig",
    "Scene",
    "SceneFormat",
    "ShardConfig",
    "UsageError",
    "UserError",
    "Views",
    "bundled_scenes",
    "check_free",
    "draw_count",
    "draw_views",
    "every",
    "find_meshes",
    "find_scenes",
    "fit_normalization",
    "is_plain_photos",
    "join_cameras",
    "join_views",
    "list_scenes",
    "load_mesh",
    "measure_speed",
    "open_scene",
    "procedural_batch",
    "procedural_views",
    "read_json",
    "remove_partial_scene",
    "require_open3d",
    "spread",
    "stack_views",
    "unpack_into",
    "write_atomic",
    "write_mesh_scene",
    "write_photo_scene",
    "write_procedural_scene",
    "write_scene",
    "write_shards",
]
