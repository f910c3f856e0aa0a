"""Procedural scenes: what pictures show, where cameras are, and that all follows from (seed, index)."""

import numpy as np
import pytest
import torch
from PIL import Image

import data
from data import ProceduralConfig, UserError, procedural_batch, procedural_views
from data.procedural import culling, rooms, textures
from data.procedural.objects import affine
from data.procedural.pictures import SIDE, load_pictures
from data.procedural.rendering import look, render, to_srgb
from data.procedural.sampling import sample
from data.procedural.scene import Light, Pattern, ProceduralScene, SceneTables, Shape, Texture
from data.procedural.shapes import Kind
from data.procedural.tracing import make_tiles

SIZE = (40, 56)
MODES = ("object", "room")


def colored(red: float, green: float, blue: float) -> Texture:
    return Texture(Pattern.GRADIENT, np.tile(np.array([red, green, blue], float), (4, 1)), np.eye(4)[:3])


def ball(center, radius: float, texture: Texture) -> Shape:
    return Shape(Kind.ELLIPSOID, affine(np.eye(3) * radius, np.array(center, float)), texture)


def picture(look_at, shapes, lights=(), ambient=1.0, eye=(2.5, 1.0, 0.8), target=(0, 0, 0), rays_per_side=2):
    """Colour [3 h w], alpha [h w] and the camera of a 64 x 96 picture."""
    scene = ProceduralScene(tuple(shapes), tuple(lights), np.full((2, 3), ambient))
    c2w = torch.tensor(look_at(eye, target), dtype=torch.float32)[None, None]
    cameras = data.Cameras(c2w, torch.tensor([[[90.0, 95.0, 50.0, 30.0]]]), (64, 96))
    color, alpha = render(SceneTables.stack([scene]), cameras, rays_per_side)
    return color[0, 0], alpha[0, 0, 0], cameras


@pytest.mark.parametrize("mode", MODES)
def test_views_follow_from_seed_and_index_alone(mode):
    config = ProceduralConfig(mode=mode, seed=3)
    batch = procedural_batch(config, [8, 2**40, 5], 3, SIZE)
    other = procedural_batch(config, [5, 8], 4, SIZE)
    assert torch.equal(batch.images[2], other.images[0, :3])
    alone = procedural_views(config, 8, 2, SIZE)
    for given, expected in ((alone, batch), (alone, other)):
        index = 0 if expected is batch else 1
        for name in ("images", "alpha", "c2w", "intrinsics"):
            assert torch.equal(getattr(given, name), getattr(expected, name)[index, :2]), name
    assert not torch.equal(batch.images[0], batch.images[2])
    assert not torch.equal(procedural_views(ProceduralConfig(mode=mode, seed=4), 8, 2, SIZE).images, alone.images)


def test_threads_do_not_change_a_bit():
    config, before = ProceduralConfig(), torch.get_num_threads()
    one = procedural_batch(config, [1, 2], 1, (24, 24)).images
    try:
        torch.set_num_threads(2)
        assert torch.equal(procedural_batch(config, [1, 2], 1, (24, 24)).images, one)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("mode", MODES)
def test_looking_for_candidates_first_changes_nothing(mode, monkeypatch):
    config = ProceduralConfig(mode=mode)
    quick = procedural_batch(config, range(10), 2, SIZE)
    monkeypatch.setattr(culling.Reach, "toward", lambda self, n: torch.full_like(n[0] + self.height, 1e9))
    monkeypatch.setattr(culling, "_in_front", lambda tables, tiles, shapes: torch.ones_like(shapes, dtype=torch.bool))
    monkeypatch.setattr(culling, "_foremost_planes", lambda height, corners, is_plane: is_plane)
    assert torch.equal(quick.images, procedural_batch(config, range(10), 2, SIZE).images)


