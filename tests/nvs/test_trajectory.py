"""Camera paths: laws that hold for any path, keyframes with awkward quaternions, path files and bad input."""

import json
import math

import pytest
import torch

from data import Cameras, UserError
from nvs import trajectory
from nvs.interpolation import orthonormal, slerp, to_matrix, to_quaternion

SETS = ["A_orbit_where_w_changes_sign", "C_exact_half_turn_pair", "D_repeated_keyframe", "E_orbit_across_360_to_0"]


def cameras_at(c2w, focal=60.0, size=(48, 64), dtype=torch.float64):
    c2w = torch.as_tensor(c2w, dtype=dtype)
    lens = torch.tensor([focal, focal, size[1] / 2, size[0] / 2], dtype=dtype)
    return Cameras(c2w, lens.repeat(len(c2w), 1), size)


def ring(count, radius=3.0, elevation=25.0, span=360.0, dtype=torch.float64):
    """Cameras on a circle around the origin, written down independently of the code under test."""
    c2w = []
    for i in range(count):
        a, e = math.radians(span * i / count), math.radians(elevation)
        out = torch.tensor([math.cos(e) * math.cos(a), math.cos(e) * math.sin(a), math.sin(e)])
        right = torch.tensor([-math.sin(a), math.cos(a), 0.0])
        matrix = torch.eye(4)
        matrix[:3] = torch.stack([right, torch.linalg.cross(-out, right), -out, radius * out], dim=-1)
        c2w.append(matrix)
    return cameras_at(torch.stack(c2w), dtype=dtype)


def turns(c2w):
    """Degrees between neighbouring rotations, from the chord between the matrices."""
    rotation = c2w[:, :3, :3].double()
    chord = (rotation[1:] - rotation[:-1]).flatten(1).norm(dim=1)
    return torch.rad2deg(2 * torch.asin((chord / math.sqrt(8)).clamp(max=1)))


def assert_rotations(cameras):
    rotation = cameras.c2w[:, :3, :3].double()
    assert cameras.c2w.isfinite().all()
    assert (rotation.mT @ rotation - torch.eye(3)).abs().max() < 1e-5
    assert (torch.linalg.det(rotation) - 1).abs().max() < 1e-5
    assert torch.equal(cameras.c2w[:, 3], torch.tensor([0.0, 0, 0, 1]).to(cameras.c2w).expand(cameras.num_views, 4))


def keyframes(shared, name):
    sets = json.loads((shared / "cases/12-antipodal-keyframes/input/keyframes.json").read_text())["sets"]
    return cameras_at([k["c2w_opencv"] for k in sets[name]]), sets[name]


class TestAntipodalKeyframes:
    @pytest.mark.parametrize("name", SETS)
    def test_path_keeps_the_expected_turn(self, shared, name):
        expected = json.loads((shared / "cases/12-antipodal-keyframes/expected.json").read_text())[name[0]]
        given, _ = keyframes(shared, name)
        path = trajectory.interpolate(given, 10)
        assert_rotations(path)
        assert path.num_views == 10 * (given.num_views - 1) + 1
        assert (path.positions[::10] - given.positions).abs().max() < 1e-6
        assert torch.equal(path.c2w[0], given.c2w[0]) and torch.equal(path.c2w[-1], given.c2w[-1])
        total, largest = turns(path.c2w).sum().item(), turns(path.c2w).max().item()
        if "total_rotation_deg" in expected:
            assert total == pytest.approx(expected["total_rotation_deg"], abs=1e-3)
        else:
            low, high = expected["total_rotation_deg_allowed"]
            assert low - 1e-3 <= total <= high
        assert largest <= expected.get("largest_step_deg_allowed", 360)

    def test_negated_quaternions_give_the_same_cameras(self, shared):
        first, _ = keyframes(shared, SETS[0])
        _, entries = keyframes(shared, "B_same_but_every_second_quaternion_negated")
        wxyz = torch.tensor([k["quat_wxyz"] for k in entries], dtype=torch.float64)
        c2w = first.c2w.clone()
        c2w[:, :3, :3] = to_matrix(torch.nn.functional.normalize(wxyz[:, [1, 2, 3, 0]], dim=-1))
        a, b = trajectory.interpolate(first, 10), trajectory.interpolate(cameras_at(c2w), 10)
        assert turns(torch.stack([a.c2w, b.c2w], dim=1).flatten(0, 1))[::2].max() < 0.01

    def test_pause_is_a_pause(self, shared):
        given, _ = keyframes(shared, "D_repeated_keyframe")
        path = trajectory.interpolate(given, 10)
        repeated = next(i for i in range(2) if torch.equal(given.c2w[i], given.c2w[i + 1]))
        still = path.c2w[10 * repeated : 10 * repeated + 11]
        assert (still - still[:1]).abs().max() < 1e-12


