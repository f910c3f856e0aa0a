"""The view of the viewer in a real browser: moving about, and what the picture shows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from viewer_screen import Screen, psnr

import data
import nvs

pytestmark = pytest.mark.slow


def render(screen: Screen) -> np.ndarray:
    """What the command line's renderer shows for the camera of the picture on the screen, uint8 [h w 3]."""
    inputs = screen.ask("app.scene.photos.filter((one) => one.role === 'input').map((one) => one.i)")
    h, w = screen.ask("app.shown.size")
    model = nvs.load_model("demo")
    capture = data.open_scene(f"data/captures/{screen.ask('app.scene.name')}").normalize(inputs)
    state = model.encode(capture.load(inputs, image_size=(64, 64)))
    intrinsics = torch.tensor(screen.ask("app.shown.lens")) * torch.tensor([w, h, w, h])
    cameras = data.Cameras(torch.tensor(screen.c2w)[None].float(), intrinsics[None].float(), (h, w))
    image = next(nvs.Renderer(model, state).frames(cameras))
    return (image.permute(1, 2, 0).numpy() * 255).round().astype(np.uint8)


def position(screen: Screen) -> np.ndarray:
    return screen.c2w[:3, 3]


def test_drag_shows_what_the_camera_sees(screen: Screen) -> None:
    before, start = screen.picture(), screen.c2w
    screen.drag(0.25, 0.1)
    assert psnr(before, screen.picture()) < 30
    assert np.linalg.norm(position(screen)) == pytest.approx(np.linalg.norm(start[:3, 3]), rel=0.2)
    assert psnr(screen.picture(), render(screen)) > 40
    # What the canvas covers on the page has the shape of its picture.
    box, (h, w) = screen.page.locator(".nvs-picture").bounding_box(), screen.picture().shape[:2]
    assert box["width"] / box["height"] == pytest.approx(w / h, rel=0.01)
    assert screen.page.locator(".nvs-badge").is_hidden()


def test_wheel_right_drag_and_keys_move_as_they_say(screen: Screen) -> None:
    home = screen.c2w
    distance = screen.ask("app.camera.distance")
    screen.stage.hover()
    screen.page.mouse.wheel(0, -200)
    screen.wait(f"app.camera.distance < {distance * 0.95}")
    screen.settle()
    nearer = screen.c2w
    assert np.allclose(nearer[:3, :3], home[:3, :3], atol=0.05)
    screen.drag(0.2, 0.0, button="right")
    moved = position(screen) - nearer[:3, 3]
    assert moved @ screen.c2w[:3, 0] < -0.1
    for key, axis, sign in (("w", 2, 1), ("s", 2, -1), ("a", 0, -1), ("d", 0, 1), ("q", 1, 1), ("e", 1, -1)):
        before, axes = position(screen), screen.c2w[:3, :3]
        screen.stage.focus()
        screen.page.keyboard.down(key)
        screen.wait(f"Math.hypot(...[3, 7, 11].map((i, k) => app.camera.c2w[i] - {before.tolist()}[k])) > 0.1")
        screen.page.keyboard.up(key)
        screen.settle()
        assert sign * (position(screen) - before) @ axes[:, axis] > 0.05
    before = screen.c2w
    screen.press("ArrowRight")
    assert (position(screen) - before[:3, 3]) @ before[:3, 0] > 0.05
    screen.press("r")
    assert np.allclose(screen.c2w, home, atol=1e-6)


def test_double_click_makes_that_place_the_middle(screen: Screen) -> None:
    screen.drag(0.05, 0.0)
    old, right = position(screen), screen.c2w[:3, 0]
    box = screen.stage.bounding_box()
    screen.page.mouse.dblclick(box["x"] + 0.6 * box["width"], box["y"] + 0.5 * box["height"])
    screen.wait("app.camera.flying")
    screen.settle()
    assert (position(screen) - old) @ right > 0.05


def test_set_up_makes_the_horizon_follow(screen: Screen) -> None:
    screen.page.get_by_role("button", name="Set up").click()
    up = np.array(screen.ask("app.camera.up"))
    assert np.allclose(up, -screen.c2w[:3, 1], atol=1e-6)
    screen.press("r")
    assert np.allclose(screen.ask("app.camera.up"), screen.ask("app.scene.up"), atol=1e-6)