def test_a_ball_is_where_the_camera_projects_it(look_at):
    center = np.array([0.3, -0.4, 0.2])
    _, alpha, cameras = picture(look_at, [ball(center, 0.08, colored(1, 1, 1))])
    x, y, z = (np.linalg.inv(cameras.c2w[0, 0].double().numpy()) @ [*center, 1])[:3]
    columns, rows = np.meshgrid(np.arange(96) + 0.5, np.arange(64) + 0.5)
    weights = alpha.numpy() / alpha.sum().item()
    assert (weights * columns).sum() == pytest.approx(90 * x / z + 50, abs=0.1)
    assert (weights * rows).sum() == pytest.approx(95 * y / z + 30, abs=0.1)
    assert alpha.sum().item() == pytest.approx(np.pi * 0.08**2 * 90 * 95 / z**2, rel=0.03)


def test_what_is_nearer_covers_what_is_behind(look_at):
    red, blue = ball((0.6, 0, 0), 0.3, colored(1, 0, 0)), ball((-0.6, 0, 0), 0.3, colored(0, 0, 1))
    for eye, sign in (((3, 0, 0), 1), ((-3, 0, 0), -1)):
        color, alpha, _ = picture(look_at, [blue, red], eye=eye)
        assert alpha[30, 50] == 1
        assert sign * (color[0, 30, 50] - color[2, 30, 50]) > 0.9


def test_light_and_shadow_have_their_strength(look_at):
    floor = Shape(Kind.HALFSPACE, affine(np.eye(3), np.array([0, 0, -0.5])), colored(0.5, 0.4, 0.2))
    sun = Light(np.array([0, 0, 1.0, 0]), np.array([0.6, 0.6, 0.6]), 0.0)
    shapes = [floor, ball((0, 0, 0.6), 0.3, colored(1, 1, 1))]
    color, _, _ = picture(look_at, shapes, [sun], ambient=0.4, eye=(2.0, 0.1, 0.4), target=(0, 0, -0.5))
    # The middle of the picture looks at the point below the ball.
    base = torch.tensor([0.5, 0.4, 0.2])
    torch.testing.assert_close(color[:, 30, 50], to_srgb(base * 0.4), rtol=0, atol=2e-3)
    torch.testing.assert_close(color[:, 60, 90], to_srgb(base), rtol=0, atol=2e-3)
    lamp = Light(np.array([0, 0, 1.0, 1]), np.array([0.6, 0.6, 0.6]), 0.0)
    color, *_ = picture(look_at, shapes[:1], [lamp], ambient=0.4, eye=(2.0, 0.1, 0.4), target=(0, 0, -0.5))
    torch.testing.assert_close(color[:, 30, 50], to_srgb(base * (0.4 + 0.6 * 3 / (1.5**2 + 0.75))), rtol=0, atol=2e-3)


def test_soft_shadows_have_half_lit_edges(look_at):
    floor = Shape(Kind.HALFSPACE, affine(np.eye(3), np.array([0, 0, -0.5])), colored(0.5, 0.5, 0.5))
    dark, full = to_srgb(torch.tensor(0.5 * 0.4)), to_srgb(torch.tensor(0.5))
    edges = []
    for softness in (0.0, 0.3):
        sun = Light(np.array([0, 0, 1.0, 0]), np.full(3, 0.6), softness)
        shapes = [floor, ball((0, 0, 0.2), 0.3, colored(1, 1, 1))]
        color, *_ = picture(look_at, shapes, [sun], ambient=0.4, eye=(1.2, 0, 0.2), target=(0.3, 0, -0.5))
        between = (color[0] > dark + 0.02) & (color[0] < full - 0.02) & (color[0] - color[2]).abs().lt(1e-6)
        edges.append(between[30:].sum().item())
    assert edges[1] > 2 * edges[0]


def test_four_rays_a_pixel_come_near_to_many():
    few = procedural_batch(ProceduralConfig(), range(6), 2, SIZE)
    many = procedural_batch(ProceduralConfig(rays_per_side=8), range(6), 2, SIZE)
    assert few.alpha is not None and many.alpha is not None
    assert torch.equal((few.alpha * 4).round(), few.alpha * 4)
    assert few.alpha.mean().item() == pytest.approx(many.alpha.mean().item(), rel=5e-3)
    edges = (many.alpha > 0) & (many.alpha < 1)
    assert (few.alpha - many.alpha).abs()[edges].mean() < 0.12
    inside = many.alpha == 1
    assert (few.alpha[inside] == 1).double().mean() > 0.999
    assert (few.images - many.images).abs().mean() < 0.01