class TestQuaternions:
    def test_slerp_is_the_matrix_exponential(self):
        generator = torch.Generator().manual_seed(0)
        skew = torch.randn(20, 3, 3, generator=generator, dtype=torch.float64)
        skew = skew - skew.mT
        skew *= 2.5 / skew.flatten(1).norm(dim=1)[:, None, None]
        start, end = torch.eye(3, dtype=torch.float64), torch.linalg.matrix_exp(skew)
        for t in (0.0, 0.3, 0.5, 1.0):
            turned = slerp(to_quaternion(start), -to_quaternion(end), torch.tensor([t], dtype=torch.float64))
            assert torch.allclose(to_matrix(turned), torch.linalg.matrix_exp(t * skew), atol=1e-12)

    @pytest.mark.parametrize("signs", [(1, 1, 1), (1, -1, -1), (-1, 1, -1), (-1, -1, 1)])
    def test_half_turns_survive_the_round_trip(self, signs):
        rotation = torch.diag(torch.tensor(signs).double())
        assert torch.allclose(to_matrix(to_quaternion(rotation)), rotation, atol=1e-12)

    def test_nearly_rotations_are_repaired(self):
        exact = ring(5).c2w
        bent = exact.clone()
        bent[:, :3, :3] += 1e-3 * torch.randn(5, 3, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        repaired = orthonormal(bent)
        assert_rotations(cameras_at(repaired))
        assert (repaired - exact).abs().max() < 5e-3
        assert torch.equal(orthonormal(exact), exact)


class TestInterpolate:
    def test_loop_closes_without_a_double_frame(self):
        given = ring(6)
        path = trajectory.interpolate(given, 5, loop=True)
        assert path.num_views == 30
        assert torch.equal(path.c2w[::5], given.c2w)
        closed = torch.cat([path.c2w, path.c2w[:1]])
        assert turns(closed).min() > 1e-3
        assert turns(closed).max() < 1.2 * turns(closed).mean()

    def test_keyframes_are_hit_bit_for_bit_in_float32(self):
        given = ring(4, dtype=torch.float32)
        path = trajectory.interpolate(given, 7)
        assert path.c2w.dtype == torch.float32
        assert torch.equal(path.c2w[::7], given.c2w) and torch.equal(path.intrinsics[::7], given.intrinsics)
        assert_rotations(path)

    def test_zoom_runs_evenly_between_the_focal_lengths(self):
        c2w = ring(2).c2w
        lenses = torch.tensor([[40.0, 44.0, 32.0, 24.0], [160.0, 176.0, 30.0, 26.0]], dtype=torch.float64)
        path = trajectory.interpolate(Cameras(c2w, lenses, (48, 64)), 2)
        assert torch.allclose(path.intrinsics[1], torch.tensor([80.0, 88.0, 31.0, 25.0]).double())

    def test_smooth_paths_have_no_kink_and_hit_the_keyframes(self):
        keys, n = ring(5), 50
        smooth = trajectory.interpolate(keys, n, loop=True, smoothness=1.0)
        assert torch.equal(smooth.c2w[::n], keys.c2w)
        for positions, kink in ((smooth.positions, False), (trajectory.interpolate(keys, n, True).positions, True)):
            before, after = positions[n] - positions[n - 1], positions[n + 1] - positions[n]
            assert ((before - after).norm() > 0.1 * before.norm()) == kink
        # The middle of a Catmull-Rom segment, and for rotations about one axis the middle of the turn.
        corners = keys.positions[[0, 1, 2, 3]] * torch.tensor([[-1.0], [9.0], [9.0], [-1.0]]).double() / 16
        assert torch.allclose(smooth.positions[n + n // 2], corners.sum(0))
        middle = ring(10).c2w[3, :3, :3]
        assert torch.allclose(smooth.c2w[n + n // 2, :3, :3], middle, atol=1e-6)

    def test_smoothness_blends_with_the_straight_path(self):
        keys = ring(4, span=180)
        straight, half, smooth = (trajectory.interpolate(keys, 8, smoothness=s).positions for s in (0.0, 0.5, 1.0))
        assert torch.allclose(half, (straight + smooth) / 2)
        assert torch.equal(half[-1], keys.positions[-1])
        with pytest.raises(UserError, match="smoothness"):
            trajectory.interpolate(keys, 8, smoothness=1.5)

    def test_one_camera_stays_one(self):
        given = ring(3).select(0)
        assert trajectory.interpolate(given, 10).num_views == 1
        closed = trajectory.interpolate(given, 4, loop=True)
        assert torch.allclose(closed.c2w, given.c2w.expand(4, 4, 4), atol=1e-6)

    def test_arguments_are_left_alone(self):
        given = ring(3)
        before = given.c2w.clone()
        trajectory.interpolate(given, 3)
        trajectory.turntable(given, 3, zoom=2.0)
        assert torch.equal(given.c2w, before) and given.intrinsics[0, 0] == 60.0


class TestOrbit:
    def test_follows_the_cameras_it_is_made_from(self):
        given = ring(8, radius=2.5, elevation=30.0, span=180.0, dtype=torch.float32)
        path = trajectory.orbit(given, 36)
        assert_rotations(path)
        assert torch.allclose(path.positions.norm(dim=-1), torch.tensor(2.5), atol=1e-4)
        assert torch.allclose(path.positions[:, 2], torch.tensor(2.5 * math.sin(math.radians(30))), atol=1e-4)
        assert torch.allclose(path.c2w[0], given.c2w[0], atol=1e-4)
        assert torch.allclose(path.forward, -path.positions / 2.5, atol=1e-4)
        assert path.c2w[:, 2, 0].abs().max() < 1e-4, "the horizon is level"
        assert torch.equal(path.intrinsics[5], given.intrinsics[0])

    def test_closes_with_equal_steps(self):
        path = trajectory.orbit(ring(5), 24)
        steps = turns(torch.cat([path.c2w, path.c2w[:1]]))
        assert torch.allclose(steps, steps[:1].expand(24), atol=1e-6)

    @pytest.mark.parametrize("elevation", [-90.0, -89.9, 0.0, 89.9, 90.0])
    def test_is_safe_at_the_poles(self, elevation):
        path = trajectory.orbit(None, 90, radius=2.0, elevation=elevation)
        assert_rotations(path)
        assert turns(torch.cat([path.c2w, path.c2w[:1]])).max() < 4.01

    def test_needs_nothing_but_radius_and_elevation(self):
        path = trajectory.orbit(None, 4, radius=2.0, elevation=0.0, fov=90.0, image_size=(20, 40))
        assert torch.allclose(path.positions[0], torch.tensor([2.0, 0, 0]), atol=1e-6)
        assert torch.allclose(path.positions[1], torch.tensor([0.0, 2, 0]), atol=1e-6)
        assert path.intrinsics[0].tolist() == pytest.approx([20, 20, 20, 10])

    def test_finds_centre_and_up_of_a_tilted_world(self):
        axis = torch.tensor([[1.0, 0, 0], [0, 0.6, -0.8], [0, 0.8, 0.6]], dtype=torch.float64)
        world = torch.eye(4, dtype=torch.float64)
        world[:3, :3], world[:3, 3] = 3 * axis, torch.tensor([100.0, -20, 7])
        given = ring(6, elevation=40.0, span=200.0)
        moved = trajectory.orbit(given.transform(world), 12)
        assert torch.allclose(moved.c2w, trajectory.orbit(given, 12).transform(world).c2w, atol=1e-6)


class TestTurntable:
    def test_turns_the_first_camera_and_zooms_half_way(self):
        given = ring(6, elevation=20.0)
        tilted = given.c2w.clone()
        tilted[0, :3, :2] = tilted[0, :3, [1, 0]] * torch.tensor([1.0, -1.0])
        path = trajectory.turntable(cameras_at(tilted), 40, zoom=2.0, centre=(0, 0, 0), up=(0, 0, 1))
        assert_rotations(path)
        assert torch.equal(path.c2w[0], tilted[0])
        half_turn = torch.diag(torch.tensor([-1.0, -1, 1, 1]).double())
        assert torch.allclose(path.c2w[20], half_turn @ tilted[0], atol=1e-12)
        assert path.intrinsics[[0, 20], 0].tolist() == pytest.approx([60.0, 120.0])
        assert (path.intrinsics[1:20, 0] - path.intrinsics[21:, 0].flip(0)).abs().max() < 1e-9


class TestSpiral:
    def forward_facing(self):
        c2w = torch.eye(4, dtype=torch.float64).repeat(9, 1, 1)
        grid = torch.tensor([-0.3, 0.0, 0.3], dtype=torch.float64)
        c2w[:, :2, 3] = torch.cartesian_prod(grid, grid)
        return cameras_at(c2w)

    def test_stays_near_the_cameras_and_looks_ahead(self):
        path = trajectory.spiral(self.forward_facing(), 60)
        assert_rotations(path)
        assert path.positions[:, :2].abs().max() == pytest.approx(0.3, abs=0.01)
        assert path.forward[:, 2].min() > 0.9
        assert turns(torch.cat([path.c2w, path.c2w[:1]])).max() < 10

    def test_aims_at_the_point_that_the_cameras_look_at(self):
        arc = ring(12, radius=4.0, elevation=0.0, span=60.0)
        path = trajectory.spiral(arc, 30)
        across = torch.linalg.cross(path.forward, -path.positions).norm(dim=-1)
        assert across.max() < 0.15, "axes pass the middle of the scene"

    @pytest.mark.parametrize("count", [1, 3])
    def test_works_with_one_place(self, count):
        path = trajectory.spiral(cameras_at(torch.eye(4).repeat(count, 1, 1)), 10)
        assert_rotations(path)
        assert (path.positions.amax(0) - path.positions.amin(0)).min() > 1e-3


class TestLookAt:
    def test_is_level_and_aims(self):
        given = ring(24, elevation=35.0)
        assert torch.allclose(trajectory.look_at(given.positions, torch.zeros(3)), given.c2w, atol=1e-6)

    @pytest.mark.parametrize("miss", [0.0, 1e-9, 1e-3, 0.02, 0.1])
    def test_never_jumps_on_the_way_over_the_pole(self, miss):
        angle = torch.linspace(-1.2, 1.2, 181, dtype=torch.float64)
        positions = torch.stack([angle.sin(), torch.full_like(angle, miss), angle.cos()], dim=-1)
        c2w = trajectory.look_at(positions, torch.zeros(3))
        assert_rotations(cameras_at(c2w))
        step = math.degrees(2.4 / 180)
        assert turns(c2w).max() < (1 + trajectory.MAX_ROLL_PER_TURN) * step * 1.01
        assert c2w[-1, 2, 0].abs() < 1e-6 and c2w[-1, 2, 1] < 0, "level again, not upside down"

    def test_starts_at_the_pole(self):
        positions = torch.tensor([[0.0, 0, 2], [0.01, 0, 2], [0.02, 0, 2]])
        c2w = trajectory.look_at(positions, torch.zeros(3))
        assert_rotations(cameras_at(c2w))
        assert turns(c2w).max() < 3

    def test_targets_may_move(self):
        positions, targets = torch.zeros(3, 3), torch.tensor([[1.0, 0, 0], [0, 1.0, 0], [-1.0, 0, 0]])
        assert torch.allclose(trajectory.look_at(positions, targets)[:, :3, 2].float(), targets, atol=1e-6)


class TestPathFiles:
    def test_reads_a_viewer_path(self, shared):
        folder = shared / "cases/11-odd-size-video"
        expected = json.loads((folder / "expected.json").read_text())
        path = trajectory.read_path(folder / "input/camera_path.json")
        assert path.cameras.num_views == expected["frames"] and path.fps == expected["fps"] and not path.loop
        assert path.cameras.image_size == (35, 61) == tuple(expected["png_size"][::-1])
        assert path.cameras.intrinsics[3].tolist() == pytest.approx([expected[k] for k in ("fx", "fy", "cx", "cy")])
        first = json.loads((folder / "input/camera_path.json").read_text())["camera_path"][0]["camera_to_world"]
        opengl = torch.tensor(first, dtype=torch.float64).reshape(4, 4)
        assert torch.allclose(path.cameras.c2w[0, :3, 1:3], -opengl[:3, 1:3], atol=1e-8)
        assert torch.equal(path.cameras.positions[0], opengl[:3, 3])
        assert_rotations(path.cameras)

    @pytest.mark.parametrize("layout", ["nvs", "nerfstudio"])
    def test_round_trip(self, tmp_path, layout):
        given = ring(5)
        given = Cameras(given.c2w, given.intrinsics.clone(), given.image_size)
        given.intrinsics[2, :2] = 77.0
        trajectory.save(tmp_path / "path.json", given, fps=12.5, loop=True, layout=layout)
        path = trajectory.read_path(tmp_path / "path.json")
        assert (path.fps, path.loop, path.cameras.image_size) == (12.5, True, (48, 64))
        assert torch.allclose(path.cameras.c2w, given.c2w, atol=1e-12)
        assert torch.allclose(path.cameras.intrinsics, given.intrinsics, atol=1e-9)
        assert torch.equal(trajectory.load(tmp_path / "path.json").c2w, path.cameras.c2w)

    def test_large_coordinates_survive(self, tmp_path):
        given = ring(4)
        given.c2w[:, :3, 3] += torch.tensor([5e5, 5e6, 100.0])
        trajectory.save(tmp_path / "path.json", given)
        assert torch.equal(trajectory.load(tmp_path / "path.json").positions, given.positions)

    def test_keyframes_in_our_layout_are_interpolated(self, tmp_path):
        given = ring(4)
        trajectory.save(tmp_path / "path.json", given, loop=True)
        content = json.loads((tmp_path / "path.json").read_text())
        content |= {"keyframes": content.pop("frames"), "frames_per_segment": 6, "smoothness": 0.5}
        (tmp_path / "path.json").write_text(json.dumps(content))
        assert torch.allclose(
            trajectory.load(tmp_path / "path.json").c2w, trajectory.interpolate(given, 6, True, smoothness=0.5).c2w
        )
        (tmp_path / "path.json").write_text(json.dumps({**content, "num_frames": 7}))
        spread = trajectory.spread(given, 7, True, smoothness=0.5)
        assert torch.equal(trajectory.load(tmp_path / "path.json").c2w, spread.c2w)

    @pytest.mark.parametrize("loop", [False, True])
    @pytest.mark.parametrize("smoothness", [0.0, 1.0])
    def test_spread_takes_even_steps_of_the_interpolated_path(self, loop, smoothness):
        given = ring(4)
        dense = trajectory.interpolate(given, 15, loop, smoothness)
        frames, step = (15, 4) if loop else (16, 3)
        found = trajectory.spread(given, frames, loop, smoothness)
        assert torch.allclose(found.c2w, dense.c2w[::step], atol=1e-6)
        assert torch.allclose(found.intrinsics, dense.intrinsics[::step], atol=1e-5)
        assert torch.equal(found.c2w[0], given.c2w[0])
        assert trajectory.spread(given, 1, loop, smoothness).num_views == 1
        assert trajectory.spread(given.select([2]), 3, loop, smoothness).num_views == 3

    def test_reads_the_views_of_a_capture(self, shared):
        file = shared / "cases/11-odd-size-video/input/transforms.json"
        frame = json.loads(file.read_text())["frames"][2]["transform_matrix"]
        cameras = trajectory.load(file)
        assert cameras.num_views == 8 and cameras.image_size == (48, 64)
        assert cameras.intrinsics[2].tolist() == [62.0, 62.0, 32.0, 24.0]
        assert torch.allclose(cameras.forward[2], -torch.tensor(frame, dtype=torch.float64)[:3, 2], atol=1e-8)

    def test_an_off_centre_lens_does_not_fit_the_viewer_layout(self, tmp_path):
        given = Cameras(ring(1).c2w, torch.tensor([[60.0, 60, 20, 24]]), (48, 64))
        with pytest.raises(UserError, match="principal point"):
            trajectory.save(tmp_path / "path.json", given, layout="nerfstudio")
        assert not list(tmp_path.iterdir())


def viewer_path(**changes):
    entry = {"camera_to_world": torch.eye(4).flatten().tolist(), "fov": 50.0, "aspect": 1.0}
    content = {"render_height": 8, "render_width": 8, "fps": 10, "camera_path": [entry]}
    for name, value in changes.items():
        target = entry if name in entry else content
        target[name] = value
    return content


class TestBadInput:
    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("{", "not valid JSON"),
            ("[]", "not a camera path"),
            ('{"frames": []}', "not a camera path"),
            (json.dumps(viewer_path(camera_path=[])), "no cameras"),
            (json.dumps(viewer_path(camera_type="fisheye")), "perspective"),
            (json.dumps(viewer_path(fov=180.0)), "between 0 and 180"),
            (json.dumps(viewer_path(fov="wide")), "wrong type"),
            (json.dumps(viewer_path(fps=-1)), "more than 0"),
            (json.dumps(viewer_path(render_width=7.5)), "whole and positive"),
            (json.dumps(viewer_path(camera_to_world=[1.0] * 15)), "15 numbers"),
            (json.dumps(viewer_path(camera_to_world=[0.0] * 15 + [1.0])), "not rotations"),
            (json.dumps(viewer_path(camera_to_world=[float("nan")] * 12 + [0.0, 0.0, 0.0, 1.0])), "NaN"),
            (json.dumps(viewer_path(camera_to_world=[*torch.eye(4).flatten().tolist()[:12], 1.0, 2, 3, 1])), "row by"),
            (
                json.dumps({k: v for k, v in viewer_path().items() if k != "render_height"}),
                "'render_height' is missing",
            ),
            ('{"format": "nvs-camera-path", "image_size": [4, 4], "frames": []}', "no cameras"),
            ('{"format": "nvs-camera-path", "image_size": [4], "frames": []}', "wrong type"),
            (json.dumps(viewer_path(render_width=float("inf"))), "whole and positive"),
            (json.dumps(viewer_path(fps=10**400)), "infinite or too large"),
            (
                '{"format": "nvs-camera-path", "image_size": [4, 4], "frames_per_segment": Infinity, "keyframes": '
                '[{"c2w": [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0], "intrinsics": [1, 1, 2, 2]}]}',
                "infinite or too large",
            ),
            ("[" * 100_000, "not valid JSON"),
            ('{"camera_path": ' + "[" * 400 + "]" * 400 + ', "render_height": 8, "render_width": 8}', "wrong type"),
        ],
    )
    def test_path_files(self, tmp_path, content, message):
        (tmp_path / "path.json").write_text(content)
        with pytest.raises(UserError, match=message):
            trajectory.load(tmp_path / "path.json")

    def test_missing_and_unreadable_files(self, tmp_path):
        with pytest.raises(UserError, match="does not exist"):
            trajectory.load(tmp_path / "none.json")
        with pytest.raises(UserError, match="cannot be read"):
            trajectory.load(tmp_path)

    @pytest.mark.parametrize(
        "call",
        [
            lambda c: trajectory.orbit(c, 0),
            lambda c: trajectory.spiral(c, 0),
            lambda c: trajectory.turntable(c, 0),
            lambda c: trajectory.interpolate(c, 0),
            lambda c: trajectory.spread(c, 0),
            lambda c: trajectory.turntable(c, 4, zoom=0.0),
            lambda c: trajectory.orbit(c, 4, radius=0.0),
            lambda c: trajectory.orbit(c, 4, up=(0, 0, 0)),
            lambda c: trajectory.orbit(None, 4),
            lambda c: trajectory.orbit(None, 4, radius=1.0, elevation=0.0, fov=190.0),
            lambda c: trajectory.interpolate(c.select([]), 4),
            lambda c: trajectory.interpolate(c.add_batch(), 4),
            lambda c: trajectory.interpolate(Cameras(c.c2w * float("nan"), c.intrinsics, c.image_size), 4),
            lambda c: trajectory.interpolate(Cameras(c.c2w, c.intrinsics * 0, c.image_size), 4),
            lambda c: trajectory.interpolate(Cameras(c.c2w * torch.tensor([-1.0, 1, 1, 1]), c.intrinsics, (4, 4)), 4),
            lambda c: trajectory.look_at(c.positions, c.positions),
            lambda c: trajectory.save("/nowhere/path.json", c, fps=0),
        ],
    )
    def test_arguments(self, call):
        with pytest.raises(UserError):
            call(ring(3))