def test_photos_are_reached_exactly_by_thumbnail_digit_and_map(screen: Screen) -> None:
    photo = screen.ask("app.scene.photos.find((one) => one.role === 'held-out')")
    row = screen.page.locator(f'.nvs-strip li[data-photo="{photo["i"]}"]')
    assert row.inner_text().strip() == str(photo["i"])  # the number that nvs inspect and the API give it
    row.get_by_role("button", name=f"Go to photo {photo['i']}, held out").click()
    screen.wait(f"app.camera.photo === {photo['i']}")
    screen.settle()
    assert np.array_equal(screen.c2w.ravel(), photo["c2w"])
    assert row.get_by_role("button").get_attribute("aria-current") is not None
    screen.press("2")
    second = screen.page.locator(".nvs-strip li").nth(1).get_attribute("data-photo")
    assert screen.ask("app.camera.photo") == int(second or -1)
    screen.drag(0.1, 0.0)
    assert screen.ask("app.camera.photo") is None
    box = screen.page.locator(".nvs-map").bounding_box()
    x, y = screen.ask("app.map.targets.find((one) => one.photo.role === 'input').tip")[:2]
    screen.page.mouse.click(box["x"] + x, box["y"] + y)
    screen.wait("app.camera.photo !== null")


def test_quick_steps_go_on_from_the_photo_that_is_flown_to(screen: Screen) -> None:
    screen.press("1")
    screen.page.keyboard.type("]]]", delay=60)
    screen.settle()
    fourth = screen.page.locator(".nvs-strip li").nth(3).get_attribute("data-photo")
    assert screen.ask("app.camera.photo") == int(fourth)


def test_what_is_shifted_stays_under_the_pointer(new_screen: Callable[..., Screen]) -> None:
    wide = new_screen(viewport={"width": 1366, "height": 650}).open()
    box, target = wide.stage.bounding_box(), wide.ask("app.camera.target")
    assert box["width"] > 1.2 * box["height"]  # the picture, a square, is narrower
    x, y, mouse = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, wide.page.mouse
    mouse.move(x, y)
    mouse.down(button="right")
    mouse.move(x + 80, y, steps=8)
    mouse.up(button="right")
    wide.settle()
    c2w, side = wide.c2w, wide.page.locator(".nvs-picture").bounding_box()["width"]
    right, _, depth = c2w[:3, :3].T @ (np.array(target) - c2w[:3, 3])
    assert right / depth * wide.ask("app.camera.lens(1)[0]") * side == pytest.approx(
        80, abs=8
    )  # tapping takes a little


def test_help_opens_and_gives_the_focus_back(screen: Screen) -> None:
    screen.press("?")
    dialog = screen.page.get_by_role("dialog", name="Keys and gestures")
    assert dialog.is_visible()
    screen.page.keyboard.press("Escape")
    dialog.wait_for(state="detached")
    assert screen.page.evaluate("document.activeElement.className") == "nvs-stage"


def test_reload_keeps_camera_and_keyframes(screen: Screen) -> None:
    screen.drag(0.2, 0.05)
    screen.press("k")
    before = screen.c2w
    screen.page.reload()
    screen.settle()
    assert np.allclose(screen.c2w, before, atol=1e-6)
    assert screen.ask("app.path.keyframes.length") == 1


def test_two_tabs_have_cameras_of_their_own(new_screen: Callable[..., Screen]) -> None:
    first, second = new_screen().open(), new_screen().open()
    first.drag(0.3, 0.0)
    second.drag(-0.2, 0.1)
    kept = first.c2w
    assert not np.allclose(kept, second.c2w, atol=0.1)
    for one in (first, second):
        assert psnr(one.picture(), render(one)) > 40
    assert np.array_equal(first.c2w, kept)


def test_pictures_come_by_fetch_where_no_websocket_does(new_screen: Callable[..., Screen]) -> None:
    blocked = new_screen()
    blocked.page.route_web_socket(lambda url: "nvs-viewer" in url, lambda socket: socket.close())
    blocked.open()
    blocked.drag(0.2, 0.0)
    assert blocked.ask("app.connection.byFetch") is True
    assert psnr(blocked.picture(), render(blocked)) > 40


def test_phone_turns_with_one_finger_and_zooms_with_two(new_screen: Callable[..., Screen]) -> None:
    phone = new_screen(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True, device_scale_factor=2)
    phone.open()
    assert phone.page.evaluate("document.documentElement.scrollWidth") <= 390
    touch = phone.page.context.new_cdp_session(phone.page)

    def fingers(kind: str, *places: tuple[float, float]) -> None:
        points = [{"x": x, "y": y, "id": i} for i, (x, y) in enumerate(places)]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    box = phone.stage.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    scrolled, before = phone.page.evaluate("scrollY"), phone.c2w
    fingers("touchStart", (x, y))
    for step in range(1, 9):
        fingers("touchMove", (x + 10 * step, y + 4 * step))
    fingers("touchEnd")
    phone.wait("app.seq > 1")
    phone.settle()
    assert not np.allclose(phone.c2w, before, atol=0.1)
    assert phone.page.evaluate("scrollY") == scrolled
    distance = phone.ask("app.camera.distance")
    fingers("touchStart", (x - 30, y), (x + 30, y))
    for step in range(1, 7):
        fingers("touchMove", (x - 30 - 8 * step, y), (x + 30 + 8 * step, y))
    fingers("touchEnd")
    phone.wait(f"app.camera.distance < {0.6 * distance}")
    phone.settle()