def test_objects_fill_their_radius():
    config = ProceduralConfig(radius_range=(0.95, 1.0), cut_share=0.0, ground_share=0.5)
    for index in range(12):
        made = sample(config, index, 8)
        c2w = torch.tensor(made.c2w, dtype=torch.float32)
        tiles = make_tiles(c2w, torch.tensor([[40.0, 40.0, 24.0, 24.0]]).expand(8, 4), (48, 48), 1)
        surface, _ = look(SceneTables.stack([made.scene]), tiles, torch.zeros(8, dtype=torch.long))
        distance = torch.stack(surface.point, -1).norm(dim=-1) * surface.mine
        assert 0.85 < distance.max() < 1.01


def test_cameras_are_around_objects_and_face_them():
    for index in range(20):
        made = sample(ProceduralConfig(aim_jitter=0.0), index, 6)
        distance = np.linalg.norm(made.c2w[:, :3, 3], axis=1)
        assert ((distance >= 2.5) & (distance <= 2.9)).all()
        np.testing.assert_allclose(made.c2w[:, :3, 2], -made.c2w[:, :3, 3] / distance[:, None], atol=1e-9)
        elevation = np.degrees(np.arcsin(made.c2w[:, 2, 3] / distance))
        assert ((elevation > -30.001) & (elevation < 80.001)).all()
        assert np.abs(made.c2w[:, 2, 0]).max() < 1e-9
        assert 35 <= made.fov <= 60


def test_rooms_hold_their_cameras():
    config = ProceduralConfig(mode="room")
    for index in range(15):
        made = sample(config, index, 4)
        clearance = rooms._clearance(made.scene, made.c2w[:, :3, 3])
        assert clearance.min() > 0
        for shape in made.scene.shapes:
            if shape.kind == Kind.HALFSPACE:
                outward = np.linalg.inv(shape.pose)
                assert (made.c2w[:, :3, 3] @ outward[2, :3] + outward[2, 3]).min() > 0.1
    views = procedural_batch(config, range(4), 2, SIZE)
    assert views.alpha is not None and bool((views.alpha == 1).all())


@pytest.mark.parametrize("mode", MODES)
def test_pictures_are_lively_and_never_black(mode):
    views = procedural_batch(ProceduralConfig(mode=mode), range(100, 124), 1, (32, 32))
    assert views.alpha is not None
    assert not views.images.isnan().any()
    assert views.images.min() >= 0 and views.images.max() <= 1
    seen = views.images.movedim(2, -1)[views.alpha[:, :, 0] == 1]
    assert (seen.amax(-1) < 0.05).double().mean() < 0.02
    assert seen.std(0).min() > 0.15
    torch.testing.assert_close(
        views.images[views.alpha.expand_as(views.images) == 0].mean().nan_to_num(1.0).item(), 1.0
    )


def test_background_lies_behind_the_alpha():
    black = procedural_views(ProceduralConfig(background=(0.0, 0.0, 0.0)), 4, 2, SIZE)
    white = procedural_views(ProceduralConfig(), 4, 2, SIZE)
    assert white.alpha is not None and black.alpha is not None
    assert torch.equal(white.alpha, black.alpha)
    torch.testing.assert_close(white.images - black.images, (1 - white.alpha).expand(-1, 3, -1, -1))
    assert white.world_to_scene is not None and torch.equal(white.world_to_scene, torch.eye(4, dtype=torch.float64))


def test_noise_is_even_smooth_and_periodic():
    volume = textures.noise_volume(torch.device("cpu"))
    assert volume.mean().item() == pytest.approx(0.5, abs=1e-4)
    assert np.histogram(volume.numpy(), 10, (0, 1))[0].std() < 2
    points = tuple(torch.rand(3, 500, generator=torch.Generator().manual_seed(0)) * 30 - 15)
    value = textures.noise_at(points)  # type: ignore[arg-type]
    again = textures.noise_at((points[0] + 8, points[1] - 16, points[2]))
    torch.testing.assert_close(again, value, atol=1e-4, rtol=0)
    beside = textures.noise_at((points[0] + 1e-3, points[1], points[2]))
    assert (beside - value).abs().max() < 0.02


def test_colours_pass_through_the_palette():
    palette = torch.rand(1, 4, 3)
    values = torch.tensor([[0.0, 1.0, 2.0, 3.0, 4.0, 2.5]])
    found = torch.stack(textures.blend(values, palette), -1)[0]
    torch.testing.assert_close(found[:4], palette[0])
    torch.testing.assert_close(found[4], palette[0, 0])
    torch.testing.assert_close(found[5], palette[0, 2:].mean(0))


@pytest.fixture
def pictures(tmp_path):
    """A folder with a picture that is red on the left and green on the right, and a file that is no picture."""
    pixels = np.zeros((SIDE, SIDE, 3), np.uint8)
    pixels[:, : SIDE // 2, 0], pixels[:, SIDE // 2 :, 1] = 255, 255
    Image.fromarray(pixels).save(tmp_path / "a.png")
    (tmp_path / "notes.txt").write_text("no picture")
    return tmp_path


def test_pictures_become_textures(pictures):
    atlas = load_pictures(str(pictures), torch.device("cpu"))
    u = torch.tensor([[0.1, 0.4, 0.6, 0.9, 1.1, -0.1]])
    zero, one = torch.zeros_like(u), torch.ones_like(u)
    for spacing in (1e-4, 0.02):
        red, green, blue = atlas.look_up(
            torch.tensor([0]), (u, zero + 0.5, zero), (zero, zero, one), torch.tensor([[spacing]])
        )
        torch.testing.assert_close(red, torch.tensor([[1.0, 1, 0, 0, 0, 1]]), atol=0.02, rtol=0)
        torch.testing.assert_close(green, 1 - red, atol=0.02, rtol=0)
        assert blue.max() == 0
    config = ProceduralConfig(pictures=str(pictures), picture_share=1.0)
    views = procedural_batch(config, range(3), 2, SIZE)
    seen = views.images.movedim(2, -1)[views.alpha[:, :, 0] == 1]  # type: ignore[index]
    reddish = (seen[:, 0] > 2 * seen[:, 1]) & (seen[:, 0] > 2 * seen[:, 2])
    greenish = (seen[:, 1] > 2 * seen[:, 0]) & (seen[:, 1] > 2 * seen[:, 2])
    assert (reddish | greenish).double().mean() > 0.8
    assert reddish.any() and greenish.any()


def test_folders_without_usable_pictures_are_refused(tmp_path, pictures):
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/b.jpg").write_bytes(b"\xff\xd8 broken")
    for name, words in (("none", "cannot be read"), ("empty", "holds no pictures"), ("broken", "b.jpg cannot be read")):
        with pytest.raises(UserError, match=words):
            procedural_views(ProceduralConfig(pictures=str(tmp_path / name)), 0, 1, (8, 8))


@pytest.mark.parametrize(
    "settings",
    [
        {"mode": "street"},
        {"seed": -1},
        {"rays_per_side": 0},
        {"shapes": (0, 3)},
        {"shapes": (5, 3)},
        {"lights": (1, 9)},
        {"fov_range": (60.0, 35.0)},
        {"elevation_range": (-100.0, 0.0)},
        {"cut_share": 1.5},
        {"background": (2.0, 0.0, 0.0)},
        {"distance_range": (1.0, 2.0)},
    ],
)
def test_settings_that_cannot_work_are_refused(settings):
    with pytest.raises(UserError, match=r"give|choose|raise"):
        ProceduralConfig(**settings)


@pytest.mark.parametrize(
    ("indices", "views", "size"), [([], 1, SIZE), ([-1], 1, SIZE), ([0], 0, SIZE), ([0], 1, (0, 8))]
)
def test_requests_that_cannot_work_are_refused(indices, views, size):
    with pytest.raises(UserError, match="give at least"):
        procedural_batch(ProceduralConfig(), indices, views, size)


def test_speed_is_measured():
    speed = data.measure_speed(ProceduralConfig(), (16, 16), views=2, scenes=1, seconds=0.01)
    assert speed.views_per_second > 0 and speed.views_per_cpu_second > 0
